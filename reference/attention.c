#include "reference/attention.h"

#include "reference/bound.h"
#include "reference/softmax.h"

/* Element (b, t, head, 0) of [B,T,heads,d]. */
static int64_t vector_at(const struct attention_size *z, int64_t heads, int64_t b, int64_t t, int64_t head) {
    return ((b * z->tokens + t) * heads + head) * z->head_dim;
}

/* Element (b, head, t, 0) of [B,nh,T,T]. */
static int64_t row_at(const struct attention_size *z, int64_t b, int64_t head, int64_t t) {
    return ((b * z->heads + head) * z->tokens + t) * z->tokens;
}

static struct num inverse_root(const struct arithmetic *m, const struct attention_size *z) {
    return num_exact(arithmetic_constant(m, 1 / sqrt((double)z->head_dim)));
}

static enum status make_square(const struct arithmetic *m, const struct attention_size *z, struct value *out) {
    TRY(value_new(m, out, 4, (const int64_t[]){z->sequences, z->heads, z->tokens, z->tokens}));
    value_zero(out);
    return STATUS_OK;
}

static struct num dot(const struct arithmetic *m, const struct value *a, int64_t at, const struct value *b, int64_t bt,
                      int64_t n) {
    struct sum sum = {0};
    for (int64_t i = 0; i < n; i++)
        sum_product(&sum, num_at(a, at + i), num_at(b, bt + i));
    return sum_close(m, &sum, n);
}

/* out(b,h,t,s) = left(b,t,h) . right(b,s,h's group), times `factor` if not NULL, for s <= t. */
static enum status pair_products(const struct arithmetic *m, const struct attention_size *z, const struct value *left,
                                 const struct value *right, const struct num *factor, struct value *out) {
    TRY(make_square(m, z, out));
    int64_t group = z->heads / z->kv_heads;
    int64_t rows = m->dry ? 0 : z->sequences * z->heads * z->tokens;
    for (int64_t row = 0; row < rows; row++) {
        int64_t t = row % z->tokens, h = row / z->tokens % z->heads, b = row / z->tokens / z->heads;
        int64_t at = vector_at(z, z->heads, b, t, h);
        for (int64_t s = 0; s <= t; s++) {
            struct num product = dot(m, left, at, right, vector_at(z, z->kv_heads, b, s, h / group), z->head_dim);
            num_set(out, row_at(z, b, h, t) + s, factor ? num_multiply(m, product, *factor) : product);
        }
    }
    return STATUS_OK;
}

enum status value_attention_scores(const struct arithmetic *m, const struct attention_size *z, const struct value *q,
                                   const struct value *k, struct value *out) {
    struct num factor = inverse_root(m, z);
    return pair_products(m, z, q, k, &factor, out);
}

enum status value_attention_d_probabilities(const struct arithmetic *m, const struct attention_size *z,
                                            const struct value *d_context, const struct value *v, struct value *out) {
    return pair_products(m, z, d_context, v, NULL, out);
}

enum status value_attention_probabilities(const struct arithmetic *m, const struct attention_size *z,
                                          const struct value *scores, struct value *out) {
    TRY(make_square(m, z, out));
    for (int64_t row = 0, rows = m->dry ? 0 : value_rows(out); row < rows; row++)
        softmax_span(m, scores, row * z->tokens, row % z->tokens + 1, out);
    return STATUS_OK;
}

enum status value_attention_d_scores(const struct arithmetic *m, const struct attention_size *z,
                                     const struct value *probabilities, const struct value *d_probabilities,
                                     struct value *out) {
    TRY(make_square(m, z, out));
    for (int64_t row = 0, rows = m->dry ? 0 : value_rows(out); row < rows; row++)
        softmax_gradient_span(m, probabilities, d_probabilities, row * z->tokens, row % z->tokens + 1, out);
    return STATUS_OK;
}

