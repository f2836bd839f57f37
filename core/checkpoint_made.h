/* Weights made from (name, global index, seed). Private to core/checkpoint. */
#ifndef CORE_CHECKPOINT_MADE_H
#define CORE_CHECKPOINT_MADE_H

#include "core/checkpoint.h"

/* A new whole tensor [param->shape]; `param` owns its weight. `where` ("FILE:LINE") stands before a message:
 * index-coded data that `dtype` cannot hold exactly is STATUS_INPUT. */
enum status checkpoint_made_read(const struct model_config *config, const struct param *param, uint64_t seed,
                                 enum data_kind data, enum dtype dtype, const char *where, struct tensor *out);

#endif
