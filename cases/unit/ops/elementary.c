/* exp, log, sin and cos against MPFR: |got - exact| <= 1 ulp of the exact value, over dense random arguments and the
 * edges of the domain. */
#include "core/elementary.h"

#include <criterion/criterion.h>
#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <string.h>

#define RANDOM_ARGUMENTS 30000
#define PRECISION 160 /* bits: sin and cos next to a multiple of pi/2 lose up to 64 of them */

struct format {
    int digits;      /* of the significand */
    int least;       /* exponent of the smallest subnormal */
    double beyond;   /* 2^emax as a double where it has one */
    double smallest; /* normal */
};
static const struct format wide = {53, -1074, INFINITY, 0x1p-1022}, narrow = {24, -149, 0x1p128, 0x1p-126};

struct function {
    const char *name;
    const struct format *format;
    double (*got)(double x);
    int (*exact)(mpfr_t out, const mpfr_t x, mpfr_rnd_t rounding);
    double low, high; /* random arguments, evenly spread between these */
    bool logarithmic; /* random exponents instead, and both signs */
    double worst;     /* ulp */
    double worst_at;
};

static double expf_of(double x) {
    return (double)elementary_expf((float)x);
}
static double logf_of(double x) {
    return (double)elementary_logf((float)x);
}
static double sinf_of(double x) {
    return (double)elementary_sinf((float)x);
}
static double cosf_of(double x) {
    return (double)elementary_cosf((float)x);
}

/* |got - exact| in ulps of exact, whose ulp is that of its binade, or the smallest subnormal. Infinity stands for
 * 2^emax. */
static double ulps(const struct format *format, double got, const mpfr_t exact) {
    mpfr_t distance;
    mpfr_init2(distance, PRECISION);
    if (isinf(got)) {
        mpfr_set_si_2exp(distance, got < 0 ? -1 : 1, format == &wide ? 1024 : 128, MPFR_RNDN);
        mpfr_sub(distance, distance, exact, MPFR_RNDN);
    } else {
        mpfr_d_sub(distance, got, exact, MPFR_RNDN);
    }
    long ulp = format->least;
    if (mpfr_regular_p(exact) && mpfr_get_exp(exact) - format->digits > ulp)
        ulp = (long)mpfr_get_exp(exact) - format->digits;
    if (mpfr_regular_p(exact) && isinf(got) && mpfr_get_exp(exact) > (format == &wide ? 1024 : 128))
        mpfr_set_zero(distance, 1); /* overflow, and there is no nearer number */
    mpfr_mul_2si(distance, distance, -ulp, MPFR_RNDN);
    double result = isnan(got) ? NAN : fabs(mpfr_get_d(distance, MPFR_RNDU));
    mpfr_clear(distance);
    return result;
}

static void check(struct function *f, double x) {
    mpfr_t argument, exact;
    if (f->format == &narrow)
        x = (double)(float)x;
    mpfr_init2(argument, 53);
    mpfr_init2(exact, PRECISION);
    mpfr_set_d(argument, x, MPFR_RNDN);
    f->exact(exact, argument, MPFR_RNDN);
    double error = ulps(f->format, f->got(x), exact);
    cr_assert(error <= 1, "%s(%a) = %a is off by %g ulp", f->name, x, f->got(x), error);
    if (error > f->worst) {
        f->worst = error;
        f->worst_at = x;
    }
    mpfr_clear(exact);
    mpfr_clear(argument);
}

static double uniform(uint64_t *state) { /* [0, 1): splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void check_random(struct function *f) {
    uint64_t state = 1;
    for (int i = 0; i < RANDOM_ARGUMENTS; i++) {
        double spread = f->low + (f->high - f->low) * uniform(&state);
        if (f->logarithmic)
            spread = ldexp(1 + uniform(&state), (int)floor(spread)) * (f->got == elementary_log || f->got == logf_of ? 1
                                                                       : i % 2                                       ? 1
                                                                               : -1);
        check(f, spread);
    }
}

/* x and its neighbours in the format. */
static void check_around(struct function *f, double x) {
    check(f, x);
    if (f->format == &wide) {
        check(f, nextafter(x, INFINITY));
        check(f, nextafter(x, -INFINITY));
    } else {
        check(f, (double)nextafterf((float)x, INFINITY));
        check(f, (double)nextafterf((float)x, -INFINITY));
    }
}

static void report(const struct function *f) {
    cr_log_info("%s: worst %.4f ulp at %a", f->name, f->worst, f->worst_at);
    cr_assert(f->worst > 0.25, "%s: %g ulp at worst: nothing was measured", f->name, f->worst);
}

Test(elementary, exp_within_one_ulp) {
    struct function f[] = {{"exp", &wide, elementary_exp, mpfr_exp, -746, 710},
                           {"expf", &narrow, expf_of, mpfr_exp, -104, 89},
                           {"exp", &wide, elementary_exp, mpfr_exp, -1074, 9, true},
                           {"expf", &narrow, expf_of, mpfr_exp, -149, 6, true}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        check_random(&f[i]);
        /* k + 1/2 times ln 2, where the reduction changes k; k ln 2, where it cancels; the ends of the range */
        for (int k = -2150; k <= 2050; k++)
            if (k * 0.5 * M_LN2 > f[0].low && (f[i].format == &wide || fabs(k * 0.5) < 150))
                check_around(&f[i], k * 0.5 * M_LN2);
        for (int k = 0; k < 40; k++) { /* results among the subnormals */
            check_around(&f[i], f[i].format == &wide ? -708.4 - k : -87.3 - 0.44 * k);
        }
        report(&f[i]);
    }
}

Test(elementary, log_within_one_ulp) {
    struct function f[] = {{"log", &wide, elementary_log, mpfr_log, -1074, 1024, true},
                           {"logf", &narrow, logf_of, mpfr_log, -149, 128, true},
                           {"log", &wide, elementary_log, mpfr_log, 0.5, 2},
                           {"logf", &narrow, logf_of, mpfr_log, 0.5, 2},
                           {"log", &wide, elementary_log, mpfr_log, 0.999, 1.001},
                           {"logf", &narrow, logf_of, mpfr_log, 0.99, 1.01}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        check_random(&f[i]);
        for (int k = f[i].format->least; k < (f[i].format == &wide ? 1024 : 128); k++) {
            check(&f[i], ldexp(1, k));
            if (k > f[i].format->least + 60)
                check_around(&f[i], ldexp(M_SQRT1_2, k)); /* where the reduction changes k */
        }
        check_around(&f[i], 1);
        report(&f[i]);
    }
}

static void check_turns(struct function *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t state = 2;
        check_random(&f[i]);
        for (int k = 0; k < 4000; k++) { /* next to multiples of pi/2 and of pi/4, up to 1e6 */
            double n = floor(uniform(&state) * (k % 2 ? 1273239 : 100));
            check_around(&f[i], n * M_PI_4 * (k % 4 < 2 ? 1 : -1));
        }
        report(&f[i]);
    }
}

