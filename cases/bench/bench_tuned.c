/* The matrix product against a tuned library in the same process, run by run in turn: oneDNN's sgemm (Debian:
 * libdnnl-dev), found with dlopen so that nothing depends on it. f32, row-major, one thread. Ratios are of the medians.
 */
#include "sharded/ops.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUNS 15
#define SECONDS 0.02 /* of one run */

typedef int (*sgemm)(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

struct bench {
    int64_t m, n, k;
    float *a, *b, *c;
    const struct ops *ops;
    sgemm tuned;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void ours(const struct bench *x) {
    struct matmul product = {x->m, x->n, x->k, x->a, x->k, 1, x->b, x->n, 1, x->c, x->n, false};
    x->ops->matmul(DTYPE_F32, &product);
}

static void theirs(const struct bench *x) {
    x->tuned('N', 'N', x->m, x->n, x->k, 1, x->a, x->k, x->b, x->n, 0, x->c, x->n);
}

static double speed(void (*product)(const struct bench *), const struct bench *x, int repeats) {
    double start = now();
    for (int i = 0; i < repeats; i++)
        product(x);
    return 2e-9 * (double)x->m * (double)x->n * (double)x->k * repeats / (now() - start);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(struct bench *x) {
    double own[RUNS], other[RUNS];
    double once = 2e-9 * (double)x->m * (double)x->n * (double)x->k / speed(ours, x, 3);
    int repeats = 1 + (int)(SECONDS / once);
    speed(theirs, x, 3);
    for (int i = 0; i < RUNS; i++) {
        own[i] = speed(ours, x, repeats);
        other[i] = speed(theirs, x, repeats);
    }
    qsort(own, RUNS, sizeof *own, ascending);
    qsort(other, RUNS, sizeof *other, ascending);
    printf("f32 %3d x %3d x %3d  ours %6.1f GF/s  oneDNN %6.1f GF/s  ratio %.2f\n", (int)x->m, (int)x->n, (int)x->k,
           own[RUNS / 2], other[RUNS / 2], own[RUNS / 2] / other[RUNS / 2]);
}

int main(void) {
    static const int64_t sizes[][3] = {{64, 256, 512}, {512, 512, 512}, {61, 253, 509}, {7, 64, 96}};
    setenv("OMP_NUM_THREADS", "1", 1);
    void *library = dlopen("libdnnl.so.2", RTLD_NOW);
    struct bench x = {.ops = ops_cpu()};
    if (library)
        *(void **)&x.tuned = dlsym(library, "dnnl_sgemm");
    if (!x.tuned) {
        puts("oneDNN is not installed (apt-get install libdnnl-dev): no ratio to a tuned library");
        return 0;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        x.m = sizes[i][0];
        x.n = sizes[i][1];
        x.k = sizes[i][2];
        x.a = calloc((size_t)(x.m * x.k), sizeof *x.a);
        x.b = calloc((size_t)(x.k * x.n), sizeof *x.b);
        x.c = calloc((size_t)(x.m * x.n), sizeof *x.c);
        for (int64_t j = 0; j < x.m * x.k && x.a; j++)
            x.a[j] = (float)(j % 31 - 15) / 16;
        for (int64_t j = 0; j < x.k * x.n && x.b; j++)
            x.b[j] = (float)(j % 29 - 14) / 16;
        if (x.a && x.b && x.c)
            compare(&x);
        free(x.a);
        free(x.b);
        free(x.c);
    }
    dlclose(library);
    return 0;
}
