#include "harness/trace.h"

#include "core/files.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status trace_write_rank(const char *path, const struct trace_rank *rank, const struct safetensors_pair *metadata,
                             int pairs) {
    struct safetensors_item *items = malloc(((size_t)rank->count + 1) * sizeof *items);
    if (items == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory for %d records", path, rank->count);
    for (int i = 0; i < rank->count; i++)
        items[i] = (struct safetensors_item){.name = rank->record[i].name, .tensor = &rank->record[i].tensor};
    enum status status = safetensors_write(path, items, rank->count, metadata, pairs);
    free(items);
    return status;
}

static enum status add_entry(struct trace *trace, int rank, const struct safetensors *file,
                             const struct safetensors_entry *entry) {
    if (entry->tensor.ndim < 0)
        return status_fail(STATUS_INPUT, "%s: %s has %d dims, expected at most %d", file->path, entry->name,
                           entry->ndim, TENSOR_MAX_DIMS);
    if (strlen(entry->name) != entry->name_length)
        return status_fail(STATUS_INPUT, "%s: the tensor name %s holds a NUL byte, expected text", file->path,
                           entry->name);
    return trace_add(trace, rank, entry->name, &entry->tensor);
}

/* The names of the metadata's `layout` object stand in the order in which they were recorded. */
static enum status add_in_layout_order(struct trace *trace, int rank, const struct safetensors *file) {
    const char *text = safetensors_metadata(file, "layout");
    if (text == NULL)
        return STATUS_OK;
    json_error_t error;
    json_t *layout = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(layout)) {
        json_decref(layout);
        return status_fail(STATUS_INPUT, "%s: metadata `layout` is not a JSON object: %s", file->path, error.text);
    }
    enum status status = STATUS_OK;
    const char *name;
    json_t *line;
    json_object_foreach(layout, name, line) {
        const struct safetensors_entry *entry = safetensors_find(file, name);
        if (entry != NULL)
            TRY_DONE(add_entry(trace, rank, file, entry));
    }
done:
    json_decref(layout);
    return status;
}

static enum status open_rank(struct trace *trace, int rank, const char *folder) {
    char name[32];
    snprintf(name, sizeof name, "rank%05d.safetensors", rank);
    char *path = path_join(folder, name);
    if (path == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory", folder);
    struct safetensors *file = &trace->files[rank];
    enum status status = safetensors_open(file, path);
    free(path);
    TRY(status);
    TRY(add_in_layout_order(trace, rank, file));
    for (int i = 0; i < file->count; i++)
        if (trace_find(trace, rank, file->entries[i].name) == NULL)
            TRY(add_entry(trace, rank, file, &file->entries[i]));
    return STATUS_OK;
}

enum status trace_open(struct trace *out, const char *folder, int ranks) {
    enum status status;
    TRY(trace_make(out, ranks));
    out->files = calloc((size_t)ranks, sizeof *out->files);
    if (out->files == NULL) {
        status = status_fail(STATUS_MEMORY, "%s: out of memory for %d rank files", folder, ranks);
        goto done;
    }
    for (int r = 0; r < ranks; r++)
        TRY_DONE(open_rank(out, r, folder));
    return STATUS_OK;
done:
    trace_free(out);
    return status;
}
