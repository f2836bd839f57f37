#include "reference/norm.h"

#include "reference/bound.h"

/* The sum of squares is a sum of n products; then * (1/n), + eps, root and reciprocal round once each. */
static struct num inverse_rms(const struct arithmetic *m, const struct value *x, int64_t at, int64_t n, double eps) {
    struct sum squares = {0};
    for (int64_t i = 0; i < n; i++)
        sum_product(&squares, num_at(x, at + i), num_at(x, at + i));
    struct num share = num_exact(arithmetic_constant(m, 1.0 / (double)n));
    struct num mean = num_multiply(m, sum_close(m, &squares, n), share);
    struct num shifted = num_add(m, mean, num_exact(arithmetic_constant(m, eps)));
    return num_divide(m, num_exact(1), num_root(m, shifted));
}

enum status value_norm_scale(const struct arithmetic *m, const struct value *x, int64_t heads, double eps,
                             struct value *out) {
    TRY(value_new(m, out, heads ? 3 : 2, (const int64_t[]){x->shape[0], x->shape[1], heads}));
    int64_t n = heads ? value_last(x) / heads : value_last(x);
    for (int64_t i = 0, groups = m->dry ? 0 : value_elements(out); i < groups; i++)
        num_set(out, i, inverse_rms(m, x, i * n, n, eps));
    return STATUS_OK;
}

enum status value_norm(const struct arithmetic *m, const struct value *x, const struct value *scale,
                       const struct value *g, int64_t heads, struct value *out) {
    int64_t n = value_elements(g);
    TRY(value_new(m, out, heads ? 4 : 3, (const int64_t[]){x->shape[0], x->shape[1], heads ? heads : n, n}));
    for (int64_t i = 0, elements = m->dry ? 0 : value_elements(x); i < elements; i++) {
        struct num scaled = num_multiply(m, num_at(x, i), num_at(scale, i / n));
        num_set(out, i, num_multiply(m, num_at(g, i % n), scaled));
    }
    return STATUS_OK;
}

/* s*s*s*t*(1/n) of one group, multiplied from the left; t is a sum of products of (dy g), rounded once, and x. */
static struct num shared_factor(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                const struct value *g, struct num s, int64_t at, int64_t n) {
    struct sum t = {0};
    for (int64_t i = 0; i < n; i++)
        sum_product(&t, num_multiply(m, num_at(dy, at + i), num_at(g, i)), num_at(x, at + i));
    struct num cube = num_multiply(m, num_multiply(m, s, s), s);
    struct num share = num_exact(arithmetic_constant(m, 1.0 / (double)n));
    return num_multiply(m, num_multiply(m, cube, sum_close(m, &t, n)), share);
}

enum status value_norm_gradient(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                const struct value *g, const struct value *scale, const struct value *residual,
                                struct value *out) {
    TRY(value_like(m, out, x));
    int64_t n = value_elements(g);
    for (int64_t group = 0, groups = m->dry ? 0 : value_elements(scale); group < groups; group++) {
        struct num s = num_at(scale, group);
        struct num shared = shared_factor(m, dy, x, g, s, group * n, n);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = group * n + i;
            struct num direct = num_multiply(m, s, num_multiply(m, num_at(g, i), num_at(dy, at)));
            struct num dx = num_subtract(m, direct, num_multiply(m, num_at(x, at), shared));
            num_set(out, at, residual ? num_add(m, dx, num_at(residual, at)) : dx);
        }
    }
    return STATUS_OK;
}

enum status value_norm_weight_gradient(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                       const struct value *scale, int64_t n, struct value *out) {
    TRY(value_new(m, out, 1, &n));
    int64_t groups = value_elements(scale);
    for (int64_t j = 0; j < (m->dry ? 0 : n); j++) {
        struct sum sum = {0};
        for (int64_t group = 0; group < groups; group++) {
            int64_t at = group * n + j;
            sum_product(&sum, num_at(dy, at), num_multiply(m, num_at(x, at), num_at(scale, group)));
        }
        num_set(out, j, sum_close(m, &sum, groups));
    }
    return STATUS_OK;
}
