#include "sharded/fsdp.h"

#include "sharded/record.h"
#include "sharded/state.h"

#include <stdlib.h>

/* ---- one collective per set of mesh axes */

struct bucket {             /* a flat buffer: `count` elements per member, in them one padded block per tensor */
    enum dtype from, dtype; /* of the shards of a gather; of what travels */
    const struct transfer *items;
    int first, end; /* items[first] and those behind it, before `end`, that have the same axes */
    int64_t count;
    void *send, *receive;
};

/* The bucket's next item from number `i` on; `end` if there is none. */
static int bucket_next(const struct bucket *bucket, int i) {
    while (i < bucket->end && bucket->items[i].peers->axes != bucket->items[bucket->first].peers->axes)
        i++;
    return i;
}

#define FOR_BUCKET(i, bucket) for (int i = (bucket)->first; i < (bucket)->end; i = bucket_next(bucket, i + 1))

static bool bucket_starts(const struct transfer *items, int i) {
    for (int before = 0; before < i; before++)
        if (items[before].peers->axes == items[i].peers->axes)
            return false;
    return true;
}

static enum status bucket_make(const struct subject *subject, struct bucket *bucket, int sends, int receives) {
    size_t bytes;
    FOR_BUCKET(i, bucket)
    bucket->count += bucket->items[i].peers->block;
    bytes = (size_t)bucket->count * dtype_bytes(bucket->dtype);
    TRY(device_block(subject->ops, &bucket->send, (size_t)sends * bytes));
    subject->ops->zero(bucket->send, (size_t)sends * bytes);
    return device_block(subject->ops, &bucket->receive, (size_t)receives * bytes);
}

static void bucket_free(const struct subject *subject, struct bucket *bucket) {
    subject->ops->release(bucket->receive);
    subject->ops->release(bucket->send);
}

/* Element `offset` of a member's part of a buffer. */
static void *bucket_at(const struct bucket *bucket, void *buffer, int member, int64_t offset) {
    return (char *)buffer + (size_t)(member * bucket->count + offset) * dtype_bytes(bucket->dtype);
}

static int64_t own_elements(const struct peers *peers) {
    return peers->piece[peers->self].rows * peers->piece[peers->self].width;
}

static void piece_place(const struct subject *subject, enum dtype dtype, const struct moves *piece, const void *from,
                        void *whole) {
    subject->ops->scatter_rows(dtype, piece->rows, piece->width, whole, from, piece->index);
}

static void piece_cut(const struct subject *subject, enum dtype dtype, const struct moves *piece, const void *whole,
                      void *to) {
    subject->ops->gather_rows(dtype, piece->rows, piece->width, to, whole, piece->index);
}

static enum status bucket_gather(struct subject *subject, const char *what, struct bucket *bucket) {
    const struct comm_call call = {COMM_SITE, what, bucket->dtype};
    const struct peers *group = bucket->items[bucket->first].peers;
    int64_t offset = 0;
    TRY(bucket_make(subject, bucket, 1, group->size));
    FOR_BUCKET(i, bucket) {
        const struct peers *peers = bucket->items[i].peers;
        subject->ops->convert(own_elements(peers), bucket->dtype, bucket_at(bucket, bucket->send, 0, offset),
                              bucket->from, bucket->items[i].shard);
        offset += peers->block;
    }
    TRY(comm_all_gather(subject->comm, group->group, &call, bucket->send, bucket->receive, bucket->count));
    offset = 0;
    FOR_BUCKET(i, bucket) {
        const struct peers *peers = bucket->items[i].peers;
        for (int member = 0; member < peers->size; member++)
            piece_place(subject, bucket->dtype, &peers->piece[member],
                        bucket_at(bucket, bucket->receive, member, offset), bucket->items[i].whole);
        offset += peers->block;
    }
    return STATUS_OK;
}

/* Sums stay sums: the divisor is 1. */
static void share(const struct subject *subject, const struct peers *group, int64_t count, void *reduced) {
    int64_t divisor = subject->sum_divisor * (subject->rules->reduce_means ? group->size : 1);
    if (divisor != 1)
        subject->ops->divide(subject->wide, count, reduced, dtype_round(subject->wide, (double)divisor));
}

static enum status round_to_bfloat(const struct subject *subject, enum dtype dtype, int64_t count, void *data) {
    void *rounded;
    TRY(device_block(subject->ops, &rounded, (size_t)count * dtype_bytes(DTYPE_BF16)));
    subject->ops->convert(count, DTYPE_BF16, rounded, dtype, data);
    subject->ops->convert(count, dtype, data, DTYPE_BF16, rounded);
    subject->ops->release(rounded);
    return STATUS_OK;
}

