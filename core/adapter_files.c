#include "core/adapter.h"

#include "core/adapter_config.h"
#include "core/files.h"
#include "core/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "base_model.model."

static bool is_key(const struct safetensors_entry *entry, const char *key) {
    return strlen(key) == entry->name_length && memcmp(key, entry->name, entry->name_length) == 0;
}

static bool belongs(const struct adapter *adapter, const struct safetensors_entry *entry) {
    for (int i = 0; i < adapter->count; i++)
        if (is_key(entry, adapter->targets[i].key_a) || is_key(entry, adapter->targets[i].key_b))
            return true;
    return false;
}

static enum status check_foreign(const struct adapter *adapter, const struct safetensors *file, const char *hint) {
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        if (belongs(adapter, entry))
            continue;
        bool twice = strncmp(entry->name, PREFIX PREFIX, strlen(PREFIX PREFIX)) == 0;
        return status_fail(STATUS_INPUT, "%s: tensor '%s' belongs to no target, expected keys such as '%s'%s%s",
                           file->path, entry->name, adapter->targets[0].key_a,
                           twice ? " (the prefix '" PREFIX "' stands twice)" : "", hint);
    }
    return STATUS_OK;
}

/* The view of one factor: [rows, columns], what the target asks for; `rank_axis` is its dim of size experts * r. */
static enum status take_factor(struct tensor *out, const struct safetensors *file, const struct adapter_target *target,
                               const char *key, const int64_t shape[2], const char *hint) {
    char got[192], want[64];
    const struct safetensors_entry *entry = safetensors_find(file, key);
    if (!entry)
        return status_fail(STATUS_INPUT, "%s: no tensor '%s', expected by the target '%s'%s", file->path, key,
                           target->param->name, hint);
    enum dtype dtype = entry->tensor.dtype;
    if (dtype != DTYPE_F64 && dtype != DTYPE_F32 && dtype != DTYPE_BF16)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has type %s, expected F64, F32 or BF16", file->path, key,
                           dtype_name(dtype));
    if (entry->ndim != 2)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has %d dims, expected shape %s", file->path, key, entry->ndim,
                           shape_text(want, sizeof want, 2, shape));
    if (memcmp(entry->tensor.shape, shape, 2 * sizeof *shape) != 0)
        return status_fail(STATUS_INPUT,
                           "%s: tensor '%s' has shape %s, expected %s (experts %" PRId64 ", r %" PRId64 ", in %" PRId64
                           ", out %" PRId64 ")",
                           file->path, key, shape_text(got, sizeof got, 2, entry->tensor.shape),
                           shape_text(want, sizeof want, 2, shape), target->experts, target->lora_rank, target->in,
                           target->out);
    *out = tensor_view(dtype, 2, shape, entry->tensor.data);
    return STATUS_OK;
}

static enum status open_tensors(struct adapter *out, const char *path, const char *hint) {
    struct safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    out->files = file;
    TRY(safetensors_open(file, path));
    TRY(check_foreign(out, file, hint));
    for (int i = 0; i < out->count; i++) {
        struct adapter_target *target = &out->targets[i];
        int64_t wide = target->experts * target->lora_rank;
        TRY(take_factor(&target->a, file, target, target->key_a, (const int64_t[]){wide, target->in}, hint));
        TRY(take_factor(&target->b, file, target, target->key_b, (const int64_t[]){target->out, wide}, hint));
    }
    return STATUS_OK;
}

/* The path of a file that must be in the folder; NULL with a failure noted if it is not. */
static char *path_of(const char *folder, const char *name, enum status *status) {
    char *path = path_join(folder, name);
    *status = STATUS_OK;
    if (!path)
        *status = status_fail(STATUS_MEMORY, "%s: out of memory", folder);
    else if (!path_is_folder(folder))
        *status = status_fail(STATUS_INPUT, "%s: no such folder, expected a PEFT adapter", folder);
    else if (!path_exists(path))
        *status = status_fail(STATUS_INPUT, "%s: no %s, expected a PEFT adapter", folder, name);
    if (*status == STATUS_OK)
        return path;
    free(path);
    return NULL;
}

static enum status open_files(struct adapter *out, const char *folder, const struct inventory *inventory) {
    struct adapter_config config = {0};
    char hint[ADAPTER_HINT_MAX];
    char *tensors = NULL;
    enum status status;
    char *path = path_of(folder, "adapter_config.json", &status);
    if (status == STATUS_OK)
        tensors = path_of(folder, "adapter_model.safetensors", &status);
    TRY_DONE(status);
    TRY_DONE(adapter_config_open(&config, path));
    TRY_DONE(adapter_match(out, &config.settings, inventory));
    TRY_DONE(open_tensors(out, tensors, adapter_rewrite_hint(hint, &config.settings, inventory)));
    out->config_text = config.text;
    config.text = NULL;
done:
    adapter_config_free(&config);
    free(tensors);
    free(path);
    return status;
}

enum status adapter_open(struct adapter *out, const char *folder, const struct inventory *inventory) {
    *out = (struct adapter){.path = strdup(folder)};
    if (!out->path)
        return status_fail(STATUS_MEMORY, "%s: out of memory", folder);
    enum status status = open_files(out, folder, inventory);
    if (status != STATUS_OK)
        adapter_free(out);
    return status;
}
