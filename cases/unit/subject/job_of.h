/* Jobs from the fixtures, and everything a world records of them. */
#ifndef CASES_UNIT_SUBJECT_JOB_OF_H
#define CASES_UNIT_SUBJECT_JOB_OF_H

#include "ranks.h"

enum {
    STEPS = 3,
    MOST_ACTIONS = 64,
    MOST_TENANTS = 16
};

struct made_job {
    struct job job;
    struct tenant tenants[MOST_TENANTS];
    struct action actions[MOST_ACTIONS];
    int micros[STEPS];
};

/* The fixture's tenants (the second may be NULL) acquired in turn; the first trains micro-batches 0, 1, 2 one by one
 * and is exported before the first step and after each. `slots` physical slots of rank `max_rank`. */
void job_of(struct made_job *out, const char *fixture, const char *first, const char *second, enum dtype dtype,
            int slots, int64_t max_rank);
/* qwen3_moe_uneven with a made tenant `mad` beside gus: a dense layer, a tied head and a router that have adapters, two
 * micro-batches in one step, evaluations with and without adapter, an export. */
void tied_job_of(struct made_job *out);
/* Behind the last; a training step or an evaluation opens its step. */
void add_action(struct made_job *made, struct action action);
void job_done(struct made_job *made);

struct kept { /* one record */
    char *name;
    struct point point;
    struct tensor tensor;
    struct kept *next;
};

struct run { /* of a world */
    const struct job *job;
    struct mesh mesh;
    struct rules rules;
    const struct layout_file *layout;
    const char *export_folder, *save_folder;
    int first, end; /* actions, as in struct subject_hooks */
    void *context;  /* the test's own */
    enum status (*before_step)(void *context, struct subject *subject, int step);
    struct kept *kept[16]; /* [rank], latest first */
    int records[16];
};

/* Runs the job on a world of threads and keeps all records. */
void run_world(struct run *run, const struct job *job, struct mesh mesh);
/* The same where every rank must fail. */
void run_failing_world(struct run *run, const struct job *job, struct mesh mesh, struct board_fault *fault);
void run_done(struct run *run);
/* NULL if the rank has no such record. */
const struct tensor *kept_find(const struct run *run, int rank, const char *name);
const struct tensor *kept_need(const struct run *run, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
