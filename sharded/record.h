/* Storage points: what the subject shows of itself, straight from the buffers. Nothing is done without a hook. */
#ifndef SHARDED_RECORD_H
#define SHARDED_RECORD_H

#include "core/points.h"

struct subject;

/* `data` is the local piece, on the device. */
enum status record_tensor(const struct subject *subject, const struct point *point, const struct tensor *data);
/* A parameter's point of the step at work. */
enum status record_param(const struct subject *subject, enum phase phase, int micro, const struct param *param,
                         enum part part, const struct tensor *data);
/* A scalar's. */
enum status record_scalar(const struct subject *subject, enum phase phase, int micro, const char *scalar,
                          const struct tensor *data);
/* Phase `param`: every parameter, slot and optimizer state as this rank holds them. */
enum status record_holdings(const struct subject *subject);

#endif
