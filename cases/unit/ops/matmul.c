/* The matrix product against one plain fma chain an element, bit for bit, for any strides, splits and values. */
#include "run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

struct layout { /* how the operands lie: a step between rows, one between columns, in elements */
    bool a_turned, b_turned;
    int64_t gap; /* unused elements at the end of each row, NaN; columns gap + 1 apart for B if scattered */
    bool b_scattered;
};

struct operand {
    int64_t row, col, elements;
};

/* A rows x columns matrix. */
static struct operand operand_of(int64_t rows, int64_t columns, bool turned, bool scattered, int64_t gap) {
    if (scattered)
        return (struct operand){columns * (gap + 2) + 1, gap + 2, (rows + 1) * (columns * (gap + 2) + 1)};
    if (turned)
        return (struct operand){1, rows + gap, columns * (rows + gap)};
    return (struct operand){columns + gap, 1, rows * (columns + gap)};
}

static double get(enum dtype dtype, const void *x, int64_t i) {
    return dtype == DTYPE_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void set(enum dtype dtype, void *x, int64_t i, double value) {
    if (dtype == DTYPE_F64)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

static void *matrix(enum dtype dtype, int stream, int64_t rows, int64_t columns, struct operand o) {
    void *x = isa_at(0)->allocate((size_t)o.elements * dtype_bytes(dtype));
    cr_assert(x);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            set(dtype, x, i * o.row + j * o.col, number_at(stream, i * columns + j));
    return x;
}

static double chain(enum dtype dtype, const struct matmul *p, int64_t i, int64_t j, double start) {
    double wide = start;
    float narrow = (float)start;
    for (int64_t l = 0; l < p->k; l++) {
        double a = get(dtype, p->a, i * p->a_row + l * p->a_col), b = get(dtype, p->b, l * p->b_row + j * p->b_col);
        wide = fma(a, b, wide);
        narrow = fmaf((float)a, (float)b, narrow);
    }
    return dtype == DTYPE_F64 ? wide : (double)narrow;
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static void check_chain(const struct ops *ops, enum dtype dtype, int64_t m, int64_t n, int64_t k, struct layout z) {
    struct operand ao = operand_of(m, k, z.a_turned, false, z.gap);
    struct operand bo = operand_of(k, n, z.b_turned, z.b_scattered, z.gap), co = operand_of(m, n, false, false, z.gap);
    void *a = matrix(dtype, 1, m, k, ao), *b = matrix(dtype, 2, k, n, bo), *c = matrix(dtype, 3, m, n, co);
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        struct matmul p = {m, n, k, a, ao.row, ao.col, b, bo.row, bo.col, c, co.row, accumulate};
        ops->matmul(dtype, &p);
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j++) {
                double start = accumulate ? number_at(3, i * n + j) : 0;
                double want = chain(dtype, &p, i, j, dtype == DTYPE_F64 ? start : (double)(float)start);
                cr_assert(same_bits(get(dtype, c, i * co.row + j), want),
                          "%s %dx%dx%d turned %d %d gap %d accumulate %d: C[%d,%d] = %a, want %a", ops->name, (int)m,
                          (int)n, (int)k, z.a_turned, z.b_turned, (int)z.gap, accumulate, (int)i, (int)j,
                          get(dtype, c, i * co.row + j), want);
            }
            for (int64_t j = n; j < n + z.gap; j++)
                cr_assert(isnan(get(dtype, c, i * co.row + j)), "wrote between the rows of C");
        }
    }
    ops->release(c);
    ops->release(b);
    ops->release(a);
}

static void check_chains(const struct ops *ops, int64_t m, int64_t n, int64_t k) {
    static const struct layout layouts[] = {{.gap = 0},
                                            {.gap = 3},
                                            {.b_turned = true, .gap = 1},
                                            {.a_turned = true, .gap = 5},
                                            {.a_turned = true, .b_turned = true},
                                            {.b_scattered = true, .gap = 1}};
    for (size_t z = 0; z < sizeof layouts / sizeof *layouts; z++) {
        check_chain(ops, DTYPE_F64, m, n, k, layouts[z]);
        check_chain(ops, DTYPE_F32, m, n, k, layouts[z]);
    }
}

Test(matmul, is_one_chain_per_element) {
    for (int i = 0; i < isa_count(); i++) {
        for (int64_t m = 1; m <= 19; m += m < 9 ? 1 : 5) /* every height of a tile */
            check_chains(isa_at(i), m, 35, 6);
        for (int64_t n = 1; n <= 70; n += n < 34 ? 1 : 7) /* every last vector */
            check_chains(isa_at(i), 3, n, 5);
        for (int64_t k = 0; k <= 10; k++) /* every rest of a square */
            check_chains(isa_at(i), 2, 9, k);
        check_chains(isa_at(i), 5, 7, 256); /* slices of k */
        check_chains(isa_at(i), 5, 7, 257);
        check_chains(isa_at(i), 2, 33, 523);
        check_chains(isa_at(i), 7, 14, 20);
        check_chains(isa_at(i), 0, 4, 3);
        check_chains(isa_at(i), 4, 0, 3);
    }
}

