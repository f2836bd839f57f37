/* The bodies of core/elementary.h, for callers that want them inline in a loop that the compiler vectorises.
 *
 * Every multiply-add is written out, so the bits are the same whether fma is an instruction or a call, in a vector or
 * not; the file must be compiled with -ffp-contract=off. exp has no branch. Series are Taylor's, cut where the first
 * term left out is below 0.1 ulp of the result; the last addition is made from a sum and its exact error, so the total
 * stays well below 1 ulp (about 0.5 from the final rounding, 0.1 from the correction that is added). */
#ifndef CORE_ELEMENTARY_INLINE_H
#define CORE_ELEMENTARY_INLINE_H

#include <stdint.h>

union elementary_bits64 {
    double x;
    uint64_t bits;
};

union elementary_bits32 {
    float x;
    uint32_t bits;
};

static inline double elementary_from_bits(uint64_t bits) {
    return (union elementary_bits64){.bits = bits}.x;
}

static inline float elementary_from_bitsf(uint32_t bits) {
    return (union elementary_bits32){.bits = bits}.x;
}

static inline uint64_t elementary_to_bits(double x) {
    return (union elementary_bits64){.x = x}.bits;
}

static inline uint32_t elementary_to_bitsf(float x) {
    return (union elementary_bits32){.x = x}.bits;
}

/* |x| at most 746 (104): beyond it exp is 0 or infinity. NaN stays. On the bits, since a comparison of numbers may trap
 * and would keep the loop around it from being vectorised. */
static inline double elementary_limit(double x) {
    const int64_t limit = 0x4087500000000000, infinity = 0x7ff0000000000000;
    int64_t bits = (int64_t)elementary_to_bits(x), size = bits & INT64_MAX;
    int64_t limited = size > limit ? limit : size;
    limited = size > infinity ? size : limited;
    return elementary_from_bits((uint64_t)(limited | (bits ^ size)));
}

static inline float elementary_limitf(float x) {
    const int32_t limit = 0x42d00000, infinity = 0x7f800000;
    int32_t bits = (int32_t)elementary_to_bitsf(x), size = bits & INT32_MAX;
    int32_t limited = size > limit ? limit : size;
    limited = size > infinity ? size : limited;
    return elementary_from_bitsf((uint32_t)(limited | (bits ^ size)));
}

/* x = k ln 2 + r, |r| <= ln 2 / 2: exp x = 2^k (1 + r + r^2 (1/2! + r/3! + ...)).
 * ln 2 = high (42 bits, so k * high is exact) + low. 2^k in two factors: the first product is exact, the second rounds
 * once into infinity, zero or a subnormal. */
static inline double elementary_inline_exp(double x) {
    const double shifter = 0x1.8p52, ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    x = elementary_limit(x);
    double shifted = x * 0x1.71547652b82fep+0 + shifter, k = shifted - shifter;
    double high = __builtin_fma(-k, ln2_high, x), low = k * ln2_low;
    double r = high - low, rest = (high - r) - low;
    double series = 1.0 / 6227020800.0;
    series = __builtin_fma(series, r, 1.0 / 479001600.0);
    series = __builtin_fma(series, r, 1.0 / 39916800.0);
    series = __builtin_fma(series, r, 1.0 / 3628800.0);
    series = __builtin_fma(series, r, 1.0 / 362880.0);
    series = __builtin_fma(series, r, 1.0 / 40320.0);
    series = __builtin_fma(series, r, 1.0 / 5040.0);
    series = __builtin_fma(series, r, 1.0 / 720.0);
    series = __builtin_fma(series, r, 1.0 / 120.0);
    series = __builtin_fma(series, r, 1.0 / 24.0);
    series = __builtin_fma(series, r, 1.0 / 6.0);
    series = __builtin_fma(series, r, 0.5);
    double sum = 1.0 + r, error = (1.0 - sum) + r;
    double result = sum + (error + __builtin_fma(r * r, series, rest));
    uint64_t biased = elementary_to_bits(shifted) - elementary_to_bits(shifter) + 2048; /* k + 2048 > 0 */
    uint64_t half = biased >> 1;
    return result * elementary_from_bits((half - 1) << 52) * elementary_from_bits((biased - half - 1) << 52);
}

