/* Adapter slots: job->slots physical slots of rank R on every parameter that some tenant adapts, sharded like
 * parameters.
 *
 * A tenant acquires the lowest free slot. One slot acts at a time; activating is one assignment and touches no tensor.
 */
#ifndef SHARDED_SLOTS_H
#define SHARDED_SLOTS_H

#include "core/job.h"
#include "core/points.h"
#include "sharded/place.h"

enum {
    FACTOR_A,
    FACTOR_B,
    FACTORS
};
#define FACTOR_PART(factor) ((enum part)(PART_LORA_A + (factor)))

struct factor { /* A [E,R,in] or B [E,out,R] of one target ([R,in], [out,R] on a 2-D weight) */
    struct place place;
    struct tensor *slot;     /* [slots] own shard of each */
    struct tensor *momentum; /* [slots] SGD's buffer; no data where no tenant of the slot adapts the target */
    struct tensor used;      /* the acting slot's gathered form while the unit is gathered */
    struct tensor partial;   /* this micro-batch's gradient, of this rank's tokens alone, gathered form */
    struct tensor sum;       /* running sum of the reduced gradients of the step at work, as the shard */
};

struct target {
    const struct param *param;
    struct factor factor[FACTORS];
};

struct slot {
    int tenant;   /* -1: free */
    bool trained; /* since its acquire */
};

struct slots {
    int targets;
    struct target *target; /* in inventory order */
    struct slot *slot;     /* [job->slots] */
    int acting;            /* the slot that acts, -1: none */
    int depth;
    int *outer; /* [actions] what acted outside each open ENTER */
};

/* Collective. All slots are 0 and free. */
enum status slots_open(struct subject *subject);
void slots_close(struct subject *subject);

/* Rows k < r are the adapter's, rounded to the job's dtype, rows beyond 0; optimizer state 0. */
enum status slots_acquire(struct subject *subject, int tenant);
int slots_of(const struct subject *subject, int tenant); /* -1 if it holds none */
/* The tenant's slot acts (tenant -1: none does). Returns what acted before, for slots_restore. */
int slots_activate(struct subject *subject, int tenant);
void slots_restore(struct subject *subject, int before);

/* The acting tenant's adapter on this parameter, NULL if it has none there or no slot acts. */
const struct adapter_target *slots_adapter(const struct subject *subject, const struct param *param);

/* Every factor that the acting tenant trains in unit `unit` (-1: in all), in inventory order, A before B. */
struct factor_walk {
    const struct subject *subject;
    int unit, target, part;
    const struct param *param; /* of the factor last returned */
    enum part lora;            /* PART_LORA_A or PART_LORA_B */
};
struct factor_walk slots_walk(const struct subject *subject, int unit);
struct factor *slots_next(struct factor_walk *walk); /* NULL at the end */

#endif
