#include "core/checkpoint.h"

#include "core/checkpoint_files.h"
#include "core/checkpoint_made.h"
#include "core/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct checkpoint {
    char *path; /* the folder, or "" */
    struct model_config config;
    struct inventory inventory;
    struct checkpoint_files *files; /* NULL: made */
    char *where;                    /* made: FILE:LINE of its configuration */
    uint64_t seed;
    enum data_kind data;
};

static enum status new_checkpoint(struct checkpoint **out, const char *path) {
    *out = calloc(1, sizeof **out);
    if (*out)
        (*out)->path = strdup(path);
    if (*out && (*out)->path)
        return STATUS_OK;
    free(*out);
    *out = NULL;
    return status_fail(STATUS_MEMORY, "%s: out of memory", path);
}

static enum status open_folder(struct checkpoint *checkpoint) {
    const char *folder = checkpoint->path;
    if (!path_is_folder(folder))
        return status_fail(STATUS_INPUT, "%s: no such folder, expected a Hugging Face model", folder);
    char *path = path_join(folder, "config.json");
    if (!path)
        return status_fail(STATUS_MEMORY, "%s: out of memory", folder);
    enum status status = STATUS_OK;
    if (!path_exists(path)) {
        status = status_fail(STATUS_INPUT, "%s: no config.json, expected a Hugging Face model", folder);
        goto done;
    }
    TRY_DONE(config_open(&checkpoint->config, path));
    TRY_DONE(inventory_make(&checkpoint->inventory, &checkpoint->config));
    TRY_DONE(checkpoint_files_open(&checkpoint->files, folder, &checkpoint->inventory));
done:
    free(path);
    return status;
}

enum status checkpoint_open(struct checkpoint **out, const char *folder) {
    TRY(new_checkpoint(out, folder));
    enum status status = open_folder(*out);
    if (status != STATUS_OK) {
        checkpoint_close(*out);
        *out = NULL;
    }
    return status;
}

enum status checkpoint_make(struct checkpoint **out, const struct yaml *yaml, const struct yaml_node *map,
                            uint64_t seed, enum data_kind data) {
    TRY(new_checkpoint(out, ""));
    struct checkpoint *checkpoint = *out;
    enum status status;
    checkpoint->seed = seed;
    checkpoint->data = data;
    TRY_DONE(config_read(&checkpoint->config, yaml, map));
    TRY_DONE(inventory_make(&checkpoint->inventory, &checkpoint->config));
    if (asprintf(&checkpoint->where, "%s:%d", yaml->path, map->line) < 0) {
        checkpoint->where = NULL;
        status = status_fail(STATUS_MEMORY, "%s: out of memory", yaml->path);
    }
done:
    if (status != STATUS_OK) {
        checkpoint_close(checkpoint);
        *out = NULL;
    }
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    checkpoint_files_close(checkpoint->files);
    inventory_free(&checkpoint->inventory);
    config_free(&checkpoint->config);
    free(checkpoint->where);
    free(checkpoint->path);
    free(checkpoint);
}

const struct model_config *checkpoint_config(const struct checkpoint *checkpoint) {
    return &checkpoint->config;
}

const struct inventory *checkpoint_inventory(const struct checkpoint *checkpoint) {
    return &checkpoint->inventory;
}

const char *checkpoint_path(const struct checkpoint *checkpoint) {
    return checkpoint->path;
}

enum status checkpoint_read(const struct checkpoint *checkpoint, const struct param *param, enum dtype dtype,
                            struct tensor *out) {
    *out = (struct tensor){0};
    if (param->alias >= 0)
        param = &checkpoint->inventory.params[param->alias];
    if (checkpoint->files)
        return checkpoint_files_read(checkpoint->files, param, dtype, out);
    return checkpoint_made_read(&checkpoint->config, param, checkpoint->seed, checkpoint->data, dtype,
                                checkpoint->where, out);
}
