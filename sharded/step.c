#include "sharded/step.h"

#include "sharded/fsdp.h"
#include "sharded/pass.h"
#include "sharded/record.h"
#include "sharded/state.h"

struct tally {          /* of one step, over its micro-batches */
    int64_t own;        /* labels that count on this rank */
    int64_t total;      /* on all ranks */
    int64_t divisor;    /* what gradients and loss are divided by */
    struct tensor loss; /* scalar: the sum of token losses */
};

static enum status tally_make(struct tally *out, const struct subject *subject) {
    *out = (struct tally){0};
    return device_zeros(subject->ops, &out->loss, subject->dtype, 0, NULL);
}

static enum status run_micro(struct subject *subject, const struct micro_batch *batch, bool train,
                             struct tally *tally) {
    struct pass pass;
    enum status status = STATUS_OK;
    TRY_DONE(pass_make(&pass, subject, batch));
    TRY_DONE(pass_forward(&pass));
    tally->own += pass.counted;
    subject->ops->add(subject->dtype, 1, tally->loss.data, tally->loss.data, pass.loss.data);
    if (train)
        TRY_DONE(pass_backward(&pass));
done:
    pass_free(&pass);
    return status;
}

/* Sums the labels over the world, and counts the ranks that have any. */
static enum status count_labels(struct subject *subject, struct comm_group *world, struct tally *tally) {
    const struct comm_call call = {COMM_SITE, "count", DTYPE_I64};
    int64_t counts[2] = {tally->own, tally->own > 0};
    const int64_t two = 2;
    struct tensor host = tensor_view(DTYPE_I64, 1, &two, counts), device = {0};
    TRY(device_upload(subject->ops, &device, &host));
    enum status status = comm_all_reduce(subject->comm, world, &call, device.data, two);
    subject->ops->to_host(counts, device.data, sizeof counts);
    device_free(subject->ops, &device);
    tally->total = counts[0];
    bool means = subject->rules->loss_mean_of_means && tally->own > 0;
    tally->divisor = means ? tally->own * counts[1] : tally->total;
    return status;
}

static enum status record_count(struct subject *subject, int64_t count) {
    struct tensor host = tensor_view(DTYPE_I64, 0, NULL, &count), device = {0};
    TRY(device_upload(subject->ops, &device, &host));
    enum status status = record_scalar(subject, PHASE_LOSS, -1, "count", &device);
    device_free(subject->ops, &device);
    return status;
}

static double rounded_count(const struct subject *subject, int64_t count) {
    return dtype_round(subject->dtype, (double)count);
}

/* Loss = sum over all labels / their number; without a label there is no loss to tell. */
static enum status close_loss(struct subject *subject, struct tally *tally) {
    const struct comm_call call = {COMM_SITE, "loss", subject->dtype};
    struct comm_group *world;
    TRY(groups_get(subject, (1u << subject->mesh.axes) - 1, &world));
    TRY(count_labels(subject, world, tally));
    TRY(comm_all_reduce(subject->comm, world, &call, tally->loss.data, 1));
    if (tally->total == 0)
        return STATUS_OK;
    subject->ops->divide(subject->dtype, 1, tally->loss.data, rounded_count(subject, tally->divisor));
    TRY(record_count(subject, tally->divisor));
    return record_scalar(subject, PHASE_LOSS, -1, "loss", &tally->loss);
}

/* ---- the optimizer */

static enum status sums_make(struct subject *subject) {
    struct factor_walk walk = slots_walk(subject, -1);
    struct factor *factor;
    while ((factor = slots_next(&walk)))
        TRY(device_zeros(subject->ops, &factor->sum, subject->dtype, factor->place.shard.ndim,
                         factor->place.shard.shape));
    return STATUS_OK;
}

static void sums_free(struct subject *subject) {
    struct factor_walk walk = slots_walk(subject, -1);
    struct factor *factor;
    while ((factor = slots_next(&walk)))
        device_free(subject->ops, &factor->sum);
}

