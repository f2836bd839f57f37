/* Export: a slot's shards become PEFT's flat tensors. FSDP's pieces are gathered, the rank's flat piece is made of
 * them, the pieces are gathered over the EP group and placed by the layout line. */
#include "core/files.h"
#include "sharded/flat.h"
#include "sharded/fsdp.h"
#include "sharded/record.h"
#include "sharded/state.h"
#include "sharded/step.h"

#include <stdio.h>
#include <stdlib.h>

struct export { /* one tenant's folder in the making */
    struct subject *subject;
    const struct action *action;
    const struct tenant *tenant;
    int slot;
    struct tensor *flat[FACTORS]; /* host [targets of the adapter] */
};

/* The slot's gathered block, on the host. */
static enum status gather_block(struct subject *subject, const struct param *param, struct factor *factor, int slot,
                                struct tensor *out) {
    struct tensor used = {0};
    const struct shard *shape = &factor->place.used;
    TRY(device_make(subject->ops, &used, subject->precision.store, shape->ndim, shape->shape));
    const struct transfer item = {&factor->place.gather, factor->slot[slot].data, used.data};
    enum status status =
        fsdp_gather(subject, param->name, subject->precision.store, subject->precision.store, &item, 1);
    if (status == STATUS_OK)
        status = device_download(subject->ops, out, &used);
    device_free(subject->ops, &used);
    return status;
}

/* This rank's piece of the flat tensor, in the order of `line`. */
static enum status flat_piece(struct subject *subject, const struct param *param, const struct adapter_target *adapter,
                              enum part part, const struct line *line, const struct tensor *block, struct tensor *out) {
    struct shard shard = {0};
    const struct flat_axes axes = {.expert = param->expert ? block->shape[0] : 1,
                                   .rank = adapter->lora_rank,
                                   .width = part == PART_LORA_A ? adapter->in : adapter->out};
    TRY(shard_make(&shard, line, &subject->mesh, subject->rank));
    enum status status = tensor_make(out, subject->precision.store, shard.ndim, shard.shape);
    if (status == STATUS_OK && shard_elements(&shard) != axes.expert * axes.rank * axes.width)
        status = status_fail(STATUS_INTERNAL, "%s: the piece of rank %d does not fit its experts", param->name,
                             subject->rank);
    shard_free(&shard);
    if (status == STATUS_OK)
        flat_move(line, part, &axes, subject->job->max_rank, dtype_bytes(subject->precision.store), out->data,
                  block->data, SLOT_TO_FLAT);
    return status;
}

/* Every member's piece, one behind the other; experts divide evenly, so all are as long. */
static enum status gather_pieces(struct subject *subject, struct comm_group *group, const char *what,
                                 const struct tensor *piece, struct tensor *out) {
    enum status status = STATUS_OK;
    const struct comm_call call = {COMM_SITE, what, subject->precision.store};
    const int64_t count = tensor_elements(piece);
    const int64_t all = count * comm_group_size(group);
    struct tensor send = {0}, receive = {0};
    TRY_DONE(device_upload(subject->ops, &send, piece));
    TRY_DONE(device_make(subject->ops, &receive, subject->precision.store, 1, &all));
    TRY_DONE(comm_all_gather(subject->comm, group, &call, send.data, receive.data, count));
    TRY_DONE(device_download(subject->ops, out, &receive));
done:
    device_free(subject->ops, &receive);
    device_free(subject->ops, &send);
    return status;
}

