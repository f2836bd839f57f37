/* Loading: everything is made anew from the pieces of whatever mesh saved them, and swapped in when every rank has
 * succeeded. */
#include "core/files.h"
#include "core/safetensors.h"
#include "sharded/checkpoint.h"
#include "sharded/checkpoint_agree.h"
#include "sharded/checkpoint_index.h"
#include "sharded/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loading {
    struct subject *subject;
    char *folder;
    struct saved_index index;
    struct safetensors *file; /* [index.world] */
    struct saved_list list;
    struct tensor *fresh; /* [list.count] on the device */
};

/* ---- files */

/* Size and checksum are the index's: whole, and of this save. */
static enum status check_file(const char *path, const struct saved_file *want) {
    char *data;
    size_t bytes;
    if (!path_exists(path))
        return status_fail(STATUS_INPUT, "%s: does not exist, expected the shards of a rank", path);
    TRY(file_read(path, &data, &bytes));
    uint64_t checksum = saved_checksum(data, bytes);
    free(data);
    if ((int64_t)bytes != want->bytes)
        return status_fail(STATUS_INPUT, "%s: has %zu bytes, expected the %lld that its index names", path, bytes,
                           (long long)want->bytes);
    if (checksum != want->checksum)
        return status_fail(STATUS_INPUT, "%s: its checksum is not its index's, expected the file of the same save",
                           path);
    return STATUS_OK;
}

