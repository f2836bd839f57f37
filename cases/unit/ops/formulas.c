/* Every operation of the table but attention against its formula in long double, within a bound that counts the
 * roundings on the way (formula.h). */
#include "formula.h"

#include <criterion/criterion.h>
#include <math.h>

enum {
    R = 11,
    N = 29
};

static void elementwise(void) {
    void *a = made(1, R * N), *b = made(2, R * N), *x = made(1, R * N), *bias = made(3, N), *out = room(R * N);
    ops->add(dtype, R * N, out, a, b);
    for (int64_t i = 0; i < R * N; i++)
        close_to("add", out, i, at(a, i) + at(b, i), u() * fabsl(at(a, i) + at(b, i)));
    ops->scale(dtype, R * N, x, 0.3);
    for (int64_t i = 0; i < R * N; i++)
        close_to("scale", x, i, at(a, i) * rounded(0.3), u() * fabsl(at(a, i)));
    ops->copy(x, a, (size_t)(R * N) * dtype_bytes(dtype));
    ops->divide(dtype, R * N, x, 0.7);
    for (int64_t i = 0; i < R * N; i++)
        close_to("divide", x, i, at(a, i) / rounded(0.7), u() * fabsl(at(a, i) / rounded(0.7)));
    ops->copy(x, a, (size_t)(R * N) * dtype_bytes(dtype));
    ops->add_bias(dtype, R, N, x, bias);
    for (int64_t i = 0; i < R * N; i++)
        close_to("add_bias", x, i, at(a, i) + at(bias, i % N), u() * fabsl(at(a, i) + at(bias, i % N)));
    real sum = 0, size = 0;
    for (int64_t i = 0; i < R * N; i++) {
        sum += at(a, i);
        size += fabsl(at(a, i));
    }
    cr_assert(fabsl((real)ops->sum(dtype, R * N, a) - sum) <= gamma_of(R * N - 1) * size, "sum");
}
Test(formulas, elementwise) {
    both_dtypes(elementwise);
}

/* Strips: of rows of N elements the first N - 2 change, the last two are neither read nor written. */
static void updates(void) {
    const struct strips strips = {R, N - 2, N};
    size_t bytes = (size_t)(R * N) * dtype_bytes(dtype);
    void *x = made(1, R * N), *y = made(2, R * N), *v = made_positive(3, R * N);
    void *blended = room(R * N), *squared = room(R * N), *p = room(R * N);
    ops->copy(p, x, bytes);
    ops->blend(dtype, &strips, blended, 0.9, x, -0.01, y);
    ops->blend_squares(dtype, &strips, squared, 0.95, x, 0.05, y);
    ops->adamw(dtype, &strips, 0.999, 0.01, 0.3, 1e-3, y, v, p);
    for (int64_t i = 0; i < R * N; i++) {
        if (i % N >= N - 2) {
            cr_assert(isnan((double)at(blended, i)) && isnan((double)at(squared, i)) && at(p, i) == at(x, i));
            continue;
        }
        real a = rounded(0.9) * at(x, i), b = rounded(-0.01) * at(y, i);
        close_to("blend", blended, i, a + b, gamma_of(2) * (fabsl(a) + fabsl(b)));
        a = rounded(0.95) * at(x, i);
        b = rounded(0.05) * at(y, i) * at(y, i);
        close_to("blend_squares", squared, i, a + b, gamma_of(3) * (fabsl(a) + b));
        a = rounded(0.999) * at(x, i);
        b = rounded(0.01) * at(y, i) / (sqrtl(at(v, i)) / rounded(0.3) + rounded(1e-3)); /* 1 + (1 + 1 + 1) + 1 */
        close_to("adamw", p, i, a - b, gamma_of(6) * (fabsl(a) + fabsl(b)));
    }
}
Test(formulas, updates) {
    both_dtypes(updates);
}

