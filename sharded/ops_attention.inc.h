/* Rotary positions and causal grouped-query attention in REAL. */

/* The angle is pos * exp(-(2i/d) log theta), in float64 whatever REAL is. */
static void REAL_NAME(rotary_tables)(int64_t tokens, int64_t head_dim, double theta, REAL *cosine, REAL *sine) {
    const double log_theta = elementary_log(theta);
    const int64_t pairs = head_dim / 2;
    for (int64_t i = 0; i < pairs; i++) {
        double frequency = elementary_exp(-(2.0 * (double)i / (double)head_dim * log_theta));
        for (int64_t t = 0; t < tokens; t++) {
            double angle = (double)t * frequency;
            cosine[t * pairs + i] = (REAL)elementary_cos(angle);
            sine[t * pairs + i] = (REAL)elementary_sin(angle);
        }
    }
}

static inline void REAL_NAME(rotate)(int64_t pairs, REAL sign, const REAL *x, const REAL *c, const REAL *s, REAL *y) {
    for (int64_t i = 0; i < pairs; i++) {
        REAL first = x[i], second = x[i + pairs], turn = sign * s[i];
        y[i] = first * c[i] - second * turn;
        y[i + pairs] = second * c[i] + first * turn;
    }
}

static void REAL_NAME(rotary)(int64_t sequences, int64_t tokens, int64_t heads, int64_t head_dim, bool backward,
                              const REAL *x, const REAL *cosine, const REAL *sine, REAL *y) {
    const int64_t pairs = head_dim / 2;
    for (int64_t row = 0; row < sequences * tokens; row++) {
        int64_t t = row % tokens;
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = (row * heads + h) * head_dim;
            REAL_NAME(rotate)(pairs, backward ? -1 : 1, x + at, cosine + t * pairs, sine + t * pairs, y + at);
        }
    }
}

/* One head's rows of a [tokens, heads, head_dim] tensor. */
struct REAL_NAME(head) {
    const REAL *at;
    int64_t row;
};

#define TOKENS_ABREAST 32

/* square[t,s] = x[t] . y[s] for s <= t, 0 behind. A block of tokens shares its columns; what it computes beyond s = t
 * is overwritten. */
static void REAL_NAME(causal_scores)(int64_t tokens, int64_t head_dim, struct REAL_NAME(head) x,
                                     struct REAL_NAME(head) y, REAL *square) {
    for (int64_t t0 = 0; t0 < tokens; t0 += TOKENS_ABREAST) {
        int64_t t1 = t0 + TOKENS_ABREAST < tokens ? t0 + TOKENS_ABREAST : tokens;
        const struct matmul product = {
            .m = t1 - t0,
            .n = t1,
            .k = head_dim,
            .a = x.at + t0 * x.row,
            .a_row = x.row,
            .a_col = 1,
            .b = y.at,
            .b_row = 1,
            .b_col = y.row,
            .c = square + t0 * tokens,
            .c_row = tokens,
        };
        REAL_NAME(matmul)(&product);
        for (int64_t t = t0; t < t1; t++)
            memset(square + t * tokens + t + 1, 0, (size_t)(tokens - t - 1) * sizeof(REAL));
    }
}

/* out[t] = sum over ascending s <= t of square[t,s] x[s]. A block of tokens shares s <= t0; the triangle behind goes
 * row by row. */
static void REAL_NAME(causal_mix)(int64_t tokens, int64_t head_dim, const REAL *square, struct REAL_NAME(head) x,
                                  REAL *out, int64_t out_row) {
    for (int64_t t0 = 0; t0 < tokens; t0 += TOKENS_ABREAST) {
        int64_t t1 = t0 + TOKENS_ABREAST < tokens ? t0 + TOKENS_ABREAST : tokens;
        const struct matmul product = {
            .m = t1 - t0,
            .n = head_dim,
            .k = t0 + 1,
            .a = square + t0 * tokens,
            .a_row = tokens,
            .a_col = 1,
            .b = x.at,
            .b_row = x.row,
            .b_col = 1,
            .c = out + t0 * out_row,
            .c_row = out_row,
        };
        REAL_NAME(matmul)(&product);
        for (int64_t t = t0 + 1; t < t1; t++)
            for (int64_t s = t0 + 1; s <= t; s++)
                REAL_NAME(chain_step)(head_dim, square[t * tokens + s], x.at + s * x.row, out + t * out_row);
    }
}

/* out[s] continues with the sum over ascending t >= s of square[t,s] x[t]: the transpose of causal_mix. */
static void REAL_NAME(causal_mix_back)(int64_t tokens, int64_t head_dim, const REAL *square, struct REAL_NAME(head) x,
                                       REAL *out, int64_t out_row) {
    for (int64_t s0 = 0; s0 < tokens; s0 += TOKENS_ABREAST) {
        int64_t s1 = s0 + TOKENS_ABREAST < tokens ? s0 + TOKENS_ABREAST : tokens, last = s1 - 1;
        for (int64_t s = s0; s < last; s++)
            for (int64_t t = s; t < last; t++)
                REAL_NAME(chain_step)(head_dim, square[t * tokens + s], x.at + t * x.row, out + s * out_row);
        const struct matmul product = {
            .m = s1 - s0,
            .n = head_dim,
            .k = tokens - last,
            .a = square + last * tokens + s0,
            .a_row = 1,
            .a_col = tokens,
            .b = x.at + last * x.row,
            .b_row = x.row,
            .b_col = 1,
            .c = out + s0 * out_row,
            .c_row = out_row,
            .accumulate = true,
        };
        REAL_NAME(matmul)(&product);
    }
}

