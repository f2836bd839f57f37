#include "reference/softmax.h"

#include "reference/bound.h"

/* The largest x is a constant without error: whatever is subtracted cancels in the quotient. */
void softmax_span(const struct arithmetic *m, const struct value *x, int64_t at, int64_t n, struct value *y) {
    double largest = -INFINITY;
    for (int64_t i = at; i < at + n; i++)
        largest = fmax(largest, x->x[i]);
    struct sum sum = {0};
    for (int64_t i = at; i < at + n; i++) {
        struct num power = num_exp(m, num_subtract(m, num_at(x, i), num_exact(largest)));
        sum_term(&sum, power);
        num_set(y, i, power);
    }
    struct num total = sum_close(m, &sum, n - 1);
    for (int64_t i = at; i < at + n; i++)
        num_set(y, i, num_divide(m, num_at(y, i), total));
}

void softmax_gradient_span(const struct arithmetic *m, const struct value *y, const struct value *dy, int64_t at,
                           int64_t n, struct value *dx) {
    struct sum sum = {0};
    for (int64_t i = at; i < at + n; i++)
        sum_product(&sum, num_at(y, i), num_at(dy, i));
    struct num mean = sum_close(m, &sum, n);
    for (int64_t i = at; i < at + n; i++)
        num_set(dx, i, num_multiply(m, num_at(y, i), num_subtract(m, num_at(dy, i), mean)));
}
