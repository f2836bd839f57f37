/* Backward operations against central differences of the forward ones, in float64.
 *
 * L = sum_i c_i y_i(x). With D(h) = (L(x+h) - L(x-h)) / 2h, D(h) - D(h/2) = h^2/8 L''' + O(h^4), and Richardson's
 * (4 D(h/2) - D(h)) / 3 is left with an error of O(h^4), which |D(h) - D(h/2)| exceeds by far. L itself is off by at
 * most gamma(ROUNDINGS) S, S = sum |c_i y_i|; so D(h) by that over h, D(h/2) by twice that, Richardson by 3 times. */
#include "run.h"

#include <criterion/criterion.h>
#include <math.h>

#define STEP 0x1p-10
#define ROUNDINGS 128 /* on the longest way from x to L: sums here have below 90 terms, besides them at most 32 */

enum {
    INPUTS = 3,
    MOST = 512
};

struct problem {
    const struct ops *ops;
    int inputs;
    int64_t count[INPUTS], outputs;
    double x[INPUTS][MOST], gradient[INPUTS][MOST], c[MOST]; /* c: dL/dy */
    void (*forward)(const struct problem *problem, double *y);
};

static struct problem problem_of(void (*forward)(const struct problem *, double *), int64_t outputs, int inputs,
                                 const int64_t *count) {
    struct problem p = {.ops = isa_at(isa_count() - 1), .inputs = inputs, .outputs = outputs, .forward = forward};
    cr_assert(outputs <= MOST);
    for (int64_t i = 0; i < outputs; i++)
        p.c[i] = number_at(9, i);
    for (int k = 0; k < inputs; k++) {
        cr_assert(count[k] <= MOST);
        p.count[k] = count[k];
        for (int64_t i = 0; i < MOST; i++) {
            p.x[k][i] = number_at(k, i);
            p.gradient[k][i] = NAN;
        }
    }
    return p;
}

struct loss {
    long double value, size;
};

static struct loss loss_of(const struct problem *p) {
    double y[MOST];
    struct loss loss = {0, 0};
    p->forward(p, y);
    for (int64_t i = 0; i < p->outputs; i++) {
        loss.value += (long double)p->c[i] * y[i];
        loss.size += fabsl((long double)p->c[i] * y[i]);
    }
    return loss;
}

static long double difference(struct problem *p, double *x, double h) {
    double kept = *x;
    *x = kept + h;
    long double above = loss_of(p).value;
    *x = kept - h;
    long double below = loss_of(p).value;
    *x = kept;
    return (above - below) / (2 * (long double)h);
}

static void check(struct problem *p, const char *what) {
    long double rounding = 3 * ROUNDINGS * 0x1p-53L * (1.01L * loss_of(p).size) / STEP, largest = 0;
    for (int k = 0; k < p->inputs; k++)
        for (int64_t i = 0; i < p->count[k]; i++) {
            long double coarse = difference(p, &p->x[k][i], STEP), fine = difference(p, &p->x[k][i], STEP / 2);
            long double want = (4 * fine - coarse) / 3, bound = fabsl(coarse - fine) + rounding;
            long double error = fabsl(p->gradient[k][i] - want);
            cr_assert(error <= bound, "%s: input %d, element %d: %.12g, differences say %.12Lg, %.3Lg allowed", what, k,
                      (int)i, p->gradient[k][i], want, bound);
            largest = fmaxl(largest, fabsl(want));
        }
    cr_assert(largest > 1e4L * rounding, "%s: gradients of %Lg drown in %Lg", what, largest, rounding);
}

enum {
    R = 3,
    N = 13
};

static void rms_norm(const struct problem *p, double *y) {
    double inverse[R];
    p->ops->rms_norm(DTYPE_F64, R, N, 1e-3, p->x[0], p->x[1], inverse, y);
}

Test(gradients, rms_norm) {
    struct problem p = problem_of(rms_norm, R * N, 2, (const int64_t[]){R * N, 0}); /* g has no gradient here */
    double inverse[R], y[R * N], residual[R * N], with[R * N];
    p.ops->rms_norm(DTYPE_F64, R, N, 1e-3, p.x[0], p.x[1], inverse, y);
    p.ops->rms_norm_backward(DTYPE_F64, R, N, p.c, p.x[0], p.x[1], inverse, NULL, p.gradient[0]);
    check(&p, "rms_norm");
    for (int i = 0; i < R * N; i++)
        residual[i] = number_at(7, i);
    p.ops->rms_norm_backward(DTYPE_F64, R, N, p.c, p.x[0], p.x[1], inverse, residual, with);
    for (int i = 0; i < R * N; i++)
        cr_assert(with[i] == p.gradient[0][i] + residual[i]);
}

enum {
    B = 2,
    T = 5,
    H = 4,
    G = 2,
    D = 6
};

static void rotary_with(const struct problem *p, bool backward, const double *x, double *y) {
    double cosine[T * D / 2], sine[T * D / 2];
    p->ops->rotary_tables(DTYPE_F64, T, D, 100, cosine, sine);
    p->ops->rotary(DTYPE_F64, B, T, H, D, backward, x, cosine, sine, y);
}