static void sums(void) {
    void *x = made(1, R * N), *dy = made(2, R * N), *scale = made_positive(3, R);
    void *columns = room(N), *dg = room(N), *rows = made(4, 2 * N), *rows0 = made(4, 2 * N);
    const int64_t index[R] = {1, 0, 1};
    real squares = 0, largest = 0;
    ops->sum_rows(dtype, R, N, x, columns);
    ops->rms_norm_gradient(dtype, R, N, dy, x, scale, dg);
    ops->add_rows(dtype, R, N, rows, x, index);
    for (int64_t j = 0; j < N; j++) {
        real sum = 0, size = 0, gradient = 0, gradient_size = 0, added[2] = {at(rows0, j), at(rows0, N + j)}, sizes[2];
        sizes[0] = fabsl(added[0]);
        sizes[1] = fabsl(added[1]);
        for (int64_t r = 0; r < R; r++) {
            real term = at(x, r * N + j), product = at(dy, r * N + j) * term * at(scale, r);
            sum += term;
            size += fabsl(term);
            gradient += product;
            gradient_size += fabsl(product);
            added[index[r]] += term;
            sizes[index[r]] += fabsl(term);
            squares += term * term;
            largest = fabsl(term) > largest ? fabsl(term) : largest;
        }
        close_to("sum_rows", columns, j, sum, gamma_of(R) * size);
        close_to("rms_norm_gradient", dg, j, gradient, gamma_of(R + 2) * gradient_size);
        close_to("add_rows", rows, j, added[0], gamma_of(R) * sizes[0]);
        close_to("add_rows", rows, N + j, added[1], gamma_of(R) * sizes[1]);
    }
    cr_assert(fabsl((real)ops->sum_squares(dtype, R * N, x) - squares) <= (real)(R * N + 1) * 0x1p-53L * squares);
    cr_assert((real)ops->max_abs(dtype, R * N, x) == largest);
}
Test(formulas, sums_of_rows) {
    both_dtypes(sums);
}

/* Sum of squares n, times 1/n, plus eps: n + 2 on a positive number; root halves them and adds 1; quotient 1. */
static void rms_norm(void) {
    void *x = made(1, R * N), *g = made(2, N), *inverse = room(R), *y = room(R * N);
    ops->rms_norm(dtype, R, N, 1e-6, x, g, inverse, y);
    for (int64_t r = 0; r < R; r++) {
        real squares = 0;
        for (int64_t j = r * N; j < (r + 1) * N; j++)
            squares += at(x, j) * at(x, j);
        real want = 1 / sqrtl(squares * rounded(1.0 / N) + rounded(1e-6));
        close_to("inverse_rms", inverse, r, want, gamma_of(N + 4) * want);
        for (int64_t j = r * N; j < (r + 1) * N; j++) {
            real product = at(g, j % N) * at(x, j) * at(inverse, r);
            close_to("y", y, j, product, gamma_of(2) * fabsl(product));
        }
    }
}
Test(formulas, rms_norm) {
    both_dtypes(rms_norm);
}

/* t: one product and n chained; s s s t /n x: 5 more; two sums: n + 8 on the terms' sizes. */
static void rms_norm_backward(void) {
    void *dy = made(1, R * N), *x = made(2, R * N), *g = made(3, N), *s = made_positive(4, R), *rest = made(5, R * N);
    void *dx = room(R * N);
    for (int with = 0; with < 2; with++) {
        ops->rms_norm_backward(dtype, R, N, dy, x, g, s, with ? rest : NULL, dx);
        for (int64_t i = 0; i < R * N; i++) {
            real t = 0, size = 0, cube = at(s, i / N) * at(s, i / N) * at(s, i / N) * rounded(1.0 / N);
            for (int64_t j = i / N * N; j < (i / N + 1) * N; j++) {
                t += at(dy, j) * at(g, j % N) * at(x, j);
                size += fabsl(at(dy, j) * at(g, j % N) * at(x, j));
            }
            real direct = at(s, i / N) * at(g, i % N) * at(dy, i), added = with ? at(rest, i) : 0;
            close_to("dx", dx, i, direct - at(x, i) * cube * t + added,
                     gamma_of(N + 8) * (fabsl(direct) + fabsl(at(x, i)) * cube * size + fabsl(added)));
        }
    }
}
Test(formulas, rms_norm_backward) {
    both_dtypes(rms_norm_backward);
}

/* In float64 (v = 2^-53), with L = (2i/d) ln theta: ln 2v, 2i/d 1v, product 1v: L is off by 4 v L; exp 2v, times pos
 * 1v: the angle is off by (4 L + 3) v |angle|, one more for higher orders and the long double; slope <= 1, cos 1 ulp;
 * then once rounded. */
static void rotary_tables(void) {
    const int64_t tokens = 300, d = 14;
    const double theta = 1e6;
    void *c = room(tokens * d / 2), *s = room(tokens * d / 2);
    ops->rotary_tables(dtype, tokens, d, theta, c, s);
    for (int64_t i = 0; i < tokens * d / 2; i++) {
        real exponent = 2 * (real)(i % (d / 2)) / d, v = 0x1p-53L;
        real angle = (real)(i / (d / 2)) * powl(theta, -exponent), decay = exponent * logl(theta);
        real wide = (4 * decay + 4) * v * angle, last = dtype == DTYPE_F64 ? 0 : u();
        close_to("cos", c, i, cosl(angle), wide + (2 * v + last) * (fabsl(cosl(angle)) + wide));
        close_to("sin", s, i, sinl(angle), wide + (2 * v + last) * (fabsl(sinl(angle)) + wide));
    }
}
Test(formulas, rotary_tables) {
    both_dtypes(rotary_tables);
}

