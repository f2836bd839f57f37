#include "sharded/update.h"

#include "sharded/clip.h"
#include "sharded/record.h"
#include "sharded/state.h"

#include <math.h>

/* ---- gradients */

static void divide(const struct subject *subject, const struct tensor *sum, int64_t divisor) {
    subject->ops->divide(subject->wide, tensor_elements(sum), sum->data, dtype_round(subject->wide, (double)divisor));
}

static enum status divide_sums(struct subject *subject, int64_t divisor) {
    int slot = subject->slots.acting;
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    while (training_next(&walk, &training)) {
        const struct tensor *sum = &training.trained->progress[slot].sum;
        divide(subject, sum, divisor);
        if (subject->rules->expert_divisor_world && training.param->expert)
            divide(subject, sum, subject->world);
        TRY(record_param(subject, PHASE_GRAD, -1, training.param, training.part, sum));
    }
    return STATUS_OK;
}

/* ---- optimizers: first the state, then the move; constants are computed in double, then rounded by the operations */

struct move { /* one tensor's step */
    const struct ops *ops;
    enum dtype dtype;
    const struct optimizer *optimizer;
    struct training training;
    void *g; /* the gradient; consumed */
    void *p; /* the parameter in the wide type: itself, its master copy, or a copy for this step */
    struct tensor *state;
    int t; /* the tenant's steps, this one included */
};

static double rounded(const struct move *move, double constant) {
    return dtype_round(move->dtype, constant);
}

static void blend(const struct move *move, void *out, double a, const void *x, double b, const void *y) {
    move->ops->blend(move->dtype, &move->training.strips, out, rounded(move, a), x, rounded(move, b), y);
}

/* g += weight_decay * p. */
static void sgd_decay(const struct move *move) {
    if (move->optimizer->weight_decay != 0)
        blend(move, move->g, 1, move->g, move->optimizer->weight_decay, move->p);
}

static void sgd_state(const struct move *move) {
    if (move->optimizer->momentum != 0)
        blend(move, move->state->data, move->optimizer->momentum, move->state->data, 1, move->g);
}

static void sgd_move(const struct move *move) {
    const void *direction = move->g;
    if (move->optimizer->momentum != 0)
        direction = move->state->data;
    if (move->optimizer->momentum != 0 && move->optimizer->nesterov) {
        blend(move, move->g, 1, move->g, move->optimizer->momentum, move->state->data);
        direction = move->g;
    }
    blend(move, move->p, 1, move->p, -move->optimizer->lr, direction);
}

static void adamw_state(const struct move *move) {
    const struct optimizer *optimizer = move->optimizer;
    void *m = move->state[0].data, *v = move->state[1].data;
    blend(move, m, optimizer->beta1, m, 1 - optimizer->beta1, move->g);
    move->ops->blend_squares(move->dtype, &move->training.strips, v, rounded(move, optimizer->beta2), v,
                             rounded(move, 1 - optimizer->beta2), move->g);
}

static void adamw_move(const struct move *move) {
    const struct optimizer *optimizer = move->optimizer;
    move->ops->adamw(move->dtype, &move->training.strips, rounded(move, 1 - optimizer->lr * optimizer->weight_decay),
                     rounded(move, optimizer->lr / (1 - pow(optimizer->beta1, move->t))),
                     rounded(move, sqrt(1 - pow(optimizer->beta2, move->t))), rounded(move, optimizer->eps),
                     move->state[0].data, move->state[1].data, move->p);
}

static void nothing(const struct move *move) {
    (void)move;
}

static const struct method {
    void (*decay)(const struct move *move);
    void (*state)(const struct move *move);
    void (*move)(const struct move *move);
} methods[] = {
    [OPTIMIZER_SGD] = {sgd_decay, sgd_state, sgd_move},
    [OPTIMIZER_ADAMW] = {nothing, adamw_state, adamw_move},
};

