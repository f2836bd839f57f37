/* Comparing an operation's result with its formula in long double: numbers in the dtype under test, and the bound's
 * units.
 *
 * u = 2^-53 or 2^-24, gamma(k) = k u / (1 - k u): k roundings in a row change a result by at most gamma(k) relative; a
 * sum of products of n terms is off by at most gamma(n) sum |terms|. exp and log are within 1 ulp, so 2 u. Constants
 * are taken as the dtype rounds them. Where an operation has several results, each is judged from those it was computed
 * from. */
#ifndef CASES_UNIT_OPS_FORMULA_H
#define CASES_UNIT_OPS_FORMULA_H

#include "run.h"

typedef long double real;

/* Under test; set by both_dtypes. */
extern enum dtype dtype;
extern const struct ops *ops;

/* Runs a check in both dtypes, on the best instruction set (bits.c says that the others agree), and frees what it made.
 */
void both_dtypes(void (*check)(void));

real u(void);
real gamma_of(real roundings);
real rounded(double x);
real at(const void *x, int64_t i);

/* NaN; numbers in [-2, 2); in (0, 4.001). Freed by both_dtypes. */
void *room(int64_t count);
void *made(int stream, int64_t count);
void *made_positive(int stream, int64_t count);

void close_to(const char *what, const void *got, int64_t i, real want, real bound);
void close_to_softmax(const char *what, int64_t n, const void *x, const void *y, int64_t first);

struct total { /* a sum of products, and of their sizes */
    real x, size;
};

/* sum over l < n of a[i + l * a_step] * b[j + l * b_step] */
struct total dot(const void *a, int64_t i, int64_t a_step, const void *b, int64_t j, int64_t b_step, int64_t n);

#endif
