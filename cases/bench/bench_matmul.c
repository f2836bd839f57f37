/* Speed of the matrix product: GF/s for each instruction set and dtype, and as a ratio to a plain triple loop that the
 * same process runs. B is transposed (y = x W^T), as the linear maps use it, and row-major. Best of several runs. */
#include "sharded/ops.h"

#include <stdio.h>
#include <time.h>

#define RUNS 5
#define SECONDS 0.01 /* of one run */

struct size {
    int64_t m, n, k;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#define LOOP(name, real)                                                                                               \
    static void name(const struct matmul *p) {                                                                         \
        const real *a = p->a, *b = p->b;                                                                               \
        real *c = p->c;                                                                                                \
        for (int64_t i = 0; i < p->m; i++)                                                                             \
            for (int64_t j = 0; j < p->n; j++) {                                                                       \
                real sum = 0;                                                                                          \
                for (int64_t l = 0; l < p->k; l++)                                                                     \
                    sum += a[i * p->a_row + l * p->a_col] * b[l * p->b_row + j * p->b_col];                            \
                c[i * p->c_row + j] = sum;                                                                             \
            }                                                                                                          \
    }
LOOP(loop_f64, double)
LOOP(loop_f32, float)

static void product(const struct ops *ops, enum dtype dtype, const struct matmul *p) {
    if (ops)
        ops->matmul(dtype, p);
    else if (dtype == DTYPE_F64)
        loop_f64(p);
    else
        loop_f32(p);
}

/* Multiply-adds count as two. ops NULL: the plain loop. */
static double gigaflops(const struct ops *ops, enum dtype dtype, const struct matmul *p) {
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k, best = 0;
    double start = now();
    product(ops, dtype, p);
    int repeats = 1 + (int)(SECONDS / (now() - start + 1e-9));
    for (int run = 0; run < RUNS; run++) {
        start = now();
        for (int i = 0; i < repeats; i++)
            product(ops, dtype, p);
        double speed = flops * repeats / (now() - start) * 1e-9;
        best = speed > best ? speed : best;
    }
    return best;
}

static void fill(enum dtype dtype, int64_t count, void *x) {
    for (int64_t i = 0; i < count; i++) {
        double value = (double)(i * 7 % 31 - 15) / 16;
        if (dtype == DTYPE_F64)
            ((double *)x)[i] = value;
        else
            ((float *)x)[i] = (float)value;
    }
}

enum kind {
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    KINDS
};
static const char *const kind_name[KINDS] = {"x W^T ", "dy W  ", "dy^T x"};

static void measure(const struct ops *memory, enum dtype dtype, struct size s, enum kind kind) {
    static const char *const isas[] = {"plain", "avx2", "avx512"};
    size_t element = dtype_bytes(dtype);
    void *a = memory->allocate((size_t)(s.m * s.k) * element), *b = memory->allocate((size_t)(s.n * s.k) * element);
    void *c = memory->allocate((size_t)(s.m * s.n) * element);
    if (a && b && c) {
        fill(dtype, s.m * s.k, a);
        fill(dtype, s.n * s.k, b);
        struct matmul p = {s.m, s.n, s.k, a, s.k, 1, b, s.n, 1, c, s.n, false};
        if (kind == FORWARD) {
            p.b_row = 1;
            p.b_col = s.k;
        } else if (kind == WEIGHT_GRADIENT) {
            p.a_row = 1;
            p.a_col = s.m;
        }
        double loop = gigaflops(NULL, dtype, &p);
        printf("%s %3d x %3d x %3d %s loop %5.2f GF/s", dtype == DTYPE_F64 ? "f64" : "f32", (int)s.m, (int)s.n,
               (int)s.k, kind_name[kind], loop);
        for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
            const struct ops *ops = ops_cpu_named(isas[i]);
            double speed = ops ? gigaflops(ops, dtype, &p) : 0;
            printf("   %s %6.2f (%5.1f x)", isas[i], speed, speed / loop);
        }
        printf("\n");
    }
    memory->release(c);
    memory->release(b);
    memory->release(a);
}

int main(void) {
    static const struct size sizes[] = {{64, 256, 512}, {16, 256, 64}, {512, 512, 512}, {7, 14, 20}};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64};
    const struct ops *memory = ops_cpu_named("plain");
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (enum kind kind = FORWARD; kind < KINDS; kind++)
                measure(memory, dtypes[d], sizes[i], kind);
    return 0;
}
