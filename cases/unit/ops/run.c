#include "run.h"

#include <criterion/criterion.h>
#include <string.h>

#define BEHIND ((size_t)128) /* bytes behind an output that must stay as they were */

double number_at(int stream, int64_t index) { /* splitmix64 */
    uint64_t z = (uint64_t)index * 64 + (uint64_t)stream + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)(int64_t)((z ^ (z >> 31)) >> 11) * 0x1p-51 - 2;
}

static const struct ops *supported[3];

int isa_count(void) {
    static const char *const names[] = {"plain", "avx2", "avx512"};
    int count = 0;
    for (int i = 0; i < 3; i++)
        if (ops_cpu_named(names[i]))
            supported[count++] = ops_cpu_named(names[i]);
    return count;
}

const struct ops *isa_at(int i) {
    return i < isa_count() ? supported[i] : NULL;
}

static void *own(struct run *run, size_t bytes) {
    void *memory = run->ops->allocate(bytes);
    cr_assert(memory && run->owned < 2 * RUN_MOST);
    return run->own[run->owned++] = memory;
}

static void *numbers(struct run *run, int64_t first, int64_t count) {
    size_t element = dtype_bytes(run->dtype);
    void *data = own(run, (size_t)count * element);
    int stream = run->inputs++;
    for (int64_t i = 0; i < count; i++) {
        double x = number_at(stream, first + i);
        if (run->dtype == DTYPE_F64)
            ((double *)data)[i] = x;
        else
            ((float *)data)[i] = (float)x;
    }
    return data;
}

static void *input(struct run *run, int64_t per_row) {
    return numbers(run, run->first * per_row, run->rows * per_row);
}

/* The same for every row. */
static void *shared(struct run *run, int64_t count) {
    return numbers(run, 0, count);
}

/* per_row different indices below `limit` in each row. */
static int64_t *indices(struct run *run, int64_t per_row, int64_t limit) {
    int64_t *data = own(run, (size_t)(run->rows * per_row) * sizeof *data);
    for (int64_t i = 0; i < run->rows * per_row; i++) {
        int64_t row = run->first + i / per_row, c = i % per_row;
        int64_t start = (int64_t)((number_at(31, row) + 2) * 1e6);
        data[i] = (start + (row % 2 ? c : limit - c)) % limit;
    }
    return data;
}

static void *output_of(struct run *run, int64_t per_row, size_t element) {
    cr_assert(run->outputs < RUN_MOST);
    size_t bytes = (size_t)(run->rows * per_row) * element;
    void *data = own(run, bytes + BEHIND);
    run->output[run->outputs++] = (struct output){data, per_row, element};
    return data;
}

static void *output(struct run *run, int64_t per_row) {
    return output_of(run, per_row, dtype_bytes(run->dtype));
}

/* An input that is changed in place. */
static void *changed(struct run *run, int64_t per_row) {
    const void *from = input(run, per_row);
    void *to = output(run, per_row);
    run->ops->copy(to, from, (size_t)(run->rows * per_row) * dtype_bytes(run->dtype));
    return to;
}

struct run run_piece(const struct operation *operation, const struct ops *ops, enum dtype dtype, struct shape shape,
                     int64_t first, int64_t rows) {
    struct run run = {.ops = ops, .dtype = dtype, .shape = shape, .first = first, .rows = rows};
    operation->run(&run);
    for (int i = 0; i < run.outputs; i++) {
        const struct output *out = &run.output[i];
        int64_t count = rows * out->per_row;
        const unsigned char *bytes = out->data, unwritten[8] = {255, 255, 255, 255, 255, 255, 255, 255};
        for (int64_t j = 0; j < count; j++)
            cr_assert(memcmp(bytes + (size_t)j * out->element, unwritten, out->element) != 0,
                      "%s %s: output %d, element %d of %d was not written", ops->name, operation->name, i, (int)j,
                      (int)count);
        for (size_t j = 0; j < BEHIND; j++)
            cr_assert(bytes[(size_t)count * out->element + j] == 255, "%s %s: wrote behind output %d", ops->name,
                      operation->name, i);
    }
    return run;
}

void run_free(struct run *run) {
    while (run->owned)
        run->ops->release(run->own[--run->owned]);
}

/* ---- the operations */

static void run_matmul(struct run *r) {
    int64_t n = r->shape.n, k = r->shape.k;
    const void *a = input(r, k), *b = shared(r, k * n);
    struct matmul p = {r->rows, n, k, a, k, 1, b, n, 1, output(r, n), n, false};
    r->ops->matmul(r->dtype, &p);
}

