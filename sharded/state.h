/* One rank's state: what the parts of the subject share. */
#ifndef SHARDED_STATE_H
#define SHARDED_STATE_H

#include "sharded/device.h"
#include "sharded/place.h"
#include "sharded/slots.h"
#include "sharded/store.h"
#include "sharded/subject.h"

struct subject {
    const struct job *job;
    struct mesh mesh; /* with an axis ep, of size 1 if the run's mesh has none */
    const struct layout_file *layout;
    const struct rules *rules;
    struct comm *comm;
    const struct ops *ops;
    const struct subject_hooks *hooks;
    const struct model_config *config;
    const struct inventory *inventory;
    struct precision precision;
    enum dtype dtype; /* precision.compute: of activations and of what is gathered */
    enum dtype wide;  /* precision.wide: of sums, statistics, gradients of parameters, states */
    int rank, world;
    int skippable; /* collectives of rules->skip.operation so far */
    struct groups groups;
    struct store store;
    struct slots slots;
    int step;            /* S of the step at work */
    int64_t sum_divisor; /* 1; what a micro-batch's reduced gradients are divided by */
};

#endif
