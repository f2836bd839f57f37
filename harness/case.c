/* One case: its schema, read in the order in which one thing needs another. */
#include "harness/case_private.h"

#include "core/files.h"
#include "harness/case_flat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORLD_MAX 1024

/* ---- small readers */

const struct yaml_node *case_field(const struct case_reader *reader, const char *key) {
    for (int i = 0; i < reader->variant.keys; i++)
        if (strcmp(reader->variant.key[i], key) == 0)
            return reader->variant.value[i];
    return yaml_get(reader->root, key);
}

enum status case_copy(const char *text, char **out) {
    *out = strdup(text);
    return *out ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory while a case was read");
}

enum status case_path(const struct case_reader *reader, const struct yaml_node *node, char **out) {
    const char *text;
    TRY(yaml_string(reader->yaml, node, &text));
    *out = path_join(reader->folder, text);
    if (!*out)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    if (!path_exists(*out)) {
        enum status status =
            yaml_fail(reader->yaml, node, "'%s' does not exist, expected a file or folder (looked for %s)", text, *out);
        free(*out);
        *out = NULL;
        return status;
    }
    return STATUS_OK;
}

/* ---- the shelf: checkpoints by folder, shared by the cases of a list */

struct model_shelf {
    int count, room;
    char **path;
    struct checkpoint **model;
};

enum status case_shelf_make(struct model_shelf **out) {
    *out = calloc(1, sizeof **out);
    return *out ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory while cases were read");
}

void case_shelf_free(struct model_shelf *shelf) {
    if (!shelf)
        return;
    for (int i = 0; i < shelf->count; i++) {
        free(shelf->path[i]);
        checkpoint_close(shelf->model[i]);
    }
    free(shelf->path);
    free(shelf->model);
    free(shelf);
}

/* Takes over `path` (NULL for a model made here) and `model`. */
static enum status shelf_add(struct model_shelf *shelf, char *path, struct checkpoint *model) {
    if (shelf->count == shelf->room) {
        int room = shelf->room ? 2 * shelf->room : 16;
        char **paths = realloc(shelf->path, (size_t)room * sizeof *paths);
        if (paths)
            shelf->path = paths;
        struct checkpoint **models = paths ? realloc(shelf->model, (size_t)room * sizeof *models) : NULL;
        if (!models) {
            free(path);
            checkpoint_close(model);
            return status_fail(STATUS_MEMORY, "out of memory while cases were read");
        }
        shelf->model = models;
        shelf->room = room;
    }
    shelf->path[shelf->count] = path;
    shelf->model[shelf->count++] = model;
    return STATUS_OK;
}

static enum status model_from_folder(struct case_reader *reader, const struct yaml_node *node) {
    char *path = NULL;
    TRY(case_path(reader, node, &path));
    for (int i = 0; i < reader->shelf->count; i++) {
        if (reader->shelf->path[i] && strcmp(reader->shelf->path[i], path) == 0) {
            free(path);
            reader->one->job.model = reader->shelf->model[i];
            return STATUS_OK;
        }
    }
    struct checkpoint *model = NULL;
    enum status status = checkpoint_open(&model, path);
    if (status != STATUS_OK) {
        free(path);
        return status;
    }
    reader->one->job.model = model;
    return shelf_add(reader->shelf, path, model);
}

/* `data: index | random`, the same words in models, tenants and batches. */
enum status case_read_data(const struct case_reader *reader, const struct yaml_node *map, enum data_kind *out) {
    const struct yaml_node *node = yaml_get(map, "data");
    const char *text;
    *out = DATA_RANDOM;
    if (!node)
        return STATUS_OK;
    TRY(yaml_string(reader->yaml, node, &text));
    if (strcmp(text, "index") == 0)
        *out = DATA_INDEX;
    else if (strcmp(text, "random") != 0)
        return yaml_fail(reader->yaml, node, "data '%s' is unknown, expected random or index", text);
    return STATUS_OK;
}