static void run_matmul_turned(struct run *r) {
    int64_t n = r->shape.n, k = r->shape.k;
    const void *a = input(r, k), *b = shared(r, k * n);
    struct matmul p = {r->rows, n, k, a, k, 1, b, 1, k, changed(r, n), n, true};
    r->ops->matmul(r->dtype, &p);
}

static void run_scale(struct run *r) {
    r->ops->scale(r->dtype, r->rows * r->shape.n, changed(r, r->shape.n), 0.1);
}

static void run_divide(struct run *r) {
    r->ops->divide(r->dtype, r->rows * r->shape.n, changed(r, r->shape.n), 7);
}

static void run_add(struct run *r) {
    const void *a = input(r, r->shape.n), *b = input(r, r->shape.n);
    r->ops->add(r->dtype, r->rows * r->shape.n, output(r, r->shape.n), a, b);
}

static void run_add_bias(struct run *r) {
    const void *bias = shared(r, r->shape.n);
    r->ops->add_bias(r->dtype, r->rows, r->shape.n, changed(r, r->shape.n), bias);
}

/* One number per row. */
static void run_total(struct run *r, double (*total)(enum dtype dtype, int64_t n, const void *x)) {
    const char *x = input(r, r->shape.n);
    double *out = output_of(r, 1, sizeof *out);
    for (int64_t i = 0; i < r->rows; i++)
        out[i] = total(r->dtype, r->shape.n, x + (size_t)(i * r->shape.n) * dtype_bytes(r->dtype));
}

static void run_sum(struct run *r) {
    run_total(r, r->ops->sum);
}

static void run_sum_squares(struct run *r) {
    run_total(r, r->ops->sum_squares);
}

static void run_max_abs(struct run *r) {
    run_total(r, r->ops->max_abs);
}

static void run_gather_rows(struct run *r) {
    const void *table = shared(r, 11 * r->shape.n);
    const int64_t *index = indices(r, 1, 11);
    r->ops->gather_rows(r->dtype, r->rows, r->shape.n, output(r, r->shape.n), table, index);
}

static void run_scatter_rows(struct run *r) { /* to where they came from, back to front within the piece */
    int64_t *index = own(r, (size_t)r->rows * sizeof *index);
    for (int64_t i = 0; i < r->rows; i++)
        index[i] = i ^ (i + 1 < r->rows || i % 2 ? 1 : 0);
    const void *from = input(r, r->shape.n);
    r->ops->scatter_rows(r->dtype, r->rows, r->shape.n, output(r, r->shape.n), from, index);
}

static void run_rms_norm(struct run *r) {
    const void *x = input(r, r->shape.n), *g = shared(r, r->shape.n);
    void *inverse = output(r, 1);
    r->ops->rms_norm(r->dtype, r->rows, r->shape.n, 1e-6, x, g, inverse, output(r, r->shape.n));
}

static void run_rms_norm_backward(struct run *r) {
    int64_t n = r->shape.n;
    const void *dy = input(r, n), *x = input(r, n), *g = shared(r, n), *s = input(r, 1), *residual = input(r, n);
    r->ops->rms_norm_backward(r->dtype, r->rows, n, dy, x, g, s, NULL, output(r, n));
    r->ops->rms_norm_backward(r->dtype, r->rows, n, dy, x, g, s, residual, output(r, n));
}

static void run_rotary_tables(struct run *r) {
    int64_t pairs = r->shape.head_dim / 2;
    void *cosine = output(r, pairs);
    r->ops->rotary_tables(r->dtype, r->rows, r->shape.head_dim, 1e4, cosine, output(r, pairs));
}

static void run_rotary(struct run *r) {
    const struct shape *z = &r->shape;
    int64_t per_row = z->tokens * z->heads * z->head_dim, table = z->tokens * z->head_dim / 2;
    const void *x = input(r, per_row), *c = shared(r, table), *s = shared(r, table);
    for (int backward = 0; backward < 2; backward++)
        r->ops->rotary(r->dtype, r->rows, z->tokens, z->heads, z->head_dim, backward, x, c, s, output(r, per_row));
}

static void run_attention(struct run *r) {
    const struct shape *z = &r->shape;
    int64_t q_row = z->tokens * z->heads * z->head_dim, kv_row = z->tokens * z->kv_heads * z->head_dim;
    int64_t square = z->heads * z->tokens * z->tokens;
    const void *q = input(r, q_row), *k = input(r, kv_row), *v = input(r, kv_row);
    void *scores = output(r, square), *probabilities = output(r, square);
    r->ops->attention(r->dtype, r->rows, z->tokens, z->heads, z->kv_heads, z->head_dim, q, k, v, scores, probabilities,
                      output(r, q_row));
}

