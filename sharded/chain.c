#include "sharded/chain.h"

#include "sharded/state.h"

enum status chain_begin(struct chain *out, const struct subject *subject, int64_t n, void *result) {
    *out = (struct chain){.n = n, .data = result, .result = result};
    if (subject->wide == subject->dtype)
        return STATUS_OK;
    return device_block(subject->ops, &out->data, (size_t)n * dtype_bytes(subject->wide));
}

void chain_store(const struct chain *chain, const struct subject *subject) {
    if (chain->data != chain->result)
        subject->ops->convert(chain->n, subject->dtype, chain->result, subject->wide, chain->data);
}

enum status chain_widen(struct chain *out, const struct subject *subject, int64_t n, const void *stored) {
    TRY(chain_begin(out, subject, n, (void *)(uintptr_t)stored));
    if (out->data != out->result)
        subject->ops->convert(n, subject->wide, out->data, subject->dtype, stored);
    return STATUS_OK;
}

void chain_free(struct chain *chain, const struct subject *subject) {
    if (chain->data != chain->result)
        subject->ops->release(chain->data);
    *chain = (struct chain){0};
}
