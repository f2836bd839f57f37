#include "reference/rotary.h"

#include "reference/bound.h"

/* Both sides make the table in double precision, v = 2^-53; the subject rounds it once more to its own dtype.
 *
 * Angle a = pos * f, f = theta^(-2i/d) = exp(-L), L = (2i/d) ln theta. Subject, by exp and log: ln theta 2v, 2i/d v,
 * their product v, so L is off by at most 4 v L; exp 2v; * pos v: a is off by (4 L + 3) v |a| to first order.
 * Reference, by pow: exponent v (so L v), pow 2v, * pos v: (L + 3) v |a|. Together (5 L + 6) v |a|; 1 more covers all
 * higher orders, as long as (5 L + 6)^2 v < 1. cos and sin have slope <= 1 and are within 1 ulp on each side. */
static struct num table_entry(const struct arithmetic *m, double x, double angle, double decay) {
    struct arithmetic wide = arithmetic_make(DTYPE_F64, false, true);
    struct num made = num_fin(&wide, x, (5 * decay + 7) * wide.u * fabs(angle), 2);
    return m->dtype == DTYPE_F64 ? made : num_fin(m, made.x, made.e + 2 * wide.u * fabs(x), 1);
}

enum status value_rotary_tables(const struct arithmetic *m, int64_t tokens, int64_t head_dim, double theta,
                                struct value *cosine, struct value *sine) {
    int64_t pairs = head_dim / 2;
    TRY(value_new(m, cosine, 2, (const int64_t[]){tokens, pairs}));
    TRY(value_new(m, sine, 2, (const int64_t[]){tokens, pairs}));
    for (int64_t i = 0; i < (m->dry ? 0 : tokens * pairs); i++) {
        double exponent = 2.0 * (double)(i % pairs) / (double)head_dim;
        double angle = (double)(i / pairs) * pow(theta, -exponent);
        double decay = exponent * fabs(log(theta));
        num_set(cosine, i, table_entry(m, cos(angle), angle, decay));
        num_set(sine, i, table_entry(m, sin(angle), angle, decay));
    }
    return STATUS_OK;
}

/* a c + b s: a sum of two products. */
static struct num turned(const struct arithmetic *m, struct num a, struct num c, struct num b, struct num s) {
    struct sum sum = {0};
    sum_product(&sum, a, c);
    sum_product(&sum, b, s);
    return sum_close(m, &sum, 2);
}

enum status value_rotary(const struct arithmetic *m, const struct value *x, const struct value *cosine,
                         const struct value *sine, bool backward, struct value *out) {
    TRY(value_like(m, out, x));
    int64_t tokens = x->shape[1], heads = x->shape[2], half = x->shape[3] / 2;
    for (int64_t row = 0, rows = m->dry ? 0 : value_rows(x); row < rows; row++) {
        int64_t token = row / heads % tokens;
        for (int64_t i = 0; i < half; i++) {
            int64_t at = row * 2 * half + i;
            struct num first = num_at(x, at), second = num_at(x, at + half);
            struct num c = num_at(cosine, token * half + i), s = num_at(sine, token * half + i);
            if (backward)
                s = num_negate(s);
            num_set(out, at, turned(m, first, c, second, num_negate(s)));
            num_set(out, at + half, turned(m, second, c, first, s));
        }
    }
    return STATUS_OK;
}