static void run_attention_backward(struct run *r) {
    const struct shape *z = &r->shape;
    int64_t q_row = z->tokens * z->heads * z->head_dim, kv_row = z->tokens * z->kv_heads * z->head_dim;
    int64_t square = z->heads * z->tokens * z->tokens;
    const void *q = input(r, q_row), *k = input(r, kv_row), *v = input(r, kv_row);
    const void *probabilities = input(r, square), *d_context = input(r, q_row);
    void *dp = output(r, square), *ds = output(r, square), *dq = output(r, q_row), *dk = output(r, kv_row);
    r->ops->attention_backward(r->dtype, r->rows, z->tokens, z->heads, z->kv_heads, z->head_dim, q, k, v, probabilities,
                               d_context, dp, ds, dq, dk, output(r, kv_row));
}

static void run_softmax(struct run *r) {
    const void *x = input(r, r->shape.n);
    r->ops->softmax(r->dtype, r->rows, r->shape.n, x, output(r, r->shape.n));
}

static void run_softmax_backward(struct run *r) {
    const void *y = input(r, r->shape.n), *dy = input(r, r->shape.n);
    r->ops->softmax_backward(r->dtype, r->rows, r->shape.n, y, dy, output(r, r->shape.n));
}

static int64_t choices(const struct run *r) {
    return r->shape.k < r->shape.n ? r->shape.k : r->shape.n;
}

static void run_topk(struct run *r) {
    const void *x = input(r, r->shape.n);
    r->ops->topk(r->dtype, r->rows, r->shape.n, choices(r), x, output_of(r, choices(r), sizeof(int64_t)));
}

static void run_router_weights(struct run *r) {
    int64_t n = r->shape.n, k = choices(r);
    const void *scores = input(r, n);
    const int64_t *index = indices(r, k, n);
    for (int normalise = 0; normalise < 2; normalise++)
        r->ops->router_weights(r->dtype, r->rows, n, k, normalise, scores, index, output(r, k));
}

static void run_router_weights_backward(struct run *r) {
    int64_t n = r->shape.n, k = choices(r);
    const void *scores = input(r, n), *weight = input(r, k), *d_weight = input(r, k);
    const int64_t *index = indices(r, k, n);
    for (int normalise = 0; normalise < 2; normalise++)
        r->ops->router_weights_backward(r->dtype, r->rows, n, k, normalise, scores, index, weight, d_weight,
                                        output(r, n));
}

static void run_combine(struct run *r) {
    int64_t n = r->shape.n, k = choices(r);
    const void *weight = input(r, k), *from = input(r, k * n);
    const int64_t *index = indices(r, k, 3 * k);
    r->ops->combine(r->dtype, r->rows, k, n, index, weight, from, output(r, n));
    r->ops->combine(r->dtype, r->rows, k, n, index, NULL, from, output(r, n));
}

static void run_combine_backward(struct run *r) {
    int64_t n = r->shape.n, k = choices(r);
    const void *weight = input(r, k), *from = input(r, k * n), *dy = input(r, n);
    void *d_output = output(r, k * n);
    r->ops->combine_backward(r->dtype, r->rows, k, n, weight, from, dy, d_output, output(r, k));
}

static void run_swiglu(struct run *r) { /* gate and up lie side by side, as one product leaves them */
    int64_t n = r->shape.n;
    const char *gate_up = input(r, 2 * n);
    r->ops->swiglu(r->dtype, r->rows, n, gate_up, 2 * n, gate_up + (size_t)n * dtype_bytes(r->dtype), 2 * n,
                   output(r, n));
}

static void run_swiglu_backward(struct run *r) {
    int64_t n = r->shape.n;
    const char *gate_up = input(r, 2 * n), *dh = input(r, n);
    char *d_gate_up = output(r, 2 * n);
    size_t half = (size_t)n * dtype_bytes(r->dtype);
    r->ops->swiglu_backward(r->dtype, r->rows, n, gate_up, 2 * n, gate_up + half, 2 * n, dh, d_gate_up, 2 * n,
                            d_gate_up + half, 2 * n);
}

static const int64_t *labels(struct run *r) {
    int64_t *label = indices(r, r->shape.tokens, r->shape.n);
    for (int64_t i = 0; i < r->rows * r->shape.tokens; i++)
        if ((r->first * r->shape.tokens + i) % 5 == 3)
            label[i] = -100;
    return label;
}

static void run_cross_entropy(struct run *r) {
    int64_t tokens = r->shape.tokens, vocab = r->shape.n;
    const void *logits = input(r, tokens * vocab);
    void *lse = output(r, tokens - 1);
    const int64_t *label = labels(r);
    r->ops->cross_entropy(r->dtype, r->rows, tokens, vocab, logits, label, lse, output(r, tokens - 1));
}

