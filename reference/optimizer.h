/* What closes a window: divided gradients, clipping, SGD and AdamW as torch.optim computes them. */
#ifndef REFERENCE_OPTIMIZER_H
#define REFERENCE_OPTIMIZER_H

#include "reference/state.h"

/* Emits count and loss. */
enum status reference_emit_loss(struct reference *reference, struct window *window);

/* Trained tensors of the holder in their order: inventory order, weight before A before B. */
typedef enum status trained_step(struct reference *reference, struct holding *holding, const struct param *param,
                                 enum part part, const void *context);
enum status each_trained(struct reference *reference, struct holding *holding, trained_step *step, const void *context);

/* clip.c: emits the norm and, if the job clips, the clipped gradients, which take the place of the divided ones. */
enum status reference_clip(struct reference *reference, struct holding *holding);
/* GRAD, CLIP, OPTIMIZER, UPDATE of a window whose loss has been emitted. */
enum status reference_update(struct reference *reference, struct holding *holding);

#endif
