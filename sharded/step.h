/* What a script asks for: training steps, evaluations, exports. All collective. */
#ifndef SHARDED_STEP_H
#define SHARDED_STEP_H

#include "core/job.h"

struct subject;

/* One optimizer step of the action's tenant over its micro-batches. */
enum status step_train(struct subject *subject, const struct action *action);
/* Forward only; count and loss if any label counts. */
enum status step_evaluate(struct subject *subject, const struct action *action);
/* The tenant's adapter in PEFT's flat form, assembled by every rank; rank 0 writes the folder. */
enum status export_tenant(struct subject *subject, const struct action *action);

#endif
