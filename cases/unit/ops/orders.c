/* The order and the number of roundings that the table fixes, spelled out in scalar float64 and compared bit for bit:
 * what a second device must reproduce. Only fma() fuses here (the tests are compiled without contraction). */
#include "core/elementary.h"
#include "run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum {
    R = 10,
    N = 37,
    B = 2,
    T = 35,
    H = 4,
    G = 2,
    D = 5
};
enum {
    WIDE = B * T * H * D,
    NARROW = B * T * G * D,
    SQUARES = B * H * T * T
};

static void fill(int stream, int64_t count, double *x) {
    for (int64_t i = 0; i < count; i++)
        x[i] = number_at(stream, i);
}

static void same(const char *what, int64_t count, const double *got, const double *want) {
    for (int64_t i = 0; i < count; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0, "%s[%d] = %a, want %a", what, (int)i, got[i], want[i]);
}

static const struct ops *best(void) {
    return isa_at(isa_count() - 1);
}

Test(orders, updates_round_at_every_operation) {
    const struct strips strips = {1, N, N};
    double x[N], y[N], v[N], got[N], want[N];
    fill(1, N, x);
    fill(2, N, y);
    for (int i = 0; i < N; i++) {
        double kept = 0.9 * x[i], step = 0.01 * y[i];
        want[i] = kept + step;
    }
    best()->blend(DTYPE_F64, &strips, got, 0.9, x, 0.01, y);
    same("blend", N, got, want);
    for (int i = 0; i < N; i++) {
        double kept = 0.9 * x[i], square = y[i] * y[i], step = square * 0.01;
        want[i] = kept + step;
        v[i] = square;
    }
    best()->blend_squares(DTYPE_F64, &strips, got, 0.9, x, 0.01, y);
    same("blend_squares", N, got, want);
    for (int i = 0; i < N; i++) {
        double quotient = sqrt(v[i]) / 0.3, below = quotient + 1e-8, above = 0.01 * y[i], step = above / below;
        double kept = 0.999 * x[i];
        want[i] = kept - step;
    }
    best()->adamw(DTYPE_F64, &strips, 0.999, 0.01, 0.3, 1e-8, y, v, x);
    same("adamw", N, x, want);
}

Test(orders, softmax_divides_by_an_ascending_sum) {
    double x[R * N], y[R * N], want[R * N], dy[R * N], dx[R * N], want_dx[R * N];
    fill(1, R * N, x);
    fill(2, R * N, dy);
    best()->softmax(DTYPE_F64, R, N, x, y);
    best()->softmax_backward(DTYPE_F64, R, N, y, dy, dx);
    for (int r = 0; r < R; r++) {
        double maximum = -INFINITY, sum = 0, pull = 0;
        for (int i = r * N; i < (r + 1) * N; i++)
            maximum = fmax(maximum, x[i]);
        for (int i = r * N; i < (r + 1) * N; i++)
            sum += elementary_exp(x[i] - maximum);
        for (int i = r * N; i < (r + 1) * N; i++) {
            want[i] = elementary_exp(x[i] - maximum) / sum;
            pull = fma(want[i], dy[i], pull);
        }
        for (int i = r * N; i < (r + 1) * N; i++)
            want_dx[i] = want[i] * (dy[i] - pull);
    }
    same("softmax", R * N, y, want);
    same("softmax_backward", R * N, dx, want_dx);
}

Test(orders, rms_norm) {
    double x[R * N], g[N], dy[R * N], inverse[R], y[R * N], dx[R * N], want[R * N], want_dx[R * N], want_inverse[R];
    fill(1, R * N, x);
    fill(2, N, g);
    fill(3, R * N, dy);
    best()->rms_norm(DTYPE_F64, R, N, 1e-6, x, g, inverse, y);
    best()->rms_norm_backward(DTYPE_F64, R, N, dy, x, g, inverse, x, dx);
    for (int r = 0; r < R; r++) {
        double squares = 0, t = 0, share = 1.0 / N;
        for (int i = r * N; i < (r + 1) * N; i++) {
            squares = fma(x[i], x[i], squares);
            double scaled = dy[i] * g[i % N];
            t = fma(scaled, x[i], t);
        }
        double mean = squares * share, s = 1 / sqrt(mean + 1e-6), pull = s * s * s * t * share;
        want_inverse[r] = s;
        for (int i = r * N; i < (r + 1) * N; i++) {
            double scaled = x[i] * s, direct = s * (g[i % N] * dy[i]), pulled = x[i] * pull, own = direct - pulled;
            want[i] = g[i % N] * scaled;
            want_dx[i] = own + x[i];
        }
    }
    same("inverse_rms", R, inverse, want_inverse);
    same("y", R * N, y, want);
    same("dx", R * N, dx, want_dx);
}

