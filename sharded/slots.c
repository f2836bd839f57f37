#include "sharded/slots.h"

#include "sharded/flat.h"
#include "sharded/state.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const factor_axes[2][FACTORS] = {{"rank in", "out rank"}, {"expert rank in", "expert out rank"}};
static const char *const factor_suffix[FACTORS] = {".lora_A", ".lora_B"};

static enum status factor_open(struct subject *subject, struct factor *out, const struct param *param, int which) {
    int slots = subject->job->slots;
    int64_t rank = subject->job->max_rank;
    int64_t shape[3] = {0};
    char name[PARAM_NAME_MAX + 8];
    void *list;
    for (int dim = 0; dim < param->ndim; dim++)
        shape[dim] = param->shape[dim];
    shape[param->ndim - (which == FACTOR_A ? 2 : 1)] = rank;
    snprintf(name, sizeof name, "%s%s", param->name, factor_suffix[which]);
    TRY(place_make(&out->place, subject, name, param->ndim, shape, factor_axes[param->expert][which], param->expert));
    TRY(host_zeros(&list, (size_t)slots, sizeof(struct tensor)));
    out->slot = list;
    TRY(host_zeros(&list, (size_t)slots, sizeof(struct tensor)));
    out->momentum = list;
    for (int slot = 0; slot < slots; slot++)
        TRY(device_zeros(subject->ops, &out->slot[slot], subject->dtype, param->ndim, out->place.shard.shape));
    return STATUS_OK;
}

static void factor_close(struct subject *subject, struct factor *factor) {
    const struct ops *ops = subject->ops;
    device_free(ops, &factor->sum);
    device_free(ops, &factor->partial);
    device_free(ops, &factor->used);
    for (int slot = 0; slot < subject->job->slots; slot++) {
        if (factor->momentum)
            device_free(ops, &factor->momentum[slot]);
        if (factor->slot)
            device_free(ops, &factor->slot[slot]);
    }
    free(factor->momentum);
    free(factor->slot);
    place_free(ops, &factor->place);
}

enum status slots_open(struct subject *subject) {
    struct slots *slots = &subject->slots;
    const struct inventory *inventory = subject->inventory;
    void *block;
    slots->acting = -1;
    TRY(host_zeros(&block, (size_t)inventory->count, sizeof *slots->target));
    slots->target = block;
    TRY(host_zeros(&block, (size_t)subject->job->slots, sizeof *slots->slot));
    slots->slot = block;
    TRY(host_zeros(&block, (size_t)subject->job->actions, sizeof *slots->outer));
    slots->outer = block;
    for (int slot = 0; slot < subject->job->slots; slot++)
        slots->slot[slot].tenant = -1;
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        if (!job_targets(subject->job, param))
            continue;
        struct target *target = &slots->target[slots->targets++];
        target->param = param;
        subject->store.weight[i].target = target;
        for (int which = 0; which < FACTORS; which++)
            TRY(factor_open(subject, &target->factor[which], param, which));
    }
    return STATUS_OK;
}

void slots_close(struct subject *subject) {
    struct slots *slots = &subject->slots;
    for (int i = 0; i < slots->targets; i++)
        for (int which = 0; which < FACTORS; which++)
            factor_close(subject, &slots->target[i].factor[which]);
    free(slots->target);
    free(slots->slot);
    free(slots->outer);
    *slots = (struct slots){.acting = -1};
}

/* Writes one factor of an adapter into a slot and clears its optimizer state. */
static enum status factor_acquire(struct subject *subject, struct factor *factor, int slot, const struct param *param,
                                  const struct adapter_target *adapter, int which) {
    enum status status = STATUS_OK;
    size_t element = dtype_bytes(subject->dtype);
    struct tensor block = {0}, piece = {0};
    struct shard within = {0};
    const struct shard *shard = &factor->place.shard;
    TRY_DONE(flat_import(subject, param, adapter, FACTOR_PART(which), &factor->place.used, &block));
    TRY_DONE(shard_within(&within, shard, &factor->place.used));
    TRY_DONE(tensor_make(&piece, subject->dtype, shard->ndim, shard->shape));
    shard_cut(&within, element, block.data, piece.data);
    subject->ops->to_device(factor->slot[slot].data, piece.data, tensor_bytes(&piece));
    device_free(subject->ops, &factor->momentum[slot]);
    TRY_DONE(device_zeros(subject->ops, &factor->momentum[slot], subject->dtype, shard->ndim, shard->shape));
done:
    shard_free(&within);
    tensor_free(&piece);
    tensor_free(&block);
    return status;
}

enum status slots_acquire(struct subject *subject, int tenant) {
    struct slots *slots = &subject->slots;
    const struct adapter *adapter = &subject->job->tenant[tenant].adapter;
    int slot = 0;
    while (slot < subject->job->slots && slots->slot[slot].tenant >= 0)
        slot++;
    if (slot == subject->job->slots)
        return status_fail(STATUS_INTERNAL, "tenant %s: no free slot, %d in all", subject->job->tenant[tenant].name,
                           slot);
    for (int i = 0; i < slots->targets; i++) {
        struct target *target = &slots->target[i];
        const struct adapter_target *on = adapter_find(adapter, target->param);
        for (int which = 0; on && which < FACTORS; which++)
            TRY(factor_acquire(subject, &target->factor[which], slot, target->param, on, which));
    }
    slots->slot[slot] = (struct slot){.tenant = tenant};
    return STATUS_OK;
}

int slots_of(const struct subject *subject, int tenant) {
    for (int slot = 0; tenant >= 0 && slot < subject->job->slots; slot++)
        if (subject->slots.slot[slot].tenant == tenant)
            return slot;
    return -1;
}

int slots_activate(struct subject *subject, int tenant) {
    int before = subject->slots.acting;
    subject->slots.acting = slots_of(subject, tenant);
    return before;
}

void slots_restore(struct subject *subject, int before) {
    subject->slots.acting = before;
}

const struct adapter_target *slots_adapter(const struct subject *subject, const struct param *param) {
    const struct slots *slots = &subject->slots;
    if (slots->acting < 0)
        return NULL;
    return adapter_find(&subject->job->tenant[slots->slot[slots->acting].tenant].adapter, param);
}

struct factor_walk slots_walk(const struct subject *subject, int unit) {
    return (struct factor_walk){.subject = subject, .unit = unit, .part = -1};
}

static bool walk_visits(const struct factor_walk *walk, const struct target *target) {
    return (walk->unit < 0 || target->param->unit == walk->unit) && slots_adapter(walk->subject, target->param);
}

struct factor *slots_next(struct factor_walk *walk) {
    const struct slots *slots = &walk->subject->slots;
    if (++walk->part == FACTORS) {
        walk->part = 0;
        walk->target++;
    }
    while (walk->target < slots->targets && !walk_visits(walk, &slots->target[walk->target]))
        walk->target++;
    if (walk->target >= slots->targets)
        return NULL;
    struct target *target = &slots->target[walk->target];
    walk->param = target->param;
    walk->lora = FACTOR_PART(walk->part);
    return &target->factor[walk->part];
}
