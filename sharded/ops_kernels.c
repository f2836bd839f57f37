/* The CPU's table of operations, compiled once for each instruction set with -DISA=plain|avx2|avx512.
 *
 * The three give the same bits: every multiply-add is written out as fused or not, no sum is reordered, and wide
 * vectors only run along outputs that are independent of each other. */
#include "sharded/ops_cpu.h"

#include "core/elementary.h"
#include "core/elementary_inline.h"

#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef ISA
#define ISA plain
#endif
#define JOIN_NOW(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_NOW(a, b, c)
#define TEXT_NOW(a) #a
#define TEXT(a) TEXT_NOW(a)

/* The choice whose (expert, place) comes next after that of choice `after`; -1: the first. */
static int64_t next_expert(int64_t k, const int64_t *index, int64_t after) {
    int64_t best = -1;
    for (int64_t c = 0; c < k; c++) {
        bool later = after < 0 || index[c] > index[after] || (index[c] == index[after] && c > after);
        if (later && (best < 0 || index[c] < index[best]))
            best = c;
    }
    return best;
}

#define REAL_BITS 64
#include "sharded/ops_real.inc.h"
#undef REAL_BITS
#define REAL_BITS 32
#include "sharded/ops_real.inc.h"
#undef REAL_BITS
#include "sharded/ops_bf16.inc.h"

/* One entry of the table: the same call in the dtype asked for. There is no arithmetic in other types; updates and what
 * tells a number have none in bfloat16. */
#define BY_DTYPE(name, parameters, arguments)                                                                          \
    static void name parameters {                                                                                      \
        if (dtype == DTYPE_F64)                                                                                        \
            name##_f64 arguments;                                                                                      \
        else if (dtype == DTYPE_F32)                                                                                   \
            name##_f32 arguments;                                                                                      \
        else if (dtype == DTYPE_BF16)                                                                                  \
            name##_bf16 arguments;                                                                                     \
        else                                                                                                           \
            abort();                                                                                                   \
    }

#define BY_WIDE_DTYPE(name, parameters, arguments)                                                                     \
    static void name parameters {                                                                                      \
        if (dtype == DTYPE_F64)                                                                                        \
            name##_f64 arguments;                                                                                      \
        else if (dtype == DTYPE_F32)                                                                                   \
            name##_f32 arguments;                                                                                      \
        else                                                                                                           \
            abort();                                                                                                   \
    }

BY_DTYPE(matmul, (enum dtype dtype, const struct matmul *product), (product))
BY_DTYPE(scale, (enum dtype dtype, int64_t n, void *x, double factor), (n, x, factor))
BY_DTYPE(add, (enum dtype dtype, int64_t n, void *out, const void *a, const void *b), (n, out, a, b))
BY_DTYPE(add_bias, (enum dtype dtype, int64_t rows, int64_t n, void *x, const void *bias), (rows, n, x, bias))
BY_DTYPE(divide, (enum dtype dtype, int64_t n, void *x, double divisor), (n, x, divisor))
BY_DTYPE(rms_norm,
         (enum dtype dtype, int64_t rows, int64_t n, double eps, const void *x, const void *g, void *inverse_rms,
          void *y),
         (rows, n, eps, x, g, inverse_rms, y))
BY_DTYPE(rms_norm_backward,
         (enum dtype dtype, int64_t rows, int64_t n, const void *dy, const void *x, const void *g,
          const void *inverse_rms, const void *residual, void *dx),
         (rows, n, dy, x, g, inverse_rms, residual, dx))
BY_WIDE_DTYPE(rotary_tables,
              (enum dtype dtype, int64_t tokens, int64_t head_dim, double theta, void *cosine, void *sine),
              (tokens, head_dim, theta, cosine, sine))
BY_DTYPE(rotary,
         (enum dtype dtype, int64_t sequences, int64_t tokens, int64_t heads, int64_t head_dim, bool backward,
          const void *x, const void *cosine, const void *sine, void *y),
         (sequences, tokens, heads, head_dim, backward, x, cosine, sine, y))
BY_DTYPE(attention,
         (enum dtype dtype, int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
          const void *q, const void *k, const void *v, void *scores, void *probabilities, void *context),
         (sequences, tokens, heads, kv_heads, head_dim, q, k, v, scores, probabilities, context))
BY_DTYPE(attention_backward,
         (enum dtype dtype, int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
          const void *q, const void *k, const void *v, const void *probabilities, const void *d_context,
          void *d_probabilities, void *d_scores, void *dq, void *dk, void *dv),
         (sequences, tokens, heads, kv_heads, head_dim, q, k, v, probabilities, d_context, d_probabilities, d_scores,
          dq, dk, dv))
BY_DTYPE(softmax, (enum dtype dtype, int64_t rows, int64_t n, const void *x, void *y), (rows, n, x, y))
BY_DTYPE(softmax_backward, (enum dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy, void *dx),
         (rows, n, y, dy, dx))
BY_WIDE_DTYPE(topk, (enum dtype dtype, int64_t rows, int64_t n, int64_t k, const void *x, int64_t *index),
              (rows, n, k, x, index))
