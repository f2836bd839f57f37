/* A world: the processes of one engine and size, launched once, that run many cases.
 *
 * Ranks wait at the board for `go`, run the case, show `done`. The harness watches: a rank that dies is noticed within
 * 2 s, one that hangs at the case's limit, a ledger mismatch at once. Whatever happens, world_end leaves no process, no
 * shared segment and no file: local ranks die with the harness (parent-death signal), an mpi world has a janitor
 * process that outlives a killed harness and cleans up. */
#ifndef HARNESS_WORLD_H
#define HARNESS_WORLD_H

#include "core/points.h"
#include "harness/trace.h"
#include "sharded/comm.h"

enum world_engine {
    ENGINE_LOCAL,
    ENGINE_THREADS,
    ENGINE_MPI
};

/* What a rank does for case number `index` (position in the list that the harness and the ranks share). A status other
 * than OK ends the world with the thread's note. */
typedef enum status (*rank_main)(void *context, int index, struct comm *comm,
                                 enum status (*record)(void *sink, const struct point *point,
                                                       const struct tensor *data),
                                 void *sink);

struct world_spec {
    enum world_engine engine;
    int size;
    rank_main run; /* local and threads: called in the forked ranks, which inherit `context` */
    void *context;
    /* mpi: the rank processes are PROGRAM ARGUMENT... WORLD_FOLDER; they rebuild the list from their arguments and call
     * world_worker. */
    const char *program;
    char *const *arguments;
};

struct world;

enum outcome_kind {
    OUTCOME_DONE,
    OUTCOME_ORDER,  /* the ledger saw a mismatch */
    OUTCOME_CRASH,  /* a rank died, or failed with a status */
    OUTCOME_HANG,   /* the limit passed */
    OUTCOME_LAUNCH, /* the world could not be started */
    OUTCOME_STOPPED /* Ctrl-C or SIGTERM to the harness */
};

struct outcome {
    enum outcome_kind kind;
    struct board_fault fault;    /* ORDER, CRASH with a note */
    int rank;                    /* CRASH, HANG: the first at fault; else -1 */
    char text[1024];             /* one sentence: rank, signal or exit code, last operation */
    int ranks;                   /* HANG: where each rank stands: */
    struct ledger_entry *stands; /* [ranks], owned by the outcome */
    double seconds;
};
void outcome_free(struct outcome *outcome);

enum status world_launch(struct world **out, const struct world_spec *spec);
/* Runs one case; after an outcome other than DONE the world is dead and must be ended. `limit` seconds. */
void world_run(struct world *world, int index, double limit, struct outcome *out);
/* The records of the case that just ran; borrowed until the next world_run or world_end. */
enum status world_trace(struct world *world, struct trace *out);
void world_end(struct world *world); /* accepts NULL */

/* Installs the handlers for SIGINT and SIGTERM (they set a flag; world_run returns OUTCOME_STOPPED). */
void world_handle_signals(void);
bool world_stopped(void);

/* The body of an mpi rank process: joins the world of `folder` and serves cases until told to leave. Returns the exit
 * code. */
int world_worker(const char *folder, rank_main run, void *context);

#endif
