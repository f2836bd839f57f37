#include "sharded/trained.h"

#include "sharded/state.h"

#include <stdlib.h>

enum status trained_open(struct trained *out, int slots) {
    void *list;
    TRY(host_zeros(&list, (size_t)slots, sizeof *out->progress));
    *out = (struct trained){.progress = list};
    return STATUS_OK;
}

void trained_close(const struct ops *ops, struct trained *trained, int slots) {
    device_free(ops, &trained->partial);
    for (int slot = 0; trained->progress && slot < slots; slot++) {
        struct progress *progress = &trained->progress[slot];
        device_free(ops, &progress->sum);
        device_free(ops, &progress->master);
        for (int i = 0; i < OPTIMIZER_STATES; i++)
            device_free(ops, &progress->state[i]);
    }
    free(trained->progress);
    *trained = (struct trained){0};
}

/* ---- the walk */

struct training_walk training_of(const struct subject *subject, int slot, int unit) {
    return (struct training_walk){.subject = subject, .slot = slot, .unit = unit, .part = -1};
}

static struct strips whole(const struct shard *shard) {
    int64_t elements = shard_elements(shard);
    return (struct strips){1, elements, elements};
}

/* Rows of a factor below r: on A the last dim but one is the rank, on B the last. Indices ascend, so that they come
 * first. */
static struct strips rows_below(const struct shard *shard, enum part part, int64_t r) {
    int dim = shard->ndim - (part == PART_LORA_A ? 2 : 1);
    int64_t rows = 0, inner = dim + 1 < shard->ndim ? shard->shape[dim + 1] : 1;
    while (rows < shard->shape[dim] && shard->index[dim][rows] < r)
        rows++;
    if (rows == shard->shape[dim])
        return whole(shard);
    int64_t stride = shard->shape[dim] * inner;
    return (struct strips){shard_elements(shard) / stride, rows * inner, stride};
}

static bool weight_training(const struct training_walk *walk, const struct param *param, struct training *out) {
    struct weight *weight = store_weight(walk->subject, param);
    if (!job_trains(walk->subject->job, param))
        return false;
    *out = (struct training){param,          PART_WEIGHT,      &weight->place,
                             &weight->shard, &weight->trained, whole(&weight->place.shard)};
    return true;
}

static bool factor_training(const struct training_walk *walk, const struct param *param, enum part part,
                            struct training *out) {
    const struct adapter_target *adapter = slots_adapter_in(walk->subject, walk->slot, param);
    if (!adapter)
        return false;
    struct factor *factor = &store_weight(walk->subject, param)->target->factor[part - PART_LORA_A];
    const struct shard *shard = &factor->place.shard;
    bool all = walk->subject->rules->update_all_rows;
    *out = (struct training){param,
                             part,
                             &factor->place,
                             &factor->slot[walk->slot],
                             &factor->trained,
                             all ? whole(shard) : rows_below(shard, part, adapter->lora_rank)};
    return true;
}

bool training_next(struct training_walk *walk, struct training *out) {
    const struct inventory *inventory = walk->subject->inventory;
    if (walk->slot < 0 || walk->subject->slots.slot[walk->slot].tenant < 0)
        return false;
    for (; walk->param < inventory->count; walk->param++, walk->part = -1) {
        const struct param *param = &inventory->params[walk->param];
        if (walk->unit >= 0 && param->unit != walk->unit)
            continue;
        while (walk->part < PART_LORA_B) {
            enum part part = (enum part)++ walk->part;
            if (part == PART_WEIGHT ? weight_training(walk, param, out) : factor_training(walk, param, part, out))
                return true;
        }
    }
    return false;
}

/* ---- sums and state */

static enum status zeros_like(struct subject *subject, const struct training *training, struct tensor *out) {
    const struct shard *shard = &training->place->shard;
    if (out->data)
        return STATUS_OK;
    return device_zeros(subject->ops, out, subject->wide, shard->ndim, shard->shape);
}

enum status training_states_make(struct subject *subject, int slot) {
    const char *const *states = optimizer_states(&subject->job->optimizer);
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    while (training_next(&walk, &training))
        for (int i = 0; states[i]; i++)
            TRY(zeros_like(subject, &training, &training.trained->progress[slot].state[i]));
    return STATUS_OK;
}

void strips_convert(const struct ops *ops, const struct strips *strips, enum dtype to, void *out, enum dtype from,
                    const void *x) {
    for (int64_t row = 0; row < strips->rows; row++) {
        size_t at = (size_t)(row * strips->stride);
        ops->convert(strips->n, to, (char *)out + at * dtype_bytes(to), from, (const char *)x + at * dtype_bytes(from));
    }
}

struct tensor *training_master(const struct subject *subject, const struct trained *trained, enum part part, int slot) {
    if (!subject->precision.master || !trained->progress)
        return NULL;
    return &trained->progress[part == PART_WEIGHT ? 0 : slot].master;
}

enum status training_weight_master(struct subject *subject, struct trained *trained, const struct tensor *shard) {
    struct tensor *master = training_master(subject, trained, PART_WEIGHT, 0);
    if (!master)
        return STATUS_OK;
    TRY(device_make(subject->ops, master, subject->wide, shard->ndim, shard->shape));
    subject->ops->convert(tensor_elements(shard), subject->wide, master->data, shard->dtype, shard->data);
    return STATUS_OK;
}

enum status training_masters_make(struct subject *subject, int slot) {
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    while (training_next(&walk, &training)) {
        struct tensor *master = training_master(subject, training.trained, training.part, slot);
        if (!master || training.part == PART_WEIGHT)
            continue;
        TRY(zeros_like(subject, &training, master));
        subject->ops->zero(master->data, tensor_bytes(master));
        strips_convert(subject->ops, &training.strips, subject->wide, master->data, training.value->dtype,
                       training.value->data);
    }
    return STATUS_OK;
}

enum status training_sums_make(struct subject *subject, int slot) {
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    while (training_next(&walk, &training))
        TRY(zeros_like(subject, &training, &training.trained->progress[slot].sum));
    return STATUS_OK;
}

void training_sums_free(struct subject *subject, int slot) {
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    while (training_next(&walk, &training))
        device_free(subject->ops, &training.trained->progress[slot].sum);
}

static void zero(const struct subject *subject, const struct tensor *tensor) {
    if (tensor->data)
        subject->ops->zero(tensor->data, tensor_bytes(tensor));
}

static void progress_clear(const struct subject *subject, const struct trained *trained, int slot) {
    if (!trained->progress)
        return;
    zero(subject, &trained->progress[slot].sum);
    for (int i = 0; i < OPTIMIZER_STATES && !subject->rules->release_keeps.state; i++)
        zero(subject, &trained->progress[slot].state[i]);
}

void training_clear(struct subject *subject, int slot) {
    for (int i = 0; i < subject->inventory->count; i++) {
        const struct weight *weight = &subject->store.weight[i];
        progress_clear(subject, &weight->trained, slot);
        for (int which = 0; weight->target && which < FACTORS; which++)
            progress_clear(subject, &weight->target->factor[which].trained, slot);
    }
}
