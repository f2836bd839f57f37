/* Jobs made by hand for tests of the reference, and hooks that watch one run. */
#ifndef CASES_REFERENCE_STUDY_H
#define CASES_REFERENCE_STUDY_H

#include "reference/reference.h"

#define STUDY_ACTIONS 32
#define STUDY_PARAMS 64
#define STUDY_STEPS 3 /* of a recipe */
#define STUDY_RANK 7  /* max_rank: above every fixture adapter's rank */

struct study {
    struct job job;
    struct tenant tenant[3];
    struct action action[STUDY_ACTIONS];
    bool trains[STUDY_PARAMS];
    int window[STUDY_STEPS][4]; /* a recipe's micro-batches of each step */
    int micros[STUDY_STEPS];
};

/* A golden fixture with one of its tenants, two slots, no actions yet. */
void study_open(struct study *study, const char *fixture, const char *tenant, enum dtype dtype);
/* One more tenant of the same fixture. */
void study_tenant(struct study *study, const char *fixture, const char *tenant);
/* Base parameters whose name matches the glob train, too; fails the test if there is none. */
void study_trains(struct study *study, const char *glob);
/* Optimizer, clip and trained base parameters as the fixture's description has them; its windows into study->window. */
void study_recipe(struct study *study, const char *fixture, const char *recipe);
/* The same with an adapter made here on the router and on all modules whose names end so (NULL-terminated). */
void study_make(struct study *study, const char *fixture, const char *const *modules, enum dtype dtype);
/* One more tenant, whose adapter of rank 2 is made here, on the router and on these modules. */
void study_made_tenant(struct study *study, const char *const *modules);
/* A model made from config.json text, with two micro-batches [3,5] and [2,4], no tenants. */
void study_config(struct study *study, const char *json, enum dtype dtype);
void study_close(struct study *study);

void study_acquire(struct study *study, int tenant);
void study_train(struct study *study, int tenant, int micros, const int *micro);
/* The first accumulate after a step opens a window; study_step closes it. */
void study_accumulate(struct study *study, int tenant, int micros, const int *micro);
void study_step(struct study *study, int tenant);
void study_release(struct study *study, int tenant);
void study_evaluate(struct study *study, int tenant, bool disabled, int micro);
void study_export(struct study *study, int tenant);
/* acquire, then the recipe's steps. */
void study_recipe_steps(struct study *study, int tenant);
/* acquire, then train micro 0, 1, 2 in turn. */
void study_three_steps(struct study *study);

typedef enum status study_hook(void *context, const struct point *point, struct value *value);
/* Runs; fails the test if the reference does. */
void study_run(const struct study *study, struct reference_options options, study_hook *hook, void *context);

int64_t elements_of(const struct value *value);
/* The value of a point by name, kept from a run (x only); the first with that name. */
struct kept {
    int count, room;
    char (*name)[POINT_NAME_MAX];
    struct value *value;
};
enum status kept_hook(void *context, const struct point *point, struct value *value); /* context: struct kept */
const struct value *kept_find(const struct kept *kept, const char *name);             /* fails the test if absent */
void kept_free(struct kept *kept);

#endif
