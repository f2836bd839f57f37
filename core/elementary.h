/* exp, log, sin and cos from + - * / and fma alone, within 1 ulp in float32 and float64 (tested against MPFR).
 *
 * libm's variants differ between CPUs and versions; these give the same bits on every machine, so that ranks on
 * different machines (and later GPUs) agree. The reference uses libm instead: the judge shares no arithmetic with the
 * subject. Domain of sin and cos: |x| <= 1e6 (rotary angles, position * frequency); beyond it the bound is not
 * promised. */
#ifndef CORE_ELEMENTARY_H
#define CORE_ELEMENTARY_H

double elementary_exp(double x);
double elementary_log(double x);
double elementary_sin(double x);
double elementary_cos(double x);
float elementary_expf(float x);
float elementary_logf(float x);
float elementary_sinf(float x);
float elementary_cosf(float x);

#endif
