/* What a script asks for: training steps, evaluations, exports. All collective. */
#ifndef SHARDED_STEP_H
#define SHARDED_STEP_H

#include "core/job.h"

struct subject;

/* Forward and backward over the action's micro-batches: the tenant's window opens, or goes on. */
enum status step_accumulate(struct subject *subject, const struct action *action);
/* Closes the tenant's window: count, loss, and one optimizer step. */
enum status step_close(struct subject *subject, const struct action *action);
/* Both in one. */
enum status step_train(struct subject *subject, const struct action *action);
/* Forward only; count and loss if any label counts. */
enum status step_evaluate(struct subject *subject, const struct action *action);
/* The tenant's adapter in PEFT's flat form, assembled by every rank; rank 0 writes the folder. */
enum status export_tenant(struct subject *subject, const struct action *action);

#endif
