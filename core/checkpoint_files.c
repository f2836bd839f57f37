#include "core/checkpoint_files.h"

#include "core/files.h"
#include "core/safetensors.h"
#include "core/yaml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct placed_name { /* an entry of weight_map */
    char *name;
    int file;
    int line;
};

struct checkpoint_files {
    char *path; /* model.safetensors or the index, for messages */
    int count;
    struct safetensors *file;
    int names; /* 0: one file, no index */
    struct placed_name *name;
};

/* The expert's own 2-D tensors behind a packed parameter, one under the other in its rows. */
struct expert_part {
    const char *leaf;
    int64_t rows;
};

#define EXPERT_NAME_MAX (PARAM_NAME_MAX + 64)

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct placed_name *)a)->name, ((const struct placed_name *)b)->name);
}

static int expert_parts(const struct param *param, struct expert_part parts[2]) {
    if (param->kind == PARAM_DOWN) {
        parts[0] = (struct expert_part){"down_proj", param->shape[1]};
        return 1;
    }
    parts[0] = (struct expert_part){"gate_proj", param->shape[1] / 2};
    parts[1] = (struct expert_part){"up_proj", param->shape[1] / 2};
    return 2;
}

static void expert_name(char out[EXPERT_NAME_MAX], const struct param *param, int64_t expert, const char *leaf) {
    snprintf(out, EXPERT_NAME_MAX, "%s.%" PRId64 ".%s.weight", param->module, expert, leaf);
}

/* NULL in `entry` where no file has the tensor; a name that the index places in a file without it is a failure. */
static enum status find_tensor(const struct checkpoint_files *files, const char *name, const struct safetensors **file,
                               const struct safetensors_entry **entry) {
    *entry = NULL;
    *file = files->file;
    const struct placed_name *placed = NULL;
    if (files->names > 0) {
        const struct placed_name key = {.name = (char *)name};
        placed = bsearch(&key, files->name, (size_t)files->names, sizeof key, compare_names);
        if (!placed)
            return STATUS_OK;
        *file = &files->file[placed->file];
    }
    *entry = safetensors_find(*file, name);
    if (placed && !*entry)
        return status_fail(STATUS_INPUT, "%s: no tensor '%s', expected by %s:%d", (*file)->path, name, files->path,
                           placed->line);
    return STATUS_OK;
}

static bool is_float(enum dtype dtype) {
    return dtype == DTYPE_F64 || dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static enum status check_tensor(const struct safetensors *file, const struct safetensors_entry *entry, int ndim,
                                const int64_t *shape) {
    char got[192], want[192];
    const struct tensor *tensor = &entry->tensor;
    if (!is_float(tensor->dtype))
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has type %s, expected F64, F32, BF16 or F16", file->path,
                           entry->name, dtype_name(tensor->dtype));
    if (entry->ndim == ndim && memcmp(tensor->shape, shape, (size_t)ndim * sizeof *shape) == 0)
        return STATUS_OK;
    shape_text(want, sizeof want, ndim, shape);
    if (entry->ndim > TENSOR_MAX_DIMS)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has %d dims, expected shape %s", file->path, entry->name,
                           entry->ndim, want);
    return status_fail(STATUS_INPUT, "%s: tensor '%s' has shape %s, expected %s", file->path, entry->name,
                       shape_text(got, sizeof got, tensor->ndim, tensor->shape), want);
}

static enum status check_experts(const struct checkpoint_files *files, const struct param *param) {
    struct expert_part parts[2];
    int count = expert_parts(param, parts);
    for (int64_t expert = 0; expert < param->shape[0]; expert++)
        for (int i = 0; i < count; i++) {
            char name[EXPERT_NAME_MAX];
            const struct safetensors *file;
            const struct safetensors_entry *entry;
            expert_name(name, param, expert, parts[i].leaf);
            TRY(find_tensor(files, name, &file, &entry));
            if (!entry && expert == 0 && i == 0)
                return status_fail(STATUS_INPUT, "%s: no tensor '%s' and no '%s', expected one of them", files->path,
                                   param->name, name);
            if (!entry)
                return status_fail(STATUS_INPUT, "%s: no tensor '%s', expected %" PRId64 " experts", files->path, name,
                                   param->shape[0]);
            TRY(check_tensor(file, entry, 2, (const int64_t[]){parts[i].rows, param->shape[2]}));
        }
    return STATUS_OK;
}

