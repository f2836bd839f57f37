/* Partial gradients and loss sums once more, from the rows that one rank has: see struct repetition. */
#ifndef REFERENCE_REPEAT_H
#define REFERENCE_REPEAT_H

#include "reference/walk.h"

enum repeat_kind {
    REPEAT_LINEAR,  /* G = sum over rows of dy x */
    REPEAT_EXPERTS, /* the same per expert, over exchanged rows */
    REPEAT_BIAS,    /* sum of dy */
    REPEAT_NORM,    /* dy, x, scale */
    REPEAT_EMBED,   /* dy, x: the ids */
    REPEAT_LOSS,    /* x: the token losses */
    REPEAT_LORA_A,  /* from the rank's own G; x: B */
    REPEAT_LORA_B   /* from the rank's own G; x: A */
};

struct repeat {
    struct repetition repetition; /* first: what `make` is called with */
    enum repeat_kind kind;
    int layer;
    const struct value *dy, *x, *scale; /* operands, as far as the kind has them; borrowed */
    const struct param *from;           /* EMBED: the tied head whose partial it starts from, or NULL */
    const struct walk *walk;
    const struct param *param; /* whose partial it is; NULL: the loss */
};

/* Completes `repeat` and hangs it on the value, if bounds are kept; whoever emits takes it off (value->repeat = NULL).
 */
void repeat_offer(struct repeat *repeat, const struct walk *walk, const struct param *param, struct value *value);

#endif
