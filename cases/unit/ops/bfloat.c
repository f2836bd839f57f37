/* bfloat16: each operation is the float32 one on the widened operands, rounded once where its result is stored; on
 * every instruction set. Operands and results marked wide stay float32. */
#include "run.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQUENCES = 2,
    T = 5,
    HEADS = 4,
    KV = 2,
    D = 6,
    ROWS = SEQUENCES * T,
    N = 13,
    K = 3,
    MOST = 12
};

struct call { /* one operation with its operands, in float32 or in bfloat16 */
    const struct ops *ops;
    bool narrow;
    int streams, outputs, owned;
    void *own[2 * MOST];
    struct {
        void *data;
        int64_t n;
        bool wide;
    } output[MOST];
};

static enum dtype type(const struct call *c) {
    return c->narrow ? DTYPE_BF16 : DTYPE_F32;
}

static void *own(struct call *c, size_t bytes) {
    void *memory = malloc(bytes + 1);
    cr_assert(memory && c->owned < 2 * MOST);
    memset(memory, 0xff, bytes + 1);
    return c->own[c->owned++] = memory;
}

/* n numbers that bfloat16 holds; `wide`: that float32 holds, in float32 in both calls. */
static void *numbers(struct call *c, int64_t n, bool wide) {
    int stream = c->streams++;
    void *data = own(c, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        float x = (float)number_at(stream, i);
        if (wide)
            ((float *)data)[i] = x;
        else if (c->narrow)
            ((uint16_t *)data)[i] = bf16_from_float(x);
        else
            ((float *)data)[i] = bf16_to_float(bf16_from_float(x));
    }
    return data;
}

static void *result(struct call *c, void *data, int64_t n, bool wide) {
    cr_assert(c->outputs < MOST);
    c->output[c->outputs].data = data;
    c->output[c->outputs].n = n;
    c->output[c->outputs++].wide = wide;
    return data;
}

static void *output(struct call *c, int64_t n, bool wide) {
    return result(c, own(c, (size_t)n * sizeof(float)), n, wide);
}

