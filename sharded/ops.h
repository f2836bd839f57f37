/* The one table of operations: all arithmetic on the subject's tensors, and every buffer that holds them.
 *
 * The CPU implements it (plain C, AVX2, AVX-512: the same source compiled three times, chosen at run time, same bits);
 * CUDA will implement it beside it. The code above has no branch on the device. Pointers are to the device's memory.
 *
 * Bits do not depend on the split: every output element is one chain of explicit fused multiply-adds over ascending k
 * (or a sum in ascending index), whatever rows or columns stand around it. No contraction by the compiler, no
 * fast-math, no threads. `dtype` is F64, F32 or BF16; exp, log, sin, cos are core/elementary.h's in that type;
 * constants (scale, eps, lr, ...) are rounded to the dtype first, then used.
 *
 * BF16: operands are bfloat16, but for those marked f32 (statistics and sums), which are float32. An operation computes
 * as in F32 and rounds each result once, to nearest even, when it stores it. Results that are stored on the way
 * (scores, then probabilities, then context) are read back as stored. Updates, sums that tell a number, rotary tables,
 * topk and router weights are of F32 tensors and know no BF16.
 *
 * Shapes: B sequences, T tokens, rows = tokens or exchanged rows, n columns. All row-major and dense unless a leading
 * dimension is given. */
#ifndef SHARDED_OPS_H
#define SHARDED_OPS_H

#include "core/tensor.h"

struct matmul { /* C[m,n] = (accumulate ? C : 0) + sum over ascending k of A[m,k] * B[k,n] */
    int64_t m, n, k;
    const void *a; /* element (i,l) at a[i*a_row + l*a_col] */
    int64_t a_row, a_col;
    const void *b; /* element (l,j) at b[l*b_row + j*b_col] */
    int64_t b_row, b_col;
    void *c; /* element (i,j) at c[i*c_row + j] */
    int64_t c_row;
    bool accumulate;             /* the chain starts from C */
    bool a_wide, b_wide, c_wide; /* BF16: this one is float32 */
};

struct strips { /* what of a tensor an update acts on: `rows` runs of n elements, the first of each `stride` apart */
    int64_t rows, n, stride;
};

struct ops {
    const char *name; /* "cpu plain", "cpu avx2", "cpu avx512" */

    void *(*allocate)(size_t bytes); /* born NaN (bytes 0xff); NULL: out of memory. 0 bytes gives a valid pointer */
    void (*release)(void *memory);   /* accepts NULL */
    void (*copy)(void *to, const void *from, size_t bytes); /* within the device; no overlap */
    void (*to_device)(void *to, const void *host, size_t bytes);
    void (*to_host)(void *host, const void *from, size_t bytes);
    void (*zero)(void *memory, size_t bytes);

    /* out = x, rounded to nearest even; between F64, F32 and BF16. */
    void (*convert)(int64_t n, enum dtype to, void *out, enum dtype from, const void *x);
    void (*matmul)(enum dtype dtype, const struct matmul *product);
    void (*scale)(enum dtype dtype, int64_t n, void *x, double factor);                /* x *= factor */
    void (*add)(enum dtype dtype, int64_t n, void *out, const void *a, const void *b); /* out = a + b; out may be a */
    void (*add_bias)(enum dtype dtype, int64_t rows, int64_t n, void *x, const void *bias); /* x[r,:] += bias */
    void (*divide)(enum dtype dtype, int64_t n, void *x, double divisor);                   /* x /= divisor */
    double (*sum)(enum dtype dtype, int64_t n, const void *x);         /* ascending, in the dtype */
    double (*sum_squares)(enum dtype dtype, int64_t n, const void *x); /* ascending; squares and sum in float64 */
    double (*max_abs)(enum dtype dtype, int64_t n, const void *x);     /* 0 of nothing; NaN if any is */
    /* out[j] = sum of x[r,j] over ascending r (out f32). */
    void (*sum_rows)(enum dtype dtype, int64_t rows, int64_t n, const void *x, void *out);