enum status case_read_seed(const struct case_reader *reader, const struct yaml_node *map, uint64_t *out) {
    const struct yaml_node *node = yaml_get(map, "seed");
    int64_t seed = 0;
    if (node)
        TRY(yaml_integer(reader->yaml, node, 0, INT64_MAX, &seed));
    *out = (uint64_t)seed;
    return STATUS_OK;
}

enum status case_check_index(const struct case_reader *reader, const struct yaml_node *node, enum data_kind data,
                             const char *tensor, int64_t elements) {
    if (data != DATA_INDEX || reader->one->job.dtype != DTYPE_BF16 || elements < 1 << 8)
        return STATUS_OK;
    return yaml_fail(reader->yaml, node,
                     "index data for '%s' is not exact in bfloat16: %lld elements, expected less than 2^8", tensor,
                     (long long)elements);
}

static enum status check_index_model(const struct case_reader *reader, const struct yaml_node *map,
                                     const struct checkpoint *model, enum data_kind data) {
    const struct inventory *inventory = checkpoint_inventory(model);
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        const struct tensor shape = tensor_view(DTYPE_BF16, param->ndim, param->shape, NULL);
        TRY(case_check_index(reader, map, data, param->name, tensor_elements(&shape)));
    }
    return STATUS_OK;
}

static enum status model_made(struct case_reader *reader, const struct yaml_node *map) {
    static const char *const keys[] = {"config", "seed", "data", NULL};
    uint64_t seed;
    enum data_kind data;
    TRY(yaml_known(reader->yaml, map, "model", keys));
    const struct yaml_node *config = yaml_get(map, "config");
    if (!config)
        return yaml_fail(reader->yaml, map, "model has no 'config', expected the keys of a config.json");
    TRY(yaml_expect(reader->yaml, config, YAML_MAP, "model config"));
    TRY(case_read_seed(reader, map, &seed));
    TRY(case_read_data(reader, map, &data));
    struct checkpoint *model = NULL;
    TRY(checkpoint_make(&model, reader->yaml, config, seed, data));
    reader->one->job.model = model;
    TRY(shelf_add(reader->shelf, NULL, model));
    return check_index_model(reader, map, model, data);
}

enum status case_read_model(struct case_reader *reader) {
    const struct yaml_node *node = case_field(reader, "model");
    if (!node)
        return yaml_fail(reader->yaml, reader->root, "the key 'model' is missing, expected a Hugging Face folder");
    return node->kind == YAML_MAP ? model_made(reader, node) : model_from_folder(reader, node);
}

/* ---- dtype, mesh, layout */

static enum status read_dtype(struct case_reader *reader) {
    const struct yaml_node *node = case_field(reader, "dtype");
    const char *text = "float64";
    if (node)
        TRY(yaml_string(reader->yaml, node, &text));
    if (strcmp(text, "float64") == 0)
        reader->one->job.dtype = DTYPE_F64;
    else if (strcmp(text, "float32") == 0)
        reader->one->job.dtype = DTYPE_F32;
    else if (strcmp(text, "bfloat16") == 0)
        reader->one->job.dtype = DTYPE_BF16;
    else
        return yaml_fail(reader->yaml, node, "dtype '%s' is unknown, expected float64, float32 or bfloat16", text);
    if (reader->options->replace_dtype)
        reader->one->job.dtype = reader->options->dtype;
    return STATUS_OK;
}

/* `precision: {master: bool}` of a bfloat16 case, `{gather: bfloat16}` of a float32 one. Under --dtype what does not
 * apply is left out. */
