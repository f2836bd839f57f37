/* bfloat16: operands are widened to float32, which is exact, the float32 operation computes, and each result is rounded
 * once when it is stored. Results that are stored on the way are read back as stored. */

static void widen_bf16(int64_t n, const void *from, float *to) {
    const uint16_t *x = from;
    for (int64_t i = 0; i < n; i++)
        to[i] = elementary_from_bitsf((uint32_t)x[i] << 16);
}

/* To nearest even; a NaN keeps its upper bits and is quiet. */
static void narrow_bf16(int64_t n, const float *from, void *to) {
    uint16_t *y = to;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = elementary_to_bitsf(from[i]);
        uint32_t near = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
        y[i] = (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : near) >> 16);
    }
}

/* Stored, and read back. */
static void settle_bf16(int64_t n, float *x, void *to) {
    narrow_bf16(n, x, to);
    widen_bf16(n, to, x);
}

/* Memory for n floats, born NaN, the caller's. Operations have no way to fail: without memory the rank ends. */
static float *blank_bf16(int64_t n) {
    size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof(float);
    float *memory = malloc(bytes);
    if (!memory)
        abort();
    memset(memory, 0xff, bytes);
    return memory;
}

static float *widened_bf16(int64_t n, const void *from) {
    float *wide = blank_bf16(n);
    widen_bf16(n, from, wide);
    return wide;
}

static void stored_bf16(int64_t n, float *x, void *to) {
    narrow_bf16(n, x, to);
    free(x);
}

/* ---- elementwise, rows */

static void scale_bf16(int64_t n, void *x, double factor) {
    float *wide = widened_bf16(n, x);
    scale_f32(n, wide, factor);
    stored_bf16(n, wide, x);
}

static void divide_bf16(int64_t n, void *x, double divisor) {
    float *wide = widened_bf16(n, x);
    divide_f32(n, wide, divisor);
    stored_bf16(n, wide, x);
}

static void add_bf16(int64_t n, void *out, const void *a, const void *b) {
    float *x = widened_bf16(n, a), *y = widened_bf16(n, b);
    add_f32(n, x, x, y);
    free(y);
    stored_bf16(n, x, out);
}

static void add_bias_bf16(int64_t rows, int64_t n, void *x, const void *bias) {
    float *wide = widened_bf16(rows * n, x), *b = widened_bf16(n, bias);
    add_bias_f32(rows, n, wide, b);
    free(b);
    stored_bf16(rows * n, wide, x);
}

static void sum_rows_bf16(int64_t rows, int64_t n, const void *x, float *out) {
    float *wide = widened_bf16(rows * n, x);
    sum_rows_f32(rows, n, wide, out);
    free(wide);
}

static void add_rows_bf16(int64_t rows, int64_t n, float *out, const void *from, const int64_t *index) {
    float *wide = widened_bf16(rows * n, from);
    add_rows_f32(rows, n, out, wide, index);
    free(wide);
}

static void rms_norm_bf16(int64_t rows, int64_t n, double eps, const void *x, const void *g, float *inverse_rms,
                          void *y) {
    float *wide = widened_bf16(rows * n, x), *by = widened_bf16(n, g), *out = blank_bf16(rows * n);
    rms_norm_f32(rows, n, eps, wide, by, inverse_rms, out);
    stored_bf16(rows * n, out, y);
    free(by);
    free(wide);
}

static void rms_norm_backward_bf16(int64_t rows, int64_t n, const void *dy, const void *x, const void *g,
                                   const float *inverse_rms, const void *residual, void *dx) {
    float *wide_dy = widened_bf16(rows * n, dy), *wide = widened_bf16(rows * n, x), *by = widened_bf16(n, g);
    float *rest = residual ? widened_bf16(rows * n, residual) : NULL, *out = blank_bf16(rows * n);
    rms_norm_backward_f32(rows, n, wide_dy, wide, by, inverse_rms, rest, out);
    stored_bf16(rows * n, out, dx);
    free(rest);
    free(by);
    free(wide);
    free(wide_dy);
}

static void rms_norm_gradient_bf16(int64_t rows, int64_t n, const void *dy, const void *x, const float *inverse_rms,
                                   float *dg) {
    float *wide_dy = widened_bf16(rows * n, dy), *wide = widened_bf16(rows * n, x);
    rms_norm_gradient_f32(rows, n, wide_dy, wide, inverse_rms, dg);
    free(wide);
    free(wide_dy);
}

static void softmax_bf16(int64_t rows, int64_t n, const void *x, float *y) {
    float *wide = widened_bf16(rows * n, x);
    softmax_f32(rows, n, wide, y);
    free(wide);
}

static void softmax_backward_bf16(int64_t rows, int64_t n, const float *y, const float *dy, void *dx) {
    float *out = blank_bf16(rows * n);
    softmax_backward_f32(rows, n, y, dy, out);
    stored_bf16(rows * n, out, dx);
}

/* ---- matrix product */

