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
    int window[MOST_TENANTS]; /* script: step of the open window + 1 */
    bool trains[128];
};

/* The fixture's tenants (the second may be NULL) acquired in turn; the first trains micro-batches 0, 1, 2 one by one
 * and is exported before the first step and after each. `slots` physical slots of rank `max_rank`. */
void job_of(struct made_job *out, const char *fixture, const char *first, const char *second, enum dtype dtype,
            int slots, int64_t max_rank);
/* qwen3_moe_uneven with a made tenant `mad` beside gus: a dense layer, a tied head and a router that have adapters, two
 * micro-batches in one step, evaluations with and without adapter, an export. */
void tied_job_of(struct made_job *out);
/* The fixture's model, micro-batches and tenant (more by job_tenant), and an empty script. */
void empty_job_of(struct made_job *out, const char *fixture, const char *tenant, int slots, int64_t max_rank);
void job_tenant(struct made_job *made, const char *fixture, const char *name); /* one more */
/* A made model with biases, a dense layer, tied or not; two made micro-batches; one tenant "mel" of rank 2. */
void biased_job_of(struct made_job *out, bool tied);
void job_trains_base(struct made_job *made, const char *glob);

/* The script, action by action; steps are numbered from 0 as they open, an export takes the number of those before. */
void then_acquire(struct made_job *made, int tenant);
void then_release(struct made_job *made, int tenant);
void then_export(struct made_job *made, int tenant);
void then_train(struct made_job *made, int tenant, int micros, const int *micro);
void then_accumulate(struct made_job *made, int tenant, int micros, const int *micro);
void then_step(struct made_job *made, int tenant);
void then_evaluate(struct made_job *made, int tenant, int micros, const int *micro);

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
bool same_bits(const struct tensor *a, const struct tensor *b); /* and as many */
/* NULL if the rank has no such record. */
const struct tensor *kept_find(const struct run *run, int rank, const char *name);
const struct tensor *kept_need(const struct run *run, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
