/* Router and experts in REAL: choices, their weights, the weighted sum of what the experts gave, SwiGLU. */

/* NaN ranks last, so that the choices are always k different experts. */
static inline bool REAL_NAME(outranks)(REAL a, REAL b) {
    return a > b || (b != b && a == a);
}

static void REAL_NAME(topk)(int64_t rows, int64_t n, int64_t k, const REAL *x, int64_t *index) {
    for (int64_t r = 0; r < rows; r++, x += n, index += k) {
        int64_t kept = 0;
        for (int64_t e = 0; e < n && k > 0; e++) {
            if (kept == k && !REAL_NAME(outranks)(x[e], x[index[k - 1]]))
                continue;
            int64_t place = kept < k ? kept++ : k - 1;
            for (; place > 0 && REAL_NAME(outranks)(x[e], x[index[place - 1]]); place--)
                index[place] = index[place - 1];
            index[place] = e;
        }
    }
}

static REAL REAL_NAME(chosen_sum)(int64_t k, const REAL *scores, const int64_t *index) {
    REAL sum = 0;
    for (int64_t c = 0; c < k; c++)
        sum += scores[index[c]];
    return sum;
}

static void REAL_NAME(router_weights)(int64_t rows, int64_t n, int64_t k, bool normalise, const REAL *scores,
                                      const int64_t *index, REAL *weight) {
    for (int64_t r = 0; r < rows; r++, scores += n, index += k, weight += k) {
        REAL sum = REAL_NAME(chosen_sum)(k, scores, index);
        for (int64_t c = 0; c < k; c++)
            weight[c] = normalise ? scores[index[c]] / sum : scores[index[c]];
    }
}

static void REAL_NAME(router_weights_backward)(int64_t rows, int64_t n, int64_t k, bool normalise, const REAL *scores,
                                               const int64_t *index, const REAL *weight, const REAL *d_weight,
                                               REAL *d_scores) {
    for (int64_t r = 0; r < rows; r++, scores += n, index += k, weight += k, d_weight += k, d_scores += n) {
        memset(d_scores, 0, (size_t)n * sizeof(REAL));
        if (!normalise) {
            for (int64_t c = 0; c < k; c++)
                d_scores[index[c]] = d_weight[c];
            continue;
        }
        REAL sum = REAL_NAME(chosen_sum)(k, scores, index), pull;
        REAL_NAME(dots)(1, k, d_weight, 0, weight, 0, &pull);
        for (int64_t c = 0; c < k; c++)
            d_scores[index[c]] = (d_weight[c] - pull) / sum;
    }
}

static void REAL_NAME(combine)(int64_t rows, int64_t k, int64_t n, const int64_t *index, const REAL *weight,
                               const REAL *output, REAL *out) {
    for (int64_t r = 0; r < rows; r++, index += k, output += k * n, out += n) {
        memset(out, 0, (size_t)n * sizeof(REAL));
        for (int64_t i = 0, c = -1; i < k; i++) {
            c = next_expert(k, index, c);
            if (weight)
                REAL_NAME(chain_step)(n, weight[r * k + c], output + c * n, out);
            else
                REAL_NAME(add)(n, out, out, output + c * n);
        }
    }
}

static void REAL_NAME(combine_backward)(int64_t rows, int64_t k, int64_t n, const REAL *weight, const REAL *output,
                                        const REAL *dy, REAL *d_output, REAL *d_weight) {
    for (int64_t r = 0; r < rows; r++, weight += k, d_weight += k, dy += n) {
        for (int64_t c = 0; c < k; c++, d_output += n)
            for (int64_t j = 0; j < n; j++)
                d_output[j] = weight[c] * dy[j];
        REAL_NAME(dots)(k, n, dy, 0, output + r * k * n, n, d_weight);
    }
}

static void REAL_NAME(swiglu)(int64_t rows, int64_t n, const REAL *gate, int64_t gate_row, const REAL *up,
                              int64_t up_row, REAL *h) {
    for (int64_t r = 0; r < rows; r++, gate += gate_row, up += up_row, h += n)
        for (int64_t j = 0; j < n; j++)
            h[j] = gate[j] / (1 + REAL_EXP(-gate[j])) * up[j];
}

static void REAL_NAME(swiglu_backward)(int64_t rows, int64_t n, const REAL *gate, int64_t gate_row, const REAL *up,
                                       int64_t up_row, const REAL *dh, REAL *d_gate, int64_t d_gate_row, REAL *d_up,
                                       int64_t d_up_row) {
    for (int64_t r = 0; r < rows; r++, gate += gate_row, up += up_row, dh += n, d_gate += d_gate_row, d_up += d_up_row)
        for (int64_t j = 0; j < n; j++) {
            REAL g = gate[j], s = 1 / (1 + REAL_EXP(-g));
            d_gate[j] = dh[j] * up[j] * (s * (1 + g * (1 - s)));
            d_up[j] = dh[j] * (g * s);
        }
}