/* Dense [rows, columns] float32 of elements that lie row and column apart. */
static float *dense_bf16(int64_t rows, int64_t columns, const void *from, int64_t row, int64_t column, bool wide) {
    const uint16_t *narrow = from;
    const float *floats = from;
    float *dense = blank_bf16(rows * columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = i * row + j * column;
            dense[i * columns + j] = wide ? floats[at] : elementary_from_bitsf((uint32_t)narrow[at] << 16);
        }
    return dense;
}

static void matmul_bf16(const struct matmul *p) {
    if (p->m <= 0 || p->n <= 0)
        return;
    struct matmul product = *p;
    float *a = dense_bf16(p->m, p->k, p->a, p->a_row, p->a_col, p->a_wide);
    float *b = dense_bf16(p->k, p->n, p->b, p->b_row, p->b_col, p->b_wide);
    float *c = p->c_wide       ? NULL
               : p->accumulate ? dense_bf16(p->m, p->n, p->c, p->c_row, 1, false)
                               : blank_bf16(p->m * p->n);
    product.a = a;
    product.a_row = p->k;
    product.a_col = 1;
    product.b = b;
    product.b_row = p->n;
    product.b_col = 1;
    if (c) {
        product.c = c;
        product.c_row = p->n;
    }
    matmul_f32(&product);
    for (int64_t i = 0; c && i < p->m; i++)
        narrow_bf16(p->n, c + i * p->n, (uint16_t *)p->c + i * p->c_row);
    free(c);
    free(b);
    free(a);
}

/* ---- attention */

static void rotary_bf16(int64_t sequences, int64_t tokens, int64_t heads, int64_t head_dim, bool backward,
                        const void *x, const float *cosine, const float *sine, void *y) {
    int64_t elements = sequences * tokens * heads * head_dim;
    float *wide = widened_bf16(elements, x), *out = blank_bf16(elements);
    rotary_f32(sequences, tokens, heads, head_dim, backward, wide, cosine, sine, out);
    stored_bf16(elements, out, y);
    free(wide);
}

static void attention_bf16(int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           const void *q, const void *k, const void *v, void *scores, void *probabilities,
                           void *context) {
    const int64_t square = tokens * tokens, rows = sequences * tokens * head_dim;
    float *wide_q = widened_bf16(rows * heads, q), *wide_k = widened_bf16(rows * kv_heads, k);
    float *wide_v = widened_bf16(rows * kv_heads, v), *out = blank_bf16(rows * heads);
    float *s = blank_bf16(square), *p = blank_bf16(square);
    for (int64_t bh = 0; bh < sequences * heads; bh++) {
        int64_t b = bh / heads, h = bh % heads, kh = h / (heads / kv_heads);
        causal_scores_f32(tokens, head_dim, head_of_f32(wide_q, tokens, heads, head_dim, b, h),
                          head_of_f32(wide_k, tokens, kv_heads, head_dim, b, kh), s);
        for (int64_t t = 0; t < tokens; t++)
            scale_rows_f32(1, t + 1, s + t * tokens, 0, attention_scale_f32(head_dim));
        settle_bf16(square, s, (uint16_t *)scores + bh * square);
        causal_softmax_f32(tokens, s, p);
        settle_bf16(square, p, (uint16_t *)probabilities + bh * square);
        causal_mix_f32(tokens, head_dim, p, head_of_f32(wide_v, tokens, kv_heads, head_dim, b, kh),
                       out + (b * tokens * heads + h) * head_dim, heads * head_dim);
    }
    free(p);
    free(s);
    stored_bf16(rows * heads, out, context);
    free(wide_v);
    free(wide_k);
    free(wide_q);
}

struct attention_bf16 { /* widened */
    int64_t tokens, heads, kv_heads, head_dim;
    float *q, *k, *v, *p, *d_context;
    float *dp, *ds; /* of one head */
    float *dq, *dk, *dv;
};

static void attention_head_back_bf16(const struct attention_bf16 *a, int64_t b, int64_t h, void *d_probabilities,
                                     void *d_scores) {
    const int64_t tokens = a->tokens, d = a->head_dim, square = tokens * tokens, kh = h / (a->heads / a->kv_heads);
    const int64_t bh = b * a->heads + h, at = (b * tokens * a->heads + h) * d;
    const int64_t kv_at = (b * tokens * a->kv_heads + kh) * d, row = a->heads * d, kv_row = a->kv_heads * d;
    const struct head_f32 q = {a->q + at, row}, k = {a->k + kv_at, kv_row}, v = {a->v + kv_at, kv_row};
    const struct head_f32 dc = {a->d_context + at, row};
    float *p = a->p + bh * square;
    causal_scores_f32(tokens, d, dc, v, a->dp);
    settle_bf16(square, a->dp, (uint16_t *)d_probabilities + bh * square);
    causal_softmax_backward_f32(tokens, p, a->dp, a->ds);
    settle_bf16(square, a->ds, (uint16_t *)d_scores + bh * square);
    causal_mix_f32(tokens, d, a->ds, k, a->dq + at, row);
    scale_rows_f32(tokens, d, a->dq + at, row, attention_scale_f32(d));
    causal_mix_back_f32(tokens, d, a->ds, q, a->dk + kv_at, kv_row);
    causal_mix_back_f32(tokens, d, p, dc, a->dv + kv_at, kv_row);
}

