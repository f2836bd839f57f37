#include "reference/adapter.h"
#include "reference/bound.h"
#include "reference/linear.h"
#include "reference/optimizer.h"
#include "reference/walk.h"

/* One micro-batch; its LOSS_SUM goes to `sum`. */
static enum status run_micro(struct reference *r, int tenant, const struct micro_batch *micro, bool backward,
                             struct value *sum) {
    struct walk walk;
    enum status status;
    TRY(walk_make(&walk, r, micro, tenant, false));
    TRY_DONE(walk_forward(&walk));
    *sum = walk.root[ACT_NONE];
    walk.root[ACT_NONE] = (struct value){0};
    if (backward)
        TRY_DONE(walk_backward(&walk));
done:
    walk_free(&walk);
    return status;
}

static enum status run_micros(struct reference *r, int tenant, const struct action *action, struct tally *tally) {
    for (int i = 0; i < action->micros; i++) {
        const struct micro_batch *micro = &r->job->micro[action->micro[i]];
        tally->counted += micro->counted;
        TRY(run_micro(r, tenant, micro, action->kind == ACTION_TRAIN, &tally->sums[i]));
    }
    return STATUS_OK;
}

/* A training step or an evaluation. */
static enum status run_step(struct reference *r, const struct action *action) {
    bool train = action->kind == ACTION_TRAIN;
    int tenant = action->disabled ? -1 : action->tenant;
    struct tally tally;
    enum status status;
    TRY(tally_make(&tally, action->micros));
    r->step = action->step;
    TRY_DONE(reference_emit_state(r, reference_slot(r, tenant)));
    TRY_DONE(run_micros(r, tenant, action, &tally));
    if (train || tally.counted > 0)
        TRY_DONE(reference_emit_loss(r, &tally));
    if (train)
        TRY_DONE(reference_update(r, tenant, &tally));
done:
    tally_free(&tally);
    return status;
}

/* An export is written in the adapter file's type, or in float64 where a float64 run has trained it. Rounding is
 * monotone: what is within [x - e, x + e] comes out within [round(x - e), round(x + e)]. */
static void round_to_file(const struct reference *r, int tenant, enum dtype stored, struct value *value) {
    if ((r->job->dtype == DTYPE_F64 && r->trained[tenant]) || (stored != DTYPE_F32 && stored != DTYPE_BF16))
        return;
    for (int64_t i = 0, n = r->arithmetic.dry ? 0 : value_elements(value); i < n; i++) {
        struct num from = num_at(value, i);
        double x = dtype_round(stored, from.x);
        double above = dtype_round(stored, from.x + from.e) - x, below = x - dtype_round(stored, from.x - from.e);
        num_set(value, i, (struct num){x, fmax(above, below)});
    }
}

static enum status export_one(struct reference *r, const struct action *action, const char *key, enum dtype stored,
                              struct value *flat) {
    struct point point = POINT_NONE;
    point.phase = PHASE_EXPORT;
    point.step = action->step;
    point.tenant = r->job->tenant[action->tenant].name;
    point.scalar = key;
    round_to_file(r, action->tenant, stored, flat);
    return reference_emit(r, &point, flat);
}

static enum status export_target(struct reference *r, const struct action *action,
                                 const struct adapter_target *target) {
    const struct slot_pair *pair = reference_pair(r, r->slot, reference_slot(r, action->tenant), target->param);
    struct slot_pair flat = {0};
    enum status status;
    TRY_DONE(value_flat_a(&r->arithmetic, target, r->job->max_rank, &pair->a, &flat.a));
    TRY_DONE(export_one(r, action, target->key_a, target->a.dtype, &flat.a));
    TRY_DONE(value_flat_b(&r->arithmetic, target, r->job->max_rank, &pair->b, &flat.b));
    TRY_DONE(export_one(r, action, target->key_b, target->b.dtype, &flat.b));
done:
    value_free(&flat.a);
    value_free(&flat.b);
    return status;
}

static enum status run_export(struct reference *r, const struct action *action) {
    const struct adapter *adapter = &r->job->tenant[action->tenant].adapter;
    for (int i = 0; i < adapter->count; i++)
        TRY(export_target(r, action, &adapter->targets[i]));
    return STATUS_OK;
}

static enum status run_acquire(struct reference *r, int tenant) {
    TRY(reference_acquire(r, tenant));
    if (r->options.dry || !r->hooks->acquired)
        return STATUS_OK;
    return r->hooks->acquired(r->hooks->context, r, tenant);
}

static enum status run_action(struct reference *r, const struct action *action) {
    bool acts = action->kind == ACTION_TRAIN || (action->kind == ACTION_EVALUATE && action->tenant >= 0);
    if ((acts || action->kind == ACTION_EXPORT) && reference_slot(r, action->tenant) < 0)
        return status_fail(STATUS_INTERNAL, "a tenant without a slot in the script, action of step %d", action->step);
    switch (action->kind) {
    case ACTION_ACQUIRE:
        return run_acquire(r, action->tenant);
    case ACTION_TRAIN:
    case ACTION_EVALUATE:
        return run_step(r, action);
    case ACTION_EXPORT:
        return run_export(r, action);
    case ACTION_ENTER:
    case ACTION_LEAVE:
        return STATUS_OK; /* inner actions name their tenant */
    }
    return status_fail(STATUS_INTERNAL, "unknown action %d", (int)action->kind);
}

enum status reference_run(const struct job *job, const struct reference_options *options,
                          const struct reference_hooks *hooks) {
    struct reference reference;
    enum status status;
    TRY(reference_make(&reference, job, options, hooks));
    for (int i = 0; i < job->actions; i++)
        TRY_DONE(run_action(&reference, &job->action[i]));
    reference.step = job->steps;
    TRY_DONE(reference_emit_state(&reference, -1));
done:
    reference_free(&reference);
    return status;
}

/* ---- answers: double arithmetic, no bounds, nothing emitted */

static struct arithmetic quiet_arithmetic(const struct reference *r) {
    return arithmetic_make(r->job->dtype, r->options.dry, false);
}

enum status reference_answer_delta(struct reference *r, int tenant, const struct param *param, struct value *out) {
    struct arithmetic m = quiet_arithmetic(r);
    const struct adapter_target *target = reference_target(r, tenant, param);
    int slot = reference_slot(r, tenant);
    if (!target || slot < 0)
        return status_fail(STATUS_INTERNAL, "%s: the tenant has no adapter there", param->name);
    const struct slot_pair *pair = reference_pair(r, r->slot, slot, param);
    return value_delta(&m, target, r->job->max_rank, &pair->a, &pair->b, out);
}

enum status reference_answer_merged(struct reference *r, int tenant, const struct param *param, struct value *out) {
    struct arithmetic m = quiet_arithmetic(r);
    struct value delta = {0};
    TRY(reference_answer_delta(r, tenant, param, &delta));
    int owner = inventory_index(r->inventory, reference_owner(r, param));
    enum status status = value_add(&m, &r->weight[owner], &delta, out);
    value_free(&delta);
    return status;
}

enum status reference_answer_logits(struct reference *r, int tenant, int micro, struct value *out) {
    struct walk walk;
    enum status status;
    TRY(walk_make(&walk, r, &r->job->micro[micro], tenant, true));
    TRY_DONE(walk_forward(&walk));
    *out = walk.root[ACT_HEAD];
    walk.root[ACT_HEAD] = (struct value){0};
done:
    walk_free(&walk);
    return status;
}