/* Weight decay alone: what a base weight that does not train would get if it were in the optimizer's care. */
static void decay_frozen(struct subject *subject) {
    const struct optimizer *optimizer = &subject->job->optimizer;
    for (int i = 0; i < subject->inventory->count; i++) {
        struct tensor *shard = &subject->store.weight[i].shard;
        if (shard->data && !store_trains(subject, &subject->inventory->params[i]))
            subject->ops->scale(shard->dtype, tensor_elements(shard), shard->data,
                                dtype_round(subject->wide, 1 - optimizer->lr * optimizer->weight_decay));
    }
}

/* What the update acts on. */
static enum status parameter_open(const struct subject *subject, struct move *move) {
    const struct training *training = &move->training;
    const struct tensor *value = training->value;
    const struct tensor *master = training_master(subject, training->trained, training->part, subject->slots.acting);
    move->p = value->data;
    if (value->dtype == subject->wide)
        return STATUS_OK;
    if (master)
        move->p = master->data;
    else
        TRY(device_block(subject->ops, &move->p, (size_t)tensor_elements(value) * dtype_bytes(subject->wide)));
    if (!master || subject->rules->master_lost)
        strips_convert(subject->ops, &training->strips, subject->wide, move->p, value->dtype, value->data);
    return STATUS_OK;
}

/* The parameter is the rounded result. */
static void parameter_close(const struct subject *subject, const struct move *move) {
    const struct training *training = &move->training;
    const struct tensor *value = training->value;
    if (move->p == value->data)
        return;
    strips_convert(subject->ops, &training->strips, value->dtype, value->data, subject->wide, move->p);
    if (!training_master(subject, training->trained, training->part, subject->slots.acting))
        subject->ops->release(move->p);
}

static enum status move_all(struct subject *subject) {
    const struct method *method = &methods[subject->job->optimizer.kind];
    struct slots *slots = &subject->slots;
    int *steps = &slots->slot[subject->rules->one_counter ? 0 : slots->acting].steps;
    struct training_walk walk = training_of(subject, slots->acting, -1);
    struct move move = {
        .ops = subject->ops, .dtype = subject->wide, .optimizer = &subject->job->optimizer, .t = ++*steps};
    bool late = subject->rules->move_before_state;
    while (training_next(&walk, &move.training)) {
        struct progress *progress = &move.training.trained->progress[slots->acting];
        move.g = progress->sum.data;
        move.state = progress->state;
        TRY(parameter_open(subject, &move));
        method->decay(&move);
        (late ? method->move : method->state)(&move);
        (late ? method->state : method->move)(&move);
        parameter_close(subject, &move);
    }
    if (subject->rules->decay_frozen)
        decay_frozen(subject);
    return STATUS_OK;
}

/* ---- records */

static enum status record_states(struct subject *subject) {
    const char *const *states = optimizer_states(&subject->job->optimizer);
    int slot = subject->slots.acting;
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    struct point point = POINT_NONE;
    point.phase = PHASE_OPTIMIZER;
    point.step = subject->step;
    while (training_next(&walk, &training)) {
        const struct tensor *master = training_master(subject, training.trained, training.part, slot);
        point.param = training.param;
        point.part = training.part;
        for (int i = 0; states[i]; i++) {
            point.state = states[i];
            TRY(record_tensor(subject, &point, &training.trained->progress[slot].state[i]));
        }
        point.state = "master";
        if (master)
            TRY(record_tensor(subject, &point, master));
    }
    return STATUS_OK;
}

static enum status record_updates(struct subject *subject) {
    struct training_walk walk = training_of(subject, subject->slots.acting, -1);
    struct training training;
    while (training_next(&walk, &training))
        TRY(record_param(subject, PHASE_UPDATE, -1, training.param, training.part, training.value));
    return STATUS_OK;
}

enum status update_acting(struct subject *subject, int64_t divisor) {
    TRY(divide_sums(subject, divisor));
    if (subject->job->clip.present)
        TRY(clip_acting(subject));
    TRY(move_all(subject));
    TRY(record_states(subject));
    return record_updates(subject);
}