static void attention_backward_bf16(int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads,
                                    int64_t head_dim, const void *q, const void *k, const void *v,
                                    const void *probabilities, const void *d_context, void *d_probabilities,
                                    void *d_scores, void *dq, void *dk, void *dv) {
    const int64_t square = tokens * tokens, rows = sequences * tokens * head_dim;
    struct attention_bf16 a = {
        .tokens = tokens,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
        .q = widened_bf16(rows * heads, q),
        .k = widened_bf16(rows * kv_heads, k),
        .v = widened_bf16(rows * kv_heads, v),
        .p = widened_bf16(sequences * heads * square, probabilities),
        .d_context = widened_bf16(rows * heads, d_context),
        .dp = blank_bf16(square),
        .ds = blank_bf16(square),
        .dq = blank_bf16(rows * heads),
        .dk = blank_bf16(rows * kv_heads),
        .dv = blank_bf16(rows * kv_heads),
    };
    memset(a.dk, 0, (size_t)(rows * kv_heads) * sizeof *a.dk);
    memset(a.dv, 0, (size_t)(rows * kv_heads) * sizeof *a.dv);
    for (int64_t bh = 0; bh < sequences * heads; bh++)
        attention_head_back_bf16(&a, bh / heads, bh % heads, d_probabilities, d_scores);
    scale_rows_f32(sequences * tokens, kv_heads * head_dim, a.dk, kv_heads * head_dim, attention_scale_f32(head_dim));
    stored_bf16(rows * heads, a.dq, dq);
    stored_bf16(rows * kv_heads, a.dk, dk);
    stored_bf16(rows * kv_heads, a.dv, dv);
    free(a.ds);
    free(a.dp);
    free(a.d_context);
    free(a.p);
    free(a.v);
    free(a.k);
    free(a.q);
}

/* ---- experts */

static void combine_bf16(int64_t rows, int64_t k, int64_t n, const int64_t *index, const float *weight,
                         const void *output, void *out) {
    float *wide = widened_bf16(rows * k * n, output), *sum = blank_bf16(rows * n);
    combine_f32(rows, k, n, index, weight, wide, sum);
    stored_bf16(rows * n, sum, out);
    free(wide);
}

static void combine_backward_bf16(int64_t rows, int64_t k, int64_t n, const float *weight, const void *output,
                                  const void *dy, void *d_output, float *d_weight) {
    float *wide = widened_bf16(rows * k * n, output), *wide_dy = widened_bf16(rows * n, dy);
    float *out = blank_bf16(rows * k * n);
    combine_backward_f32(rows, k, n, weight, wide, wide_dy, out, d_weight);
    stored_bf16(rows * k * n, out, d_output);
    free(wide_dy);
    free(wide);
}

static void swiglu_bf16(int64_t rows, int64_t n, const uint16_t *gate, int64_t gate_row, const uint16_t *up,
                        int64_t up_row, uint16_t *h) {
    for (int64_t r = 0; r < rows; r++) {
        float *g = widened_bf16(n, gate + r * gate_row), *u = widened_bf16(n, up + r * up_row);
        swiglu_f32(1, n, g, n, u, n, g);
        stored_bf16(n, g, h + r * n);
        free(u);
    }
}

static void swiglu_backward_bf16(int64_t rows, int64_t n, const uint16_t *gate, int64_t gate_row, const uint16_t *up,
                                 int64_t up_row, const uint16_t *dh, uint16_t *d_gate, int64_t d_gate_row,
                                 uint16_t *d_up, int64_t d_up_row) {
    for (int64_t r = 0; r < rows; r++) {
        float *g = widened_bf16(n, gate + r * gate_row), *u = widened_bf16(n, up + r * up_row);
        float *wide_dh = widened_bf16(n, dh + r * n), *dg = blank_bf16(n), *du = blank_bf16(n);
        swiglu_backward_f32(1, n, g, n, u, n, wide_dh, dg, n, du, n);
        stored_bf16(n, dg, d_gate + r * d_gate_row);
        stored_bf16(n, du, d_up + r * d_up_row);
        free(wide_dh);
        free(u);
        free(g);
    }
}

/* ---- loss */

static void cross_entropy_bf16(int64_t sequences, int64_t tokens, int64_t vocab, const void *logits,
                               const int64_t *labels, float *lse, float *loss) {
    float *wide = widened_bf16(sequences * tokens * vocab, logits);
    cross_entropy_f32(sequences, tokens, vocab, wide, labels, lse, loss);
    free(wide);
}

static void cross_entropy_backward_bf16(int64_t sequences, int64_t tokens, int64_t vocab, const void *logits,
                                        const int64_t *labels, const float *lse, void *d_logits) {
    int64_t elements = sequences * tokens * vocab;
    float *wide = widened_bf16(elements, logits), *out = blank_bf16(elements);
    cross_entropy_backward_f32(sequences, tokens, vocab, wide, labels, lse, out);
    stored_bf16(elements, out, d_logits);
    free(wide);
}
