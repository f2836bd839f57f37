/* Gradients of parameters in one walk: what backward calls where a parameter has been used. Each does nothing where the
 * acting tenant trains no such parameter. */
#ifndef REFERENCE_GRADIENTS_H
#define REFERENCE_GRADIENTS_H

#include "reference/walk.h"

/* G, then dA and dB from it, of y = W x; then the bias's gradient, if the map has one (PARAM_KINDS: it has none). G is
 * emitted where W trains or is adapted; for a tied head, where the embedding trains, too. */
enum status gradient_linear(struct walk *walk, enum param_kind weight, enum param_kind bias, int layer,
                            const struct value *dy, const struct value *x);
/* Of a norm's weight; x, scale: its input and 1/rms. */
enum status gradient_norm(struct walk *walk, enum param_kind norm, int layer, const struct value *dy,
                          const struct value *x, const struct value *scale);
/* Of the embedding: the tied head's partial, if there is one, and the tokens' rows of dy. */
enum status gradient_embedding(struct walk *walk, const struct value *dy);
/* The unit's partial gradients go into the window's running sums, which are emitted. */
enum status gradient_reduce(struct walk *walk, int unit);

#endif