BY_WIDE_DTYPE(router_weights,
              (enum dtype dtype, int64_t rows, int64_t n, int64_t k, bool normalise, const void *scores,
               const int64_t *index, void *weight),
              (rows, n, k, normalise, scores, index, weight))
BY_WIDE_DTYPE(router_weights_backward,
              (enum dtype dtype, int64_t rows, int64_t n, int64_t k, bool normalise, const void *scores,
               const int64_t *index, const void *weight, const void *d_weight, void *d_scores),
              (rows, n, k, normalise, scores, index, weight, d_weight, d_scores))
BY_DTYPE(combine,
         (enum dtype dtype, int64_t rows, int64_t k, int64_t n, const int64_t *index, const void *weight,
          const void *output, void *out),
         (rows, k, n, index, weight, output, out))
BY_DTYPE(combine_backward,
         (enum dtype dtype, int64_t rows, int64_t k, int64_t n, const void *weight, const void *output, const void *dy,
          void *d_output, void *d_weight),
         (rows, k, n, weight, output, dy, d_output, d_weight))
BY_DTYPE(swiglu,
         (enum dtype dtype, int64_t rows, int64_t n, const void *gate, int64_t gate_row, const void *up, int64_t up_row,
          void *h),
         (rows, n, gate, gate_row, up, up_row, h))
BY_DTYPE(swiglu_backward,
         (enum dtype dtype, int64_t rows, int64_t n, const void *gate, int64_t gate_row, const void *up, int64_t up_row,
          const void *dh, void *d_gate, int64_t d_gate_row, void *d_up, int64_t d_up_row),
         (rows, n, gate, gate_row, up, up_row, dh, d_gate, d_gate_row, d_up, d_up_row))
BY_DTYPE(cross_entropy,
         (enum dtype dtype, int64_t sequences, int64_t tokens, int64_t vocab, const void *logits, const int64_t *labels,
          void *lse, void *loss),
         (sequences, tokens, vocab, logits, labels, lse, loss))
BY_DTYPE(cross_entropy_backward,
         (enum dtype dtype, int64_t sequences, int64_t tokens, int64_t vocab, const void *logits, const int64_t *labels,
          const void *lse, void *d_logits),
         (sequences, tokens, vocab, logits, labels, lse, d_logits))
BY_DTYPE(sum_rows, (enum dtype dtype, int64_t rows, int64_t n, const void *x, void *out), (rows, n, x, out))
BY_DTYPE(add_rows, (enum dtype dtype, int64_t rows, int64_t n, void *out, const void *from, const int64_t *index),
         (rows, n, out, from, index))
BY_DTYPE(rms_norm_gradient,
         (enum dtype dtype, int64_t rows, int64_t n, const void *dy, const void *x, const void *inverse_rms, void *dg),
         (rows, n, dy, x, inverse_rms, dg))
BY_WIDE_DTYPE(blend,
              (enum dtype dtype, const struct strips *strips, void *out, double a, const void *x, double b,
               const void *y),
              (strips, out, a, x, b, y))
BY_WIDE_DTYPE(blend_squares,
              (enum dtype dtype, const struct strips *strips, void *out, double a, const void *x, double b,
               const void *y),
              (strips, out, a, x, b, y))
BY_WIDE_DTYPE(adamw,
              (enum dtype dtype, const struct strips *strips, double keep, double rate, double root, double eps,
               const void *m, const void *v, void *p),
              (strips, keep, rate, root, eps, m, v, p))

/* One entry that tells a number. */
#define NUMBER_BY_DTYPE(name)                                                                                          \
    static double name(enum dtype dtype, int64_t n, const void *x) {                                                   \
        if (dtype != DTYPE_F64 && dtype != DTYPE_F32)                                                                  \
            abort();                                                                                                   \
        return dtype == DTYPE_F64 ? name##_f64(n, x) : name##_f32(n, x);                                               \
    }

NUMBER_BY_DTYPE(sum)
NUMBER_BY_DTYPE(sum_squares)
NUMBER_BY_DTYPE(max_abs)

const struct ops JOIN(ops_cpu_, ISA, _table) = {
    .name = "cpu " TEXT(ISA),
    .allocate = ops_cpu_allocate,
    .release = ops_cpu_release,
    .copy = ops_cpu_copy,
    .to_device = ops_cpu_copy,
    .to_host = ops_cpu_copy,
    .zero = ops_cpu_zero,
    .convert = ops_cpu_convert,
    .matmul = matmul,
    .scale = scale,
    .add = add,
    .add_bias = add_bias,
    .divide = divide,
    .sum = sum,
    .sum_squares = sum_squares,
    .max_abs = max_abs,
    .sum_rows = sum_rows,
    .gather_rows = ops_cpu_gather_rows,
    .scatter_rows = ops_cpu_scatter_rows,
    .add_rows = add_rows,
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .rms_norm_gradient = rms_norm_gradient,
    .rotary_tables = rotary_tables,
    .rotary = rotary,
    .attention = attention,
    .attention_backward = attention_backward,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .topk = topk,
    .router_weights = router_weights,
    .router_weights_backward = router_weights_backward,
    .combine = combine,
    .combine_backward = combine_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
    .blend = blend,
    .blend_squares = blend_squares,
    .adamw = adamw,
};
