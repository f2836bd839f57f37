/* Linear maps y = W x (+ bias) and their gradients; W [out,in]. */
#ifndef REFERENCE_LINEAR_H
#define REFERENCE_LINEAR_H

#include "reference/value.h"

/* One factor of a product: element (i, l) at i*row + l*column. e NULL: exact. */
struct factor {
    const double *x, *e;
    int64_t row, column;
};

/* sum over l < k of a(i,l) * b(j,l). */
struct product {
    int64_t k;
    struct factor a, b;
};

/* Elements [at, at + n) of a value as a factor; its e is left out where all of it is 0. */
struct factor factor_of(const struct value *value, int64_t at, int64_t n, int64_t row, int64_t column);
/* out[at + i*columns + j] = the sum of all products, one chain over all their terms. */
void value_products(const struct arithmetic *m, int count, const struct product *products, int64_t rows,
                    int64_t columns, struct value *out, int64_t at);

/* out [..., out] of x [..., in]; the product, then + bias [out] (NULL: none). */
enum status value_linear(const struct arithmetic *m, const struct value *x, const struct value *weight,
                         const struct value *bias, struct value *out);
/* out [..., in] = sum over the maps of dy[i] @ weight[i], one chain. */
enum status value_linear_input_gradient(const struct arithmetic *m, int maps, const struct value *const *dy,
                                        const struct value *const *weight, struct value *out);
/* out [out,in] = sum over rows of dy x. */
enum status value_linear_weight_gradient(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                         struct value *out);
/* out [out] = sum over rows of dy. */
enum status value_linear_bias_gradient(const struct arithmetic *m, const struct value *dy, struct value *out);
/* out = a + b, element by element. */
enum status value_add(const struct arithmetic *m, const struct value *a, const struct value *b, struct value *out);

#endif
