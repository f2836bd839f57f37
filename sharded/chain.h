/* Results that take several operations and are stored once: a chain runs in the wide type (float32 where activations
 * are bfloat16) and is rounded when it is stored. Where both types are the same, the chain runs in the result itself.
 */
#ifndef SHARDED_CHAIN_H
#define SHARDED_CHAIN_H

#include "core/status.h"

#include <stdint.h>

struct subject;

struct chain {
    int64_t n;
    void *data;   /* [n] of the wide type */
    void *result; /* [n] of the compute type; data itself where the types are the same */
};

/* Room for n elements that end up in `result`; chain_store puts them there. The caller calls chain_free (accepts {0}).
 */
enum status chain_begin(struct chain *out, const struct subject *subject, int64_t n, void *result);
void chain_store(const struct chain *chain, const struct subject *subject);
/* n stored elements, widened, to be read. */
enum status chain_widen(struct chain *out, const struct subject *subject, int64_t n, const void *stored);
void chain_free(struct chain *chain, const struct subject *subject);

#endif