/* A packed parameter must not lie one by one as well: which of them counts would be a guess. */
static enum status check_not_both(const struct checkpoint_files *files, const struct param *param) {
    struct expert_part parts[2];
    char name[EXPERT_NAME_MAX];
    const struct safetensors *file;
    const struct safetensors_entry *entry;
    expert_parts(param, parts);
    expert_name(name, param, 0, parts[0].leaf);
    TRY(find_tensor(files, name, &file, &entry));
    if (entry)
        return status_fail(STATUS_INPUT, "%s: holds both '%s' and '%s', expected one of them", files->path, param->name,
                           name);
    return STATUS_OK;
}

static enum status check_param(const struct checkpoint_files *files, const struct param *param) {
    const struct safetensors *file;
    const struct safetensors_entry *entry;
    if (param->alias >= 0)
        return STATUS_OK;
    TRY(find_tensor(files, param->name, &file, &entry));
    if (!entry && param->expert)
        return check_experts(files, param);
    if (!entry)
        return status_fail(STATUS_INPUT, "%s: no tensor '%s', expected by the model's config.json", files->path,
                           param->name);
    if (param->expert)
        TRY(check_not_both(files, param));
    return check_tensor(file, entry, param->ndim, param->shape);
}

static enum status out_of_memory(const char *path) {
    return status_fail(STATUS_MEMORY, "%s: out of memory", path);
}