static inline float elementary_inline_expf(float x) {
    const float shifter = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    x = elementary_limitf(x);
    float shifted = x * 0x1.715476p+0f + shifter, k = shifted - shifter;
    float high = __builtin_fmaf(-k, ln2_high, x), low = k * ln2_low;
    float r = high - low, rest = (high - r) - low;
    float series = 1.0f / 40320.0f;
    series = __builtin_fmaf(series, r, 1.0f / 5040.0f);
    series = __builtin_fmaf(series, r, 1.0f / 720.0f);
    series = __builtin_fmaf(series, r, 1.0f / 120.0f);
    series = __builtin_fmaf(series, r, 1.0f / 24.0f);
    series = __builtin_fmaf(series, r, 1.0f / 6.0f);
    series = __builtin_fmaf(series, r, 0.5f);
    float sum = 1.0f + r, error = (1.0f - sum) + r;
    float result = sum + (error + __builtin_fmaf(r * r, series, rest));
    uint32_t biased = elementary_to_bitsf(shifted) - elementary_to_bitsf(shifter) + 256; /* k + 256 > 0 */
    uint32_t half = biased >> 1;
    return result * elementary_from_bitsf((half - 1) << 23) * elementary_from_bitsf((biased - half - 1) << 23);
}

/* x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt 2); s = f / (2 + f):
 * log(1 + f) = 2 atanh s = f - f^2/2 + s (f^2/2 + 2/3 s^2 + 2/5 s^4 + ...). */
static inline double elementary_inline_log(double x) {
    const double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
    if (!(x > 0))
        return x == 0 ? -__builtin_inf() : x != x ? x : __builtin_nan("");
    if (x == __builtin_inf())
        return x;
    double k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    int64_t exponent = (int64_t)(elementary_to_bits(x) - sqrt_half) >> 52;
    k += (double)exponent;
    double f = elementary_from_bits(elementary_to_bits(x) - ((uint64_t)exponent << 52)) - 1.0;
    double s = f / (2.0 + f), z = s * s;
    double series = 2.0 / 25.0;
    series = __builtin_fma(series, z, 2.0 / 23.0);
    series = __builtin_fma(series, z, 2.0 / 21.0);
    series = __builtin_fma(series, z, 2.0 / 19.0);
    series = __builtin_fma(series, z, 2.0 / 17.0);
    series = __builtin_fma(series, z, 2.0 / 15.0);
    series = __builtin_fma(series, z, 2.0 / 13.0);
    series = __builtin_fma(series, z, 2.0 / 11.0);
    series = __builtin_fma(series, z, 2.0 / 9.0);
    series = __builtin_fma(series, z, 2.0 / 7.0);
    series = __builtin_fma(series, z, 2.0 / 5.0);
    series = __builtin_fma(series, z, 2.0 / 3.0);
    double square = 0.5 * f * f, square_rest = __builtin_fma(0.5 * f, f, -square);
    double main_part = f - square, main_rest = ((f - main_part) - square) - square_rest;
    double whole = k * ln2_high, sum = whole + main_part;
    double error = k != 0 ? (whole - sum) + main_part : 0; /* |whole| > |main_part| unless k = 0 */
    double small = __builtin_fma(s, __builtin_fma(z, series, square), k * ln2_low);
    return sum + (error + (main_rest + small));
}

static inline float elementary_inline_logf(float x) {
    const float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const uint32_t sqrt_half = 0x3f3504f3;
    if (!(x > 0))
        return x == 0 ? -__builtin_inff() : x != x ? x : __builtin_nanf("");
    if (x == __builtin_inff())
        return x;
    float k = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p25f;
        k = -25;
    }
    int32_t exponent = (int32_t)(elementary_to_bitsf(x) - sqrt_half) >> 23;
    k += (float)exponent;
    float f = elementary_from_bitsf(elementary_to_bitsf(x) - ((uint32_t)exponent << 23)) - 1.0f;
    float s = f / (2.0f + f), z = s * s;
    float series = 2.0f / 11.0f;
    series = __builtin_fmaf(series, z, 2.0f / 9.0f);
    series = __builtin_fmaf(series, z, 2.0f / 7.0f);
    series = __builtin_fmaf(series, z, 2.0f / 5.0f);
    series = __builtin_fmaf(series, z, 2.0f / 3.0f);
    float square = 0.5f * f * f, square_rest = __builtin_fmaf(0.5f * f, f, -square);
    float main_part = f - square, main_rest = ((f - main_part) - square) - square_rest;
    float whole = k * ln2_high, sum = whole + main_part;
    float error = k != 0 ? (whole - sum) + main_part : 0;
    float small = __builtin_fmaf(s, __builtin_fmaf(z, series, square), k * ln2_low);
    return sum + (error + (main_rest + small));
}

#endif