static void rotary(void) {
    enum {
        B = 2,
        T = 5,
        H = 3,
        D = 10,
        HALF = D / 2
    };
    void *x = made(1, B * T * H * D), *c = made(2, T * HALF), *s = made(3, T * HALF), *y = room(B * T * H * D);
    for (int backward = 0; backward < 2; backward++) {
        ops->rotary(dtype, B, T, H, D, backward, x, c, s, y);
        for (int64_t row = 0; row < B * T * H; row++)
            for (int64_t i = 0; i < HALF; i++) {
                int64_t turn = row / H % T * HALF + i;
                real x1 = at(x, row * D + i), x2 = at(x, row * D + i + HALF), cosine = at(c, turn);
                real sine = backward ? -at(s, turn) : at(s, turn);
                close_to("y1", y, row * D + i, x1 * cosine - x2 * sine,
                         gamma_of(2) * (fabsl(x1 * cosine) + fabsl(x2 * sine)));
                close_to("y2", y, row * D + i + HALF, x2 * cosine + x1 * sine,
                         gamma_of(2) * (fabsl(x2 * cosine) + fabsl(x1 * sine)));
            }
    }
}
Test(formulas, rotary) {
    both_dtypes(rotary);
}

static void softmax(void) {
    void *x = made(1, R * N), *y = room(R * N), *dy = made(2, R * N), *dx = room(R * N);
    ops->softmax(dtype, R, N, x, y);
    for (int64_t r = 0; r < R; r++)
        close_to_softmax("softmax", N, x, y, r * N);
    ops->softmax_backward(dtype, R, N, y, dy, dx);
    for (int64_t i = 0; i < R * N; i++) {
        real t = 0, size = 0;
        for (int64_t j = i / N * N; j < (i / N + 1) * N; j++) {
            t += at(y, j) * at(dy, j);
            size += fabsl(at(y, j) * at(dy, j));
        }
        close_to("softmax_backward", dx, i, at(y, i) * (at(dy, i) - t),
                 gamma_of(N + 2) * at(y, i) * (fabsl(at(dy, i)) + size));
    }
}
Test(formulas, softmax) {
    both_dtypes(softmax);
}

enum {
    E = 13,
    C = 4
};

/* Rank of expert e: how many are larger, or equal with a lower number. */
static void topk(void) {
    void *x = made(1, R * E);
    int64_t index[R * C];
    ops->topk(dtype, R, E, C, x, index);
    for (int64_t r = 0; r < R; r++)
        for (int64_t e = 0; e < E; e++) {
            int64_t rank = 0;
            for (int64_t o = 0; o < E; o++)
                rank += at(x, r * E + o) > at(x, r * E + e) || (at(x, r * E + o) == at(x, r * E + e) && o < e);
            if (rank < C)
                cr_assert_eq(index[r * C + rank], e);
        }
}
Test(formulas, topk) {
    both_dtypes(topk);
}

static void router_weights(void) {
    void *scores = made_positive(1, R * E), *weight = room(R * C), *dw = made(2, R * C), *ds = room(R * E);
    int64_t index[R * C];
    for (int64_t i = 0; i < R * C; i++)
        index[i] = (i / C * 5 + i % C * 4) % E;
    for (int normalise = 0; normalise < 2; normalise++) {
        ops->router_weights(dtype, R, E, C, normalise, scores, index, weight);
        ops->router_weights_backward(dtype, R, E, C, normalise, scores, index, weight, dw, ds);
        for (int64_t r = 0; r < R; r++) {
            real sum = 0;
            bool chosen[E] = {false};
            for (int64_t c = 0; c < C; c++)
                sum += at(scores, r * E + index[r * C + c]);
            struct total pull = dot(dw, r * C, 1, weight, r * C, 1, C);
            for (int64_t c = 0; c < C; c++) {
                int64_t i = r * C + c, e = r * E + index[i];
                real want = normalise ? at(scores, e) / sum : at(scores, e);
                close_to("weight", weight, i, want, normalise ? gamma_of(C) * want : 0);
                /* S: C - 1, the pull: C, difference and quotient 2 */
                real size = (fabsl(at(dw, i)) + pull.size) / sum;
                close_to("d_scores", ds, e, normalise ? (at(dw, i) - pull.x) / sum : at(dw, i),
                         normalise ? gamma_of(2 * C + 1) * size : 0);
                chosen[index[i]] = true;
            }
            for (int64_t e = 0; e < E; e++)
                if (!chosen[e])
                    close_to("d_scores", ds, r * E + e, 0, 0);
        }
    }
}
Test(formulas, router_weights) {
    both_dtypes(router_weights);
}

