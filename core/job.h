/* A job: what a training script does, the same text for the reference and for the subject.
 *
 * The harness makes it from a case file; everything in it has been validated (ids < vocab, slots suffice, tenants
 * exist). Steps are numbered when the script is flattened: S counts training steps and evaluations over all tenants
 * from 0. */
#ifndef CORE_JOB_H
#define CORE_JOB_H

#include "core/adapter.h"

struct micro_batch {
    int number;                /* M of micro.M */
    int64_t sequences, tokens; /* B, T */
    struct tensor input_ids;   /* [B,T] I64, 0 <= id < vocab */
    struct tensor labels;      /* [B,T] I64, -100 = none; label t is compared with logits t-1 */
    int64_t counted;           /* labels != -100 at positions 1..T-1 */
};

struct tenant {
    char name[64];
    struct adapter adapter;
};

enum optimizer_kind {
    OPTIMIZER_SGD
};

struct optimizer {
    enum optimizer_kind kind;
    double lr, momentum; /* buf = momentum*buf + g (first: g);  p = p - lr*buf */
};

enum action_kind {
    ACTION_ACQUIRE,  /* tenant takes the lowest free slot */
    ACTION_TRAIN,    /* one optimizer step over `micros` */
    ACTION_EVALUATE, /* forward only; tenant may be -1 (none), or switched off (`disabled`) */
    ACTION_ENTER,    /* activate a tenant for the actions up to the matching ACTION_LEAVE */
    ACTION_LEAVE,
    ACTION_EXPORT /* PEFT folder */
};

struct action {
    enum action_kind kind;
    int tenant; /* index into tenants, -1: none */
    bool disabled;
    int micros;
    const int *micro; /* indices into job.micros */
    int step;         /* S: of this step or evaluation; of an export: steps before it */
    int own_step;     /* train: this tenant's own steps since its acquire, from 0 */
    int line;         /* of the case file */
};

struct job {
    struct checkpoint *model;
    enum dtype
        dtype; /* F64 or F32: storage and arithmetic of the subject; both sides start from values rounded to it */
    int slots; /* physical slots of max_rank per targeted parameter */
    int64_t max_rank; /* R */
    int tenants;
    struct tenant *tenant;
    struct optimizer optimizer;
    int micros;
    struct micro_batch *micro;
    int actions;
    struct action *action;
    int steps; /* S after the last */
};

/* Parameters that hold slots: the union of all tenants' targets, by inventory index. */
bool job_targets(const struct job *job, const struct param *param);
/* The slot that a tenant gets: acquires in script order take the lowest free one (nothing is released in this version).
 * -1 if it never acquires. */
int job_slot(const struct job *job, int tenant);

/* A batch file: micro.N/input_ids and micro.N/labels, [B,T] I64. Every id must be in [0, vocab), every label -100 or in
 * [0, vocab): else STATUS_INPUT naming file, tensor and place. The array is the caller's: batches_free. */
enum status batches_open(struct micro_batch **out, int *count, const char *path, int64_t vocab);
/* Made from a seed: ids uniform, labels the ids with about a third -100 by hash, at least one counted label per micro.
 */
enum status batches_make(struct micro_batch **out, int count, const int64_t *sequences, const int64_t *tokens,
                         uint64_t seed, enum data_kind data, int64_t vocab);
void batches_free(struct micro_batch *micros, int count);

#endif
