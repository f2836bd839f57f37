/* What one device holds between actions: weights, slots and what their tenants own; and how a value is emitted. */
#ifndef REFERENCE_STATE_H
#define REFERENCE_STATE_H

#include "reference/window.h"

#define PARTS (PART_LORA_B + 1)
#define STATES 2 /* an optimizer's states of one tensor, at most */

struct parts { /* tensors of one parameter, by enum part: weight, A and B in slot form; ndim 0 where there is none */
    struct value part[PARTS];
};

/* A slot and all that its tenant owns. */
struct holding {
    int tenant;         /* -1: free */
    int updates;        /* since its acquire */
    struct parts *slot; /* [parameters] A and B of every parameter that is a target */
    struct parts
        *state[STATES];     /* [parameters] of all that the tenant can train; base parameters' states are its own */
    struct parts *master;   /* [parameters] wide copies of what the tenant holds, if the job keeps them */
    struct parts *gradient; /* [parameters] of the open window: running sums, then divided, then clipped */
    struct window window;
};

struct saved;

struct reference {
    const struct job *job;
    const struct model_config *config;
    const struct inventory *inventory;
    struct reference_options options;
    const struct reference_hooks *hooks;
    struct precision precision;
    struct arithmetic arithmetic;
    struct value *master;    /* [parameters] wide copies of base parameters that train, if the job keeps them */
    struct value *weight;    /* [parameters]; empty for an alias */
    struct holding *holding; /* [slots] */
    struct saved *saved;     /* [job->saves] what the script has saved so far (saved.h) */
    int step;                /* S */
};

/* Reads all weights; slots have their initial values. */
enum status reference_make(struct reference *out, const struct job *job, const struct reference_options *options,
                           const struct reference_hooks *hooks);
void reference_free(struct reference *reference); /* accepts {0} */

/* The lowest free slot: the adapter's rows, beyond them zeros (or NaN, if the job says so) in its own targets; all else
 * zero. */
enum status reference_acquire(struct reference *reference, int tenant);
/* The slot back to its initial values; its gradients and states are forgotten. */
enum status reference_release(struct reference *reference, int tenant);
/* Number of the slot that a tenant holds, -1 if none; and the slot, NULL if none. */
int reference_slot(const struct reference *reference, int tenant);
struct holding *reference_holding(const struct reference *reference, int tenant);
/* Gradients and sums of the open window are gone. */
void holding_close_window(struct holding *holding, const struct inventory *inventory);

/* The tenant's target on a parameter; NULL if it has none there, or for tenant -1. */
const struct adapter_target *reference_target(const struct reference *reference, int tenant, const struct param *param);
/* Whether a step of the tenant trains this part: a base parameter that the job trains, A and B of its own targets. */
bool reference_trains(const struct reference *reference, int tenant, const struct param *param, enum part part);
/* The parameter whose memory this is: itself, or what it is an alias of. */
const struct param *reference_owner(const struct reference *reference, const struct param *param);
/* Where a trained tensor stands: the weight, or the slot's A or B. */
struct value *reference_tensor(const struct reference *reference, const struct holding *holding,
                               const struct param *param, enum part part);

/* The wide copy that updates of it act on; NULL if the job keeps none. */
struct value *reference_master(const struct reference *reference, const struct holding *holding,
                               const struct param *param, enum part part);

/* The one place where values leave: fills mag at partial points, then calls the hook. */
enum status reference_emit(struct reference *reference, const struct point *point, struct value *value);
/* A point of a parameter (micro and slot -1, state NULL: none) and of a scalar. */
struct point reference_parameter_point(const struct reference *reference, enum phase phase, int micro,
                                       const struct param *param, enum part part);
struct point reference_scalar_point(const struct reference *reference, enum phase phase, int micro, const char *scalar);
/* Everything a step or evaluation starts from; `acting`: the slot that acts, -1 none. */
enum status reference_emit_state(struct reference *reference, int acting);

#endif
