#include "sharded/slots.h"

#include "sharded/flat.h"
#include "sharded/state.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const factor_axes[2][FACTORS] = {{"rank in", "out rank"}, {"expert rank in", "expert out rank"}};
static const char *const factor_suffix[FACTORS] = {".lora_A", ".lora_B"};

/* Element i of the shard, by its number in the whole tensor. `first_rows`: as if the shard's rows were the whole's
 * first. */
static int64_t initial_number(const struct shard *shard, int64_t i, bool first_rows) {
    int64_t where[LINE_MAX_DIMS], row = 1, own = 1;
    int64_t number = shard_global(shard, i, where);
    for (int dim = 1; dim < shard->ndim; dim++) {
        row *= shard->global[dim];
        own *= shard->shape[dim];
    }
    return first_rows ? number - (where[0] - i / own) * row : number;
}

/* What a free slot holds. */
static enum status factor_initial(struct subject *subject, struct factor *factor, int slot, const struct param *param,
                                  int which, bool first_rows) {
    const struct shard *shard = &factor->place.shard;
    struct tensor piece = {0};
    TRY(tensor_make(&piece, subject->precision.store, shard->ndim, shard->shape));
    for (int64_t i = 0; i < tensor_elements(&piece); i++)
        tensor_set(&piece, i,
                   which == FACTOR_B ? 0
                                     : slot_initial(param, slot, initial_number(shard, i, first_rows),
                                                    shard->global[shard->ndim - 1]));
    subject->ops->to_device(factor->slot[slot].data, piece.data, tensor_bytes(&piece));
    tensor_free(&piece);
    return STATUS_OK;
}

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
    TRY(trained_open(&out->trained, slots));
    for (int slot = 0; slot < slots; slot++) {
        TRY(device_make(subject->ops, &out->slot[slot], subject->precision.store, param->ndim, out->place.shard.shape));
        TRY(factor_initial(subject, out, slot, param, which, false));
    }
    return STATUS_OK;
}

static void factor_close(struct subject *subject, struct factor *factor) {
    const struct ops *ops = subject->ops;
    int slots = subject->job->slots;
    trained_close(ops, &factor->trained, slots);
    device_free(ops, &factor->kept);
    device_free(ops, &factor->used);
    for (int slot = 0; factor->slot && slot < slots; slot++)
        device_free(ops, &factor->slot[slot]);
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
    for (int slot = 0; slots->slot && slot < subject->job->slots; slot++)
        device_free(subject->ops, &slots->slot[slot].window.loss);
    free(slots->target);
    free(slots->slot);
    free(slots->outer);
    *slots = (struct slots){.acting = -1};
}

/* Writes one factor of an adapter into a slot. */
static enum status factor_acquire(struct subject *subject, struct factor *factor, int slot, const struct param *param,
                                  const struct adapter_target *adapter, int which) {
    enum status status = STATUS_OK;
    size_t element = dtype_bytes(subject->precision.store);
    struct tensor block = {0}, piece = {0};
    struct shard within = {0};
    const struct shard *shard = &factor->place.shard;
    TRY_DONE(flat_import(subject, param, adapter, FACTOR_PART(which), &factor->place.used, &block));
    TRY_DONE(shard_within(&within, shard, &factor->place.used));
    TRY_DONE(tensor_make(&piece, subject->precision.store, shard->ndim, shard->shape));
    shard_cut(&within, element, block.data, piece.data);
    subject->ops->to_device(factor->slot[slot].data, piece.data, tensor_bytes(&piece));
done:
    shard_free(&within);
    tensor_free(&piece);
    tensor_free(&block);
    return status;
}

static int lowest_free(const struct subject *subject) {
    int slot = 0;
    while (slot < subject->job->slots && subject->slots.slot[slot].tenant >= 0)
        slot++;
    return slot;
}

enum status slots_acquire(struct subject *subject, int tenant) {
    struct slots *slots = &subject->slots;
    const struct tenant *of = &subject->job->tenant[tenant];
    int slot = lowest_free(subject);
    if (slot == subject->job->slots)
        return status_fail(STATUS_INTERNAL, "tenant %s: no free slot, %d in all", of->name, slot);
    for (int i = 0; i < slots->targets; i++) {
        struct target *target = &slots->target[i];
        const struct adapter_target *on = adapter_find(&of->adapter, target->param);
        for (int which = 0; which < FACTORS; which++) {
            struct factor *factor = &target->factor[which];
            if (on)
                TRY(factor_acquire(subject, factor, slot, target->param, on, which));
            else
                subject->ops->zero(factor->slot[slot].data, tensor_bytes(&factor->slot[slot]));
        }
    }
    slots->slot[slot].tenant = tenant;
    TRY(training_masters_make(subject, slot));
    return training_states_make(subject, slot);
}

static enum status slot_reset(struct subject *subject, int slot) {
    struct slots *slots = &subject->slots;
    training_clear(subject, slot);
    for (int i = 0; i < slots->targets; i++)
        for (int which = 0; which < FACTORS; which++)
            TRY(factor_initial(subject, &slots->target[i].factor[which], slot, slots->target[i].param, which,
                               subject->rules->reset_first_rows));
    return STATUS_OK;
}

#define SLOT_NAME_MAX 24

static const char *slot_name(char *out, int slot) {
    snprintf(out, SLOT_NAME_MAX, "lora_%d", slot);
    return out;
}

enum status slots_release(struct subject *subject, int tenant) {
    char name[SLOT_NAME_MAX], wanted[SLOT_NAME_MAX];
    int slot = slots_of(subject, tenant);
    for (int i = 0; i < subject->job->slots; i++)
        if (subject->rules->slot_named(slot_name(name, i), slot_name(wanted, slot)))
            TRY(slot_reset(subject, i));
    struct slot *released = &subject->slots.slot[slot];
    device_free(subject->ops, &released->window.loss);
    *released = (struct slot){.tenant = -1, .steps = subject->rules->release_keeps.counter ? released->steps : 0};
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

const struct adapter_target *slots_adapter_in(const struct subject *subject, int slot, const struct param *param) {
    if (slot < 0 || subject->slots.slot[slot].tenant < 0)
        return NULL;
    return adapter_find(&subject->job->tenant[subject->slots.slot[slot].tenant].adapter, param);
}

const struct adapter_target *slots_adapter(const struct subject *subject, const struct param *param) {
    return slots_adapter_in(subject, subject->slots.acting, param);
}

struct window *slots_window(struct subject *subject) {
    return &subject->slots.slot[subject->slots.acting].window;
}
