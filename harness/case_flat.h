/* Inside the script reader: the walk that flattens a script to actions. */
#ifndef HARNESS_CASE_FLAT_H
#define HARNESS_CASE_FLAT_H

#include "harness/case_private.h"

struct flat_tenant { /* as the script stands */
    bool acquired;
    int own;         /* its steps since its acquire */
    bool exported;   /* since the last step of anyone */
    int window;      /* index of the action that opened its window; -1: none is open */
    int64_t counted; /* labels in the open window */
};

struct flat_saved { /* the same at a save */
    struct flat_tenant *tenant;
    int live;
};

struct flat { /* the state of the walk */
    struct case_reader *reader;
    int room;
    struct flat_tenant *tenant; /* [tenants] */
    int live, peak;             /* tenants that hold a slot: now, at most so far */
    int active;                 /* tenant whose activation encloses the entry, -1: none */
    int depth;                  /* activations around the entry */
    struct flat_saved *saved;   /* [job.saves] */
};

const struct yaml *flat_yaml(const struct flat *flat);
/* Takes over action->micro, also where it fails. */
enum status flat_add(struct flat *flat, const struct action *action);
/* The same for an action that is a step or an evaluation: it gets the next S. */
enum status flat_add_step(struct flat *flat, struct action *action);

/* `tenant: NAME` of an entry that may act here: it holds a slot, and no other tenant's activation is around it. `none`:
 * the word none is allowed, *out = -1. */
enum status flat_tenant_key(const struct flat *flat, const struct yaml_node *map, bool none, int *out);
/* `micro: [0, 1]`; the array goes to the action. */
enum status flat_micros(const struct flat *flat, const struct yaml_node *map, struct action *action);

/* Windows: what accumulates until a step closes it (case_window.c). */
enum status flat_train(struct flat *flat, const struct yaml_node *node);
enum status flat_accumulate(struct flat *flat, const struct yaml_node *node);
enum status flat_step(struct flat *flat, const struct yaml_node *node);
/* One train action over one micro-batch, for the default script. */
enum status flat_train_one(struct flat *flat, const struct yaml_node *node, int tenant, int micro);
/* At the end of the script: no window may be open. */
enum status flat_windows_closed(const struct flat *flat);

/* Checkpoints, and the segments that a load on another mesh begins (case_save.c). */
enum status flat_save(struct flat *flat, const struct yaml_node *node);
enum status flat_load(struct flat *flat, const struct yaml_node *node);
/* The last segment ends with the script; the first has the case's mesh. */
enum status flat_segments_close(struct flat *flat);
void flat_saved_free(struct flat *flat);
/* Whether a segment of this variant has a world of `size`; before the script is read. */
bool case_has_world(const struct case_reader *reader, int size);

#endif
