/* Attention, forward and backward, against its formulas in long double (formula.h). */
#include "formula.h"

#include <criterion/criterion.h>
#include <math.h>

struct heads {
    int64_t B, T, H, G, D; /* G key-value heads */
};
static const struct heads z = {2, 35, 6, 2, 5};

static int64_t q_at(int64_t b, int64_t t, int64_t h) {
    return ((b * z.T + t) * z.H + h) * z.D;
}

static int64_t kv_at(int64_t b, int64_t t, int64_t h) {
    return ((b * z.T + t) * z.G + h / (z.H / z.G)) * z.D;
}

static void attention(void) {
    int64_t squares = z.B * z.H * z.T * z.T, wide = z.B * z.T * z.H * z.D, narrow = z.B * z.T * z.G * z.D;
    void *q = made(1, wide), *k = made(2, narrow), *v = made(3, narrow);
    void *scores = room(squares), *p = room(squares), *context = room(wide);
    real scale = rounded(1 / sqrt((double)z.D));
    ops->attention(dtype, z.B, z.T, z.H, z.G, z.D, q, k, v, scores, p, context);
    for (int64_t row = 0; row < z.B * z.H * z.T; row++) {
        int64_t b = row / (z.H * z.T), h = row / z.T % z.H, t = row % z.T;
        for (int64_t s = 0; s < z.T; s++) {
            struct total score = dot(q, q_at(b, t, h), 1, k, kv_at(b, s, h), 1, s <= t ? z.D : 0);
            close_to("scores", scores, row * z.T + s, score.x * scale, gamma_of((real)z.D + 1) * score.size * scale);
            if (s > t)
                close_to("p", p, row * z.T + s, 0, 0);
        }
        close_to_softmax("p", t + 1, scores, p, row * z.T);
        for (int64_t j = 0; j < z.D; j++) {
            struct total mix = dot(p, row * z.T, 1, v, kv_at(b, 0, h) + j, z.G * z.D, t + 1);
            close_to("context", context, q_at(b, t, h) + j, mix.x, gamma_of((real)t + 1) * mix.size);
        }
    }
}
Test(formulas, attention) {
    both_dtypes(attention);
}

/* sum over the group's heads and t >= s of square[h,t,s] x[t,h,j] */
static struct total gathered(const void *square, const void *x, int64_t b, int64_t s, int64_t g, int64_t j) {
    struct total total = {0, 0};
    for (int64_t h = g * (z.H / z.G); h < (g + 1) * (z.H / z.G); h++) {
        int64_t from = ((b * z.H + h) * z.T + s) * z.T + s;
        struct total one = dot(square, from, z.T, x, q_at(b, s, h) + j, z.H * z.D, z.T - s);
        total.x += one.x;
        total.size += one.size;
    }
    return total;
}

static void attention_backward(void) {
    int64_t squares = z.B * z.H * z.T * z.T, wide = z.B * z.T * z.H * z.D, narrow = z.B * z.T * z.G * z.D;
    void *q = made(1, wide), *k = made(2, narrow), *v = made(3, narrow), *p = made(4, squares), *dc = made(5, wide);
    void *dp = room(squares), *ds = room(squares), *dq = room(wide), *dk = room(narrow), *dv = room(narrow);
    real scale = rounded(1 / sqrt((double)z.D));
    ops->attention_backward(dtype, z.B, z.T, z.H, z.G, z.D, q, k, v, p, dc, dp, ds, dq, dk, dv);
    for (int64_t row = 0; row < z.B * z.H * z.T; row++) {
        int64_t b = row / (z.H * z.T), h = row / z.T % z.H, t = row % z.T, first = row * z.T;
        struct total pull = dot(p, first, 1, dp, first, 1, t + 1);
        for (int64_t s = 0; s < z.T; s++) {
            struct total want = dot(dc, q_at(b, t, h), 1, v, kv_at(b, s, h), 1, s <= t ? z.D : 0);
            close_to("dp", dp, first + s, want.x, gamma_of((real)z.D) * want.size);
            real share = s <= t ? at(p, first + s) : 0;
            close_to("ds", ds, first + s, share * (at(dp, first + s) - pull.x),
                     gamma_of((real)t + 3) * fabsl(share) * (fabsl(at(dp, first + s)) + pull.size));
        }
        for (int64_t j = 0; j < z.D; j++) {
            struct total mix = dot(ds, first, 1, k, kv_at(b, 0, h) + j, z.G * z.D, t + 1);
            close_to("dq", dq, q_at(b, t, h) + j, mix.x * scale, gamma_of((real)t + 2) * mix.size * scale);
        }
    }
    for (int64_t i = 0; i < narrow; i++) {
        int64_t b = i / (z.T * z.G * z.D), s = i / (z.G * z.D) % z.T, g = i / z.D % z.G;
        struct total keys = gathered(ds, q, b, s, g, i % z.D), values = gathered(p, dc, b, s, g, i % z.D);
        real terms = (real)((z.T - s) * (z.H / z.G));
        close_to("dk", dk, i, keys.x * scale, gamma_of(terms + 1) * keys.size * scale);
        close_to("dv", dv, i, values.x, gamma_of(terms) * values.size);
    }
}
Test(formulas, attention_backward) {
    both_dtypes(attention_backward);
}
