/* Optimizer updates in REAL, elementwise, on strips: what lies between two strips is neither read nor written. */

static void REAL_NAME(blend)(const struct strips *strips, REAL *out, double a, const REAL *x, double b, const REAL *y) {
    const REAL first = (REAL)a, second = (REAL)b;
    for (int64_t r = 0; r < strips->rows; r++, out += strips->stride, x += strips->stride, y += strips->stride)
        for (int64_t i = 0; i < strips->n; i++)
            out[i] = first * x[i] + second * y[i];
}

static void REAL_NAME(blend_squares)(const struct strips *strips, REAL *out, double a, const REAL *x, double b,
                                     const REAL *y) {
    const REAL first = (REAL)a, second = (REAL)b;
    for (int64_t r = 0; r < strips->rows; r++, out += strips->stride, x += strips->stride, y += strips->stride)
        for (int64_t i = 0; i < strips->n; i++)
            out[i] = first * x[i] + y[i] * y[i] * second;
}

static void REAL_NAME(adamw)(const struct strips *strips, double keep, double rate, double root, double eps,
                             const REAL *m, const REAL *v, REAL *p) {
    const REAL kept = (REAL)keep, step = (REAL)rate, bias = (REAL)root, small = (REAL)eps;
    for (int64_t r = 0; r < strips->rows; r++, m += strips->stride, v += strips->stride, p += strips->stride)
        for (int64_t i = 0; i < strips->n; i++)
            p[i] = kept * p[i] - step * m[i] / (REAL_SQRT(v[i]) / bias + small);
}