    /* Whole rows of n elements: out[i] = table[index[i]];  out[index[i]] = rows[i] (each target at most once). */
    void (*gather_rows)(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *table, const int64_t *index);
    void (*scatter_rows)(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *from, const int64_t *index);
    /* out[index[i]] += rows[i], in ascending i (out f32). */
    void (*add_rows)(enum dtype dtype, int64_t rows, int64_t n, void *out, const void *from, const int64_t *index);

    /* inverse_rms[r] = 1/sqrt((sum x^2)*(1/n) + eps);  y = g * (x * inverse_rms) (inverse_rms f32). */
    void (*rms_norm)(enum dtype dtype, int64_t rows, int64_t n, double eps, const void *x, const void *g,
                     void *inverse_rms, void *y);
    /* t = sum_j dy_j g_j x_j;  dx = s*(g*dy) - x*(s*s*s*t*(1/n))  (s = inverse_rms), + residual if not NULL. */
    void (*rms_norm_backward)(enum dtype dtype, int64_t rows, int64_t n, const void *dy, const void *x, const void *g,
                              const void *inverse_rms, const void *residual, void *dx);
    /* dg[j] = sum over ascending r of dy[r,j] * (x[r,j] * inverse_rms[r]) (dg, inverse_rms f32). */
    void (*rms_norm_gradient)(enum dtype dtype, int64_t rows, int64_t n, const void *dy, const void *x,
                              const void *inverse_rms, void *dg);

    /* cos and sin [T, d/2] of pos * theta^(-2i/d), in float64, rounded once. */
    void (*rotary_tables)(enum dtype dtype, int64_t tokens, int64_t head_dim, double theta, void *cosine, void *sine);
    /* x, y [B,T,heads,d]; halves (i, i+d/2) pair up. forward: y1 = x1*c - x2*s, y2 = x2*c + x1*s; backward: s negated.
     */
    void (*rotary)(enum dtype dtype, int64_t sequences, int64_t tokens, int64_t heads, int64_t head_dim, bool backward,
                   const void *x, const void *cosine, const void *sine, void *y);

    /* Causal grouped-query attention, q [B,T,nh,d], k, v [B,T,nk,d]; head h reads k, v of h / (nh/nk).
     * scores[b,h,t,s] = (q.k) * d^-0.5 for s <= t, else 0;  probabilities = softmax over s <= t, else 0;
     * context[b,t,h,:] = sum over ascending s <= t of p v. */
    void (*attention)(enum dtype dtype, int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads,
                      int64_t head_dim, const void *q, const void *k, const void *v, void *scores, void *probabilities,
                      void *context);
    /* d_probabilities = d_context . v (s <= t, else 0);  d_scores = p*(dp - sum over s of p*dp) (else 0);
     * dq = d^-0.5 * sum over s of ds k;  dk = d^-0.5 * sum over (head in group ascending, t ascending) of ds q;
     * dv = sum over (head in group ascending, t ascending) of p d_context. */
    void (*attention_backward)(enum dtype dtype, int64_t sequences, int64_t tokens, int64_t heads, int64_t kv_heads,
                               int64_t head_dim, const void *q, const void *k, const void *v, const void *probabilities,
                               const void *d_context, void *d_probabilities, void *d_scores, void *dq, void *dk,
                               void *dv);