static enum status read_precision(struct case_reader *reader) {
    static const char *const keys[] = {"master", "gather", NULL};
    const struct yaml_node *node = case_field(reader, "precision");
    struct job *job = &reader->one->job;
    const bool replaced = reader->options->replace_dtype;
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "precision"));
    TRY(yaml_known(reader->yaml, node, "precision", keys));
    const struct yaml_node *master = yaml_get(node, "master"), *gather = yaml_get(node, "gather");
    if (master && job->dtype != DTYPE_BF16 && !replaced)
        return yaml_fail(reader->yaml, master, "precision: 'master' beside dtype %s, expected bfloat16",
                         dtype_word(job->dtype));
    if (gather && job->dtype != DTYPE_F32 && !replaced)
        return yaml_fail(reader->yaml, gather, "precision: 'gather' beside dtype %s, expected float32",
                         dtype_word(job->dtype));
    if (master) {
        bool keep;
        TRY(yaml_boolean(reader->yaml, master, &keep));
        job->no_master = !keep;
    }
    if (gather) {
        const char *text;
        TRY(yaml_string(reader->yaml, gather, &text));
        if (strcmp(text, "bfloat16") != 0)
            return yaml_fail(reader->yaml, gather, "precision: gather '%s', expected bfloat16", text);
        job->gather_bfloat = job->dtype == DTYPE_F32;
    }
    return STATUS_OK;
}

static enum status mesh_from(const struct case_reader *reader, const struct yaml_node *node, struct mesh *mesh) {
    static const char *const keys[] = {"ep", "fsdp", "replicate", NULL};
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "mesh"));
    TRY(yaml_known(reader->yaml, node, "mesh", keys));
    int64_t world = 1;
    for (int i = 0; i < node->count; i++) {
        int64_t size;
        TRY(yaml_integer(reader->yaml, node->items[i], 1, 1 << 20, &size));
        world *= size;
        if (world > WORLD_MAX)
            return yaml_fail(reader->yaml, node, "the mesh has a world of %lld ranks, expected at most %d",
                             (long long)world, WORLD_MAX);
        snprintf(mesh->name[mesh->axes], MESH_NAME_MAX, "%s", node->keys[i]);
        mesh->size[mesh->axes++] = (int)size;
    }
    return STATUS_OK;
}

enum status case_mesh(const struct case_reader *reader, const struct yaml_node *node, struct mesh *mesh) {
    if (node)
        TRY(mesh_from(reader, node, mesh));
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "ep" : "fsdp";
        if (mesh_axis(mesh, name) >= 0)
            continue;
        snprintf(mesh->name[mesh->axes], MESH_NAME_MAX, "%s", name);
        mesh->size[mesh->axes++] = 1;
    }
    const struct model_config *config = checkpoint_config(reader->one->job.model);
    int ep = mesh_axis_size(mesh, "ep");
    if (config->experts > 0 && config->experts % ep != 0)
        return yaml_fail(reader->yaml, node ? node : reader->root,
                         "ep = %d does not divide the model's %lld experts, expected a divisor", ep,
                         (long long)config->experts);
    return STATUS_OK;
}

enum status case_read_mesh(struct case_reader *reader) {
    return case_mesh(reader, case_field(reader, "mesh"), &reader->one->mesh);
}

enum status case_read_layout(struct case_reader *reader) {
    const struct yaml_node *node = case_field(reader, "layout");
    if (node) {
        char *path = NULL;
        TRY(case_path(reader, node, &path));
        reader->one->layout = calloc(1, sizeof *reader->one->layout);
        enum status status = reader->one->layout ? layout_file_open(reader->one->layout, path)
                                                 : status_fail(STATUS_MEMORY, "%s: out of memory", path);
        free(path);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- limit, zero */

static enum status read_limit(struct case_reader *reader) {
    const struct yaml_node *node = case_field(reader, "limit");
    reader->one->limit = 60;
    if (!node)
        return STATUS_OK;
    TRY(yaml_number(reader->yaml, node, &reader->one->limit));
    if (!(reader->one->limit > 0))
        return yaml_fail(reader->yaml, node, "limit %g, expected seconds above 0", reader->one->limit);
    return STATUS_OK;
}

static enum status read_zero(struct case_reader *reader) {
    const struct yaml_node *node = case_field(reader, "zero");
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_LIST, "zero"));
    reader->one->zero = calloc((size_t)node->count + 1, sizeof *reader->one->zero);
    if (!reader->one->zero)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    for (int i = 0; i < node->count; i++) {
        const char *text;
        TRY(yaml_string(reader->yaml, node->items[i], &text));
        TRY(case_copy(text, &reader->one->zero[reader->one->zeros]));
        reader->one->zeros++;
    }
    return STATUS_OK;
}

