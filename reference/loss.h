/* Next-token cross-entropy, as a SUM over labels; label t+1 meets logits t; -100: none. */
#ifndef REFERENCE_LOSS_H
#define REFERENCE_LOSS_H

#include "reference/value.h"

/* out [B,T-1] = max + log(sum over the vocabulary of exp(x - max)), at every place. */
enum status value_logsumexp(const struct arithmetic *m, const struct value *logits, struct value *out);
/* out [B,T-1] = logsumexp - logit of the label; exact 0 without a label. labels [B,T]: STATUS_INTERNAL if one is
 * neither -100 nor in the vocabulary. */
enum status value_token_loss(const struct arithmetic *m, const struct value *logits, const struct value *logsumexp,
                             const struct value *labels, struct value *out);
/* out [] = sum over all places. */
enum status value_loss_sum(const struct arithmetic *m, const struct value *token_loss, struct value *out);
/* out [B,T,V] = exp(x - logsumexp) - [v = label]; exact 0 where there is no label, and at t = T-1. */
enum status value_loss_gradient(const struct arithmetic *m, const struct value *logits, const struct value *logsumexp,
                                const struct value *labels, struct value *out);

#endif
