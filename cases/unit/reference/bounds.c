/* Running bounds against real float32 arithmetic in other orders: a legal subject is never outside, and a bound is not
 * wider than what its operations can do. */
#include "reference/bound.h"
#include "reference/embedding.h"
#include "reference/linear.h"
#include "reference/loss.h"
#include "reference/norm.h"
#include "reference/softmax.h"
#include "reference/value.h"

#include "core/random.h"

#include <criterion/criterion.h>

static double uniform(uint64_t index) {
    return random_uniform(11, random_stream("bounds"), index);
}

/* ---- one operation */

struct operand {
    struct num truth;
    float held; /* within truth.e of it */
};

static struct operand operand(uint64_t index, bool exact) {
    double x = 3 * uniform(index);
    float held = (float)x;
    if (exact)
        return (struct operand){num_exact((double)held), held};
    double e = 1e-3 * fabs(uniform(index + 1));
    held = (float)(x + 0.999 * e * uniform(index + 2));
    return (struct operand){{x, e}, held};
}

static void assert_within(const char *what, struct num truth, float got, double least) {
    double error = fabs((double)got - truth.x);
    cr_assert(error <= truth.e, "%s: %g off, bound %g", what, error, truth.e);
    cr_assert(truth.e >= least, "%s: bound %g is below one rounding", what, truth.e);
}

static void try_operations(uint64_t index, bool exact) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct operand a = operand(index, exact), b = operand(index + 3, exact);
    volatile float sum = a.held + b.held, difference = a.held - b.held, product = a.held * b.held;
    volatile float quotient = a.held / b.held;
    assert_within("sum", num_add(&m, a.truth, b.truth), sum, 0);
    assert_within("difference", num_subtract(&m, a.truth, b.truth), difference, 0);
    assert_within("product", num_multiply(&m, a.truth, b.truth), product, m.u * fabs(a.truth.x * b.truth.x));
    assert_within("quotient", num_divide(&m, a.truth, b.truth), quotient, m.u * fabs(a.truth.x / b.truth.x));
    struct num positive = {fabs(a.truth.x) + 0.01, a.truth.e};
    float held = fabsf(a.held) + 0.01f;
    if (exact)
        positive.x = (double)held;
    else
        positive.e += 0x1p-22; /* the addition above */
    assert_within("root", num_root(&m, positive), sqrtf(held), m.u * sqrt(positive.x));
    assert_within("logarithm", num_log(&m, positive), (float)log((double)held), 0);
    assert_within("power", num_exp(&m, a.truth), (float)exp((double)a.held), m.u * exp(a.truth.x));
    volatile float below = 1 + (float)exp(-(double)a.held);
    volatile float sigmoid = 1 / below;
    assert_within("sigmoid", num_sigmoid(&m, a.truth), sigmoid, m.u / (1 + exp(-a.truth.x)));
}

Test(bounds, every_operation_holds_in_float32) {
    for (uint64_t i = 0; i < 20000; i++)
        try_operations(6 * i, i % 2);
}

/* By hand, u = 2^-24: 1.5 +- 2^-10 times 2.5 +- 2^-12. */
Test(bounds, product_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct num p = num_multiply(&m, (struct num){1.5, 0x1p-10}, (struct num){2.5, 0x1p-12});
    double e = 1.5 * 0x1p-12 + 2.5 * 0x1p-10 + 0x1p-22;
    cr_assert_eq(p.x, 3.75);
    cr_assert(fabs(p.e - (e + 0x1p-24 * (3.75 + e))) <= 0x1p-60);
}

Test(bounds, exact_zeros_stay_exact) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct num a = {1.25, 0.5}, zero = num_exact(0);
    struct sum sum = {0};
    cr_assert_eq(num_add(&m, a, zero).e, 0.5);
    cr_assert_eq(num_add(&m, zero, a).x, 1.25);
    cr_assert_eq(num_multiply(&m, a, zero).e, 0);
    cr_assert_eq(num_divide(&m, zero, a).e, 0);
    sum_product(&sum, a, zero);
    sum_product(&sum, zero, a);
    sum_product(&sum, zero, zero);
    cr_assert_eq(sum_close(&m, &sum, 3).e, 0.625 * 0); /* |0| * 0.5 */
}

/* x = 0 by cancellation is no exact zero: S > 0. */
Test(bounds, cancellation_has_a_bound) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct sum sum = {0};
    sum_product(&sum, num_exact(3), num_exact(1));
    sum_product(&sum, num_exact(-1), num_exact(3));
    struct num zero = sum_close(&m, &sum, 2);
    cr_assert_eq(zero.x, 0);
    cr_assert(zero.e >= 2 * m.u * 6 && zero.e <= 2.001 * m.u * 6);
}