/* ---- the whole */

static enum status read_top(struct case_reader *reader, const char *name) {
    static const char *const keys[] = {"case",   "about",  "model",   "mesh",      "layout",    "dtype", "precision",
                                       "fsdp",   "slots",  "tenants", "trainable", "optimizer", "clip",  "batches",
                                       "script", "golden", "zero",    "expect",    "matrix",    "limit", NULL};
    struct test_case *one = reader->one;
    const struct yaml_node *about = yaml_get(reader->root, "about");
    const char *text;
    TRY(yaml_known(reader->yaml, reader->root, "case", keys));
    TRY(case_copy(name, &one->name));
    TRY(case_copy(reader->yaml->path, &one->file));
    one->line = yaml_get(reader->root, "case")->line;
    if (about) {
        TRY(yaml_string(reader->yaml, about, &text));
        TRY(case_copy(text, &one->about));
    }
    return STATUS_OK;
}

/* A checkpoint has no place for float32 master copies yet. */
static enum status refuse_saved_masters(const struct case_reader *reader) {
    const struct job *job = &reader->one->job;
    if (job->saves > 0 && job->dtype == DTYPE_BF16 && !job->no_master)
        return yaml_fail(reader->yaml, case_field(reader, "script"),
                         "save beside float32 master copies is not supported by version " REPORT_VERSION
                         ", expected precision: {master: false}");
    return STATUS_OK;
}

static bool wanted(const struct case_reader *reader) {
    const struct case_options *options = reader->options;
    const struct test_case *one = reader->one;
    if (options->launched && !case_has_world(reader, options->launched))
        return false;
    if (options->filter && !glob_match(options->filter, one->name))
        return false;
    return options->world == 0 || mesh_world(&one->mesh) == options->world;
}

enum status case_read(struct case_reader *reader, const char *name) {
    TRY(read_top(reader, name));
    TRY(read_dtype(reader));
    TRY(read_precision(reader));
    TRY(case_read_model(reader));
    TRY(case_read_mesh(reader));
    reader->unwanted = !wanted(reader);
    if (reader->unwanted)
        return STATUS_OK;
    TRY(case_read_layout(reader));
    TRY(case_read_fsdp(reader));
    TRY(case_read_tenants(reader));
    TRY(case_read_batches(reader));
    TRY(case_read_optimizer(reader));
    TRY(case_read_clip(reader));
    TRY(case_read_trainable(reader));
    TRY(case_read_slots(reader));
    TRY(case_read_script(reader));
    TRY(refuse_saved_masters(reader));
    TRY(case_check_places(reader));
    TRY(case_read_golden(reader));
    TRY(read_zero(reader));
    TRY(read_limit(reader));
    return case_read_expect(reader);
}

static void job_free(struct job *job) {
    for (int i = 0; i < job->tenants; i++)
        adapter_free(&job->tenant[i].adapter);
    free(job->tenant);
    for (int i = 0; i < job->actions; i++)
        free((void *)job->action[i].micro);
    free(job->action);
    free(job->save);
    free((void *)job->trains);
    batches_free(job->micro, job->micros);
}

void case_free(struct test_case *one) {
    if (!one)
        return;
    for (int i = 0; i < one->goldens; i++)
        golden_close(&one->golden[i]);
    free(one->golden);
    for (int i = 0; i < one->zeros; i++)
        free(one->zero[i]);
    free(one->zero);
    for (int i = 0; i < one->fields; i++) {
        free(one->field[i].key);
        free(one->field[i].value);
    }
    free(one->field);
    if (one->layout)
        layout_file_close(one->layout);
    free(one->layout);
    free(one->segment);
    job_free(&one->job);
    free(one->name);
    free(one->about);
    free(one->file);
    free(one);
}