/* The whole flat tensor from the members' pieces. */
static enum status assemble(struct subject *subject, const struct line *line, const char *what,
                            const struct tensor *piece, struct tensor *out) {
    enum status status = STATUS_OK;
    const size_t bytes = tensor_bytes(piece);
    unsigned axes = line_cut_axes(line);
    struct comm_group *group = NULL;
    struct tensor pieces = {0};
    int64_t shape[LINE_MAX_DIMS];
    line_shape(line, shape);
    TRY_DONE(tensor_make(out, subject->precision.store, line->dims, shape));
    if (axes) {
        TRY_DONE(groups_get(subject, axes, &group));
        TRY_DONE(gather_pieces(subject, group, what, piece, &pieces));
    }
    for (int i = 0; i < (group ? comm_group_size(group) : 1); i++) {
        struct shard shard = {0};
        int member = group ? comm_group_member(group, i) : subject->rank;
        TRY_DONE(shard_make(&shard, line, &subject->mesh, member));
        shard_place(&shard, dtype_bytes(subject->precision.store),
                    group ? (char *)pieces.data + (size_t)i * bytes : piece->data, out->data);
        shard_free(&shard);
    }
done:
    tensor_free(&pieces);
    return status;
}

static enum dtype file_dtype(const struct export *export, const struct tensor *stored) {
    const struct subject *subject = export->subject;
    bool trained = subject->slots.slot[export->slot].steps > 0;
    return trained && subject->precision.store == DTYPE_F64 ? DTYPE_F64 : stored->dtype;
}

static enum status export_factor(const struct export *export, const struct adapter_target *adapter, int which,
                                 struct tensor *out) {
    enum status status = STATUS_OK;
    struct subject *subject = export->subject;
    enum part part = FACTOR_PART(which);
    const struct param *param = adapter->param;
    const char *key = which == FACTOR_A ? adapter->key_a : adapter->key_b;
    struct factor *factor = &store_weight(subject, param)->target->factor[which];
    struct tensor block = {0}, piece = {0}, whole = {0};
    struct line line;
    TRY_DONE(flat_line(&line, subject, param, adapter, part, subject->rules->export_b));
    TRY_DONE(gather_block(subject, param, factor, export->slot, &block));
    TRY_DONE(flat_piece(subject, param, adapter, part, &line, &block, &piece));
    TRY_DONE(assemble(subject, &line, param->name, &piece, &whole));
    TRY_DONE(tensor_convert(out, file_dtype(export, which == FACTOR_A ? &adapter->a : &adapter->b), &whole));
    if (subject->hooks->record) {
        struct point point = POINT_NONE;
        point.phase = PHASE_EXPORT;
        point.step = export->action->step;
        point.tenant = export->tenant->name;
        point.scalar = key;
        TRY_DONE(subject->hooks->record(subject->hooks->context, &point, out));
    }
done:
    tensor_free(&whole);
    tensor_free(&piece);
    tensor_free(&block);
    return status;
}

static enum status export_write(const struct export *export) {
    const struct subject *subject = export->subject;
    char below[96];
    if (!subject->hooks->export_folder || subject->rank != 0)
        return STATUS_OK;
    snprintf(below, sizeof below, "step.%d/%s", export->action->step, export->tenant->name);
    char *folder = path_join(subject->hooks->export_folder, below);
    if (!folder)
        return status_fail(STATUS_MEMORY, "out of memory: a path");
    enum status status =
        adapter_write(&export->tenant->adapter, folder, export->flat[FACTOR_A], export->flat[FACTOR_B]);
    free(folder);
    return status;
}

enum status export_tenant(struct subject *subject, const struct action *action) {
    enum status status = STATUS_OK;
    const struct tenant *tenant = &subject->job->tenant[action->tenant];
    const struct adapter *adapter = &tenant->adapter;
    struct export export = {subject, action, tenant, slots_of(subject, action->tenant), {NULL, NULL}};
    for (int which = 0; which < FACTORS; which++) {
        void *list;
        TRY_DONE(host_zeros(&list, (size_t)adapter->count, sizeof(struct tensor)));
        export.flat[which] = list;
    }
    for (int i = 0; i < adapter->count; i++)
        for (int which = 0; which < FACTORS; which++)
            TRY_DONE(export_factor(&export, &adapter->targets[i], which, &export.flat[which][i]));
    TRY_DONE(export_write(&export));
done:
    for (int which = 0; which < FACTORS; which++) {
        for (int i = 0; export.flat[which] && i < adapter->count; i++)
            tensor_free(&export.flat[which][i]);
        free(export.flat[which]);
    }
    return status;
}
