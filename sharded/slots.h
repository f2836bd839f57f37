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
#include "sharded/trained.h"

enum {
    FACTOR_A,
    FACTOR_B,
    FACTORS
};
#define FACTOR_PART(factor) ((enum part)(PART_LORA_A + (factor)))

struct factor { /* A [E,R,in] or B [E,out,R] of one target ([R,in], [out,R] on a 2-D weight) */
    struct place place;
    struct tensor *slot; /* [slots] own shard of each */
    struct tensor used;  /* the acting slot's gathered form while the unit is gathered */
    struct tensor kept;  /* as a weight's */
    struct trained trained;
};

struct target {
    const struct param *param;
    struct factor factor[FACTORS];
};

struct window { /* of one step, over its micro-batches */
    bool open;
    int64_t own;        /* labels that count on this rank */
    int64_t micros;     /* so far */
    struct tensor loss; /* scalar: the sum of token losses on this rank */
};

struct slot {
    int tenant; /* -1: free */
    int steps;  /* optimizer steps since its acquire */
    struct window window;
};

struct slots {
    int targets;
    struct target *target; /* in inventory order */
    struct slot *slot;     /* [job->slots] */
    int acting;            /* the slot that acts, -1: none */
    int depth;
    int *outer; /* [actions] what acted outside each open ENTER */
};

/* Collective. All slots are free and hold their initial values: A by slot_initial, each rank its own piece, B 0. */
enum status slots_open(struct subject *subject);
void slots_close(struct subject *subject);

/* The lowest free slot becomes the tenant's: rows k < r are the adapter's, rounded to the job's dtype, rows beyond 0
 * (NaN if the job says so); targets that it does not adapt 0; optimizer state 0. */
enum status slots_acquire(struct subject *subject, int tenant);
/* The tenant's slot is free and as it was made; its sums, state, window and counter are gone. */
enum status slots_release(struct subject *subject, int tenant);
int slots_of(const struct subject *subject, int tenant); /* -1 if it holds none */
/* The tenant's slot acts (tenant -1: none does). Returns what acted before, for slots_restore. */
int slots_activate(struct subject *subject, int tenant);
void slots_restore(struct subject *subject, int before);

/* The acting tenant's adapter on this parameter, NULL if it has none there or no slot acts. */
const struct adapter_target *slots_adapter(const struct subject *subject, const struct param *param);
/* That of the tenant that holds `slot`; NULL if it is free, or -1. */
const struct adapter_target *slots_adapter_in(const struct subject *subject, int slot, const struct param *param);
/* The acting slot's window. */
struct window *slots_window(struct subject *subject);

#endif
