/* Where one rank's failure must be everybody's: files are read and written by each rank for itself. */
#ifndef SHARDED_CHECKPOINT_AGREE_H
#define SHARDED_CHECKPOINT_AGREE_H

#include "core/status.h"

struct subject;

/* Collective. If any rank comes with a failure, every rank leaves with the failure and the note of the lowest such
 * rank. */
enum status checkpoint_agree(struct subject *subject, enum status mine, const char *what);

#endif
