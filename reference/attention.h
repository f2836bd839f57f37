/* Causal grouped-query attention, each operation by itself. q [B,T,nh,d], k [B,T,nk,d], v [B,T,nk*d]; head h reads k
 * and v of h / (nh/nk). Scores and probabilities [B,nh,T,T]; places s > t are left out of every sum and stored as exact
 * 0. */
#ifndef REFERENCE_ATTENTION_H
#define REFERENCE_ATTENTION_H

#include "reference/value.h"

struct attention_size {
    int64_t sequences, tokens, heads, kv_heads, head_dim;
};

/* (q . k) * d^-0.5. */
enum status value_attention_scores(const struct arithmetic *m, const struct attention_size *size, const struct value *q,
                                   const struct value *k, struct value *out);
/* softmax over s <= t. */
enum status value_attention_probabilities(const struct arithmetic *m, const struct attention_size *size,
                                          const struct value *scores, struct value *out);
/* [B,T,nh*d] = sum over s <= t of p v. */
enum status value_attention_context(const struct arithmetic *m, const struct attention_size *size,
                                    const struct value *probabilities, const struct value *v, struct value *out);

/* dp = d_context . v. */
enum status value_attention_d_probabilities(const struct arithmetic *m, const struct attention_size *size,
                                            const struct value *d_context, const struct value *v, struct value *out);
/* ds = p * (dp - sum over s of p dp). */
enum status value_attention_d_scores(const struct arithmetic *m, const struct attention_size *size,
                                     const struct value *probabilities, const struct value *d_probabilities,
                                     struct value *out);
/* [B,T,nh,d] = d^-0.5 * sum over s of ds k. */
enum status value_attention_d_q(const struct arithmetic *m, const struct attention_size *size,
                                const struct value *d_scores, const struct value *k, struct value *out);
/* [B,T,nk,d] = d^-0.5 * sum over the heads of the group and t >= s of ds q. */
enum status value_attention_d_k(const struct arithmetic *m, const struct attention_size *size,
                                const struct value *d_scores, const struct value *q, struct value *out);
/* [B,T,nk*d] = sum over the heads of the group and t >= s of p d_context. */
enum status value_attention_d_v(const struct arithmetic *m, const struct attention_size *size,
                                const struct value *probabilities, const struct value *d_context, struct value *out);

#endif
