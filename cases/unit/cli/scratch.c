#include "scratch.h"

#include "core/files.h"
#include "core/safetensors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct scratch scratch_make(void) {
    struct scratch out = {0};
    const char *base = getenv("TMPDIR");
    out.folder = path_join(base && *base ? base : "/tmp", "shardproof_cli.XXXXXX");
    cr_assert_not_null(mkdtemp(out.folder), "%s", out.folder);
    out.tmp = path_join(out.folder, "tmp");
    cr_assert_eq(mkdir(out.tmp, 0777), 0);
    out.root = realpath(".", NULL);
    out.tiny = realpath(TINY, NULL);
    cr_assert_not_null(out.tiny, "run from the root of the repository");
    return out;
}

void scratch_free(struct scratch *scratch) {
    DONE(folder_remove(scratch->folder));
    free(scratch->tiny);
    free(scratch->root);
    free(scratch->tmp);
    free(scratch->folder);
}

char *scratch_path(const struct scratch *scratch, const char *name) {
    return path_join(scratch->folder, name);
}

char *scratch_text(const struct scratch *scratch, const char *text) {
    char *out = NULL;
    size_t length;
    FILE *file = open_memstream(&out, &length);
    for (; *text; text++) {
        if (*text == '@')
            fputs(scratch->tiny, file);
        else if (*text == '#')
            fputs(scratch->folder, file);
        else
            fputc(*text, file);
    }
    cr_assert_eq(fclose(file), 0);
    return out;
}

char *scratch_write(const struct scratch *scratch, const char *name, const char *text) {
    char *path = scratch_path(scratch, name), *full = scratch_text(scratch, text);
    DONE(file_write(path, full, strlen(full)));
    free(full);
    return path;
}

void scratch_copy(const struct scratch *scratch, const char *from, const char *name) {
    char *path = scratch_path(scratch, name), *data;
    size_t length;
    DONE(file_read(from, &data, &length));
    DONE(file_write(path, data, length));
    free(data);
    free(path);
}

void scratch_mkdir(const struct scratch *scratch, const char *name) {
    char *path = scratch_path(scratch, name);
    DONE(folder_make(path));
    free(path);
}

int scratch_entries(const char *folder) {
    int count = 0;
    DIR *entries = opendir(folder);
    cr_assert_not_null(entries, "%s", folder);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count - 2; /* . and .. */
}

char *read_text(const char *path) {
    char *text;
    size_t length;
    DONE(file_read(path, &text, &length));
    return text;
}

char *scratch_case(const struct scratch *scratch, const char *name, int line, const char *text) {
    static const char *const lines[] = {
        "case: base",
        "model: @/model",
        "mesh: {ep: 2, fsdp: 2}",
        "tenants: {ada: {adapter: @/adapters/ada}, dov: {adapter: @/adapters/dov}}",
        "optimizer: {name: sgd, lr: 0.1}",
        "batches: @/batches.safetensors",
        "script: [{acquire: [ada, dov]}, {train: {tenant: ada, micro: [0]}}]",
    };
    char all[8192] = "";
    for (int i = 0; i < (int)(sizeof lines / sizeof *lines); i++) {
        strcat(all, i + 1 == line ? text : lines[i]);
        strcat(all, "\n");
    }
    return scratch_write(scratch, name, all);
}

/* ---- tensors */

struct listed_tensor *listed(struct tensor_list *list, const char *name) {
    int at = 0;
    while (at < list->count && strcmp(list->item[at].name, name) != 0)
        at++;
    cr_assert_lt(at, list->count, "the fixture has no tensor %s", name);
    return &list->item[at];
}

void list_rename(struct listed_tensor *item, const char *name) {
    free(item->name);
    item->name = strdup(name);
}

void list_drop(struct tensor_list *list, const char *name) {
    struct listed_tensor *item = listed(list, name);
    free(item->name);
    tensor_free(&item->tensor);
    *item = list->item[--list->count];
}

void list_add(struct tensor_list *list, const char *name, enum dtype dtype, int64_t elements) {
    cr_assert_lt(list->count, list->room);
    struct listed_tensor *item = &list->item[list->count++];
    item->name = strdup(name);
    DONE(tensor_make(&item->tensor, dtype, 1, &elements));
    memset(item->tensor.data, 0, tensor_bytes(&item->tensor));
}

static void list_read(struct tensor_list *list, const char *path) {
    struct safetensors file = {0};
    DONE(safetensors_open(&file, path));
    list->room = file.count + 4;
    list->item = calloc((size_t)list->room, sizeof *list->item);
    for (; list->count < file.count; list->count++) {
        const struct safetensors_entry *entry = &file.entries[list->count];
        struct listed_tensor *item = &list->item[list->count];
        item->name = strdup(entry->name);
        DONE(tensor_make(&item->tensor, entry->tensor.dtype, entry->ndim, entry->tensor.shape));
        memcpy(item->tensor.data, entry->tensor.data, tensor_bytes(&item->tensor));
    }
    safetensors_close(&file);
}

char *scratch_tensors(const struct scratch *scratch, const char *from, const char *name,
                      void (*change)(struct tensor_list *list)) {
    struct tensor_list list = {0};
    struct safetensors_pair format = {"format", "pt"};
    char *path = scratch_path(scratch, name);
    list_read(&list, from);
    if (change)
        change(&list);
    struct safetensors_item *items = calloc((size_t)list.count + 1, sizeof *items);
    for (int i = 0; i < list.count; i++)
        items[i] = (struct safetensors_item){list.item[i].name, &list.item[i].tensor};
    DONE(safetensors_write(path, items, list.count, &format, 1));
    for (int i = 0; i < list.count; i++) {
        free(list.item[i].name);
        tensor_free(&list.item[i].tensor);
    }
    free(list.item);
    free(items);
    return path;
}