static enum status open_files(struct loading *loading) {
    void *files;
    char name[32];
    TRY(host_zeros(&files, (size_t)loading->index.world, sizeof *loading->file));
    loading->file = files;
    for (int rank = 0; rank < loading->index.world; rank++) {
        char *path = path_join(loading->folder, saved_file_name(name, sizeof name, rank));
        enum status status =
            path ? check_file(path, &loading->index.file[rank]) : status_fail(STATUS_MEMORY, "out of memory: a path");
        if (status == STATUS_OK)
            status = safetensors_open(&loading->file[rank], path);
        free(path);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- tensors */

static bool fits(const struct tensor *tensor, enum dtype dtype, const struct shard *shard) {
    if (tensor->dtype != dtype || tensor->ndim != shard->ndim)
        return false;
    return shard->ndim == 0 || memcmp(tensor->shape, shard->shape, (size_t)shard->ndim * sizeof *shard->shape) == 0;
}

/* Places what rank `rank` of the save held of a tensor. */
static enum status place_piece(const struct loading *loading, const struct saved_tensor *tensor,
                               const struct line *line, int rank, struct tensor *whole) {
    const struct safetensors *file = &loading->file[rank];
    const struct safetensors_entry *entry = safetensors_find(file, tensor->name);
    struct shard shard = {0};
    TRY(shard_make(&shard, line, &loading->index.mesh, rank));
    enum status status = STATUS_OK;
    if (!entry || !fits(&entry->tensor, loading->subject->dtype, &shard))
        status = status_fail(STATUS_INPUT, "%s: %s is missing or no shard of it, expected rank %d's piece", file->path,
                             tensor->name, rank);
    else
        shard_place(&shard, dtype_bytes(whole->dtype), entry->tensor.data, whole->data);
    shard_free(&shard);
    return status;
}

static enum status read_whole(const struct loading *loading, const struct saved_tensor *tensor, struct tensor *out) {
    struct line line;
    const struct shard *own = &tensor->place->shard;
    TRY(saved_index_line(&loading->index, tensor, loading->folder, &line));
    TRY(tensor_make(out, loading->subject->dtype, own->ndim, own->global));
    for (int rank = 0; rank < loading->index.world; rank++)
        TRY(place_piece(loading, tensor, &line, rank, out));
    return STATUS_OK;
}

/* The rank whose piece this one takes: itself. */
static int source_rank(const struct subject *subject, const struct saved_tensor *tensor) {
    int axis = mesh_axis(&subject->mesh, "ep"), stride = 1;
    if (!subject->rules->load.state_of_ep_rank_0 || !tensor->state || !tensor->param->expert)
        return subject->rank;
    for (int later = axis + 1; later < subject->mesh.axes; later++)
        stride *= subject->mesh.size[later];
    return subject->rank - mesh_coordinate(&subject->mesh, axis, subject->rank) * stride;
}

static enum status read_shard(const struct loading *loading, const struct saved_tensor *tensor, struct tensor *out) {
    struct subject *subject = loading->subject;
    enum status status = STATUS_OK;
    struct tensor whole = {0}, piece = {0};
    struct shard cut = {0};
    TRY_DONE(read_whole(loading, tensor, &whole));
    TRY_DONE(shard_make(&cut, &tensor->place->placed.line, &subject->mesh, source_rank(subject, tensor)));
    TRY_DONE(tensor_make(&piece, subject->dtype, cut.ndim, cut.shape));
    shard_cut(&cut, dtype_bytes(subject->dtype), whole.data, piece.data);
    TRY_DONE(device_upload(subject->ops, out, &piece));
done:
    shard_free(&cut);
    tensor_free(&piece);
    tensor_free(&whole);
    return status;
}

static enum status read_all(struct loading *loading) {
    struct subject *subject = loading->subject;
    void *fresh;
    TRY(saved_index_read(&loading->index, subject, loading->folder));
    TRY(open_files(loading));
    TRY(saved_list_make(&loading->list, subject, loading->index.tenant, subject->rules->load.slots_reversed));
    if (saved_index_tensors(&loading->index) != loading->list.count)
        return status_fail(STATUS_INPUT, "%s/" CHECKPOINT_INDEX ": has %d tensors, expected %d as in this job",
                           loading->folder, saved_index_tensors(&loading->index), loading->list.count);
    TRY(host_zeros(&fresh, (size_t)loading->list.count, sizeof *loading->fresh));
    loading->fresh = fresh;
    for (int i = 0; i < loading->list.count; i++)
        TRY(read_shard(loading, &loading->list.item[i], &loading->fresh[i]));
    return STATUS_OK;
}

/* ---- the swap: from here on nothing can fail */

static void forget(const struct subject *subject, struct trained *trained) {
    for (int slot = 0; trained->progress && slot < subject->job->slots; slot++) {
        struct progress *progress = &trained->progress[slot];
        device_free(subject->ops, &progress->sum);
        for (int i = 0; i < OPTIMIZER_STATES; i++)
            device_free(subject->ops, &progress->state[i]);
    }
}

/* Sums and states of all slots: those of the checkpoint follow. */
static void forget_all(struct subject *subject) {
    for (int i = 0; i < subject->inventory->count; i++) {
        struct weight *weight = &subject->store.weight[i];
        forget(subject, &weight->trained);
        for (int which = 0; weight->target && which < FACTORS; which++)
            forget(subject, &weight->target->factor[which].trained);
    }
}

static void swap_in(struct loading *loading) {
    struct subject *subject = loading->subject;
    const struct saved_index *index = &loading->index;
    forget_all(subject);
    for (int i = 0; i < loading->list.count; i++) {
        device_free(subject->ops, loading->list.item[i].value);
        *loading->list.item[i].value = loading->fresh[i];
        loading->fresh[i] = (struct tensor){0};
    }
    for (int slot = 0; slot < index->slots; slot++) {
        struct slot *to = &subject->slots.slot[slot];
        device_free(subject->ops, &to->window.loss);
        *to = (struct slot){.tenant = index->tenant[slot],
                            .steps = subject->rules->load.counter_lost ? 0 : index->steps[slot]};
    }
}

static void loading_free(struct loading *loading) {
    for (int i = 0; loading->fresh && i < loading->list.count; i++)
        device_free(loading->subject->ops, &loading->fresh[i]);
    free(loading->fresh);
    for (int rank = 0; loading->file && rank < loading->index.world; rank++)
        safetensors_close(&loading->file[rank]);
    free(loading->file);
    saved_list_free(&loading->list);
    saved_index_free(&loading->index);
    free(loading->folder);
}

static enum status find_folder(struct loading *loading, const char *name) {
    const char *parent = loading->subject->hooks->save_folder;
    if (!parent)
        return status_fail(STATUS_INTERNAL, "checkpoint %s has no folder to stand in", name);
    loading->folder = path_join(parent, name);
    return loading->folder ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory: a path");
}

enum status checkpoint_load(struct subject *subject, int save) {
    struct loading loading = {.subject = subject};
    enum status status;
    TRY_DONE(find_folder(&loading, subject->job->save[save].name));
    TRY_DONE(checkpoint_agree(subject, read_all(&loading), "checkpoint"));
    swap_in(&loading);
done:
    loading_free(&loading);
    return status;
}