/* The file of a weight_map entry: its place among the files, opened if it is new. */
static enum status place_file(struct checkpoint_files *files, const char *folder, const struct yaml *yaml,
                              const struct yaml_node *node, int *out) {
    const char *name;
    TRY(yaml_string(yaml, node, &name));
    if (name[0] == '\0' || strchr(name, '/') || strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
        return yaml_fail(yaml, node, "weight_map names '%s', expected a file inside the folder", name);
    char *path = path_join(folder, name);
    if (!path)
        return out_of_memory(yaml->path);
    enum status status = STATUS_OK;
    for (*out = 0; *out < files->count; ++*out)
        if (strcmp(files->file[*out].path, path) == 0)
            goto done;
    struct safetensors *grown = realloc(files->file, (size_t)(files->count + 1) * sizeof *grown);
    if (!grown) {
        status = out_of_memory(yaml->path);
        goto done;
    }
    files->file = grown;
    if (!path_exists(path)) {
        status = yaml_fail(yaml, node, "weight_map names '%s', expected a file of the folder", name);
        goto done;
    }
    TRY_DONE(safetensors_open(&grown[files->count], path));
    files->count++;
done:
    free(path);
    return status;
}

static enum status read_weight_map(struct checkpoint_files *files, const char *folder, const struct yaml *yaml) {
    TRY(yaml_expect(yaml, yaml->root, YAML_MAP, "an index of weights"));
    const struct yaml_node *map = yaml_get(yaml->root, "weight_map");
    if (!map)
        return yaml_fail(yaml, yaml->root, "no key 'weight_map', expected a map from tensor to file");
    TRY(yaml_expect(yaml, map, YAML_MAP, "weight_map"));
    if (map->count == 0)
        return yaml_fail(yaml, map, "weight_map is empty, expected a map from tensor to file");
    files->name = calloc((size_t)map->count, sizeof *files->name);
    if (!files->name)
        return out_of_memory(yaml->path);
    for (int i = 0; i < map->count; i++) {
        struct placed_name *placed = &files->name[i];
        TRY(place_file(files, folder, yaml, map->items[i], &placed->file));
        placed->line = map->key_lines[i];
        placed->name = strdup(map->keys[i]);
        if (!placed->name)
            return out_of_memory(yaml->path);
        files->names = i + 1;
    }
    qsort(files->name, (size_t)files->names, sizeof *files->name, compare_names);
    return STATUS_OK;
}

static enum status open_index(struct checkpoint_files *files, const char *folder) {
    struct yaml yaml = {0};
    enum status status;
    TRY_DONE(yaml_open(&yaml, files->path));
    TRY_DONE(read_weight_map(files, folder, &yaml));
done:
    yaml_close(&yaml);
    return status;
}

static enum status open_single(struct checkpoint_files *files) {
    files->file = calloc(1, sizeof *files->file);
    if (!files->file)
        return out_of_memory(files->path);
    TRY(safetensors_open(files->file, files->path));
    files->count = 1;
    return STATUS_OK;
}

/* One file goes before an index, as in transformers. */
static enum status open_folder(struct checkpoint_files *files, const char *folder, const struct inventory *inventory) {
    files->path = path_join(folder, "model.safetensors");
    if (!files->path)
        return out_of_memory(folder);
    if (path_exists(files->path)) {
        TRY(open_single(files));
    } else {
        free(files->path);
        files->path = path_join(folder, "model.safetensors.index.json");
        if (!files->path)
            return out_of_memory(folder);
        if (!path_exists(files->path))
            return status_fail(STATUS_INPUT,
                               "%s: no weights, expected model.safetensors or model.safetensors.index.json", folder);
        TRY(open_index(files, folder));
    }
    for (int i = 0; i < inventory->count; i++)
        TRY(check_param(files, &inventory->params[i]));
    return STATUS_OK;
}

enum status checkpoint_files_open(struct checkpoint_files **out, const char *folder,
                                  const struct inventory *inventory) {
    *out = NULL;
    struct checkpoint_files *files = calloc(1, sizeof *files);
    if (!files)
        return out_of_memory(folder);
    enum status status = open_folder(files, folder, inventory);
    if (status == STATUS_OK)
        *out = files;
    else
        checkpoint_files_close(files);
    return status;
}

void checkpoint_files_close(struct checkpoint_files *files) {
    if (!files)
        return;
    for (int i = 0; i < files->count; i++)
        safetensors_close(&files->file[i]);
    for (int i = 0; i < files->names; i++)
        free(files->name[i].name);
    free(files->file);
    free(files->name);
    free(files->path);
    free(files);
}

/* Row-major [E, rows, in]: the parts of expert 0, of expert 1, ... lie one behind the other. */
static enum status read_experts(const struct checkpoint_files *files, const struct param *param, enum dtype dtype,
                                struct tensor *out) {
    struct expert_part parts[2];
    int count = expert_parts(param, parts);
    char *to = out->data;
    for (int64_t expert = 0; expert < param->shape[0]; expert++)
        for (int i = 0; i < count; i++) {
            char name[EXPERT_NAME_MAX];
            const struct safetensors *file;
            const struct safetensors_entry *entry;
            struct tensor part;
            expert_name(name, param, expert, parts[i].leaf);
            TRY(find_tensor(files, name, &file, &entry));
            TRY(tensor_convert(&part, dtype, &entry->tensor));
            memcpy(to, part.data, tensor_bytes(&part));
            to += tensor_bytes(&part);
            tensor_free(&part);
        }
    return STATUS_OK;
}

enum status checkpoint_files_read(const struct checkpoint_files *files, const struct param *param, enum dtype dtype,
                                  struct tensor *out) {
    const struct safetensors *file;
    const struct safetensors_entry *entry;
    TRY(find_tensor(files, param->name, &file, &entry));
    if (entry)
        return tensor_convert(out, dtype, &entry->tensor);
    TRY(tensor_make(out, dtype, param->ndim, param->shape));
    enum status status = read_experts(files, param, dtype, out);
    if (status != STATUS_OK)
        tensor_free(out);
    return status;
}