    void (*softmax)(enum dtype dtype, int64_t rows, int64_t n, const void *x, void *y); /* exp(x-max)/sum (y f32) */
    /* dx = y*(dy - sum y*dy) (y, dy f32). */
    void (*softmax_backward)(enum dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy, void *dx);
    /* The k largest of each row, falling; equal scores: the lower index first. */
    void (*topk)(enum dtype dtype, int64_t rows, int64_t n, int64_t k, const void *x, int64_t *index);
    /* weight[r,c] = scores[r,index[r,c]], divided by the sum of the row (choices ascending as listed) if `normalise`.
     */
    void (*router_weights)(enum dtype dtype, int64_t rows, int64_t n, int64_t k, bool normalise, const void *scores,
                           const int64_t *index, void *weight);
    /* Gradient of the scores, 0 where not chosen. normalise (w = p/S): dp_c = (dw_c - sum_j dw_j w_j)/S, S = sum of
     * chosen p. */
    void (*router_weights_backward)(enum dtype dtype, int64_t rows, int64_t n, int64_t k, bool normalise,
                                    const void *scores, const int64_t *index, const void *weight, const void *d_weight,
                                    void *d_scores);
    /* out[r,:] = sum over choices in ascending expert number of weight[r,c] * output[r,c,:]  (weight NULL: 1, plain
     * adds), one fused multiply-add each, from 0 (weight f32). */
    void (*combine)(enum dtype dtype, int64_t rows, int64_t k, int64_t n, const int64_t *index, const void *weight,
                    const void *output, void *out);
    /* d_output[r,c,:] = weight[r,c]*dy[r,:];  d_weight[r,c] = sum_j dy[r,j]*output[r,c,j] (weights f32). */
    void (*combine_backward)(enum dtype dtype, int64_t rows, int64_t k, int64_t n, const void *weight,
                             const void *output, const void *dy, void *d_output, void *d_weight);

    /* h = silu(g)*u, silu(g) = g/(1+exp(-g)); g at gate[r*gate_row + j], u at up[r*up_row + j]. */
    void (*swiglu)(enum dtype dtype, int64_t rows, int64_t n, const void *gate, int64_t gate_row, const void *up,
                   int64_t up_row, void *h);
    /* s = 1/(1+exp(-g)): d_gate = dh*u*(s*(1 + g*(1-s))), d_up = dh*(g*s). */
    void (*swiglu_backward)(enum dtype dtype, int64_t rows, int64_t n, const void *gate, int64_t gate_row,
                            const void *up, int64_t up_row, const void *dh, void *d_gate, int64_t d_gate_row,
                            void *d_up, int64_t d_up_row);

    /* logits [B,T,V], labels [B,T] (-100: none; label t+1 meets logits t). lse, loss [B,T-1]: lse = max + log(sum
     * exp(x-max)); loss = lse - logit of the label, 0 without one (lse, loss f32). */
    void (*cross_entropy)(enum dtype dtype, int64_t sequences, int64_t tokens, int64_t vocab, const void *logits,
                          const int64_t *labels, void *lse, void *loss);
    /* d_logits [B,T,V] of the SUM of the losses: exp(x - lse) - [v = label] where there is a label, else 0 (also t =
     * T-1). */
    void (*cross_entropy_backward)(enum dtype dtype, int64_t sequences, int64_t tokens, int64_t vocab,
                                   const void *logits, const int64_t *labels, const void *lse, void *d_logits);

    /* Updates: elements outside the strips are neither read nor written. `out` may be x or y. */
    /* out = a*x + b*y, three roundings; a product by 1 is none. */
    void (*blend)(enum dtype dtype, const struct strips *strips, void *out, double a, const void *x, double b,
                  const void *y);
    /* out = a*x + (y*y)*b, four roundings. */
    void (*blend_squares)(enum dtype dtype, const struct strips *strips, void *out, double a, const void *x, double b,
                          const void *y);
    /* p = keep*p - (rate*m) / (sqrt(v)/root + eps), each operation rounded. */
    void (*adamw)(enum dtype dtype, const struct strips *strips, double keep, double rate, double root, double eps,
                  const void *m, const void *v, void *p);
};

/* The best table for this CPU; SHARDPROOF_ISA=plain|avx2|avx512 in the environment asks for another (one the CPU lacks:
 * NULL). */
const struct ops *ops_cpu(void);
/* By name "plain", "avx2", "avx512"; NULL if this CPU lacks it. */
const struct ops *ops_cpu_named(const char *isa);

#endif
