/* A window: the micro-batches of one optimizer step so far (or of an evaluation), their labels and their loss. */
#ifndef REFERENCE_WINDOW_H
#define REFERENCE_WINDOW_H

#include "reference/bound.h"

struct window {
    int micros;
    int64_t counted;    /* labels */
    struct value *sums; /* [micros] LOSS_SUM */
    struct value count; /* the divisor, after emit; empty before */
};

/* Takes over a micro-batch's LOSS_SUM; on failure, too. */
enum status window_add(struct window *window, int64_t counted, struct value *sum);
/* The count, which the caller emits; then what gradients are divided by, and the loss, a value of no dims. */
enum status window_count(const struct arithmetic *m, struct window *window);
struct num window_divisor(const struct arithmetic *m, const struct window *window);
enum status window_loss(const struct arithmetic *m, const struct window *window, struct value *out);
void window_free(struct window *window); /* accepts {0} */

#endif