static void run_cross_entropy_backward(struct run *r) {
    int64_t tokens = r->shape.tokens, vocab = r->shape.n;
    const void *logits = input(r, tokens * vocab), *lse = input(r, tokens - 1);
    const int64_t *label = labels(r);
    r->ops->cross_entropy_backward(r->dtype, r->rows, tokens, vocab, logits, label, lse, output(r, tokens * vocab));
}

/* Sums over k rows, once for each row of the shape. */
static void run_sum_rows(struct run *r) {
    size_t row = (size_t)r->shape.n * dtype_bytes(r->dtype);
    const char *x = input(r, r->shape.k * r->shape.n);
    char *out = output(r, r->shape.n);
    for (int64_t i = 0; i < r->rows; i++)
        r->ops->sum_rows(r->dtype, r->shape.k, r->shape.n, x + (size_t)(i * r->shape.k) * row, out + (size_t)i * row);
}

static void run_add_rows(struct run *r) {
    const void *from = input(r, r->shape.n);
    const int64_t *index = indices(r, 1, r->rows);
    r->ops->add_rows(r->dtype, r->rows, r->shape.n, changed(r, r->shape.n), from, index);
}

static void run_rms_norm_gradient(struct run *r) {
    int64_t n = r->shape.n, k = r->shape.k;
    size_t element = dtype_bytes(r->dtype), row = (size_t)n * element;
    const char *dy = input(r, k * n), *x = input(r, k * n), *scale = input(r, k);
    char *out = output(r, n);
    for (int64_t i = 0; i < r->rows; i++)
        r->ops->rms_norm_gradient(r->dtype, k, n, dy + (size_t)(i * k) * row, x + (size_t)(i * k) * row,
                                  scale + (size_t)(i * k) * element, out + (size_t)i * row);
}

static struct strips all_of(const struct run *r) {
    return (struct strips){r->rows, r->shape.n, r->shape.n};
}

static void run_blend(struct run *r) {
    const struct strips strips = all_of(r);
    const void *y = input(r, r->shape.n);
    void *x = changed(r, r->shape.n);
    r->ops->blend(r->dtype, &strips, x, 0.9, x, -0.01, y);
}

static void run_blend_squares(struct run *r) {
    const struct strips strips = all_of(r);
    const void *y = input(r, r->shape.n);
    void *x = changed(r, r->shape.n);
    r->ops->blend_squares(r->dtype, &strips, x, 0.95, x, 0.05, y);
}

static void run_adamw(struct run *r) {
    const struct strips strips = all_of(r);
    const void *m = input(r, r->shape.n);
    void *v = numbers(r, r->first * r->shape.n, r->rows * r->shape.n);
    r->ops->blend_squares(r->dtype, &strips, v, 0, v, 1, v); /* not below 0 */
    r->ops->adamw(r->dtype, &strips, 0.999, 0.01, 0.3, 1e-8, m, v, changed(r, r->shape.n));
}

const struct operation operations[] = {
    {"matmul", run_matmul},
    {"matmul_turned", run_matmul_turned},
    {"scale", run_scale},
    {"divide", run_divide},
    {"add", run_add},
    {"add_bias", run_add_bias},
    {"sum", run_sum},
    {"sum_squares", run_sum_squares},
    {"max_abs", run_max_abs},
    {"gather_rows", run_gather_rows},
    {"scatter_rows", run_scatter_rows, .whole = true},
    {"rms_norm", run_rms_norm},
    {"rms_norm_backward", run_rms_norm_backward},
    {"rotary_tables", run_rotary_tables, .whole = true},
    {"rotary", run_rotary},
    {"attention", run_attention},
    {"attention_backward", run_attention_backward},
    {"softmax", run_softmax},
    {"softmax_backward", run_softmax_backward},
    {"topk", run_topk},
    {"router_weights", run_router_weights},
    {"router_weights_backward", run_router_weights_backward},
    {"combine", run_combine},
    {"combine_backward", run_combine_backward},
    {"swiglu", run_swiglu},
    {"swiglu_backward", run_swiglu_backward},
    {"cross_entropy", run_cross_entropy},
    {"cross_entropy_backward", run_cross_entropy_backward},
    {"sum_rows", run_sum_rows},
    {"add_rows", run_add_rows, .whole = true},
    {"rms_norm_gradient", run_rms_norm_gradient},
    {"blend", run_blend},
    {"blend_squares", run_blend_squares},
    {"adamw", run_adamw},
};
const int operation_count = sizeof operations / sizeof *operations;