/* sum over s <= t of square(b,h,t,s) * vectors(b,s,h's group,i). */
static struct num mix_keys(const struct arithmetic *m, const struct attention_size *z, const struct value *square,
                           const struct value *vectors, int64_t b, int64_t t, int64_t h, int64_t i) {
    struct sum sum = {0};
    int64_t kv_head = h / (z->heads / z->kv_heads);
    for (int64_t s = 0; s <= t; s++)
        sum_product(&sum, num_at(square, row_at(z, b, h, t) + s),
                    num_at(vectors, vector_at(z, z->kv_heads, b, s, kv_head) + i));
    return sum_close(m, &sum, t + 1);
}

/* sum over the heads h of the group and t >= s of square(b,h,t,s) * vectors(b,t,h,i). */
static struct num mix_queries(const struct arithmetic *m, const struct attention_size *z, const struct value *square,
                              const struct value *vectors, int64_t b, int64_t s, int64_t kv_head, int64_t i) {
    struct sum sum = {0};
    int64_t group = z->heads / z->kv_heads;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int64_t t = s; t < z->tokens; t++)
            sum_product(&sum, num_at(square, row_at(z, b, h, t) + s),
                        num_at(vectors, vector_at(z, z->heads, b, t, h) + i));
    return sum_close(m, &sum, group * (z->tokens - s));
}

typedef struct num mix(const struct arithmetic *m, const struct attention_size *z, const struct value *square,
                       const struct value *vectors, int64_t b, int64_t token, int64_t head, int64_t i);

/* Every element (b, token, head, i) of out by `mixer`, times `factor` if not NULL. */
static void mix_all(const struct arithmetic *m, const struct attention_size *z, int64_t heads, mix *mixer,
                    const struct value *square, const struct value *vectors, const struct num *factor,
                    struct value *out) {
    for (int64_t at = 0, n = m->dry ? 0 : value_elements(out); at < n; at++) {
        int64_t i = at % z->head_dim, row = at / z->head_dim;
        int64_t head = row % heads, token = row / heads % z->tokens, b = row / heads / z->tokens;
        struct num sum = mixer(m, z, square, vectors, b, token, head, i);
        num_set(out, at, factor ? num_multiply(m, sum, *factor) : sum);
    }
}

enum status value_attention_context(const struct arithmetic *m, const struct attention_size *z,
                                    const struct value *probabilities, const struct value *v, struct value *out) {
    TRY(value_new(m, out, 3, (const int64_t[]){z->sequences, z->tokens, z->heads * z->head_dim}));
    mix_all(m, z, z->heads, mix_keys, probabilities, v, NULL, out);
    return STATUS_OK;
}

enum status value_attention_d_q(const struct arithmetic *m, const struct attention_size *z,
                                const struct value *d_scores, const struct value *k, struct value *out) {
    struct num factor = inverse_root(m, z);
    TRY(value_new(m, out, 4, (const int64_t[]){z->sequences, z->tokens, z->heads, z->head_dim}));
    mix_all(m, z, z->heads, mix_keys, d_scores, k, &factor, out);
    return STATUS_OK;
}

enum status value_attention_d_k(const struct arithmetic *m, const struct attention_size *z,
                                const struct value *d_scores, const struct value *q, struct value *out) {
    struct num factor = inverse_root(m, z);
    TRY(value_new(m, out, 4, (const int64_t[]){z->sequences, z->tokens, z->kv_heads, z->head_dim}));
    mix_all(m, z, z->kv_heads, mix_queries, d_scores, q, &factor, out);
    return STATUS_OK;
}

enum status value_attention_d_v(const struct arithmetic *m, const struct attention_size *z,
                                const struct value *probabilities, const struct value *d_context, struct value *out) {
    TRY(value_new(m, out, 3, (const int64_t[]){z->sequences, z->tokens, z->kv_heads * z->head_dim}));
    mix_all(m, z, z->kv_heads, mix_queries, probabilities, d_context, NULL, out);
    return STATUS_OK;
}