Test(bounds, too_many_roundings_or_a_lost_divisor_bound_nothing) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    cr_assert_eq(bound_gamma(&m, 0x1p24), INFINITY);
    cr_assert_eq(num_divide(&m, num_exact(1), (struct num){0.5, 0.5}).e, INFINITY);
    cr_assert_eq(num_log(&m, (struct num){0.5, 0.5}).e, INFINITY);
}

/* ---- roundings counted by hand: what stands before u, where all inputs are exact */

static struct value vector(const struct arithmetic *m, int64_t n, const double *x) {
    struct value value;
    cr_assert_eq(value_new(m, &value, 3, (const int64_t[]){1, 1, n}), STATUS_OK);
    for (int64_t i = 0; i < n; i++)
        num_set(&value, i, num_exact(x[i]));
    return value;
}

static void assert_roundings(const char *what, const struct value *value, int64_t i, double x, double count) {
    cr_assert(fabs(value->x[i] - x) <= 1e-15, "%s: %.17g, not %.17g", what, value->x[i], x);
    cr_assert(fabs(value->e[i] * 0x1p24 - count) <= 1e-5, "%s: %g u, not %g u", what, value->e[i] * 0x1p24, count);
}

/* Four equal scores: exp(0) = 1 within 2u; their sum 4(2u) + 3u 4 = 20u; 1/4: (2u + 20u/4)/4 + u/4 = 2u. */
Test(bounds, softmax_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value x = vector(&m, 4, (const double[]){3, 3, 3, 3}), y = vector(&m, 4, x.x);
    softmax_span(&m, &x, 0, 4, &y);
    assert_roundings("softmax", &y, 2, 0.25, 2);
    value_free(&x);
    value_free(&y);
}

/* y = (1/2, 1/2), dy = (1, 2): sum y dy = 1.5 within 2u 1.5 = 3u; dy - it = -1/2 within 3.5u; times 1/2: 1.75u + u/4 =
 * 2u. */
Test(bounds, softmax_gradient_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value y = vector(&m, 2, (const double[]){0.5, 0.5}), dy = vector(&m, 2, (const double[]){1, 2}), dx;
    cr_assert_eq(value_like(&m, &dx, &y), STATUS_OK);
    softmax_gradient_span(&m, &y, &dy, 0, 2, &dx);
    assert_roundings("softmax gradient", &dx, 0, -0.25, 2);
    value_free(&y);
    value_free(&dy);
    value_free(&dx);
}

/* x = (1, 1), eps = 0: squares 2 within 4u; times 1/2: 2u + u = 3u; root: 1.5u + u; reciprocal: 3.5u. With s exact: y =
 * 1 within 2u. dy = (1, 0): dy g x = 1 within u + 2u; s^3 2u, with t 2 + 3 + 1 = 6u; times 1/2: 3u + u/2; times x: 3.5u
 * + u/2 = 4u; s (g dy) 2u; dx_0 = 1 - 1/2: 2u + 4u + u/2; dx_1 = 0 - 1/2: 4u. */
