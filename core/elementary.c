#include "core/elementary.h"

#include "core/elementary_inline.h"

double elementary_exp(double x) {
    return elementary_inline_exp(x);
}

double elementary_log(double x) {
    return elementary_inline_log(x);
}

float elementary_expf(float x) {
    return elementary_inline_expf(x);
}

float elementary_logf(float x) {
    return elementary_inline_logf(x);
}

struct reduced { /* x = quadrant * pi/2 + (r + rest) */
    double r, rest;
    uint64_t quadrant;
};

/* pi/2 as three doubles (159 bits). n * first and n * second are kept with their exact errors, sums likewise: the
 * absolute error is about 2^-140 n, and no double below 2^30 comes nearer than about 2^-64 to a multiple of pi/2. */
static struct reduced reduce(double x) {
    const double shifter = 0x1.8p52;
    const double first = 0x1.921fb54442d18p+0, second = 0x1.1a62633145c07p-54, third = -0x1.f1976b7ed8fbcp-110;
    double shifted = x * 0x1.45f306dc9c883p-1 + shifter, n = shifted - shifter;
    if (n == 0)
        return (struct reduced){.r = x};
    double p = n * first, p_rest = __builtin_fma(n, first, -p);
    double q = n * second, q_rest = __builtin_fma(n, second, -q);
    double a = x - p; /* exact: the two are close */
    double b = a - p_rest, bb = b - a, b_rest = (a - (b - bb)) - (p_rest + bb);
    double c = b - q, cc = c - b, c_rest = (b - (c - cc)) - (q + cc);
    double tail = ((b_rest + c_rest) - q_rest) - n * third;
    double r = c + tail;
    return (struct reduced){r, (c - r) + tail, elementary_to_bits(shifted) - elementary_to_bits(shifter)};
}

/* sin(r + rest) = r + (rest (1 - r^2/2) + r^3 (-1/3! + r^2/5! - ...)) */
static double sine(struct reduced x) {
    double r = x.r, z = r * r;
    double series = 1.0 / 355687428096000.0;
    series = __builtin_fma(series, z, -1.0 / 1307674368000.0);
    series = __builtin_fma(series, z, 1.0 / 6227020800.0);
    series = __builtin_fma(series, z, -1.0 / 39916800.0);
    series = __builtin_fma(series, z, 1.0 / 362880.0);
    series = __builtin_fma(series, z, -1.0 / 5040.0);
    series = __builtin_fma(series, z, 1.0 / 120.0);
    series = __builtin_fma(series, z, -1.0 / 6.0);
    return r + __builtin_fma(r * z, series, x.rest * __builtin_fma(z, -0.5, 1.0));
}

/* cos(r + rest) = 1 - r^2/2 + (r^4 (1/4! - r^2/6! + ...) - r rest) */
static double cosine(struct reduced x) {
    double r = x.r, z = r * r, z_rest = __builtin_fma(r, r, -z);
    double series = 1.0 / 20922789888000.0;
    series = __builtin_fma(series, z, -1.0 / 87178291200.0);
    series = __builtin_fma(series, z, 1.0 / 479001600.0);
    series = __builtin_fma(series, z, -1.0 / 3628800.0);
    series = __builtin_fma(series, z, 1.0 / 40320.0);
    series = __builtin_fma(series, z, -1.0 / 720.0);
    series = __builtin_fma(series, z, 1.0 / 24.0);
    double half = 0.5 * z, sum = 1.0 - half, error = (1.0 - sum) - half;
    return sum + (error + __builtin_fma(z * z, series, -__builtin_fma(r, x.rest, 0.5 * z_rest)));
}

/* Beyond the reduction's reach there is no answer, rather than a wrong one. */
static int out_of_reach(double x) {
    return !(x > -0x1p30 && x < 0x1p30);
}

double elementary_sin(double x) {
    if (out_of_reach(x))
        return x != x ? x : __builtin_nan("");
    if (x == 0)
        return x; /* keeps the sign */
    struct reduced reduced = reduce(x);
    double value = reduced.quadrant & 1 ? cosine(reduced) : sine(reduced);
    return reduced.quadrant & 2 ? -value : value;
}

double elementary_cos(double x) {
    if (out_of_reach(x))
        return x != x ? x : __builtin_nan("");
    struct reduced reduced = reduce(x);
    double value = reduced.quadrant & 1 ? sine(reduced) : cosine(reduced);
    return (reduced.quadrant + 1) & 2 ? -value : value;
}

/* By way of float64, rounded once: for sin and cos the range reduction needs it anyway. */
float elementary_sinf(float x) {
    return (float)elementary_sin((double)x);
}

float elementary_cosf(float x) {
    return (float)elementary_cos((double)x);
}