static int64_t *indices(struct call *c, int64_t n, int64_t limit) {
    int64_t *data = own(c, (size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++)
        data[i] = (i * 7 + i / K) % limit;
    return data;
}

/* ---- operations */

static void products(struct call *c, bool a_wide, bool b_wide, bool c_wide, bool accumulate) {
    const void *a = numbers(c, ROWS * K, a_wide), *b = numbers(c, K * N, b_wide);
    void *out = accumulate ? result(c, numbers(c, ROWS * N, c_wide), ROWS * N, c_wide) : output(c, ROWS * N, c_wide);
    const struct matmul p = {.m = ROWS,
                             .n = N,
                             .k = K,
                             .a = a,
                             .a_row = 1,
                             .a_col = ROWS,
                             .b = b,
                             .b_row = N,
                             .b_col = 1,
                             .c = out,
                             .c_row = N,
                             .accumulate = accumulate,
                             .a_wide = a_wide,
                             .b_wide = b_wide,
                             .c_wide = c_wide};
    c->ops->matmul(type(c), &p);
}

static void matmul(struct call *c) {
    products(c, false, false, false, false);
}

static void matmul_sums(struct call *c) {
    products(c, false, false, true, true);
}

static void matmul_goes_on(struct call *c) {
    products(c, false, false, false, true);
}

static void matmul_wide_factors(struct call *c) {
    products(c, true, false, true, false);
    products(c, false, true, true, false);
}

static void scale(struct call *c) {
    c->ops->scale(type(c), ROWS * N, result(c, numbers(c, ROWS * N, false), ROWS * N, false), (float)0.1);
}

static void divide(struct call *c) {
    c->ops->divide(type(c), ROWS * N, result(c, numbers(c, ROWS * N, false), ROWS * N, false), 7);
}

static void add(struct call *c) {
    const void *a = numbers(c, ROWS * N, false), *b = numbers(c, ROWS * N, false);
    c->ops->add(type(c), ROWS * N, output(c, ROWS * N, false), a, b);
}

static void add_bias(struct call *c) {
    const void *bias = numbers(c, N, false);
    c->ops->add_bias(type(c), ROWS, N, result(c, numbers(c, ROWS * N, false), ROWS * N, false), bias);
}

static void sum_rows(struct call *c) {
    const void *x = numbers(c, ROWS * N, false);
    c->ops->sum_rows(type(c), ROWS, N, x, output(c, N, true));
}

static void add_rows(struct call *c) {
    const void *from = numbers(c, ROWS * N, false);
    void *out = result(c, numbers(c, 4 * N, true), 4 * N, true);
    c->ops->add_rows(type(c), ROWS, N, out, from, indices(c, ROWS, 4));
}

static void rms_norm(struct call *c) {
    const void *x = numbers(c, ROWS * N, false), *g = numbers(c, N, false);
    void *inverse = output(c, ROWS, true);
    c->ops->rms_norm(type(c), ROWS, N, (float)1e-6, x, g, inverse, output(c, ROWS * N, false));
}

static void rms_norm_backward(struct call *c) {
    const void *dy = numbers(c, ROWS * N, false), *x = numbers(c, ROWS * N, false), *g = numbers(c, N, false);
    const void *s = numbers(c, ROWS, true), *residual = numbers(c, ROWS * N, false);
    c->ops->rms_norm_backward(type(c), ROWS, N, dy, x, g, s, NULL, output(c, ROWS * N, false));
    c->ops->rms_norm_backward(type(c), ROWS, N, dy, x, g, s, residual, output(c, ROWS * N, false));
}

static void rms_norm_gradient(struct call *c) {
    const void *dy = numbers(c, ROWS * N, false), *x = numbers(c, ROWS * N, false), *s = numbers(c, ROWS, true);
    c->ops->rms_norm_gradient(type(c), ROWS, N, dy, x, s, output(c, N, true));
}

static void rotary(struct call *c) {
    const int64_t n = ROWS * HEADS * D;
    const void *x = numbers(c, n, false), *cosine = numbers(c, T * D / 2, true), *sine = numbers(c, T * D / 2, true);
    for (int backward = 0; backward < 2; backward++)
        c->ops->rotary(type(c), SEQUENCES, T, HEADS, D, backward, x, cosine, sine, output(c, n, false));
}

static void softmax(struct call *c) {
    const void *x = numbers(c, ROWS * N, false);
    c->ops->softmax(type(c), ROWS, N, x, output(c, ROWS * N, true));
}

static void softmax_backward(struct call *c) {
    const void *y = numbers(c, ROWS * N, true), *dy = numbers(c, ROWS * N, true);
    c->ops->softmax_backward(type(c), ROWS, N, y, dy, output(c, ROWS * N, false));
}

static void combine(struct call *c) {
    const int64_t *index = indices(c, ROWS * K, 8);
    const void *weight = numbers(c, ROWS * K, true), *out = numbers(c, ROWS * K * N, false);
    c->ops->combine(type(c), ROWS, K, N, index, weight, out, output(c, ROWS * N, false));
    c->ops->combine(type(c), ROWS, K, N, index, NULL, out, output(c, ROWS * N, false));
}

static void combine_backward(struct call *c) {
    const void *weight = numbers(c, ROWS * K, true), *out = numbers(c, ROWS * K * N, false);
    const void *dy = numbers(c, ROWS * N, false);
    void *d_weight = output(c, ROWS * K, true);
    c->ops->combine_backward(type(c), ROWS, K, N, weight, out, dy, output(c, ROWS * K * N, false), d_weight);
}

/* gate and up beside each other in rows of 2N, as experts have them. */
static void swiglu(struct call *c) {
    const char *x = numbers(c, ROWS * 2 * N, false);
    c->ops->swiglu(type(c), ROWS, N, x, 2 * N, x + N * dtype_bytes(type(c)), 2 * N, output(c, ROWS * N, false));
}

static void swiglu_backward(struct call *c) {
    const size_t up = N * dtype_bytes(type(c));
    const char *x = numbers(c, ROWS * 2 * N, false);
    const void *dh = numbers(c, ROWS * N, false);
    char *dx = output(c, ROWS * 2 * N, false);
    c->ops->swiglu_backward(type(c), ROWS, N, x, 2 * N, x + up, 2 * N, dh, dx, 2 * N, dx + up, 2 * N);
}

static void cross_entropy(struct call *c) {
    const void *logits = numbers(c, ROWS * N, false);
    const int64_t *labels = indices(c, ROWS, N);
    void *lse = output(c, SEQUENCES * (T - 1), true);
    c->ops->cross_entropy(type(c), SEQUENCES, T, N, logits, labels, lse, output(c, SEQUENCES * (T - 1), true));
    c->ops->cross_entropy_backward(type(c), SEQUENCES, T, N, logits, labels, lse, output(c, ROWS * N, false));
}

static const struct {
    const char *name;
    void (*run)(struct call *call);
} calls[] = {
    {"matmul", matmul},
    {"matmul, float32 sums", matmul_sums},
    {"matmul, goes on from C", matmul_goes_on},
    {"matmul, a float32 factor", matmul_wide_factors},
    {"scale", scale},
    {"divide", divide},
    {"add", add},
    {"add_bias", add_bias},
    {"sum_rows", sum_rows},
    {"add_rows", add_rows},
    {"rms_norm", rms_norm},
    {"rms_norm_backward", rms_norm_backward},
    {"rms_norm_gradient", rms_norm_gradient},
    {"rotary", rotary},
    {"softmax", softmax},
    {"softmax_backward", softmax_backward},
    {"combine", combine},
    {"combine_backward", combine_backward},
    {"swiglu", swiglu},
    {"swiglu_backward", swiglu_backward},
    {"cross_entropy", cross_entropy},
};

static void call_free(struct call *c) {
    while (c->owned)
        free(c->own[--c->owned]);
}

static void assert_rounded(const char *name, const struct call *single, const struct call *half) {
    cr_assert(single->outputs == half->outputs && half->outputs > 0);
    for (int o = 0; o < half->outputs; o++)
        for (int64_t i = 0; i < half->output[o].n; i++) {
            const float *want = single->output[o].data;
            if (half->output[o].wide)
                cr_assert(memcmp(want + i, (const float *)half->output[o].data + i, sizeof *want) == 0,
                          "%s, %s: output %d, element %d", half->ops->name, name, o, (int)i);
            else
                cr_assert_eq(((const uint16_t *)half->output[o].data)[i], bf16_from_float(want[i]),
                             "%s, %s: output %d, element %d of %g", half->ops->name, name, o, (int)i, (double)want[i]);
        }
}

Test(bfloat, float32_rounded_once) {
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
        for (int i = 0; i < isa_count(); i++) {
            struct call single = {.ops = isa_at(0)}, half = {.ops = isa_at(i), .narrow = true};
            calls[k].run(&single);
            calls[k].run(&half);
            assert_rounded(calls[k].name, &single, &half);
            call_free(&half);
            call_free(&single);
        }
}

/* ---- attention: what is stored on the way is read back as stored */

static float at(const uint16_t *x, int64_t i) {
    return bf16_to_float(x[i]);
}

struct attention {
    uint16_t q[ROWS * HEADS * D], k[ROWS * KV * D], v[ROWS * KV * D], dc[ROWS * HEADS * D];
    uint16_t scores[SEQUENCES * HEADS * T * T], p[SEQUENCES * HEADS * T * T], context[ROWS * HEADS * D];
    uint16_t dp[SEQUENCES * HEADS * T * T], ds[SEQUENCES * HEADS * T * T];
    uint16_t dq[ROWS * HEADS * D], dk[ROWS * KV * D], dv[ROWS * KV * D];
};

static void fill(uint16_t *x, int64_t n, int stream) {
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_from_float((float)number_at(stream, i));
}

static void run_attention(const struct ops *ops, struct attention *a) {
    memset(a, 0xff, sizeof *a);
    fill(a->q, ROWS * HEADS * D, 0);
    fill(a->k, ROWS * KV * D, 1);
    fill(a->v, ROWS * KV * D, 2);
    fill(a->dc, ROWS * HEADS * D, 3);
    ops->attention(DTYPE_BF16, SEQUENCES, T, HEADS, KV, D, a->q, a->k, a->v, a->scores, a->p, a->context);
    ops->attention_backward(DTYPE_BF16, SEQUENCES, T, HEADS, KV, D, a->q, a->k, a->v, a->p, a->dc, a->dp, a->ds, a->dq,
                            a->dk, a->dv);
}

/* Element (b, t, head, i) of a [B,T,heads,D] tensor. */
static int64_t place(int64_t b, int64_t t, int64_t head, int64_t i, int64_t heads) {
    return ((b * T + t) * heads + head) * D + i;
}

/* One row of softmax and of its gradient, by the float32 operations on what is stored. */
static void check_row(const struct attention *a, int64_t b, int64_t h, int64_t t) {
    const int64_t row = ((b * HEADS + h) * T + t) * T, kv = h / (HEADS / KV);
    const struct ops *ops = isa_at(0);
    float x[T], y[T], dy[T], dx[T];
    for (int64_t s = 0; s <= t; s++) {
        float score = 0, dp = 0;
        for (int64_t i = 0; i < D; i++) {
            score = __builtin_fmaf(at(a->q, place(b, t, h, i, HEADS)), at(a->k, place(b, s, kv, i, KV)), score);
            dp = __builtin_fmaf(at(a->dc, place(b, t, h, i, HEADS)), at(a->v, place(b, s, kv, i, KV)), dp);
        }
        cr_assert_eq(a->scores[row + s], bf16_from_float(score * (float)(1 / __builtin_sqrt(D))));
        cr_assert_eq(a->dp[row + s], bf16_from_float(dp));
        x[s] = at(a->scores, row + s);
        dy[s] = at(a->dp, row + s);
    }
    ops->softmax(DTYPE_F32, 1, t + 1, x, y);
    for (int64_t s = 0; s <= t; s++) {
        cr_assert_eq(a->p[row + s], bf16_from_float(y[s]));
        y[s] = at(a->p, row + s);
    }
    ops->softmax_backward(DTYPE_F32, 1, t + 1, y, dy, dx);
    for (int64_t s = 0; s <= t; s++)
        cr_assert_eq(a->ds[row + s], bf16_from_float(dx[s]));
    for (int64_t i = 0; i < D; i++) {
        float context = 0, dq = 0;
        for (int64_t s = 0; s <= t; s++) {
            context = __builtin_fmaf(y[s], at(a->v, place(b, s, kv, i, KV)), context);
            dq = __builtin_fmaf(at(a->ds, row + s), at(a->k, place(b, s, kv, i, KV)), dq);
        }
        cr_assert_eq(a->context[place(b, t, h, i, HEADS)], bf16_from_float(context));
        cr_assert_eq(a->dq[place(b, t, h, i, HEADS)], bf16_from_float(dq * (float)(1 / __builtin_sqrt(D))));
    }
}

/* dk and dv: one chain over the group's heads and the tokens behind. */
static void check_back(const struct attention *a, int64_t b, int64_t kv, int64_t s) {
    for (int64_t i = 0; i < D; i++) {
        float dk = 0, dv = 0;
        for (int64_t h = kv * HEADS / KV; h < (kv + 1) * HEADS / KV; h++)
            for (int64_t t = s; t < T; t++) {
                int64_t square = ((b * HEADS + h) * T + t) * T + s, from = place(b, t, h, i, HEADS);
                dk = __builtin_fmaf(at(a->ds, square), at(a->q, from), dk);
                dv = __builtin_fmaf(at(a->p, square), at(a->dc, from), dv);
            }
        cr_assert_eq(a->dk[place(b, s, kv, i, KV)], bf16_from_float(dk * (float)(1 / __builtin_sqrt(D))));
        cr_assert_eq(a->dv[place(b, s, kv, i, KV)], bf16_from_float(dv));
    }
}

Test(bfloat, attention_reads_what_it_stored) {
    for (int isa = 0; isa < isa_count(); isa++) {
        struct attention a;
        run_attention(isa_at(isa), &a);
        for (int64_t b = 0; b < SEQUENCES; b++)
            for (int64_t t = 0; t < T; t++) {
                for (int64_t h = 0; h < HEADS; h++)
                    check_row(&a, b, h, t);
                for (int64_t kv = 0; kv < KV; kv++)
                    check_back(&a, b, kv, t);
            }
    }
}

Test(bfloat, convert_rounds_to_nearest_even) {
    const float x[] = {1, 1.00390625f, 1.01171875f, -1.0039064f, 3.4e38f, 1e-40f, -0.0f};
    const uint16_t want[] = {0x3f80, 0x3f80, 0x3f82, 0xbf81, 0x7f80, 0x0001, 0x8000};
    const int64_t n = sizeof x / sizeof *x;
    uint16_t half[sizeof x / sizeof *x];
    float back[sizeof x / sizeof *x];
    isa_at(0)->convert(n, DTYPE_BF16, half, DTYPE_F32, x);
    cr_assert_arr_eq(half, want, sizeof want);
    isa_at(0)->convert(n, DTYPE_F32, back, DTYPE_BF16, half);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(back[i], bf16_to_float(want[i]));
    cr_assert_eq(back[1], 1);
}