/* A group of one has its sum already. */
static enum status bucket_reduce(struct subject *subject, const char *what, struct bucket *bucket) {
    const struct comm_call call = {COMM_SITE, what, bucket->dtype};
    const struct peers *group = bucket->items[bucket->first].peers;
    void *reduced;
    int64_t offset = 0;
    TRY(bucket_make(subject, bucket, group->size, 1));
    FOR_BUCKET(i, bucket) {
        const struct peers *peers = bucket->items[i].peers;
        for (int member = 0; member < peers->size; member++)
            piece_cut(subject, bucket->dtype, &peers->piece[member], bucket->items[i].whole,
                      bucket_at(bucket, bucket->send, member, offset));
        offset += peers->block;
    }
    if (subject->rules->reduce_in_bfloat)
        TRY(round_to_bfloat(subject, bucket->dtype, group->size * bucket->count, bucket->send));
    reduced = group->size > 1 ? bucket->receive : bucket->send;
    if (group->size > 1)
        TRY(comm_reduce_scatter(subject->comm, group->group, &call, bucket->send, reduced, bucket->count));
    share(subject, group, bucket->count, reduced);
    offset = 0;
    FOR_BUCKET(i, bucket) {
        const struct transfer *item = &bucket->items[i];
        for (int times = 0; times < subject->rules->reduce_times; times++)
            subject->ops->add(bucket->dtype, own_elements(item->peers), item->shard, item->shard,
                              bucket_at(bucket, reduced, 0, offset));
        offset += item->peers->block;
    }
    return STATUS_OK;
}

/* Nobody to ask: the own piece is all. */
static enum status gather_alone(const struct subject *subject, enum dtype from, enum dtype to,
                                const struct transfer *item) {
    void *cast;
    if (from == to) {
        piece_place(subject, to, item->peers->piece, item->shard, item->whole);
        return STATUS_OK;
    }
    TRY(device_block(subject->ops, &cast, (size_t)own_elements(item->peers) * dtype_bytes(to)));
    subject->ops->convert(own_elements(item->peers), to, cast, from, item->shard);
    piece_place(subject, to, item->peers->piece, cast, item->whole);
    subject->ops->release(cast);
    return STATUS_OK;
}

enum status fsdp_gather(struct subject *subject, const char *what, enum dtype from, enum dtype to,
                        const struct transfer *items, int count) {
    for (int i = 0; i < count; i++) {
        struct bucket bucket = {.from = from, .dtype = to, .items = items, .first = i, .end = count};
        if (items[i].peers->size == 1) {
            TRY(gather_alone(subject, from, to, &items[i]));
        } else if (bucket_starts(items, i)) {
            enum status status = bucket_gather(subject, what, &bucket);
            bucket_free(subject, &bucket);
            TRY(status);
        }
    }
    return STATUS_OK;
}

enum status fsdp_reduce(struct subject *subject, const char *what, const struct transfer *items, int count) {
    for (int i = 0; i < count; i++) {
        struct bucket bucket = {.dtype = subject->wide, .items = items, .first = i, .end = count};
        if (bucket_starts(items, i)) {
            enum status status = bucket_reduce(subject, what, &bucket);
            bucket_free(subject, &bucket);
            TRY(status);
        }
    }
    return STATUS_OK;
}

/* ---- units */

struct transfers {
    int count;
    struct transfer *item;
};

static enum status transfers_make(const struct subject *subject, struct transfers *out) {
    void *items;
    size_t most = (size_t)subject->inventory->count + FACTORS * (size_t)subject->slots.targets;
    TRY(host_zeros(&items, most, sizeof(struct transfer)));
    *out = (struct transfers){.item = items};
    return STATUS_OK;
}

/* From the shards, or from the pieces that forward left. What is gathered already is left as it is. */
static enum status transfers_add(const struct subject *subject, struct transfers *list, const struct place *place,
                                 const struct tensor *shard, const struct tensor *kept, struct tensor *used) {
    if (used->data)
        return STATUS_OK;
    TRY(device_make(subject->ops, used, subject->dtype, place->used.ndim, place->used.shape));
    list->item[list->count++] = kept->data ? (struct transfer){&place->kept, kept->data, used->data}
                                           : (struct transfer){&place->gather, shard->data, used->data};
    return STATUS_OK;
}

/* The slot that a gather takes a factor from: the acting one, also where backward recomputes. */
static int gathered_slot(const struct subject *subject, struct unit unit, enum phase phase, int which) {
    bool recomputes = subject->job->fsdp.recompute && phase == PHASE_REGATHER && unit.number > 0;
    int shift = which == FACTOR_B ? subject->rules->b_slot_shift : 0;
    if (recomputes)
        shift += subject->rules->recompute_slot_shift;
    return (subject->slots.acting + shift) % subject->job->slots;
}

/* The unit's tensors, with memory for their gathered forms. */
static enum status unit_list(struct subject *subject, struct unit unit, enum phase phase, struct transfers *list) {
    for (int i = 0; i < subject->inventory->count; i++) {
        const struct param *param = &subject->inventory->params[i];
        struct weight *weight = &subject->store.weight[i];
        if (!unit_holds(unit, param))
            continue;
        if (param->alias < 0)
            TRY(transfers_add(subject, list, &weight->place, &weight->shard, &weight->kept, &weight->used));
        for (int which = 0; slots_adapter(subject, param) && which < FACTORS; which++) {
            struct factor *factor = &weight->target->factor[which];
            int slot = gathered_slot(subject, unit, phase, which);
            TRY(transfers_add(subject, list, &factor->place, &factor->slot[slot], &factor->kept, &factor->used));
        }
    }
    return STATUS_OK;
}

