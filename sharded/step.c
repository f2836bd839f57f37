#include "sharded/step.h"

#include "sharded/pass.h"
#include "sharded/record.h"
#include "sharded/state.h"
#include "sharded/update.h"

/* ---- windows */

/* An open window goes on. */
static enum status window_open(const struct subject *subject, struct window *window) {
    if (window->open)
        return STATUS_OK;
    *window = (struct window){.open = true};
    return device_zeros(subject->ops, &window->loss, subject->wide, 0, NULL);
}

static void window_close(const struct subject *subject, struct window *window) {
    device_free(subject->ops, &window->loss);
    *window = (struct window){0};
}

static enum status run_micro(struct subject *subject, const struct micro_batch *batch, bool train,
                             struct window *window) {
    struct pass pass;
    enum status status = STATUS_OK;
    TRY_DONE(pass_make(&pass, subject, batch, train));
    TRY_DONE(pass_forward(&pass));
    window->own += pass.counted;
    window->micros++;
    subject->ops->add(subject->wide, 1, window->loss.data, window->loss.data, pass.loss.data);
    subject->sum_divisor = subject->rules->divide_per_micro && batch->counted > 0 ? batch->counted : 1;
    if (train)
        TRY_DONE(pass_backward(&pass));
done:
    pass_free(&pass);
    return status;
}

static enum status run_micros(struct subject *subject, const struct action *action, bool train, struct window *window) {
    for (int i = 0; i < action->micros; i++)
        TRY(run_micro(subject, &subject->job->micro[action->micro[i]], train, window));
    return STATUS_OK;
}

/* ---- count and loss */

struct tally {
    int64_t total;   /* labels that count, on all ranks */
    int64_t divisor; /* what gradients and loss are divided by */
};

/* Sums the labels over the world, and counts the ranks that have any. */
static enum status count_labels(struct subject *subject, struct comm_group *world, const struct window *window,
                                struct tally *out) {
    const struct comm_call call = {COMM_SITE, "count", DTYPE_I64};
    int64_t counts[2] = {window->own, window->own > 0};
    const int64_t two = 2;
    struct tensor host = tensor_view(DTYPE_I64, 1, &two, counts), device = {0};
    TRY(device_upload(subject->ops, &device, &host));
    enum status status = comm_all_reduce(subject->comm, world, &call, device.data, two);
    subject->ops->to_host(counts, device.data, sizeof counts);
    device_free(subject->ops, &device);
    bool means = subject->rules->loss_mean_of_means && window->own > 0;
    *out = (struct tally){counts[0], means ? window->own * counts[1] : counts[0]};
    return status;
}

static enum status record_count(struct subject *subject, int64_t count) {
    struct tensor host = tensor_view(DTYPE_I64, 0, NULL, &count), device = {0};
    TRY(device_upload(subject->ops, &device, &host));
    enum status status = record_scalar(subject, PHASE_LOSS, -1, "count", &device);
    device_free(subject->ops, &device);
    return status;
}

/* Loss = sum over all labels / their number; without a label there is no loss to tell. */
static enum status close_loss(struct subject *subject, struct window *window, struct tally *out) {
    const struct comm_call call = {COMM_SITE, "loss", subject->wide};
    struct comm_group *world;
    TRY(groups_get(subject, (1u << subject->mesh.axes) - 1, &world));
    TRY(count_labels(subject, world, window, out));
    TRY(comm_all_reduce(subject->comm, world, &call, window->loss.data, 1));
    if (out->total == 0)
        return STATUS_OK;
    subject->ops->divide(subject->wide, 1, window->loss.data, dtype_round(subject->wide, (double)out->divisor));
    TRY(record_count(subject, out->divisor));
    return record_scalar(subject, PHASE_LOSS, -1, "loss", &window->loss);
}

/* ---- actions */

static enum status begin(struct subject *subject, const struct action *action) {
    subject->step = action->step;
    if (!action->opens)
        return STATUS_OK;
    if (subject->hooks->before_step)
        TRY(subject->hooks->before_step(subject->hooks->context, subject, subject->step));
    return record_holdings(subject);
}

static enum status accumulate(struct subject *subject, const struct action *action) {
    struct window *window = slots_window(subject);
    TRY(begin(subject, action));
    TRY(window_open(subject, window));
    TRY(training_sums_make(subject, subject->slots.acting));
    return run_micros(subject, action, true, window);
}

static enum status close_step(struct subject *subject) {
    struct window *window = slots_window(subject);
    struct tally tally;
    TRY(close_loss(subject, window, &tally));
    if (tally.total == 0)
        return status_fail(STATUS_INTERNAL, "step %d has no label that counts", subject->step);
    TRY(update_acting(subject, subject->rules->divide_per_micro ? window->micros : tally.divisor));
    training_sums_free(subject, subject->slots.acting);
    window_close(subject, window);
    return STATUS_OK;
}

enum status step_accumulate(struct subject *subject, const struct action *action) {
    int before = slots_activate(subject, action->tenant);
    enum status status = accumulate(subject, action);
    slots_restore(subject, before);
    return status;
}

enum status step_close(struct subject *subject, const struct action *action) {
    int before = slots_activate(subject, action->tenant);
    subject->step = action->step;
    enum status status = close_step(subject);
    slots_restore(subject, before);
    return status;
}

enum status step_train(struct subject *subject, const struct action *action) {
    TRY(step_accumulate(subject, action));
    return step_close(subject, action);
}

enum status step_evaluate(struct subject *subject, const struct action *action) {
    enum status status = STATUS_OK;
    struct window window = {0};
    struct tally tally;
    int before = slots_activate(subject, action->disabled ? -1 : action->tenant);
    TRY_DONE(begin(subject, action));
    TRY_DONE(window_open(subject, &window));
    TRY_DONE(run_micros(subject, action, false, &window));
    TRY_DONE(close_loss(subject, &window, &tally));
done:
    window_close(subject, &window);
    slots_restore(subject, before);
    return status;
}