static void rotary(const struct problem *p, double *y) {
    rotary_with(p, false, p->x[0], y);
}

Test(gradients, rotary) {
    struct problem p = problem_of(rotary, B * T * H * D, 1, (const int64_t[]){B * T * H * D});
    rotary_with(&p, true, p.c, p.gradient[0]);
    check(&p, "rotary");
}

enum {
    SQUARE = B * H * T * T
};

static void attention(const struct problem *p, double *y) {
    double scores[SQUARE], probabilities[SQUARE];
    p->ops->attention(DTYPE_F64, B, T, H, G, D, p->x[0], p->x[1], p->x[2], scores, probabilities, y);
}

Test(gradients, attention) {
    const int64_t count[] = {B * T * H * D, B * T * G * D, B * T * G * D};
    struct problem p = problem_of(attention, B * T * H * D, 3, count);
    double scores[SQUARE], probabilities[SQUARE], context[B * T * H * D], dp[SQUARE], ds[SQUARE];
    p.ops->attention(DTYPE_F64, B, T, H, G, D, p.x[0], p.x[1], p.x[2], scores, probabilities, context);
    p.ops->attention_backward(DTYPE_F64, B, T, H, G, D, p.x[0], p.x[1], p.x[2], probabilities, p.c, dp, ds,
                              p.gradient[0], p.gradient[1], p.gradient[2]);
    check(&p, "attention");
}

static void softmax(const struct problem *p, double *y) {
    p->ops->softmax(DTYPE_F64, R, N, p->x[0], y);
}

Test(gradients, softmax) {
    struct problem p = problem_of(softmax, R * N, 1, (const int64_t[]){R * N});
    double y[R * N];
    p.ops->softmax(DTYPE_F64, R, N, p.x[0], y);
    p.ops->softmax_backward(DTYPE_F64, R, N, y, p.c, p.gradient[0]);
    check(&p, "softmax");
}

enum {
    C = 4
};
static const int64_t chosen[R * C] = {5, 2, 9, 0, 12, 3, 1, 7, 4, 11, 6, 8};

static void router_weights(const struct problem *p, double *y) {
    p->ops->router_weights(DTYPE_F64, R, N, C, true, p->x[0], chosen, y);
}

static void router_weights_plain(const struct problem *p, double *y) {
    p->ops->router_weights(DTYPE_F64, R, N, C, false, p->x[0], chosen, y);
}

Test(gradients, router_weights) {
    for (int normalise = 0; normalise < 2; normalise++) {
        struct problem p =
            problem_of(normalise ? router_weights : router_weights_plain, R * C, 1, (const int64_t[]){R * N});
        double weight[R * C];
        for (int i = 0; i < R * N; i++)
            p.x[0][i] += 2.5; /* scores are positive */
        p.forward(&p, weight);
        p.ops->router_weights_backward(DTYPE_F64, R, N, C, normalise, p.x[0], chosen, weight, p.c, p.gradient[0]);
        check(&p, "router_weights");
    }
}

static void combine(const struct problem *p, double *y) {
    p->ops->combine(DTYPE_F64, R, C, N, chosen, p->x[0], p->x[1], y);
}

Test(gradients, combine) {
    struct problem p = problem_of(combine, R * N, 2, (const int64_t[]){R * C, R * C * N});
    p.ops->combine_backward(DTYPE_F64, R, C, N, p.x[0], p.x[1], p.c, p.gradient[1], p.gradient[0]);
    check(&p, "combine");
}

static void swiglu(const struct problem *p, double *y) {
    p->ops->swiglu(DTYPE_F64, R, N, p->x[0], N, p->x[1], N, y);
}

Test(gradients, swiglu) {
    struct problem p = problem_of(swiglu, R * N, 2, (const int64_t[]){R * N, R * N});
    p.ops->swiglu_backward(DTYPE_F64, R, N, p.x[0], N, p.x[1], N, p.c, p.gradient[0], N, p.gradient[1], N);
    check(&p, "swiglu");
}

static const int64_t labels[B * T] = {1, 4, -100, 12, 0, 3, -100, 7, 7, 2};

static void cross_entropy(const struct problem *p, double *y) {
    double lse[B * (T - 1)];
    p->ops->cross_entropy(DTYPE_F64, B, T, N, p->x[0], labels, lse, y);
}

Test(gradients, cross_entropy) { /* of the SUM: c = 1 */
    struct problem p = problem_of(cross_entropy, B * (T - 1), 1, (const int64_t[]){B * T * N});
    double lse[B * (T - 1)], loss[B * (T - 1)];
    for (int i = 0; i < B * (T - 1); i++)
        p.c[i] = 1;
    p.ops->cross_entropy(DTYPE_F64, B, T, N, p.x[0], labels, lse, loss);
    p.ops->cross_entropy_backward(DTYPE_F64, B, T, N, p.x[0], labels, lse, p.gradient[0]);
    check(&p, "cross_entropy");
}