Test(elementary, sin_within_one_ulp) {
    struct function f[] = {
        {"sin", &wide, elementary_sin, mpfr_sin, -1e6, 1e6},     {"sinf", &narrow, sinf_of, mpfr_sin, -1e6, 1e6},
        {"sin", &wide, elementary_sin, mpfr_sin, -4, 4},         {"sinf", &narrow, sinf_of, mpfr_sin, -4, 4},
        {"sin", &wide, elementary_sin, mpfr_sin, -60, 19, true}, {"sinf", &narrow, sinf_of, mpfr_sin, -60, 19, true}};
    check_turns(f, sizeof f / sizeof *f);
}

Test(elementary, cos_within_one_ulp) {
    struct function f[] = {
        {"cos", &wide, elementary_cos, mpfr_cos, -1e6, 1e6},     {"cosf", &narrow, cosf_of, mpfr_cos, -1e6, 1e6},
        {"cos", &wide, elementary_cos, mpfr_cos, -4, 4},         {"cosf", &narrow, cosf_of, mpfr_cos, -4, 4},
        {"cos", &wide, elementary_cos, mpfr_cos, -60, 19, true}, {"cosf", &narrow, cosf_of, mpfr_cos, -60, 19, true}};
    check_turns(f, sizeof f / sizeof *f);
}

static bool same(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

Test(elementary, special_values) {
    cr_assert(same(elementary_exp(0), 1) && same(elementary_exp(-0.0), 1));
    cr_assert(elementary_expf(0) == 1 && elementary_expf(-0.0f) == 1);
    cr_assert(same(elementary_exp(INFINITY), INFINITY) && same(elementary_exp(-INFINITY), 0));
    cr_assert(elementary_expf(INFINITY) == INFINITY && same((double)elementary_expf(-INFINITY), 0));
    cr_assert(same(elementary_exp(1e300), INFINITY) && same(elementary_exp(-1e300), 0));
    cr_assert(same(elementary_exp(-746), 0) && elementary_exp(-745.1) == 0x1p-1074);
    cr_assert(same((double)elementary_expf(-104), 0) && elementary_expf(-103.9f) == 0x1p-149f);
    cr_assert(isnan(elementary_exp(NAN)) && isnan(elementary_expf(NAN)) && isnan(elementary_exp(-NAN)));

    cr_assert(same(elementary_log(1), 0) && same((double)elementary_logf(1), 0));
    cr_assert(same(elementary_log(0), -INFINITY) && same(elementary_log(-0.0), -INFINITY));
    cr_assert(elementary_logf(0) == -INFINITY && elementary_logf(INFINITY) == INFINITY);
    cr_assert(same(elementary_log(INFINITY), INFINITY));
    cr_assert(isnan(elementary_log(-1)) && isnan(elementary_log(NAN)) && isnan(elementary_log(-INFINITY)));
    cr_assert(isnan(elementary_logf(-1)) && isnan(elementary_logf(NAN)));

    cr_assert(same(elementary_sin(0), 0) && same(elementary_sin(-0.0), -0.0) && same(elementary_cos(0), 1));
    cr_assert(same((double)elementary_sinf(-0.0f), -0.0) && elementary_cosf(0) == 1);
    cr_assert(elementary_sin(0x1p-1074) == 0x1p-1074 && elementary_sinf(0x1p-149f) == 0x1p-149f);
    cr_assert(isnan(elementary_sin(INFINITY)) && isnan(elementary_cos(-INFINITY)) && isnan(elementary_sin(NAN)));
    cr_assert(isnan(elementary_sinf(INFINITY)) && isnan(elementary_cosf(NAN)));
    cr_assert(isnan(elementary_sin(1e300)), "beyond its reach there is no answer");
}
