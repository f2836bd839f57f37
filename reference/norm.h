/* RMS norm of groups of n: y = g * (x * s), s = 1/sqrt((sum x^2)*(1/n) + eps). n is the size of g; x [..., groups*n].
 */
#ifndef REFERENCE_NORM_H
#define REFERENCE_NORM_H

#include "reference/value.h"

/* heads 0: x [B,T,n], out [B,T];  else x [B,T,heads*n], out [B,T,heads]. */
enum status value_norm_scale(const struct arithmetic *m, const struct value *x, int64_t heads, double eps,
                             struct value *out);
/* out [B,T,n], or [B,T,heads,n]. */
enum status value_norm(const struct arithmetic *m, const struct value *x, const struct value *scale,
                       const struct value *g, int64_t heads, struct value *out);
/* t = sum_j dy_j g_j x_j;  dx = s*(g*dy) - x*(s*s*s*t*(1/n)), + residual if not NULL; in the shape of x. */
enum status value_norm_gradient(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                const struct value *g, const struct value *scale, const struct value *residual,
                                struct value *out);
/* out [n]: dg_j = sum over groups of dy_j * (x_j*s). */
enum status value_norm_weight_gradient(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                       const struct value *scale, int64_t n, struct value *out);

#endif