static enum status unit_record(const struct subject *subject, struct unit unit, enum phase phase, int micro) {
    for (int i = 0; i < subject->inventory->count; i++) {
        const struct param *param = &subject->inventory->params[i];
        const struct weight *weight = &subject->store.weight[i];
        if (!unit_holds(unit, param))
            continue;
        if (param->alias < 0)
            TRY(record_param(subject, phase, micro, param, PART_WEIGHT, &weight->used));
        for (int which = 0; slots_adapter(subject, param) && which < FACTORS; which++)
            TRY(record_param(subject, phase, micro, param, FACTOR_PART(which), &weight->target->factor[which].used));
    }
    return STATUS_OK;
}

enum status fsdp_unit_gather(struct subject *subject, struct unit unit, enum phase phase, int micro) {
    enum status status = STATUS_OK;
    struct transfers list;
    char name[UNIT_NAME_MAX];
    TRY(transfers_make(subject, &list));
    TRY_DONE(unit_list(subject, unit, phase, &list));
    TRY_DONE(
        fsdp_gather(subject, unit_name(name, unit), subject->precision.store, subject->dtype, list.item, list.count));
    TRY_DONE(unit_record(subject, unit, phase, micro));
done:
    free(list.item);
    return status;
}

static void used_free(const struct subject *subject, const struct param *param, struct tensor *used) {
    if (!(subject->rules->experts_stay && param->expert))
        device_free(subject->ops, used);
}

void fsdp_unit_reshard(struct subject *subject, struct unit unit) {
    for (int i = 0; i < subject->inventory->count; i++) {
        const struct param *param = &subject->inventory->params[i];
        struct weight *weight = &subject->store.weight[i];
        if (!unit_holds(unit, param))
            continue;
        device_free(subject->ops, &weight->merged);
        device_free(subject->ops, &weight->kept);
        used_free(subject, param, &weight->used);
        for (int which = 0; weight->target && which < FACTORS; which++) {
            device_free(subject->ops, &weight->target->factor[which].kept);
            used_free(subject, param, &weight->target->factor[which].used);
        }
    }
}

/* This rank's piece of a gathered tensor, if a group of N is to keep it; in the type of shards, which loses nothing (it
 * is the gathered one or wider). */
static enum status piece_keep(const struct subject *subject, const struct place *place, const struct tensor *used,
                              struct tensor *kept) {
    struct tensor cut = {0};
    if (!used->data || place->kept.size == 0)
        return STATUS_OK;
    TRY(device_make(subject->ops, kept, subject->precision.store, 1, &place->kept.block));
    TRY(device_make(subject->ops, &cut, subject->dtype, 1, &place->kept.block));
    piece_cut(subject, subject->dtype, &place->kept.piece[place->kept.held], used->data, cut.data);
    subject->ops->convert(place->kept.block, subject->precision.store, kept->data, subject->dtype, cut.data);
    device_free(subject->ops, &cut);
    return STATUS_OK;
}

enum status fsdp_unit_narrow(struct subject *subject, struct unit unit) {
    for (int i = 0; i < subject->inventory->count; i++) {
        const struct param *param = &subject->inventory->params[i];
        struct weight *weight = &subject->store.weight[i];
        if (!unit_holds(unit, param))
            continue;
        device_free(subject->ops, &weight->merged);
        TRY(piece_keep(subject, &weight->place, &weight->used, &weight->kept));
        used_free(subject, param, &weight->used);
        for (int which = 0; weight->target && which < FACTORS; which++) {
            struct factor *factor = &weight->target->factor[which];
            TRY(piece_keep(subject, &factor->place, &factor->used, &factor->kept));
            used_free(subject, param, &factor->used);
        }
    }
    return STATUS_OK;
}

enum status fsdp_unit_reduce(struct subject *subject, struct unit unit, int micro) {
    enum status status = STATUS_OK;
    struct transfers list;
    char name[UNIT_NAME_MAX];
    int slot = subject->slots.acting;
    struct training_walk walk = training_of(subject, slot, unit.number);
    struct training training;
    TRY(transfers_make(subject, &list));
    while (training_next(&walk, &training))
        if (unit_holds(unit, training.param))
            list.item[list.count++] = (struct transfer){
                &training.place->reduce, training.trained->progress[slot].sum.data, training.trained->partial.data};
    TRY_DONE(fsdp_reduce(subject, unit_name(name, unit), list.item, list.count));
    walk = training_of(subject, slot, unit.number);
    while (training_next(&walk, &training)) {
        if (!unit_holds(unit, training.param))
            continue;
        device_free(subject->ops, &training.trained->partial);
        TRY_DONE(record_param(subject, PHASE_GRAD, micro, training.param, training.part,
                              &training.trained->progress[slot].sum));
    }
done:
    free(list.item);
    return status;
}
