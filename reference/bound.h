/* Numbers with running bounds: x is the truth, e bounds what the subject may differ.
 *
 * The subject holds x' with |x' - x| <= e for each operand and rounds each operation once, to nearest: its result is
 * (a' op b')(1 + d) + flush, |d| <= u, |flush| <= eta. All terms are kept, no first-order shortcut. A formula written
 * in these operations in the subject's order bounds the subject's own roundings; with fused multiply-adds it has fewer.
 * The reference's own double roundings are 2^-29 of a float32 subject's bars; for a float64 subject the judge doubles
 * e. */
#ifndef REFERENCE_BOUND_H
#define REFERENCE_BOUND_H

#include "reference/value.h"

#include <math.h>

struct num {
    double x, e;
};

static inline struct num num_exact(double x) {
    return (struct num){x, 0};
}

static inline struct num num_at(const struct value *value, int64_t i) {
    return (struct num){value->x[i], value->e ? value->e[i] : 0};
}

static inline void num_set(struct value *value, int64_t i, struct num n) {
    value->x[i] = n.x;
    if (value->e)
        value->e[i] = n.e;
}

/* A zero that the subject holds exactly, too: adding it or multiplying by it does not round. */
static inline bool num_is_zero(struct num a) {
    return a.x == 0 && a.e == 0;
}

/* |x'(1+d) - x| <= e + u|x'| <= e + u(|x| + e), `roundings` times u: 1 for + - * / sqrt, 2 for exp, log, sin and cos,
 * which are within 1 ulp (= 2u relative). */
static inline struct num num_fin(const struct arithmetic *m, double x, double e, double roundings) {
    return (struct num){x, e + roundings * m->u * (fabs(x) + e) + (x != 0 ? m->eta : 0)};
}

static inline struct num num_negate(struct num a) {
    return (struct num){-a.x, a.e};
}

static inline struct num num_add(const struct arithmetic *m, struct num a, struct num b) {
    if (num_is_zero(b))
        return a;
    if (num_is_zero(a))
        return b;
    return num_fin(m, a.x + b.x, a.e + b.e, 1);
}

static inline struct num num_subtract(const struct arithmetic *m, struct num a, struct num b) {
    return num_add(m, a, num_negate(b));
}

/* |a'b' - ab| = |a db + b da + da db|. */
static inline struct num num_multiply(const struct arithmetic *m, struct num a, struct num b) {
    if (num_is_zero(a) || num_is_zero(b))
        return num_exact(a.x * b.x);
    return num_fin(m, a.x * b.x, fabs(a.x) * b.e + fabs(b.x) * a.e + a.e * b.e, 1);
}

/* x = a/b: |a'/b' - x| = |a' - x b'| / |b'| = |da - x db| / |b'| <= (ea + |x| eb) / (|b| - eb). */
static inline struct num num_divide(const struct arithmetic *m, struct num a, struct num b) {
    if (num_is_zero(a))
        return num_exact(a.x / b.x);
    double x = a.x / b.x;
    if (!(fabs(b.x) + b.e <= m->largest)) /* the subject's divisor may be infinite, its quotient 0 */
        return (struct num){x, fabs(x) + m->eta};
    double least = fabs(b.x) - b.e;
    return num_fin(m, x, least > 0 ? (a.e + fabs(x) * b.e) / least : INFINITY, 1);
}

/* |sqrt a' - sqrt a| = |da| / (sqrt a + sqrt a') <= ea / (sqrt a + sqrt(a - ea)); 0 is the least that a' can be. */
static inline struct num num_root(const struct arithmetic *m, struct num a) {
    double x = sqrt(a.x);
    double least = sqrt(fmax(a.x - a.e, 0));
    double spread = a.e == 0 ? 0 : a.e < a.x ? a.e / (x + least) : sqrt(a.x + a.e);
    return num_fin(m, x, spread, 1);
}

/* |exp a' - exp a| = exp a |exp da - 1| <= x expm1(ea). */
static inline struct num num_exp(const struct arithmetic *m, struct num a) {
    double x = exp(a.x);
    return num_fin(m, x, a.e == 0 || x == 0 ? 0 : x * expm1(a.e), 2);
}

/* |log a' - log a| = |log(1 + da/a)| <= -log(1 - ea/a), a > 0. */
static inline struct num num_log(const struct arithmetic *m, struct num a) {
    double spread = a.e == 0 ? 0 : a.e < a.x ? -log1p(-a.e / a.x) : INFINITY;
    return num_fin(m, log(a.x), spread, 2);
}

/* 1 / (1 + exp(-a)). */
static inline struct num num_sigmoid(const struct arithmetic *m, struct num a) {
    struct num below = num_add(m, num_exact(1), num_exp(m, num_negate(a)));
    return num_divide(m, num_exact(1), below);
}

/* gamma_k = k u / (1 - k u): (1 + u)^k - 1 <= gamma_k. */
static inline double bound_gamma(const struct arithmetic *m, double roundings) {
    double ku = roundings * m->u;
    return ku < 1 ? ku / (1 - ku) : INFINITY;
}

/* A sum in any order, over any split, fused or not. Each term meets at most k roundings on its way into the sum, so the
 * subject's result is sum t'(1 + g), |g| <= gamma_k, and differs by at most gamma_k sum |t'| + sum |t' - t|
 * <= gamma_k (S + p) + p, S = sum |t|, p = bound of sum |t' - t|. k: a sum of n products has n roundings on the longest
 * way (one product, n - 1 additions; or n fused), a plain sum of n terms n - 1. */
struct sum {
    double x, s, p;
};

static inline void sum_product(struct sum *sum, struct num a, struct num b) {
    double term = a.x * b.x;
    sum->x += term;
    sum->s += fabs(term);
    sum->p += fabs(a.x) * b.e + fabs(b.x) * a.e + a.e * b.e;
}

static inline void sum_term(struct sum *sum, struct num a) {
    sum->x += a.x;
    sum->s += fabs(a.x);
    sum->p += a.e;
}

static inline struct num sum_close(const struct arithmetic *m, const struct sum *sum, int64_t roundings) {
    double k = roundings > 0 ? (double)roundings : 0;
    if (sum->s == 0 && sum->p == 0)
        return num_exact(sum->x);
    return (struct num){sum->x, bound_gamma(m, k) * (sum->s + sum->p) + sum->p + k * m->eta};
}

#endif
