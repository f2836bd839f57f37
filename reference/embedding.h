/* Rows of a table by token id, and the gradient of that. */
#ifndef REFERENCE_EMBEDDING_H
#define REFERENCE_EMBEDDING_H

#include "reference/value.h"

/* out [B,T,H] = table [V,H] at ids [B,T]. Movement; STATUS_INTERNAL for an id that is no word. */
enum status value_embed(const struct arithmetic *m, const struct value *ids, const struct value *table,
                        struct value *out);
/* out [V,H] = start (NULL: zero) + sum over the tokens of an id of dy [B,T,H]. `start` is a partial gradient: the other
 * use of a tied table. */
enum status value_embed_gradient(const struct arithmetic *m, const struct value *ids, const struct value *dy,
                                 int64_t vocab, const struct value *start, struct value *out);

#endif
