#include "sharded/record.h"

#include "sharded/state.h"

enum status record_tensor(const struct subject *subject, const struct point *point, const struct tensor *data) {
    if (!subject->hooks->record)
        return STATUS_OK;
    struct tensor host = {0};
    TRY(device_download(subject->ops, &host, data));
    enum status status = subject->hooks->record(subject->hooks->context, point, &host);
    tensor_free(&host);
    return status;
}

enum status record_param(const struct subject *subject, enum phase phase, int micro, const struct param *param,
                         enum part part, const struct tensor *data) {
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = subject->step;
    point.micro = micro;
    point.param = param;
    point.part = part;
    return record_tensor(subject, &point, data);
}

enum status record_scalar(const struct subject *subject, enum phase phase, int micro, const char *scalar,
                          const struct tensor *data) {
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = subject->step;
    point.micro = micro;
    point.scalar = scalar;
    return record_tensor(subject, &point, data);
}

/* A point of what slot `slot` holds. */
static struct point slot_point(const struct subject *subject, int slot, const struct param *param, enum part part) {
    struct point point = POINT_NONE;
    point.phase = PHASE_PARAM;
    point.step = subject->step;
    point.slot = slot == subject->slots.acting ? -1 : slot;
    point.param = param;
    point.part = part;
    return point;
}

static enum status record_states(const struct subject *subject, struct point point, const struct progress *progress) {
    const char *const *states = optimizer_states(&subject->job->optimizer);
    for (int i = 0; states[i]; i++) {
        point.state = states[i];
        TRY(record_tensor(subject, &point, &progress->state[i]));
    }
    return STATUS_OK;
}

static enum status record_master(const struct subject *subject, struct point point, const struct trained *trained,
                                 int slot) {
    const struct tensor *master = training_master(subject, trained, point.part, slot);
    point.state = "master";
    return master ? record_tensor(subject, &point, master) : STATUS_OK;
}

static enum status record_weight(const struct subject *subject, const struct param *param,
                                 const struct weight *weight) {
    const int none = subject->slots.acting;
    TRY(record_param(subject, PHASE_PARAM, -1, param, PART_WEIGHT, &weight->shard));
    TRY(record_master(subject, slot_point(subject, none, param, PART_WEIGHT), &weight->trained, none));
    for (int slot = 0; weight->trained.progress && slot < subject->job->slots; slot++)
        if (subject->slots.slot[slot].tenant >= 0)
            TRY(record_states(subject, slot_point(subject, slot, param, PART_WEIGHT), &weight->trained.progress[slot]));
    return STATUS_OK;
}

static enum status record_slot(const struct subject *subject, const struct target *target, int slot) {
    for (int which = 0; which < FACTORS; which++) {
        const struct point point = slot_point(subject, slot, target->param, FACTOR_PART(which));
        TRY(record_tensor(subject, &point, &target->factor[which].slot[slot]));
    }
    for (int which = 0; slots_adapter_in(subject, slot, target->param) && which < FACTORS; which++) {
        const struct point point = slot_point(subject, slot, target->param, FACTOR_PART(which));
        const struct trained *trained = &target->factor[which].trained;
        TRY(record_states(subject, point, &trained->progress[slot]));
        TRY(record_master(subject, point, trained, slot));
    }
    return STATUS_OK;
}

enum status record_holdings(const struct subject *subject) {
    const struct inventory *inventory = subject->inventory;
    if (!subject->hooks->record)
        return STATUS_OK;
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        const struct weight *weight = &subject->store.weight[i];
        if (param->alias < 0)
            TRY(record_weight(subject, param, weight));
        for (int slot = 0; weight->target && slot < subject->job->slots; slot++)
            TRY(record_slot(subject, weight->target, slot));
    }
    return STATUS_OK;
}