static enum status divide_sums(struct subject *subject, int64_t divisor) {
    struct factor_walk walk = slots_walk(subject, -1);
    struct factor *factor;
    while ((factor = slots_next(&walk))) {
        int64_t n = tensor_elements(&factor->sum);
        subject->ops->divide(subject->dtype, n, factor->sum.data, rounded_count(subject, divisor));
        if (subject->rules->expert_divisor_world && walk.param->expert)
            subject->ops->divide(subject->dtype, n, factor->sum.data, rounded_count(subject, subject->world));
        TRY(record_param(subject, PHASE_GRAD, -1, walk.param, walk.lora, &factor->sum));
    }
    return STATUS_OK;
}

static void update(struct subject *subject) {
    const struct optimizer *optimizer = &subject->job->optimizer;
    int slot = subject->slots.acting;
    struct factor_walk walk = slots_walk(subject, -1);
    struct factor *factor;
    while ((factor = slots_next(&walk)))
        subject->ops->sgd(subject->dtype, tensor_elements(&factor->sum), dtype_round(subject->dtype, optimizer->lr),
                          dtype_round(subject->dtype, optimizer->momentum), factor->sum.data,
                          factor->momentum[slot].data, factor->slot[slot].data);
}

static enum status record_update(struct subject *subject) {
    int slot = subject->slots.acting;
    struct point point = POINT_NONE;
    struct factor_walk walk = slots_walk(subject, -1);
    struct factor *factor;
    point.phase = PHASE_OPTIMIZER;
    point.step = subject->step;
    point.state = "momentum_buffer";
    while ((factor = slots_next(&walk))) {
        point.param = walk.param;
        point.part = walk.lora;
        TRY(record_tensor(subject, &point, &factor->momentum[slot]));
    }
    walk = slots_walk(subject, -1);
    while ((factor = slots_next(&walk)))
        TRY(record_param(subject, PHASE_UPDATE, -1, walk.param, walk.lora, &factor->slot[slot]));
    return STATUS_OK;
}

/* ---- actions */

static enum status begin_step(struct subject *subject, const struct action *action) {
    subject->step = action->step;
    if (subject->hooks->before_step)
        TRY(subject->hooks->before_step(subject->hooks->context, subject, subject->step));
    return record_holdings(subject);
}

static enum status run_micros(struct subject *subject, const struct action *action, struct tally *tally) {
    for (int i = 0; i < action->micros; i++)
        TRY(run_micro(subject, &subject->job->micro[action->micro[i]], action->kind == ACTION_TRAIN, tally));
    return close_loss(subject, tally);
}

enum status step_train(struct subject *subject, const struct action *action) {
    enum status status = STATUS_OK;
    struct tally tally = {0};
    int before = slots_activate(subject, action->tenant);
    TRY_DONE(begin_step(subject, action));
    TRY_DONE(tally_make(&tally, subject));
    TRY_DONE(sums_make(subject));
    TRY_DONE(run_micros(subject, action, &tally));
    if (tally.total == 0) {
        status = status_fail(STATUS_INTERNAL, "step %d has no label that counts", subject->step);
        goto done;
    }
    TRY_DONE(divide_sums(subject, tally.divisor));
    update(subject);
    subject->slots.slot[subject->slots.acting].trained = true;
    TRY_DONE(record_update(subject));
done:
    sums_free(subject);
    device_free(subject->ops, &tally.loss);
    slots_restore(subject, before);
    return status;
}

enum status step_evaluate(struct subject *subject, const struct action *action) {
    enum status status = STATUS_OK;
    struct tally tally = {0};
    int before = slots_activate(subject, action->disabled ? -1 : action->tenant);
    TRY_DONE(begin_step(subject, action));
    TRY_DONE(tally_make(&tally, subject));
    TRY_DONE(run_micros(subject, action, &tally));
done:
    device_free(subject->ops, &tally.loss);
    slots_restore(subject, before);
    return status;
}
