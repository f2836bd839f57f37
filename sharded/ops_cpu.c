#include "sharded/ops_cpu.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory and movement */

#define LINE ((size_t)64) /* a cache line, and the widest vector */

void *ops_cpu_allocate(size_t bytes) {
    if (bytes > SIZE_MAX - LINE)
        return NULL;
    size_t rounded = bytes ? (bytes + LINE - 1) / LINE * LINE : LINE;
    void *memory = aligned_alloc(LINE, rounded);
    if (memory)
        memset(memory, 0xff, rounded);
    return memory;
}

void ops_cpu_release(void *memory) {
    free(memory);
}

void ops_cpu_copy(void *to, const void *from, size_t bytes) {
    if (bytes)
        memcpy(to, from, bytes);
}

void ops_cpu_zero(void *memory, size_t bytes) {
    if (bytes)
        memset(memory, 0, bytes);
}

void ops_cpu_convert(int64_t n, enum dtype to, void *out, enum dtype from, const void *x) {
    struct tensor result = tensor_view(to, 1, &n, out);
    const struct tensor source = tensor_view(from, 1, &n, (void *)(uintptr_t)x);
    if (to == from) {
        ops_cpu_copy(out, x, (size_t)n * dtype_bytes(to));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        tensor_set(&result, i, tensor_get(&source, i));
}

void ops_cpu_gather_rows(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *table,
                         const int64_t *index) {
    size_t row = (size_t)n * dtype_bytes(dtype);
    for (int64_t i = 0; i < rows; i++)
        ops_cpu_copy((char *)out + (size_t)i * row, (const char *)table + (size_t)index[i] * row, row);
}

void ops_cpu_scatter_rows(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *from,
                          const int64_t *index) {
    size_t row = (size_t)n * dtype_bytes(dtype);
    for (int64_t i = 0; i < rows; i++)
        ops_cpu_copy((char *)out + (size_t)index[i] * row, (const char *)from + (size_t)i * row, row);
}

/* ---- choice of the instruction set */

static bool has_plain(void) {
    return true;
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static const struct choice {
    const char *isa;
    bool (*supported)(void);
    const struct ops *table;
} choices[] = {/* best first */
               {"avx512", has_avx512, &ops_cpu_avx512_table},
               {"avx2", has_avx2, &ops_cpu_avx2_table},
               {"plain", has_plain, &ops_cpu_plain_table}};

static const struct ops *first_that_runs(const char *isa) {
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if ((!isa || strcmp(choices[i].isa, isa) == 0) && choices[i].supported())
            return choices[i].table;
    return NULL;
}

const struct ops *ops_cpu(void) {
    return first_that_runs(getenv("SHARDPROOF_ISA"));
}

const struct ops *ops_cpu_named(const char *isa) {
    return isa ? first_that_runs(isa) : NULL;
}
