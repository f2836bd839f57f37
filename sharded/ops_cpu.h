/* Private to the CPU's tables of operations: the three tables and what they share. */
#ifndef SHARDED_OPS_CPU_H
#define SHARDED_OPS_CPU_H

#include "sharded/ops.h"

/* ops_kernels.c, compiled once for each instruction set. Only ops_cpu_named decides whether this CPU can run one. */
extern const struct ops ops_cpu_plain_table, ops_cpu_avx2_table, ops_cpu_avx512_table;

/* Memory and movement know no instruction set. */
void *ops_cpu_allocate(size_t bytes);
void ops_cpu_release(void *memory);
void ops_cpu_copy(void *to, const void *from, size_t bytes);
void ops_cpu_zero(void *memory, size_t bytes);
void ops_cpu_convert(int64_t n, enum dtype to, void *out, enum dtype from, const void *x);
void ops_cpu_gather_rows(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *table, const int64_t *index);
void ops_cpu_scatter_rows(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *from, const int64_t *index);

#endif
