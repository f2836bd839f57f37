/* The answers of a free run, by trace name. */
#ifndef HARNESS_GOLDEN_ANSWERS_H
#define HARNESS_GOLDEN_ANSWERS_H

#include "harness/golden.h"

struct answer {
    char *name;
    struct point point;
    int updates; /* that have acted on it */
    struct value value;
};

struct answers {
    int count, room;
    struct answer *item;
};

/* Whether the subject is held against the free run here: logits, token losses, hidden states, router, deltas, loss,
 * gradients, norm and clipped gradients where the job clips, state, updates. */
bool answer_wanted(const struct point *point, bool clips);
enum status answers_add(struct answers *answers, const struct point *point, int updates, const struct value *value);

#endif
