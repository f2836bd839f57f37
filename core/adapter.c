#include "core/adapter.h"

#include "core/files.h"
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

void adapter_free(struct adapter *adapter) {
    for (int i = 0; i < adapter->count; i++) {
        tensor_free(&adapter->targets[i].a);
        tensor_free(&adapter->targets[i].b);
    }
    if (adapter->files)
        safetensors_close(adapter->files);
    free(adapter->files);
    free(adapter->targets);
    free(adapter->config_text);
    free(adapter->path);
    *adapter = (struct adapter){0};
}

const struct adapter_target *adapter_find(const struct adapter *adapter, const struct param *param) {
    for (int i = 0; i < adapter->count; i++)
        if (adapter->targets[i].param == param)
            return &adapter->targets[i];
    return NULL;
}

static enum status check_factors(const struct adapter *adapter, const struct tensor *a, const struct tensor *b) {
    for (int i = 0; i < adapter->count; i++) {
        const struct adapter_target *target = &adapter->targets[i];
        if (!tensor_same_shape(&a[i], &target->a) || !tensor_same_shape(&b[i], &target->b))
            return status_fail(STATUS_INTERNAL, "export of '%s': a factor's shape is not that of the adapter",
                               target->param->name);
    }
    return STATUS_OK;
}

static enum status write_tensors(const struct adapter *adapter, const char *path, const struct tensor *a,
                                 const struct tensor *b) {
    struct safetensors_pair format = {"format", "pt"};
    struct safetensors_item *items = calloc(2 * (size_t)adapter->count + 1, sizeof *items);
    if (!items)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    for (int i = 0; i < adapter->count; i++) {
        items[2 * i] = (struct safetensors_item){adapter->targets[i].key_a, &a[i]};
        items[2 * i + 1] = (struct safetensors_item){adapter->targets[i].key_b, &b[i]};
    }
    enum status status = safetensors_write(path, items, 2 * adapter->count, &format, 1);
    free(items);
    return status;
}

enum status adapter_write(const struct adapter *adapter, const char *folder, const struct tensor *a,
                          const struct tensor *b) {
    TRY(check_factors(adapter, a, b));
    char *config = path_join(folder, "adapter_config.json");
    char *tensors = path_join(folder, "adapter_model.safetensors");
    enum status status = STATUS_OK;
    if (!config || !tensors) {
        status = status_fail(STATUS_MEMORY, "%s: out of memory", folder);
        goto done;
    }
    TRY_DONE(folder_make(folder));
    TRY_DONE(write_tensors(adapter, tensors, a, b));
    TRY_DONE(file_write(config, adapter->config_text, strlen(adapter->config_text)));
done:
    free(tensors);
    free(config);
    return status;
}
