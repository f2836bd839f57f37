/* The end of a step: the window's running sums become gradients, are clipped, and move the acting tenant's tensors. */
#ifndef SHARDED_UPDATE_H
#define SHARDED_UPDATE_H

#include "core/status.h"

#include <stdint.h>

struct subject;

/* Collective. Divides the acting slot's sums by `divisor`, clips them if the job does, updates the optimizer's state
 * and then the parameters, and records all of it. The slot's counter counts one more step. */
enum status update_acting(struct subject *subject, int64_t divisor);

#endif
