/* The truth: a Qwen3-MoE LoRA training job on one device, nothing sharded, double precision, plain loops.
 *
 * Formulas: model, attention, router, experts, loss as transformers computes them; adapters as PEFT 0.21.2 applies them
 * (W + delta in every forward, packed and 2-D alike); gradients by hand, of the SUM of token losses, divided once by
 * the global count of valid labels; clipping and updates as torch.nn.utils and torch.optim have them. Base parameters
 * can train, too.
 *
 * At every storage point of core/points.h the reference calls `emit` with its value and a running bound e of what a
 * subject of precision `held` may differ there given the same inputs. Under relay the hook compares, overwrites x by
 * what the subject recorded and sets e to 0, and the reference goes on from the record. Free running: the hook leaves x
 * alone. */
#ifndef REFERENCE_REFERENCE_H
#define REFERENCE_REFERENCE_H

#include "core/job.h"
#include "core/points.h"

#define VALUE_MAX_DIMS 4

struct value {
    int ndim;
    int64_t shape[VALUE_MAX_DIMS];
    double *x; /* NULL in a dry run. Ids and choices stand here as whole numbers */
    double *e; /* bound per element, for a subject of unit roundoff u = 2^-24 (F32, BF16 before the rounding of a point
                  stored in it) or 2^-53 (F64); NULL unless `bounds` */
    /* At partial points (point_is_partial) with bounds: sum over the ranks of |partial|, born |x|; a hook that adds up
     * the ranks' records writes it in place, and gives e = gamma_{ranks-1} * mag, what the subject's own reduction may
     * add. Products of the value are bounded by mag instead of |x|: every rank rounds its own partial. NULL elsewhere.
     */
    double *mag;
    const struct repetition *repeat; /* at partial points with bounds, while the hook has the value; else NULL */
};

/* A partial point's one operation, to be done again as a single rank does it. */
struct repetition {
    /* What a rank holds that has the rows of these tokens [B*T] alone, from the same operands and with its own bounds;
     * x and e new, the caller's (value_free). `own` (x alone is read): see `from`. */
    enum status (*make)(const struct repetition *self, const bool *tokens, const struct value *own, struct value *out);
    /* The operation starts from the rank's own partial PART_WEIGHT of this parameter, recorded before in this
     * micro-batch: `own`, in whole form. NULL: it does not, `own` may be NULL. */
    const struct param *from;
};

struct reference;

struct reference_hooks {
    void *context;
    /* At every storage point in data-flow order. May overwrite value->x and value->e (not the shape). A status other
     * than OK ends the run and is returned. */
    enum status (*emit)(void *context, const struct point *point, struct value *value);
    /* After a tenant's acquire; may be NULL. The hook may call the reference_answer_* functions below. */
    enum status (*acquired)(void *context, struct reference *reference, int tenant);
    /* Before action number `index`, and with job->actions before the last `param` points; dry too. May be NULL. */
    enum status (*at_action)(void *context, int index);
};

struct reference_options {
    bool dry;    /* emit names and shapes only, no arithmetic: what a run owes */
    bool bounds; /* keep e (relay) */
    bool norm;   /* emit clip/norm although nothing clips (golden grad_norm) */
};

/* Runs the whole script. Owns all its memory; STATUS_MEMORY or what a hook returned. */
enum status reference_run(const struct job *job, const struct reference_options *options,
                          const struct reference_hooks *hooks);

/* Answers about a tenant that has just been acquired, without emitting; x new, the caller's (value_free). */
enum status reference_answer_delta(struct reference *reference, int tenant, const struct param *param,
                                   struct value *out);
enum status reference_answer_merged(struct reference *reference, int tenant, const struct param *param,
                                    struct value *out);
/* Logits [B,T,V] of a micro-batch (index into job->micro) under the tenant's adapter, or under none (tenant -1). */
enum status reference_answer_logits(struct reference *reference, int tenant, int micro, struct value *out);
void value_free(struct value *value);

/* Slot form [E,R,in] / [E,out,R] (2-D: [R,in] / [out,R]) to PEFT's flat form [E*r,in] / [out,r*E] and back, by index
 * formula: A row e*r+k, B column k*E+e. `slot` and `flat` are whole tensors; rows k >= r of the slot are not read, nor
 * written. */
void reference_flatten_a(const struct adapter_target *target, int64_t max_rank, const double *slot, double *flat);
void reference_flatten_b(const struct adapter_target *target, int64_t max_rank, const double *slot, double *flat);
void reference_unflatten_a(const struct adapter_target *target, int64_t max_rank, const double *flat, double *slot);
void reference_unflatten_b(const struct adapter_target *target, int64_t max_rank, const double *flat, double *slot);

#endif
