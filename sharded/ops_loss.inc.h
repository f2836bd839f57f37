/* Next-token cross-entropy in REAL: label t+1 meets logits t. A negative label is none. */
#define VOCAB_BLOCK 128

/* lse[r] = max + log(sum exp(x - max)) of up to ROWS_ABREAST rows. */
static void REAL_NAME(logsumexp)(int64_t rows, int64_t n, const REAL *x, REAL *lse) {
    REAL block[ROWS_ABREAST * VOCAB_BLOCK], maximum[ROWS_ABREAST], sum[ROWS_ABREAST] = {0};
    for (int64_t r = 0; r < rows; r++)
        maximum[r] = REAL_NAME(row_maximum)(n, x + r * n);
    for (int64_t j = 0; j < n; j += VOCAB_BLOCK) {
        int64_t count = n - j < VOCAB_BLOCK ? n - j : VOCAB_BLOCK;
        for (int64_t r = 0; r < rows; r++)
            REAL_NAME(exponentials)(count, x + r * n + j, maximum[r], block + r * VOCAB_BLOCK);
        REAL_NAME(sums)(rows, count, block, VOCAB_BLOCK, sum);
    }
    for (int64_t r = 0; r < rows; r++)
        lse[r] = maximum[r] + REAL_LOG(sum[r]);
}

static void REAL_NAME(cross_entropy)(int64_t sequences, int64_t tokens, int64_t vocab, const REAL *logits,
                                     const int64_t *labels, REAL *lse, REAL *loss) {
    for (int64_t b = 0; b < sequences; b++, logits += tokens * vocab, labels += tokens) {
        for (int64_t t = 0; t < tokens - 1; t += ROWS_ABREAST)
            REAL_NAME(logsumexp)(REAL_NAME(abreast)(tokens - 1 - t), vocab, logits + t * vocab, lse + t);
        for (int64_t t = 0; t < tokens - 1; t++)
            loss[t] = labels[t + 1] < 0 ? 0 : lse[t] - logits[t * vocab + labels[t + 1]];
        lse += tokens - 1;
        loss += tokens - 1;
    }
}

static void REAL_NAME(cross_entropy_backward)(int64_t sequences, int64_t tokens, int64_t vocab, const REAL *logits,
                                              const int64_t *labels, const REAL *lse, REAL *d_logits) {
    for (int64_t row = 0; row < sequences * tokens; row++, logits += vocab, d_logits += vocab) {
        int64_t b = row / tokens, t = row % tokens, label = t < tokens - 1 ? labels[row + 1] : -1;
        if (label < 0) {
            memset(d_logits, 0, (size_t)vocab * sizeof(REAL));
            continue;
        }
        REAL_NAME(exponentials)(vocab, logits, lse[b * (tokens - 1) + t], d_logits);
        d_logits[label] -= 1;
    }
}
