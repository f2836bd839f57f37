/* The subject: one rank of an EP + FSDP2 training job with LoRA slots, on any communicator and any table of operations.
 *
 * Every rank calls subject_run with the same job; it loads its own shards, runs the script, and records each storage
 * point of core/points.h through `record`, from the buffer itself, at the moment it is complete. */
#ifndef SHARDED_SUBJECT_H
#define SHARDED_SUBJECT_H

#include "core/job.h"
#include "core/points.h"
#include "layout/sharding.h"
#include "sharded/comm.h"
#include "sharded/rules.h"

struct subject; /* one rank's state: shards of parameters, slots and optimizer state */

struct subject_hooks {
    void *context;
    /* Copies the record away; `data` is the local piece. May be NULL: nothing is recorded. */
    enum status (*record)(void *context, const struct point *point, const struct tensor *data);
    /* Before each step and evaluation, before its `param` records: may overwrite shards (the twin does); may be NULL.
     */
    enum status (*before_step)(void *context, struct subject *subject, int step);
    /* Where exported PEFT folders go: EXPORT_FOLDER/step.S/TENANT; NULL: nothing is written, the records are made all
     * the same. */
    const char *export_folder;
    /* Where checkpoints lie: SAVE_FOLDER/NAME. NULL: a save or a load is a failure. */
    const char *save_folder;
    /* The part of the script that runs in this world: actions [first, end), end 0: to the last. It begins with nothing
     * or with a load; the `param` records of the end belong to the part that has the last action. */
    int first, end;
};

/* Collective. `mesh` has the axes ep and fsdp in either order (sizes may be 1); `layout` NULL: the built-in one. */
enum status subject_run(const struct job *job, const struct mesh *mesh, const struct layout_file *layout,
                        const struct rules *rules, struct comm *comm, const struct subject_hooks *hooks);

/* Overwrites one of this rank's shards from host memory: the tensor that `point` (PHASE_PARAM) names, in the
 * point's dtype, whole (global shape); the rank cuts its own piece. */
enum status subject_overwrite(struct subject *subject, const struct point *point, const struct tensor *whole);

#endif
