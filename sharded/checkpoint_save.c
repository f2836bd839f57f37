/* Saving: every rank's file into a folder of another name, the index last, then one rename. */
#include "core/files.h"
#include "core/safetensors.h"
#include "sharded/checkpoint.h"
#include "sharded/checkpoint_agree.h"
#include "sharded/checkpoint_index.h"
#include "sharded/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct saving {
    struct subject *subject;
    char *folder, *temporary; /* where it will stand, and where it is made */
    struct saved_list list;
    struct saved_index index;
};

static enum status paths_make(struct saving *saving, const char *name) {
    const char *parent = saving->subject->hooks->save_folder;
    if (!parent)
        return status_fail(STATUS_INTERNAL, "checkpoint %s has no folder to stand in", name);
    saving->folder = path_join(parent, name);
    if (saving->folder && asprintf(&saving->temporary, "%s.tmp", saving->folder) < 0)
        saving->temporary = NULL;
    return saving->temporary ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory: a path");
}

static enum status begin(struct saving *saving) {
    if (saving->subject->rank != 0)
        return STATUS_OK;
    TRY(folder_remove(saving->temporary)); /* of a save that died */
    return folder_make(saving->temporary);
}

/* ---- one rank's file */

static enum status write_file(const struct saving *saving, const char *path, struct tensor *host) {
    const struct subject *subject = saving->subject;
    const struct saved_list *list = &saving->list;
    enum status status = STATUS_OK;
    char rank[16];
    void *items = NULL;
    struct safetensors_pair metadata[] = {{(char *)(uintptr_t) "schema", (char *)(uintptr_t)CHECKPOINT_SCHEMA},
                                          {(char *)(uintptr_t) "rank", rank}};
    snprintf(rank, sizeof rank, "%d", subject->rank);
    TRY_DONE(host_zeros(&items, (size_t)list->count, sizeof(struct safetensors_item)));
    for (int i = 0; i < list->count; i++) {
        TRY_DONE(device_download(subject->ops, &host[i], list->item[i].value));
        ((struct safetensors_item *)items)[i] = (struct safetensors_item){list->item[i].name, &host[i]};
    }
    TRY_DONE(safetensors_write(path, items, list->count, metadata, 2));
done:
    free(items);
    return status;
}

static enum status measure(const char *path, struct saved_file *out) {
    char *data;
    size_t bytes;
    TRY(file_read(path, &data, &bytes));
    *out = (struct saved_file){(int64_t)bytes, saved_checksum(data, bytes)};
    free(data);
    return STATUS_OK;
}

static enum status write_shards(struct saving *saving) {
    const struct subject *subject = saving->subject;
    enum status status = STATUS_OK;
    char name[32];
    void *host = NULL;
    char *path = path_join(saving->temporary, saved_file_name(name, sizeof name, subject->rank));
    TRY_DONE(path ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory: a path"));
    TRY_DONE(host_zeros(&host, (size_t)saving->list.count, sizeof(struct tensor)));
    TRY_DONE(write_file(saving, path, host));
    TRY_DONE(measure(path, &saving->index.file[subject->rank]));
done:
    for (int i = 0; host && i < saving->list.count; i++)
        tensor_free(&((struct tensor *)host)[i]);
    free(host);
    free(path);
    return status;
}

/* ---- the whole */

/* Every rank's size and checksum. */
static enum status gather_files(struct saving *saving) {
    struct subject *subject = saving->subject;
    enum status status = STATUS_OK;
    const struct comm_call call = {COMM_SITE, "checkpoint files", DTYPE_I64};
    const int64_t two = 2, all = two * subject->world;
    const struct saved_file *mine = &saving->index.file[subject->rank];
    int64_t pair[2] = {mine->bytes, (int64_t)mine->checksum};
    struct tensor host = tensor_view(DTYPE_I64, 1, &two, pair), send = {0}, receive = {0}, pairs = {0};
    struct comm_group *world;
    TRY_DONE(groups_get(subject, (1u << subject->mesh.axes) - 1, &world));
    TRY_DONE(device_upload(subject->ops, &send, &host));
    TRY_DONE(device_make(subject->ops, &receive, DTYPE_I64, 1, &all));
    TRY_DONE(comm_all_gather(subject->comm, world, &call, send.data, receive.data, two));
    TRY_DONE(device_download(subject->ops, &pairs, &receive));
    for (int rank = 0; rank < subject->world; rank++) {
        const int64_t *of = (const int64_t *)pairs.data + 2 * rank;
        saving->index.file[rank] = (struct saved_file){of[0], (uint64_t)of[1]};
    }
done:
    tensor_free(&pairs);
    device_free(subject->ops, &receive);
    device_free(subject->ops, &send);
    return status;
}

/* A folder that stands there is exchanged, never absent. */
static enum status rename_into_place(const struct saving *saving) {
    if (rename(saving->temporary, saving->folder) == 0)
        return STATUS_OK;
    if ((errno == ENOTEMPTY || errno == EEXIST) &&
        renameat2(AT_FDCWD, saving->temporary, AT_FDCWD, saving->folder, RENAME_EXCHANGE) == 0)
        return folder_remove(saving->temporary);
    return status_fail(STATUS_IO, "%s: cannot be put in its place: %s", saving->folder, strerror(errno));
}

static enum status finish(struct saving *saving) {
    if (saving->subject->rank != 0)
        return STATUS_OK;
    TRY(saved_index_write(&saving->index, saving->subject, &saving->list, saving->temporary));
    return rename_into_place(saving);
}

static enum status save_all(struct saving *saving, const char *name) {
    struct subject *subject = saving->subject;
    TRY(paths_make(saving, name));
    TRY(saved_index_of(&saving->index, subject));
    TRY(saved_list_make(&saving->list, subject, saving->index.tenant, false));
    TRY(checkpoint_agree(subject, begin(saving), "checkpoint folder"));
    TRY(checkpoint_agree(subject, write_shards(saving), "checkpoint shards"));
    TRY(gather_files(saving));
    return checkpoint_agree(subject, finish(saving), "checkpoint index");
}

enum status checkpoint_save(struct subject *subject, int save) {
    struct saving saving = {.subject = subject};
    enum status status = save_all(&saving, subject->job->save[save].name);
    saved_list_free(&saving.list);
    saved_index_free(&saving.index);
    free(saving.temporary);
    free(saving.folder);
    return status;
}