/* Shapes at which a copy of A pays: turned, or rows a multiple of 4 KiB apart; several blocks of rows and slices of k.
 */
Test(matmul, is_one_chain_per_element_when_large) {
    const struct layout turned = {.a_turned = true, .b_turned = true, .gap = 2}, straight = {.b_turned = true};
    for (int i = 0; i < isa_count(); i++) {
        check_chain(isa_at(i), DTYPE_F64, 133, 131, 259, turned);
        check_chain(isa_at(i), DTYPE_F32, 261, 257, 37, turned);
        check_chain(isa_at(i), DTYPE_F32, 33, 257, 259, turned);
        check_chain(isa_at(i), DTYPE_F64, 131, 128, 512, straight);
        check_chain(isa_at(i), DTYPE_F32, 33, 256, 1024, straight);
    }
}

/* C in pieces of columns, and the chain in pieces of k that rests in C between. */
Test(matmul, columns_and_depth_can_be_cut) {
    const int64_t m = 9, n = 83, k = 300;
    const enum dtype dtypes[] = {DTYPE_F64, DTYPE_F32};
    struct operand ao = operand_of(m, k, false, false, 0), bo = operand_of(k, n, true, false, 0);
    struct operand co = operand_of(m, n, false, false, 0);
    for (int i = 0; i < 2 * isa_count(); i++) {
        enum dtype dtype = dtypes[i % 2];
        const struct ops *ops = isa_at(i / 2);
        size_t element = dtype_bytes(dtype), bytes = (size_t)(m * n) * element;
        void *a = matrix(dtype, 1, m, k, ao), *b = matrix(dtype, 2, k, n, bo);
        void *c = ops->allocate(bytes), *pieces = ops->allocate(bytes);
        struct matmul whole = {m, n, k, a, ao.row, ao.col, b, bo.row, bo.col, c, co.row, false};
        ops->matmul(dtype, &whole);
        for (int64_t j = 0; j < n; j += 19)
            for (int64_t l = 0; l < k; l += 77) {
                struct matmul p = whole;
                p.n = n - j < 19 ? n - j : 19;
                p.k = k - l < 77 ? k - l : 77;
                p.a = (char *)a + (size_t)(l * ao.col) * element;
                p.b = (char *)b + (size_t)(l * bo.row + j * bo.col) * element;
                p.c = (char *)pieces + (size_t)j * element;
                p.accumulate = l > 0;
                ops->matmul(dtype, &p);
            }
        cr_assert(memcmp(c, pieces, bytes) == 0, "%s", ops->name);
        ops->release(pieces);
        ops->release(c);
        ops->release(b);
        ops->release(a);
    }
}

Test(matmul, zeros_keep_the_chain_s_sign) {
    for (int i = 0; i < isa_count(); i++) {
        double a[] = {-0.0, 1}, b[] = {1, -0.0}, c[] = {-0.0};
        struct matmul p = {1, 1, 2, a, 2, 1, b, 1, 1, c, 1, true};
        isa_at(i)->matmul(DTYPE_F64, &p);
        cr_assert(same_bits(c[0], -0.0), "-0 + -0 + -0");
        p.accumulate = false;
        isa_at(i)->matmul(DTYPE_F64, &p);
        cr_assert(same_bits(c[0], 0.0), "0 + -0 + -0");
        c[0] = -0.0;
        p.k = 0;
        p.accumulate = true;
        isa_at(i)->matmul(DTYPE_F64, &p);
        cr_assert(same_bits(c[0], -0.0), "an empty chain leaves C");
        p.accumulate = false;
        isa_at(i)->matmul(DTYPE_F64, &p);
        cr_assert(same_bits(c[0], 0.0), "an empty chain from 0");
    }
}

/* A NaN reaches its own row (of A) or column (of B) and no other element, though tiles share vectors and packed panels.
 */
Test(matmul, a_nan_stays_in_its_row_and_column) {
    enum {
        M = 13,
        N = 21,
        K = 11
    };
    for (int i = 0; i < 2 * isa_count(); i++) {
        bool turned = i % 2;
        struct operand ao = operand_of(M, K, false, false, 0), bo = operand_of(K, N, turned, false, 0);
        float *a = matrix(DTYPE_F32, 1, M, K, ao), *b = matrix(DTYPE_F32, 2, K, N, bo), c[M * N];
        a[4 * K + 10] = NAN;
        b[3 * bo.row + 20 * bo.col] = NAN;
        struct matmul p = {M, N, K, a, ao.row, ao.col, b, bo.row, bo.col, c, N, false};
        isa_at(i / 2)->matmul(DTYPE_F32, &p);
        for (int j = 0; j < M * N; j++)
            cr_assert(isnan(c[j]) == (j / N == 4 || j % N == 20), "%s C[%d,%d] = %g", isa_at(i / 2)->name, j / N, j % N,
                      (double)c[j]);
        isa_at(0)->release(b);
        isa_at(0)->release(a);
    }
}
