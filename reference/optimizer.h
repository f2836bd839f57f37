/* What follows the last micro-batch of a training step: count, loss, divided gradients, the update. */
#ifndef REFERENCE_OPTIMIZER_H
#define REFERENCE_OPTIMIZER_H

#include "reference/state.h"

/* What the micro-batches of a step leave behind. */
struct tally {
    int micros;
    int64_t counted;    /* labels */
    struct value *sums; /* [micros] LOSS_SUM */
    struct value count; /* the divisor, after emit */
};

enum status tally_make(struct tally *out, int micros);
void tally_free(struct tally *tally);
/* Emits count and loss. */
enum status reference_emit_loss(struct reference *reference, struct tally *tally);
/* Divides the running sums, updates the tenant's slot and state, and forgets the sums. */
enum status reference_update(struct reference *reference, int tenant, const struct tally *tally);

#endif
