#include "formula.h"

#include <criterion/criterion.h>
#include <math.h>

enum dtype dtype;
const struct ops *ops;

real u(void) {
    return dtype == DTYPE_F64 ? 0x1p-53L : 0x1p-24L;
}

real gamma_of(real roundings) {
    return roundings * u() / (1 - roundings * u());
}

real rounded(double x) {
    return dtype == DTYPE_F64 ? (real)x : (real)(float)x;
}

real at(const void *x, int64_t i) {
    return dtype == DTYPE_F64 ? (real)((const double *)x)[i] : (real)((const float *)x)[i];
}

enum {
    MOST = 40
};
static void *owned[MOST];
static int owned_count;

void *room(int64_t count) {
    cr_assert(owned_count < MOST);
    return owned[owned_count++] = ops->allocate((size_t)count * dtype_bytes(dtype));
}

void *made(int stream, int64_t count) {
    void *x = room(count);
    for (int64_t i = 0; i < count; i++)
        if (dtype == DTYPE_F64)
            ((double *)x)[i] = number_at(stream, i);
        else
            ((float *)x)[i] = (float)number_at(stream, i);
    return x;
}

void *made_positive(int stream, int64_t count) {
    void *x = made(stream, count);
    for (int64_t i = 0; i < count; i++)
        if (dtype == DTYPE_F64)
            ((double *)x)[i] += 2.001;
        else
            ((float *)x)[i] += 2.001f;
    return x;
}

void close_to(const char *what, const void *got, int64_t i, real want, real bound) {
    real error = fabsl(at(got, i) - want);
    cr_assert(error <= bound, "%s %s: %s[%d] = %.17Lg, want %.17Lg: off by %.3Lg, %.3Lg allowed", ops->name,
              dtype_name(dtype), what, (int)i, at(got, i), want, error, bound);
}

void both_dtypes(void (*check)(void)) {
    ops = isa_at(isa_count() - 1);
    for (int d = 0; d < 2; d++) {
        dtype = d ? DTYPE_F32 : DTYPE_F64;
        check();
        while (owned_count)
            ops->release(owned[--owned_count]);
    }
}

struct total dot(const void *a, int64_t i, int64_t a_step, const void *b, int64_t j, int64_t b_step, int64_t n) {
    struct total total = {0, 0};
    for (int64_t l = 0; l < n; l++) {
        real term = at(a, i + l * a_step) * at(b, j + l * b_step);
        total.x += term;
        total.size += fabsl(term);
    }
    return total;
}

/* x - max is off by u |x - max|, exp by 2 u: a term by (|x - max| + 2) u, the sum by the widest term and n - 1;
 * quotient 1. */
void close_to_softmax(const char *what, int64_t n, const void *x, const void *y, int64_t first) {
    real maximum = at(x, first), least = at(x, first), sum = 0;
    for (int64_t j = 0; j < n; j++) {
        maximum = fmaxl(maximum, at(x, first + j));
        least = fminl(least, at(x, first + j));
    }
    for (int64_t j = 0; j < n; j++)
        sum += expl(at(x, first + j) - maximum);
    for (int64_t j = 0; j < n; j++) {
        real below = maximum - at(x, first + j), want = expl(-below) / sum;
        close_to(what, y, first + j, want, gamma_of(below + (maximum - least) + (real)n + 5) * want);
    }
}
