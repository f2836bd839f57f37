/* What one device holds between steps: weights, slots, optimizer state; and how a value is emitted. */
#ifndef REFERENCE_STATE_H
#define REFERENCE_STATE_H

#include "reference/value.h"

struct slot_pair { /* A and B of one slot and parameter, in slot form */
    struct value a, b;
};

struct reference {
    const struct job *job;
    const struct model_config *config;
    const struct inventory *inventory;
    struct reference_options options;
    const struct reference_hooks *hooks;
    struct arithmetic arithmetic;
    struct value *weight;       /* [parameters]; empty for an alias */
    struct slot_pair *slot;     /* [slots][parameters]; empty where no tenant targets the parameter */
    struct slot_pair *momentum; /* the same */
    struct slot_pair *running;  /* [parameters] gradient sums of the acting tenant's step; empty outside a step */
    int *holder;                /* [slots] tenant, or -1 */
    bool *trained;              /* [tenants] since its acquire */
    int step;                   /* S */
};

/* Reads all weights; slots are exact zeros. */
enum status reference_make(struct reference *out, const struct job *job, const struct reference_options *options,
                           const struct reference_hooks *hooks);
void reference_free(struct reference *reference); /* accepts {0} */

/* Copies the adapter's values into the tenant's slot. */
enum status reference_acquire(struct reference *reference, int tenant);
/* The slot that a tenant holds, -1 if none. */
int reference_slot(const struct reference *reference, int tenant);
struct slot_pair *reference_pair(const struct reference *reference, struct slot_pair *of, int slot,
                                 const struct param *param);
/* The tenant's target on a parameter; NULL if it has none there, or for tenant -1. */
const struct adapter_target *reference_target(const struct reference *reference, int tenant, const struct param *param);
/* The parameter whose memory this is: itself, or what it is an alias of. */
const struct param *reference_owner(const struct reference *reference, const struct param *param);

/* The one place where values leave: fills mag at partial points, then calls the hook. */
enum status reference_emit(struct reference *reference, const struct point *point, struct value *value);
/* A point of a parameter (micro and slot -1, state NULL: none) and of a scalar. */
struct point reference_parameter_point(const struct reference *reference, enum phase phase, int micro,
                                       const struct param *param, enum part part);
struct point reference_scalar_point(const struct reference *reference, enum phase phase, int micro, const char *scalar);
/* Everything a step or evaluation starts from; `acting`: the slot that acts, -1 none. */
enum status reference_emit_state(struct reference *reference, int acting);

#endif
