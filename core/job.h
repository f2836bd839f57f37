/* A job: what a training script does, the same text for the reference and for the subject.
 *
 * The harness makes it from a case file; everything in it has been validated (ids < vocab, slots suffice, tenants
 * exist). Steps are numbered when the script is flattened: S counts training steps and evaluations over all tenants
 * from 0. */
#ifndef CORE_JOB_H
#define CORE_JOB_H

#include "core/adapter.h"
#include "core/fsdp.h"
#include "core/points.h"

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
    OPTIMIZER_SGD,
    OPTIMIZER_ADAMW
};

struct optimizer {
    enum optimizer_kind kind;
    double lr, weight_decay;
    double momentum;          /* sgd: buf = momentum*buf + g;  p = p - lr*buf */
    bool nesterov;            /* sgd: p = p - lr*(g + momentum*buf) */
    double beta1, beta2, eps; /* adamw */
};

struct clip {               /* factor = min(1, max/(norm + 1e-6)) on every trained gradient of a step */
    bool present, infinity; /* infinity: the norm is the largest |g|; else the 2-norm */
    double max;
};

enum action_kind {
    ACTION_ACQUIRE,    /* tenant takes the lowest free slot */
    ACTION_TRAIN,      /* one optimizer step over `micros`: ACCUMULATE and STEP in one */
    ACTION_ACCUMULATE, /* forward and backward only: the tenant's window opens or goes on */
    ACTION_STEP,       /* closes the tenant's window: divides, clips, updates */
    ACTION_RELEASE,    /* the tenant's slot back to its initial values */
    ACTION_EVALUATE,   /* forward only; tenant may be -1 (none), or switched off (`disabled`) */
    ACTION_ENTER,      /* activate a tenant for the actions up to the matching ACTION_LEAVE */
    ACTION_LEAVE,
    ACTION_EXPORT, /* PEFT folder */
    ACTION_SAVE,   /* all that training has changed, under a name */
    ACTION_LOAD    /* back to what a name holds; perhaps on another mesh */
};

enum save_form {
    SAVE_SHARDED, /* one file a rank */
    SAVE_FULL     /* whole tensors, in the folders that Hugging Face and PEFT read */
};

#define SAVE_NAME_MAX 64

struct save { /* what a script saves under a name, once */
    char name[SAVE_NAME_MAX];
    enum save_form form;
};

struct action {
    enum action_kind kind;
    int tenant; /* index into tenants, -1: none */
    bool disabled;
    int micros;
    const int *micro; /* indices into job.micros */
    bool opens;       /* the first action of its step S: `param` records are made before it */
    int step;         /* S: of this step or evaluation; of an export: steps before it */
    int own_step;     /* train: this tenant's own steps since its acquire, from 0 */
    int save;         /* save and load: index into job.save */
    int line;         /* of the case file */
};

struct job {
    struct checkpoint *model;
    enum dtype dtype;   /* F64, F32 or BF16, see job_precision; both sides start from values rounded to it */
    bool no_master;     /* BF16: no wide copies of what trains; updates are rounded into the parameters themselves */
    bool gather_bfloat; /* F32: parameters are gathered in BF16 and the rest is as in a BF16 job */
    int slots;          /* physical slots of max_rank per targeted parameter */
    int64_t max_rank;   /* R */
    int tenants;
    struct tenant *tenant;
    struct optimizer optimizer;
    struct clip clip;
    const bool *trains; /* [inventory count]: base parameters that train with every tenant; NULL: none */
    struct fsdp_options fsdp;
    bool beyond_nan; /* acquire writes NaN, not 0, into rows beyond the tenant's rank */
    int micros;
    struct micro_batch *micro;
    int actions;
    struct action *action;
    int steps; /* S after the last */
    int saves;
    struct save *save;
};

/* Parameters that hold slots: the union of all tenants' targets, by inventory index. */
bool job_targets(const struct job *job, const struct param *param);
/* The slot of a tenant's first acquire: acquires and releases in script order, each takes the lowest free one. -1 if it
 * never acquires. For display; who runs the script keeps its own account. */
int job_slot(const struct job *job, int tenant);

/* Whether a base parameter trains (never an alias). */
bool job_trains(const struct job *job, const struct param *param);
/* Element `index` (of the whole [E,R,in] or [R,in] tensor) of a free slot's lora_A; its lora_B is 0. Exact in float32.
 */
double slot_initial(const struct param *param, int slot, int64_t index, int64_t in);
/* The types of the job's points. BF16: products and whatever else takes more than one operation are computed in float32
 * and rounded once, nearest even, when stored. */
struct precision job_precision(const struct job *job);
/* Names of the optimizer's states in their order, NULL-terminated: {"momentum_buffer"}, {"exp_avg", "exp_avg_sq"} or
 * {}. */
const char *const *optimizer_states(const struct optimizer *optimizer);

/* A batch file: micro.N/input_ids and micro.N/labels, [B,T] I64. Every id must be in [0, vocab), every label -100 or in
 * [0, vocab): else STATUS_INPUT naming file, tensor and place. The array is the caller's: batches_free. */
enum status batches_open(struct micro_batch **out, int *count, const char *path, int64_t vocab);
/* Made from a seed: ids uniform, labels the ids with about a third -100 by hash, at least one counted label per micro.
 */
enum status batches_make(struct micro_batch **out, int count, const int64_t *sequences, const int64_t *tokens,
                         uint64_t seed, enum data_kind data, int64_t vocab);
void batches_free(struct micro_batch *micros, int count);

#endif