Test(bounds, norm_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value x = vector(&m, 2, (const double[]){1, 1}), dy = vector(&m, 2, (const double[]){1, 0}), s, y, dx, g = x;
    g.ndim = 1;
    g.shape[0] = 2;
    cr_assert_eq(value_norm_scale(&m, &x, 0, 0, &s), STATUS_OK);
    assert_roundings("inverse rms", &s, 0, 1, 3.5);
    s.e[0] = 0;
    cr_assert_eq(value_norm(&m, &x, &s, &g, 0, &y), STATUS_OK);
    assert_roundings("norm", &y, 1, 1, 2);
    cr_assert_eq(value_norm_gradient(&m, &dy, &x, &g, &s, NULL, &dx), STATUS_OK);
    assert_roundings("norm gradient", &dx, 0, 0.5, 6.5);
    assert_roundings("norm gradient", &dx, 1, -0.5, 4);
    value_free(&dx);
    cr_assert_eq(value_norm_gradient(&m, &dy, &x, &g, &s, &dy, &dx), STATUS_OK);
    assert_roundings("with a residual", &dx, 0, 1.5, 6.5 + 1.5);
    struct value *all[] = {&x, &dy, &s, &y, &dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
}

/* Logits (1, 1): powers 1 within 2u, sum 2 within 4u + 2u; log 2 within 3u + 2u log 2; 1 + log 2: + u (1 + log 2). */
Test(bounds, logsumexp_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value logits, lse;
    cr_assert_eq(value_new(&m, &logits, 3, (const int64_t[]){1, 2, 2}), STATUS_OK);
    for (int i = 0; i < 4; i++)
        num_set(&logits, i, num_exact(1));
    cr_assert_eq(value_logsumexp(&m, &logits, &lse), STATUS_OK);
    assert_roundings("logsumexp", &lse, 0, 1 + log(2), 3 + 2 * log(2) + 1 + log(2));
    value_free(&logits);
    value_free(&lse);
}

/* Two groups, dy = (1, 2), (3, 4), x = (1, 1), (2, 1/2), s = 1, 2. x s within u|x s|: dg_0 = 1 + 12 within 2u 13 + 13u,
 * dg_1 = 2 + 4 within 2u 6 + 6u. */
Test(bounds, norm_weight_gradient_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value dy = vector(&m, 4, (const double[]){1, 2, 3, 4}), x = vector(&m, 4, (const double[]){1, 1, 2, 0.5});
    struct value s = vector(&m, 2, (const double[]){1, 2}), dg;
    cr_assert_eq(value_norm_weight_gradient(&m, &dy, &x, &s, 2, &dg), STATUS_OK);
    cr_assert(dg.ndim == 1 && dg.shape[0] == 2);
    assert_roundings("norm weight gradient", &dg, 0, 13, 39);
    assert_roundings("norm weight gradient", &dg, 1, 6, 18);
    struct value *all[] = {&dy, &x, &s, &dg};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
}

/* Rows (1, -3), (2, 5), (4, 1): two additions: 7 within 2u 7, 3 within 2u 9. */
Test(bounds, bias_gradient_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value dy = vector(&m, 6, (const double[]){1, -3, 2, 5, 4, 1}), db;
    value_reshape(&dy, 3, (const int64_t[]){1, 3, 2});
    cr_assert_eq(value_linear_bias_gradient(&m, &dy, &db), STATUS_OK);
    cr_assert(db.ndim == 1 && db.shape[0] == 2);
    assert_roundings("bias gradient", &db, 0, 7, 14);
    assert_roundings("bias gradient", &db, 1, 3, 18);
    value_free(&dy);
    value_free(&db);
}

/* Ids 2 0 2: from zero, word 2 has one addition, word 0 is moved, word 1 is an exact zero. From a start of two ranks' 5
 * - 4 = 1 (magnitude 9, reduction 1/2): one addition a token, on 9 + |rows|. */
Test(bounds, embedding_gradient_by_hand) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value ids = vector(&m, 3, (const double[]){2, 0, 2}), dy = vector(&m, 3, (const double[]){3, 7, -1});
    struct value start = vector(&m, 3, (const double[]){1, 1, 1}), out;
    value_reshape(&ids, 2, (const int64_t[]){1, 3});
    value_reshape(&dy, 3, (const int64_t[]){1, 3, 1});
    value_reshape(&start, 2, (const int64_t[]){3, 1});
    cr_assert_eq(value_embed_gradient(&m, &ids, &dy, 3, NULL, &out), STATUS_OK);
    assert_roundings("word 0", &out, 0, 7, 0);
    assert_roundings("word 1", &out, 1, 0, 0);
    assert_roundings("word 2", &out, 2, 2, 4);
    value_free(&out);
    cr_assert_eq(value_add_magnitude(&start), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        start.mag[i] = 9;
        start.e[i] = 0x1p-25;
    }
    cr_assert_eq(value_embed_gradient(&m, &ids, &dy, 3, &start, &out), STATUS_OK);
    assert_roundings("tied word 0", &out, 0, 8, 16 + 0.5);
    assert_roundings("tied word 1", &out, 1, 1, 0.5);
    assert_roundings("tied word 2", &out, 2, 3, 2 * 13 + 0.5);
    struct value *all[] = {&ids, &dy, &start, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
}

/* The same three in real float32: x*s rounded, then chains that start from the last row, fused. */
static struct value random_rows(const struct arithmetic *m, int64_t rows, int64_t n, uint64_t seed) {
    struct value value;
    cr_assert_eq(value_new(m, &value, 3, (const int64_t[]){1, rows, n}), STATUS_OK);
    for (int64_t i = 0; i < rows * n; i++)
        num_set(&value, i, num_exact((double)(float)uniform(seed + (uint64_t)i)));
    return value;
}

static double ratio_to(const struct value *value, int64_t i, float got) {
    double error = fabs((double)got - value->x[i]);
    double ratio = error == 0 ? 0 : error / value->e[i];
    cr_assert(ratio <= 1, "%g of its bound", ratio);
    return ratio;
}

static double remake_rows(int64_t rows, int64_t n, uint64_t seed) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value dy = random_rows(&m, rows, n, seed), x = random_rows(&m, rows, n, seed + 50000);
    struct value s = random_rows(&m, 1, rows, seed + 100000), ids = random_rows(&m, 1, rows, 0);
    struct value start = random_rows(&m, 5, n, seed + 150000), dg, db, table;
    double worst = 0;
    for (int64_t row = 0; row < rows; row++)
        ids.x[row] = (double)(row * row % 5);
    cr_assert_eq(value_norm_weight_gradient(&m, &dy, &x, &s, n, &dg), STATUS_OK);
    cr_assert_eq(value_linear_bias_gradient(&m, &dy, &db), STATUS_OK);
    cr_assert_eq(value_embed_gradient(&m, &ids, &dy, 5, &start, &table), STATUS_OK);
    for (int64_t j = 0; j < n; j++) {
        float weight = 0, bias = 0, words[5];
        for (int64_t word = 0; word < 5; word++)
            words[word] = (float)start.x[word * n + j];
        for (int64_t row = rows - 1; row >= 0; row--) {
            float dy_at = (float)dy.x[row * n + j];
            volatile float scaled = (float)x.x[row * n + j] * (float)s.x[row];
            weight = fmaf(dy_at, scaled, weight);
            bias += dy_at;
            words[(int)ids.x[row]] += dy_at;
        }
        worst = fmax(worst, fmax(ratio_to(&dg, j, weight), ratio_to(&db, j, bias)));
        for (int64_t word = 0; word < 5; word++)
            worst = fmax(worst, ratio_to(&table, word * n + j, words[word]));
    }
    struct value *all[] = {&dy, &x, &s, &ids, &start, &dg, &db, &table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
    return worst;
}

Test(bounds, parameter_gradients_hold_in_float32) {
    double worst = 0;
    for (uint64_t i = 0; i < 60; i++)
        worst = fmax(worst, remake_rows(1 + (int64_t)(i * 7 % 40), 6, 1000 * i));
    cr_assert_gt(worst, 0.2);
}

/* ---- sums: four orders of the same products */

static float ascending(const float *a, const float *b, int n) {
    volatile float sum = 0;
    for (int i = 0; i < n; i++) {
        volatile float product = a[i] * b[i];
        sum = sum + product;
    }
    return sum;
}

static float descending_fused(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = n - 1; i >= 0; i--)
        sum = fmaf(a[i], b[i], sum);
    return sum;
}

