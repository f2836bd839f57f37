#include "reference/adapter.h"
#include "reference/bound.h"
#include "reference/linear.h"
#include "reference/optimizer.h"
#include "reference/saved.h"
#include "reference/walk.h"

/* One micro-batch; its LOSS_SUM joins the window. */
static enum status run_micro(struct reference *r, int tenant, const struct micro_batch *micro, bool backward,
                             struct window *window) {
    struct walk walk;
    enum status status;
    TRY(walk_make(&walk, r, micro, tenant, false));
    TRY_DONE(walk_forward(&walk));
    TRY_DONE(window_add(window, micro->counted, &walk.root[ACT_NONE]));
    if (backward)
        TRY_DONE(walk_backward(&walk));
done:
    walk_free(&walk);
    return status;
}

static enum status run_micros(struct reference *r, int tenant, const struct action *action, bool backward,
                              struct window *window) {
    r->step = action->step;
    if (action->opens)
        TRY(reference_emit_state(r, reference_slot(r, tenant)));
    for (int i = 0; i < action->micros; i++)
        TRY(run_micro(r, tenant, &r->job->micro[action->micro[i]], backward, window));
    return STATUS_OK;
}

static enum status run_accumulate(struct reference *r, const struct action *action) {
    return run_micros(r, action->tenant, action, true, &reference_holding(r, action->tenant)->window);
}

static enum status run_step(struct reference *r, const struct action *action) {
    struct holding *holding = reference_holding(r, action->tenant);
    if (holding->window.micros == 0)
        return status_fail(STATUS_INTERNAL, "step %d closes a window that nothing opened", action->step);
    r->step = action->step;
    TRY(reference_emit_loss(r, &holding->window));
    return reference_update(r, holding);
}

static enum status run_train(struct reference *r, const struct action *action) {
    TRY(run_accumulate(r, action));
    return run_step(r, action);
}

static enum status run_evaluate(struct reference *r, const struct action *action) {
    struct window window = {0};
    enum status status;
    TRY_DONE(run_micros(r, action->disabled ? -1 : action->tenant, action, false, &window));
    if (window.counted > 0)
        TRY_DONE(reference_emit_loss(r, &window));
done:
    window_free(&window);
    return status;
}

/* An export is written in the adapter file's type, or in float64 where a float64 run has trained it. Rounding is
 * monotone: what is within [x - e, x + e] comes out within [round(x - e), round(x + e)]. */
static void round_to_file(const struct reference *r, int tenant, enum dtype stored, struct value *value) {
    if ((r->job->dtype == DTYPE_F64 && reference_holding(r, tenant)->updates > 0) ||
        (stored != DTYPE_F32 && stored != DTYPE_BF16))
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
    const struct holding *holding = reference_holding(r, action->tenant);
    const struct value *a = reference_tensor(r, holding, target->param, PART_LORA_A);
    const struct value *b = reference_tensor(r, holding, target->param, PART_LORA_B);
    struct value flat_a = {0}, flat_b = {0};
    enum status status;
    TRY_DONE(value_flat_a(&r->arithmetic, target, r->job->max_rank, a, &flat_a));
    TRY_DONE(export_one(r, action, target->key_a, target->a.dtype, &flat_a));
    TRY_DONE(value_flat_b(&r->arithmetic, target, r->job->max_rank, b, &flat_b));
    TRY_DONE(export_one(r, action, target->key_b, target->b.dtype, &flat_b));
done:
    value_free(&flat_a);
    value_free(&flat_b);
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

static bool needs_slot(const struct action *action) {
    if (action->kind == ACTION_EVALUATE)
        return action->tenant >= 0;
    return action->kind != ACTION_ACQUIRE && action->kind != ACTION_ENTER && action->kind != ACTION_LEAVE &&
           action->kind != ACTION_SAVE && action->kind != ACTION_LOAD;
}

static enum status run_action(struct reference *r, const struct action *action) {
    if (needs_slot(action) && reference_slot(r, action->tenant) < 0)
        return status_fail(STATUS_INTERNAL, "a tenant without a slot in the script, action of step %d", action->step);
    switch (action->kind) {
    case ACTION_ACQUIRE:
        return run_acquire(r, action->tenant);
    case ACTION_RELEASE:
        return reference_release(r, action->tenant);
    case ACTION_TRAIN:
        return run_train(r, action);
    case ACTION_ACCUMULATE:
        return run_accumulate(r, action);
    case ACTION_STEP:
        return run_step(r, action);
    case ACTION_EVALUATE:
        return run_evaluate(r, action);
    case ACTION_EXPORT:
        return run_export(r, action);
    case ACTION_SAVE:
        return reference_save(r, action->save);
    case ACTION_LOAD:
        return reference_load(r, action->save);
    case ACTION_ENTER:
    case ACTION_LEAVE:
        return STATUS_OK; /* inner actions name their tenant */
    }
    return status_fail(STATUS_INTERNAL, "unknown action %d", (int)action->kind);
}

static enum status at_action(const struct reference *r, int index) {
    return r->hooks->at_action ? r->hooks->at_action(r->hooks->context, index) : STATUS_OK;
}

enum status reference_run(const struct job *job, const struct reference_options *options,
                          const struct reference_hooks *hooks) {
    struct reference reference;
    enum status status;
    TRY(reference_make(&reference, job, options, hooks));
    for (int i = 0; i < job->actions; i++) {
        TRY_DONE(at_action(&reference, i));
        TRY_DONE(run_action(&reference, &job->action[i]));
    }
    TRY_DONE(at_action(&reference, job->actions));
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
    const struct holding *holding = reference_holding(r, tenant);
    if (!target || !holding)
        return status_fail(STATUS_INTERNAL, "%s: the tenant has no adapter there", param->name);
    return value_delta(&m, target, r->job->max_rank, reference_tensor(r, holding, param, PART_LORA_A),
                       reference_tensor(r, holding, param, PART_LORA_B), out);
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
