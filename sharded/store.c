#include "sharded/store.h"

#include "sharded/state.h"

#include <stdlib.h>

/* The EP coordinate whose block of experts this rank loads. */
static int source_block(const struct subject *subject, int axis) {
    const struct mesh *mesh = &subject->mesh;
    int own = mesh_coordinate(mesh, axis, subject->rank);
    if (subject->rules->ep_as_last_axis)
        own = subject->rank % mesh->size[axis];
    return (own + subject->rules->ep_shift) % mesh->size[axis];
}

/* The rank whose block of experts this one loads. */
static int source_rank(const struct subject *subject, const struct param *param) {
    const struct mesh *mesh = &subject->mesh;
    int axis = mesh_axis(mesh, "ep");
    if (!param->expert)
        return subject->rank;
    int own = mesh_coordinate(mesh, axis, subject->rank);
    int wanted = source_block(subject, axis);
    int stride = 1;
    for (int later = axis + 1; later < mesh->axes; later++)
        stride *= mesh->size[later];
    return subject->rank + (wanted - own) * stride;
}

static enum status weight_load(struct subject *subject, struct weight *weight, const struct param *param) {
    enum status status = STATUS_OK;
    struct tensor whole = {0}, piece = {0};
    struct shard cut = {0};
    TRY_DONE(shard_make(&cut, &weight->place.placed.line, &subject->mesh, source_rank(subject, param)));
    TRY_DONE(checkpoint_read(subject->job->model, param, subject->precision.store, &whole));
    TRY_DONE(tensor_make(&piece, subject->precision.store, cut.ndim, cut.shape));
    shard_cut(&cut, dtype_bytes(subject->precision.store), whole.data, piece.data);
    TRY_DONE(device_upload(subject->ops, &weight->shard, &piece));
done:
    tensor_free(&piece);
    tensor_free(&whole);
    shard_free(&cut);
    return status;
}

static enum status weight_trains(struct subject *subject, struct weight *weight) {
    TRY(trained_open(&weight->trained, subject->job->slots));
    return training_weight_master(subject, &weight->trained, &weight->shard);
}

enum status store_open(struct subject *subject) {
    const struct inventory *inventory = subject->inventory;
    void *weights;
    TRY(host_zeros(&weights, (size_t)inventory->count, sizeof(struct weight)));
    subject->store.weight = weights;
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        struct weight *weight = &subject->store.weight[i];
        if (param->alias >= 0)
            continue;
        TRY(place_make(&weight->place, subject, param->name, param->ndim, param->shape, param->axes, param->expert));
        TRY(weight_load(subject, weight, param));
        if (job_trains(subject->job, param))
            TRY(weight_trains(subject, weight));
    }
    return STATUS_OK;
}

void store_close(struct subject *subject) {
    for (int i = 0; subject->store.weight && i < subject->inventory->count; i++) {
        struct weight *weight = &subject->store.weight[i];
        trained_close(subject->ops, &weight->trained, subject->job->slots);
        device_free(subject->ops, &weight->merged);
        device_free(subject->ops, &weight->kept);
        device_free(subject->ops, &weight->used);
        device_free(subject->ops, &weight->shard);
        place_free(subject->ops, &weight->place);
    }
    free(subject->store.weight);
    subject->store.weight = NULL;
}

struct weight *store_weight(const struct subject *subject, const struct param *param) {
    return &subject->store.weight[inventory_index(subject->inventory, param)];
}

struct weight *store_base(const struct subject *subject, const struct param *param) {
    return param->alias >= 0 ? &subject->store.weight[param->alias] : store_weight(subject, param);
}

bool store_trains(const struct subject *subject, const struct param *param) {
    const struct inventory *inventory = subject->inventory;
    return job_trains(subject->job, param->alias >= 0 ? &inventory->params[param->alias] : param);
}

const void *store_effective(const struct subject *subject, const struct param *param) {
    const struct weight *weight = store_weight(subject, param);
    return weight->merged.data ? weight->merged.data : store_base(subject, param)->used.data;
}