static void combine(void) {
    void *weight = made(1, R * C), *from = made(2, R * C * N), *dy = made(3, R * N), *out = room(R * N);
    void *plain = room(R * N), *d_from = room(R * C * N), *d_weight = room(R * C);
    int64_t index[R * C];
    for (int64_t i = 0; i < R * C; i++)
        index[i] = (i / C * 5 + i % C * 4) % E;
    ops->combine(dtype, R, C, N, index, weight, from, out);
    ops->combine(dtype, R, C, N, index, NULL, from, plain);
    ops->combine_backward(dtype, R, C, N, weight, from, dy, d_from, d_weight);
    for (int64_t i = 0; i < R * N; i++) {
        struct total mix = dot(weight, i / N * C, 1, from, i / N * C * N + i % N, N, C);
        close_to("out", out, i, mix.x, gamma_of(C) * mix.size);
        real sum = 0, size = 0;
        for (int64_t c = 0; c < C; c++) {
            sum += at(from, (i / N * C + c) * N + i % N);
            size += fabsl(at(from, (i / N * C + c) * N + i % N));
        }
        close_to("sum", plain, i, sum, gamma_of(C - 1) * size);
    }
    for (int64_t i = 0; i < R * C * N; i++) {
        real want = at(weight, i / N) * at(dy, i / (C * N) * N + i % N);
        close_to("d_output", d_from, i, want, u() * fabsl(want));
    }
    for (int64_t i = 0; i < R * C; i++) {
        struct total want = dot(dy, i / C * N, 1, from, i * N, 1, N);
        close_to("d_weight", d_weight, i, want.x, gamma_of(N) * want.size);
    }
}
Test(formulas, combine) {
    both_dtypes(combine);
}

/* s: exp 2, sum 1, quotient 1 = 4. h: and a product 5. 1 - s is off by gamma(5), 1 + g (1 - s) by gamma(7) (1 + |g|),
 * times s 12, times (dh u, itself 1) 14. */
static void swiglu(void) {
    void *gate = made(1, R * N), *up = made(2, R * N), *dh = made(3, R * N), *h = room(R * N);
    void *d_gate = room(R * N), *d_up = room(R * N);
    ops->swiglu(dtype, R, N, gate, N, up, N, h);
    ops->swiglu_backward(dtype, R, N, gate, N, up, N, dh, d_gate, N, d_up, N);
    for (int64_t i = 0; i < R * N; i++) {
        real g = at(gate, i), s = 1 / (1 + expl(-g)), silu = g * s, through = at(dh, i) * at(up, i);
        close_to("h", h, i, silu * at(up, i), gamma_of(5) * fabsl(silu * at(up, i)));
        close_to("d_gate", d_gate, i, through * s * (1 + g * (1 - s)),
                 gamma_of(14) * fabsl(through) * s * (1 + fabsl(g)));
        close_to("d_up", d_up, i, at(dh, i) * silu, gamma_of(6) * fabsl(at(dh, i) * silu));
    }
}
Test(formulas, swiglu) {
    both_dtypes(swiglu);
}

/* The sum of exp as in softmax: its relative error is log's absolute one; log 2 u, sum 1. */
static void cross_entropy(void) {
    enum {
        B = 3,
        T = 12,
        V = 301
    };
    void *logits = made(1, B * T * V), *lse = room(B * (T - 1)), *loss = room(B * (T - 1)), *d = room(B * T * V);
    int64_t labels[B * T];
    for (int64_t i = 0; i < B * T; i++)
        labels[i] = i % 5 == 2 ? -100 : i * 37 % V;
    ops->cross_entropy(dtype, B, T, V, logits, labels, lse, loss);
    ops->cross_entropy_backward(dtype, B, T, V, logits, labels, lse, d);
    for (int64_t row = 0; row < B * T; row++) {
        int64_t b = row / T, t = row % T, i = b * (T - 1) + t, label = t < T - 1 ? labels[row + 1] : -100;
        real maximum = -INFINITY, sum = 0;
        for (int64_t v = 0; v < V; v++)
            maximum = fmaxl(maximum, at(logits, row * V + v));
        for (int64_t v = 0; v < V; v++)
            sum += expl(at(logits, row * V + v) - maximum);
        real want = maximum + logl(sum), width = 4; /* numbers lie in [-2, 2) */
        if (t < T - 1) {
            close_to("lse", lse, i, want,
                     gamma_of(width + 2 + V) + gamma_of(3) * logl(sum) + gamma_of(1) * fabsl(want));
            real one = label < 0 ? 0 : at(lse, i) - at(logits, row * V + label);
            close_to("loss", loss, i, one, u() * fabsl(one));
        }
        for (int64_t v = 0; v < V; v++) {
            real below = label < 0 ? 0 : at(lse, i) - at(logits, row * V + v), p = label < 0 ? 0 : expl(-below);
            real full = p - (v == label);
            close_to("d_logits", d, row * V + v, full, gamma_of(below + 3) * p + u() * fabsl(full));
        }
    }
}
Test(formulas, cross_entropy) {
    both_dtypes(cross_entropy);
}
