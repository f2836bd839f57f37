/* What training keeps of every tensor that a tenant may train: a base weight of the job's `trainable`, or a factor of a
 * target. Every slot has its own running sum and optimizer state, also of base weights. */
#ifndef SHARDED_TRAINED_H
#define SHARDED_TRAINED_H

#include "core/job.h"
#include "core/points.h"
#include "sharded/ops.h"
#include "sharded/place.h"

struct subject;

#define OPTIMIZER_STATES 2 /* the most that an optimizer has */

struct progress {         /* of one slot, as the tensor's shard */
    struct tensor sum;    /* running sum of the open window's reduced gradients; no data before the first micro-batch */
    struct tensor master; /* the wide copy, if the job keeps them; a base weight has one, in slot 0's place */
    struct tensor state[OPTIMIZER_STATES]; /* made for the slot's first tenant, zero for every tenant */
};

struct trained {
    struct tensor partial;     /* this micro-batch's gradient, of this rank's tokens alone, gathered form */
    struct progress *progress; /* [slots]; NULL: nobody trains the tensor */
};

enum status trained_open(struct trained *out, int slots);
void trained_close(const struct ops *ops, struct trained *trained, int slots); /* accepts {0} */

struct training { /* one tensor that a slot's tenant trains */
    const struct param *param;
    enum part part; /* PART_WEIGHT, PART_LORA_A or PART_LORA_B */
    const struct place *place;
    struct tensor *value; /* the shard */
    struct trained *trained;
    struct strips strips; /* the rows below the tenant's rank that this rank holds; of a base weight all */
};

/* Every tensor that the tenant of `slot` trains in unit `unit` (-1: in all), in inventory order: the base weight, A, B.
 * Nothing for a slot that is free, or -1. */
struct training_walk {
    const struct subject *subject;
    int slot, unit, param, part;
};
struct training_walk training_of(const struct subject *subject, int slot, int unit);
bool training_next(struct training_walk *walk, struct training *out);

/* Zeroed state for all that the slot's tenant trains, where none is left from a tenant before. */
enum status training_states_make(struct subject *subject, int slot);
/* The wide copy that updates of a base weight (PART_WEIGHT) or of a slot's factor act on; NULL: the job keeps none. */
struct tensor *training_master(const struct subject *subject, const struct trained *trained, enum part part, int slot);
/* A copy of what the weight holds; and of what the slot's tenant holds, rows below its rank, zeros beyond. */
enum status training_weight_master(struct subject *subject, struct trained *trained, const struct tensor *shard);
enum status training_masters_make(struct subject *subject, int slot);
/* The strips of a shard, converted. */
void strips_convert(const struct ops *ops, const struct strips *strips, enum dtype to, void *out, enum dtype from,
                    const void *x);
/* Zeroed sums, where the slot's window has none yet; and their end. */
enum status training_sums_make(struct subject *subject, int slot);
void training_sums_free(struct subject *subject, int slot);
/* Sums and state of the slot are cleared, whoever trained them. */
void training_clear(struct subject *subject, int slot);

#endif
