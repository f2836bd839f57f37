/* Softmax of a span of consecutive elements, for attention and router alike. */
#ifndef REFERENCE_SOFTMAX_H
#define REFERENCE_SOFTMAX_H

#include "reference/value.h"

/* y = exp(x - max) / sum over elements [at, at + n). */
void softmax_span(const struct arithmetic *m, const struct value *x, int64_t at, int64_t n, struct value *y);
/* dx = y * (dy - sum y dy). */
void softmax_gradient_span(const struct arithmetic *m, const struct value *y, const struct value *dy, int64_t at,
                           int64_t n, struct value *dx);

#endif