/* Where token t of head h lies, and of the key-value head that it reads. */
static int wide_at(int b, int t, int h) {
    return ((b * T + t) * H + h) * D;
}

static int narrow_at(int b, int t, int h) {
    return ((b * T + t) * G + h / (H / G)) * D;
}

Test(orders, attention) {
    static double q[WIDE], k[NARROW], v[NARROW], scores[SQUARES], p[SQUARES], context[WIDE];
    static double want_scores[SQUARES], want[WIDE];
    const double scale = 1 / sqrt(D);
    fill(1, WIDE, q);
    fill(2, NARROW, k);
    fill(3, NARROW, v);
    best()->attention(DTYPE_F64, B, T, H, G, D, q, k, v, scores, p, context);
    for (int row = 0; row < B * H * T; row++) {
        int b = row / (H * T), h = row / T % H, t = row % T;
        for (int s = 0; s <= t; s++) {
            double dot = 0;
            for (int j = 0; j < D; j++)
                dot = fma(q[wide_at(b, t, h) + j], k[narrow_at(b, s, h) + j], dot);
            want_scores[row * T + s] = dot * scale;
            for (int j = 0; j < D; j++)
                want[wide_at(b, t, h) + j] = fma(p[row * T + s], v[narrow_at(b, s, h) + j], want[wide_at(b, t, h) + j]);
        }
    }
    same("scores", SQUARES, scores, want_scores);
    same("context", WIDE, context, want);
}

Test(orders, attention_backward) {
    static double q[WIDE], k[NARROW], v[NARROW], p[SQUARES], dc[WIDE], dp[SQUARES], ds[SQUARES], dq[WIDE];
    static double dk[NARROW], dv[NARROW], want_ds[SQUARES], want_dq[WIDE], want_dk[NARROW], want_dv[NARROW];
    const double scale = 1 / sqrt(D);
    fill(1, WIDE, q);
    fill(2, NARROW, k);
    fill(3, NARROW, v);
    fill(4, SQUARES, p);
    fill(5, WIDE, dc);
    best()->attention_backward(DTYPE_F64, B, T, H, G, D, q, k, v, p, dc, dp, ds, dq, dk, dv);
    for (int row = 0; row < B * H * T; row++) { /* heads ascend, tokens ascend */
        int b = row / (H * T), h = row / T % H, t = row % T;
        double pull = 0;
        for (int s = 0; s <= t; s++)
            pull = fma(p[row * T + s], dp[row * T + s], pull);
        for (int s = 0; s <= t; s++) {
            want_ds[row * T + s] = p[row * T + s] * (dp[row * T + s] - pull);
            for (int j = 0; j < D; j++) {
                int wide = wide_at(b, t, h) + j, narrow = narrow_at(b, s, h) + j;
                want_dq[wide] = fma(ds[row * T + s], k[narrow], want_dq[wide]);
                want_dk[narrow] = fma(ds[row * T + s], q[wide], want_dk[narrow]);
                want_dv[narrow] = fma(p[row * T + s], dc[wide], want_dv[narrow]);
            }
        }
    }
    for (int i = 0; i < WIDE; i++)
        want_dq[i] *= scale;
    for (int i = 0; i < NARROW; i++)
        want_dk[i] *= scale;
    same("d_scores", SQUARES, ds, want_ds);
    same("dq", WIDE, dq, want_dq);
    same("dk", NARROW, dk, want_dk);
    same("dv", NARROW, dv, want_dv);
}