static void REAL_NAME(causal_softmax)(int64_t tokens, const REAL *scores, REAL *probabilities) {
    for (int64_t t = 0; t < tokens; t++) {
        REAL_NAME(softmax_rows)(1, t + 1, scores + t * tokens, probabilities + t * tokens, tokens);
        memset(probabilities + t * tokens + t + 1, 0, (size_t)(tokens - t - 1) * sizeof(REAL));
    }
}

static void REAL_NAME(causal_softmax_backward)(int64_t tokens, const REAL *p, const REAL *dp, REAL *ds) {
    for (int64_t t = 0; t < tokens; t++) {
        REAL_NAME(softmax_backward)(1, t + 1, p + t * tokens, dp + t * tokens, ds + t * tokens);
        memset(ds + t * tokens + t + 1, 0, (size_t)(tokens - t - 1) * sizeof(REAL));
    }
}

static void REAL_NAME(scale_rows)(int64_t rows, int64_t n, REAL *x, int64_t row, REAL factor) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
            x[r * row + j] *= factor;
}

static REAL REAL_NAME(attention_scale)(int64_t head_dim) {
    return (REAL)(1 / __builtin_sqrt((double)head_dim));
}

static struct REAL_NAME(head)
    REAL_NAME(head_of)(const REAL *x, int64_t tokens, int64_t heads, int64_t head_dim, int64_t b, int64_t h) {
    return (struct REAL_NAME(head)){x + (b * tokens * heads + h) * head_dim, heads * head_dim};
}

static void REAL_NAME(attention)(int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                 const REAL *q, const REAL *k, const REAL *v, REAL *scores, REAL *probabilities,
                                 REAL *context) {
    for (int64_t bh = 0; bh < sequences * heads; bh++) {
        int64_t b = bh / heads, h = bh % heads, kh = h / (heads / kv_heads);
        REAL *square = scores + bh * tokens * tokens, *p = probabilities + bh * tokens * tokens;
        REAL_NAME(causal_scores)
        (tokens, head_dim, REAL_NAME(head_of)(q, tokens, heads, head_dim, b, h),
         REAL_NAME(head_of)(k, tokens, kv_heads, head_dim, b, kh), square);
        for (int64_t t = 0; t < tokens; t++)
            REAL_NAME(scale_rows)(1, t + 1, square + t * tokens, 0, REAL_NAME(attention_scale)(head_dim));
        REAL_NAME(causal_softmax)(tokens, square, p);
        REAL_NAME(causal_mix)
        (tokens, head_dim, p, REAL_NAME(head_of)(v, tokens, kv_heads, head_dim, b, kh),
         context + (b * tokens * heads + h) * head_dim, heads * head_dim);
    }
}

static void REAL_NAME(attention_backward)(int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads,
                                          int64_t head_dim, const REAL *q, const REAL *k, const REAL *v,
                                          const REAL *probabilities, const REAL *d_context, REAL *d_probabilities,
                                          REAL *d_scores, REAL *dq, REAL *dk, REAL *dv) {
    const int64_t group = heads / kv_heads, row = heads * head_dim, kv_row = kv_heads * head_dim;
    const REAL scale = REAL_NAME(attention_scale)(head_dim);
    memset(dk, 0, (size_t)(sequences * tokens * kv_row) * sizeof(REAL));
    memset(dv, 0, (size_t)(sequences * tokens * kv_row) * sizeof(REAL));
    for (int64_t bh = 0; bh < sequences * heads; bh++) {
        int64_t b = bh / heads, h = bh % heads, kh = h / group, square = bh * tokens * tokens;
        int64_t at = (b * tokens * heads + h) * head_dim, kv_at = (b * tokens * kv_heads + kh) * head_dim;
        struct REAL_NAME(head) dc = {d_context + at, row};
        REAL_NAME(causal_scores)
        (tokens, head_dim, dc, (struct REAL_NAME(head)){v + kv_at, kv_row}, d_probabilities + square);
        REAL_NAME(causal_softmax_backward)(tokens, probabilities + square, d_probabilities + square, d_scores + square);
        REAL_NAME(causal_mix)
        (tokens, head_dim, d_scores + square, (struct REAL_NAME(head)){k + kv_at, kv_row}, dq + at, row);
        REAL_NAME(scale_rows)(tokens, head_dim, dq + at, row, scale);
        REAL_NAME(causal_mix_back)
        (tokens, head_dim, d_scores + square, (struct REAL_NAME(head)){q + at, row}, dk + kv_at, kv_row);
        REAL_NAME(causal_mix_back)(tokens, head_dim, probabilities + square, dc, dv + kv_at, kv_row);
    }
    REAL_NAME(scale_rows)(sequences * tokens, kv_row, dk, kv_row, scale);
}
