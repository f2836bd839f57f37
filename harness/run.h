/* The main job: `shardproof run`. Loads cases, launches one world per size, judges every case, reports. */
#ifndef HARNESS_RUN_H
#define HARNESS_RUN_H

#include "harness/case.h"
#include "harness/world.h"

struct run_options {
    int paths;
    char *const *path;
    struct case_options cases;
    enum world_engine engine;
    const char *engine_name; /* "local", "mpi", "nccl" */
    const char *device;      /* "cpu", "cuda" */
    const char *keep, *json, *junit;
    const char *saves; /* mpi ranks: where checkpoints stand; else the harness makes a folder */
    bool quiet;
    const char *program;    /* this binary, for mpi ranks */
    char *const *arguments; /* its arguments behind `run`, for mpi ranks */
    int argument_count;
};

/* Returns the exit code (docs/formats.md). */
int run_cases(const struct run_options *options);
/* One rank process of an mpi world; `folder` is the world's. Returns the exit code. */
int run_worker(const struct run_options *options, const char *folder);

/* Prints the note of a failure in one line on stderr. Returns the exit code: 2 for what the user can mend, else 3. */
int run_failure(enum status status);

/* What every rank does for segment `index` of the list that harness and ranks share: the subject under the case's
 * rules.
 */
enum status run_rank(void *context, int index, struct comm *comm,
                     enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                     void *sink);

#endif
