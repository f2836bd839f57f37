/* Elementwise operations and operations on rows: sums, norm, softmax, in REAL.
 *
 * A sum may not be reordered, so one row cannot use vectors; up to ROWS_ABREAST rows run abreast instead, each its own
 * chain. A sum of products is a chain of fused multiply-adds from 0. */
#define ROWS_ABREAST 8

static void REAL_NAME(scale)(int64_t n, REAL *x, double factor) {
    const REAL by = (REAL)factor;
    for (int64_t i = 0; i < n; i++)
        x[i] *= by;
}

static void REAL_NAME(divide)(int64_t n, REAL *x, double divisor) {
    const REAL by = (REAL)divisor;
    for (int64_t i = 0; i < n; i++)
        x[i] /= by;
}

static void REAL_NAME(add)(int64_t n, REAL *out, const REAL *a, const REAL *b) {
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void REAL_NAME(add_bias)(int64_t rows, int64_t n, REAL *x, const REAL *bias) {
    for (int64_t r = 0; r < rows; r++)
        REAL_NAME(add)(n, x + r * n, x + r * n, bias);
}

static double REAL_NAME(sum)(int64_t n, const REAL *x) {
    REAL sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return (double)sum;
}

static double REAL_NAME(sum_squares)(int64_t n, const REAL *x) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static double REAL_NAME(max_abs)(int64_t n, const REAL *x) {
    REAL largest = 0;
    for (int64_t i = 0; i < n; i++) {
        REAL size = x[i] < 0 ? -x[i] : x[i];
        if (size != size)
            return (double)size;
        largest = size > largest ? size : largest;
    }
    return (double)largest;
}

static void REAL_NAME(sum_rows)(int64_t rows, int64_t n, const REAL *x, REAL *out) {
    memset(out, 0, (size_t)n * sizeof(REAL));
    for (int64_t r = 0; r < rows; r++)
        REAL_NAME(add)(n, out, out, x + r * n);
}

static void REAL_NAME(add_rows)(int64_t rows, int64_t n, REAL *out, const REAL *from, const int64_t *index) {
    for (int64_t r = 0; r < rows; r++)
        REAL_NAME(add)(n, out + index[r] * n, out + index[r] * n, from + r * n);
}

/* y += factor * x, one fused multiply-add each: a step of n chains. */
static inline void REAL_NAME(chain_step)(int64_t n, REAL factor, const REAL *x, REAL *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = REAL_FMA(factor, x[i], y[i]);
}

/* `count` rows a (a_row apart, 0: the same row) times rows b: out[r] = sum_j (a_j g_j) b_j; g NULL: sum_j a_j b_j. */
static inline __attribute__((always_inline)) void REAL_NAME(dots_abreast)(int count, int64_t n, const REAL *a,
                                                                          int64_t a_row, const REAL *b, int64_t b_row,
                                                                          const REAL *g, REAL *out) {
    REAL sum[ROWS_ABREAST] = {0};
    for (int64_t j = 0; j < n; j++) {
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
            sum[r] = REAL_FMA(g ? a[r * a_row + j] * g[j] : a[r * a_row + j], b[r * b_row + j], sum[r]);
    }
    for (int r = 0; r < count; r++)
        out[r] = sum[r];
}

static void REAL_NAME(dots)(int64_t rows, int64_t n, const REAL *a, int64_t a_row, const REAL *b, int64_t b_row,
                            REAL *out) {
    for (; rows >= ROWS_ABREAST; rows -= ROWS_ABREAST) {
        REAL_NAME(dots_abreast)(ROWS_ABREAST, n, a, a_row, b, b_row, NULL, out);
        a += ROWS_ABREAST * a_row;
        b += ROWS_ABREAST * b_row;
        out += ROWS_ABREAST;
    }
    for (int64_t r = 0; r < rows; r++)
        REAL_NAME(dots_abreast)(1, n, a + r * a_row, 0, b + r * b_row, 0, NULL, out + r);
}

static void REAL_NAME(weighted_dots)(int64_t rows, int64_t n, const REAL *a, const REAL *b, const REAL *g, REAL *out) {
    if (rows == ROWS_ABREAST)
        REAL_NAME(dots_abreast)(ROWS_ABREAST, n, a, n, b, n, g, out);
    else
        for (int64_t r = 0; r < rows; r++)
            REAL_NAME(dots_abreast)(1, n, a + r * n, 0, b + r * n, 0, g, out + r);
}

/* sum[r] += the n elements of row r, in ascending order. */
static void REAL_NAME(sums)(int64_t rows, int64_t n, const REAL *x, int64_t x_row, REAL *sum) {
    if (rows == ROWS_ABREAST) {
        for (int64_t j = 0; j < n; j++) {
#pragma GCC unroll 8
            for (int r = 0; r < ROWS_ABREAST; r++)
                sum[r] += x[r * x_row + j];
        }
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
            sum[r] += x[r * x_row + j];
}

/* The order does not matter to a maximum; a NaN may get lost here, and comes back with exp(NaN - maximum). */
static REAL REAL_NAME(row_maximum)(int64_t n, const REAL *x) {
    REAL lane[LANES], maximum = x[0];
    int64_t j = 0;
    if (n >= LANES) {
        VEC best = REAL_NAME(load)(x);
        for (j = LANES; j + LANES <= n; j += LANES)
            best = REAL_NAME(larger)(best, REAL_NAME(load)(x + j));
        REAL_NAME(store)(lane, best);
        maximum = lane[0];
        for (int i = 1; i < LANES; i++)
            maximum = lane[i] > maximum ? lane[i] : maximum;
    }
    for (; j < n; j++)
        maximum = x[j] > maximum ? x[j] : maximum;
    return maximum;
}

static void REAL_NAME(exponentials)(int64_t n, const REAL *x, REAL shift, REAL *y) {
    for (int64_t j = 0; j < n; j++)
        y[j] = REAL_EXP(x[j] - shift);
}

static int64_t REAL_NAME(abreast)(int64_t rows) {
    return rows < ROWS_ABREAST ? rows : ROWS_ABREAST;
}

static void REAL_NAME(rms_norm)(int64_t rows, int64_t n, double eps, const REAL *x, const REAL *g, REAL *inverse_rms,
                                REAL *y) {
    const REAL share = (REAL)(1.0 / (double)n), small = (REAL)eps;
    REAL_NAME(dots)(rows, n, x, n, x, n, inverse_rms);
    for (int64_t r = 0; r < rows; r++) {
        REAL inverse = 1 / REAL_SQRT(inverse_rms[r] * share + small);
        inverse_rms[r] = inverse;
        for (int64_t j = 0; j < n; j++)
            y[r * n + j] = g[j] * (x[r * n + j] * inverse);
    }
}

static void REAL_NAME(rms_norm_backward_row)(int64_t n, const REAL *dy, const REAL *x, const REAL *g, REAL s, REAL pull,
                                             const REAL *residual, REAL *dx) {
    if (residual)
        for (int64_t j = 0; j < n; j++)
            dx[j] = (s * (g[j] * dy[j]) - x[j] * pull) + residual[j];
    else
        for (int64_t j = 0; j < n; j++)
            dx[j] = s * (g[j] * dy[j]) - x[j] * pull;
}

static void REAL_NAME(rms_norm_backward)(int64_t rows, int64_t n, const REAL *dy, const REAL *x, const REAL *g,
                                         const REAL *inverse_rms, const REAL *residual, REAL *dx) {
    const REAL share = (REAL)(1.0 / (double)n);
    REAL t[ROWS_ABREAST];
    for (int64_t r0 = 0; r0 < rows; r0 += ROWS_ABREAST) {
        int64_t count = REAL_NAME(abreast)(rows - r0);
        REAL_NAME(weighted_dots)(count, n, dy + r0 * n, x + r0 * n, g, t);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = (r0 + i) * n;
            REAL s = inverse_rms[r0 + i], pull = s * s * s * t[i] * share;
            REAL_NAME(rms_norm_backward_row)(n, dy + at, x + at, g, s, pull, residual ? residual + at : NULL, dx + at);
        }
    }
}

static void REAL_NAME(rms_norm_gradient)(int64_t rows, int64_t n, const REAL *dy, const REAL *x,
                                         const REAL *inverse_rms, REAL *dg) {
    memset(dg, 0, (size_t)n * sizeof(REAL));
    for (int64_t r = 0; r < rows; r++, dy += n, x += n)
        for (int64_t j = 0; j < n; j++)
            dg[j] = REAL_FMA(dy[j], x[j] * inverse_rms[r], dg[j]);
}

/* Rows x_row apart, in and out. */
static void REAL_NAME(softmax_rows)(int64_t rows, int64_t n, const REAL *x, REAL *y, int64_t row) {
    for (int64_t r0 = 0; r0 < rows && n > 0; r0 += ROWS_ABREAST) {
        int64_t count = REAL_NAME(abreast)(rows - r0);
        REAL sum[ROWS_ABREAST] = {0};
        for (int64_t r = r0; r < r0 + count; r++)
            REAL_NAME(exponentials)(n, x + r * row, REAL_NAME(row_maximum)(n, x + r * row), y + r * row);
        REAL_NAME(sums)(count, n, y + r0 * row, row, sum);
        for (int64_t r = r0; r < r0 + count; r++)
            for (int64_t j = 0; j < n; j++)
                y[r * row + j] /= sum[r - r0];
    }
}

static void REAL_NAME(softmax)(int64_t rows, int64_t n, const REAL *x, REAL *y) {
    REAL_NAME(softmax_rows)(rows, n, x, y, n);
}

static void REAL_NAME(softmax_backward)(int64_t rows, int64_t n, const REAL *y, const REAL *dy, REAL *dx) {
    REAL t[ROWS_ABREAST];
    for (int64_t r0 = 0; r0 < rows; r0 += ROWS_ABREAST) {
        int64_t count = REAL_NAME(abreast)(rows - r0);
        REAL_NAME(dots)(count, n, y + r0 * n, n, dy + r0 * n, n, t);
        for (int64_t r = r0; r < r0 + count; r++)
            for (int64_t j = 0; j < n; j++)
                dx[r * n + j] = y[r * n + j] * (dy[r * n + j] - t[r - r0]);
    }
}