Test(orders, swiglu) {
    double g[N], u[N], dh[N], h[N], d_gate[N], d_up[N], want[N], want_gate[N], want_up[N];
    fill(1, N, g);
    fill(2, N, u);
    fill(3, N, dh);
    best()->swiglu(DTYPE_F64, 1, N, g, N, u, N, h);
    best()->swiglu_backward(DTYPE_F64, 1, N, g, N, u, N, dh, d_gate, N, d_up, N);
    for (int i = 0; i < N; i++) {
        double below = 1 + elementary_exp(-g[i]), silu = g[i] / below, s = 1 / below, turn = g[i] * (1 - s);
        want[i] = silu * u[i];
        double through = dh[i] * u[i], slope = s * (1 + turn);
        want_gate[i] = through * slope;
        want_up[i] = dh[i] * (g[i] * s);
    }
    same("h", N, h, want);
    same("d_gate", N, d_gate, want_gate);
    same("d_up", N, d_up, want_up);
}

Test(orders, cross_entropy) {
    enum {
        TOKENS = 12,
        V = 301
    };
    static double logits[TOKENS * V], d[TOKENS * V], want_d[TOKENS * V];
    double lse[TOKENS - 1], loss[TOKENS - 1], want_lse[TOKENS - 1], want[TOKENS - 1];
    int64_t labels[TOKENS];
    fill(1, TOKENS * V, logits);
    for (int t = 0; t < TOKENS; t++)
        labels[t] = t * 37 % V;
    best()->cross_entropy(DTYPE_F64, 1, TOKENS, V, logits, labels, lse, loss);
    best()->cross_entropy_backward(DTYPE_F64, 1, TOKENS, V, logits, labels, lse, d);
    for (int t = 0; t < TOKENS - 1; t++) {
        const double *x = logits + t * V;
        double maximum = -INFINITY, sum = 0;
        for (int i = 0; i < V; i++)
            maximum = fmax(maximum, x[i]);
        for (int i = 0; i < V; i++)
            sum += elementary_exp(x[i] - maximum);
        want_lse[t] = maximum + elementary_log(sum);
        want[t] = want_lse[t] - x[labels[t + 1]];
        for (int i = 0; i < V; i++)
            want_d[t * V + i] = elementary_exp(x[i] - want_lse[t]);
        want_d[t * V + labels[t + 1]] -= 1;
    }
    same("lse", TOKENS - 1, lse, want_lse);
    same("loss", TOKENS - 1, loss, want);
    same("d_logits", TOKENS * V, d, want_d);
}

Test(orders, router) {
    enum {
        E = 9,
        C = 4
    };
    const int64_t index[C] = {7, 2, 8, 0};
    double scores[E], weight[C], dw[C], ds[E], want[C], want_ds[E] = {0}, sum = 0, pull = 0;
    fill(1, E, scores);
    fill(2, C, dw);
    best()->router_weights(DTYPE_F64, 1, E, C, true, scores, index, weight);
    best()->router_weights_backward(DTYPE_F64, 1, E, C, true, scores, index, weight, dw, ds);
    for (int c = 0; c < C; c++)
        sum += scores[index[c]];
    for (int c = 0; c < C; c++) {
        want[c] = scores[index[c]] / sum;
        pull = fma(dw[c], want[c], pull);
    }
    for (int c = 0; c < C; c++)
        want_ds[index[c]] = (dw[c] - pull) / sum;
    same("weight", C, weight, want);
    same("d_scores", E, ds, want_ds);
}

Test(orders, combine_fuses_each_expert) {
    enum {
        C = 3
    };
    const int64_t index[C] = {6, 1, 4}, ascending[C] = {1, 2, 0};
    double weight[C], from[C * N], out[N], want[N] = {0};
    fill(1, C, weight);
    fill(2, C * N, from);
    best()->combine(DTYPE_F64, 1, C, N, index, weight, from, out);
    for (int c = 0; c < C; c++)
        for (int j = 0; j < N; j++)
            want[j] = fma(weight[ascending[c]], from[ascending[c] * N + j], want[j]);
    same("combine", N, out, want);
}