static float pairwise(const float *a, const float *b, int n) {
    if (n == 1)
        return a[0] * b[0];
    volatile float left = pairwise(a, b, n / 2), right = pairwise(a + n / 2, b + n / 2, n - n / 2);
    return left + right;
}

static float strided(const float *a, const float *b, int n) {
    volatile float sum = 0;
    for (int start = 0; start < 7; start++) {
        volatile float part = 0;
        for (int i = start; i < n; i += 7)
            part = fmaf(a[i], b[i], part);
        sum = sum + part;
    }
    return sum;
}

typedef float order(const float *a, const float *b, int n);

static double worst_sum(int n, uint64_t seed, bool same_sign) {
    static order *const orders[] = {ascending, descending_fused, pairwise, strided};
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    float a[200], b[200];
    struct sum sum = {0};
    double worst = 0;
    for (int i = 0; i < n; i++) {
        a[i] = (float)uniform(seed + 2 * (uint64_t)i);
        b[i] = same_sign ? a[i] : (float)uniform(seed + 2 * (uint64_t)i + 1);
        sum_product(&sum, num_exact((double)a[i]), num_exact((double)b[i]));
    }
    struct num truth = sum_close(&m, &sum, n);
    for (int o = 0; o < 4; o++)
        worst = fmax(worst, fabs((double)orders[o](a, b, n) - truth.x) / truth.e);
    return worst;
}

Test(bounds, a_sum_holds_in_any_order) {
    double worst = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        double ratio = worst_sum(1 + (int)(i * 37 % 200), 1000 * i, i % 2);
        cr_assert(ratio <= 1, "%g of its bound", ratio);
        worst = fmax(worst, ratio);
    }
    cr_assert_gt(worst, 0.2); /* short sums come near their bound */
}
