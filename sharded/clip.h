/* Clipping: the norm over exactly the tensors that the acting tenant trains, and the factor that follows from it. */
#ifndef SHARDED_CLIP_H
#define SHARDED_CLIP_H

#include "core/status.h"

struct subject;

/* Collective. The norm over every element of the acting slot's sums, each counted once: replicas by one holder, experts
 * over ep. 2: the root of the sum of squares, in float64, in rank order; infinity: the largest |g|. Scales the sums by
 * min(1, max / (norm + 1e-6)); records the norm and what is left. */
enum status clip_acting(struct subject *subject);

#endif
