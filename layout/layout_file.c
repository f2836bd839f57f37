/* Layout files: reading and looking up. */
#include "layout/sharding.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE_MAX 4352

/* Sizes up to 2^40: what any tensor of today has, far from overflow in products of a few. */
#define SIZE_MAX_AXIS ((int64_t)1 << 40)

static const char *const sections[] = {"mesh",     "axes",      "tensors", "gathers", "data",
                                       "exchange", "gradients", "fsdp2",   "reshard", NULL};

/* The grammar's names: a letter or _, then letters, digits, _. */
static enum status take_name(const struct yaml *yaml, const struct yaml_node *node, const char *key, char *out,
                             size_t size, const char *what) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    size_t length = strlen(key);
    if (length == 0 || strspn(key, letters) != length || strspn(key, "0123456789") > 0)
        return yaml_fail(yaml, node, "'%s' is no name of %s, expected a letter or _, then letters, digits or _", key,
                         what);
    if (length >= size)
        return yaml_fail(yaml, node, "the name '%s' of %s is too long, expected %zu characters at most", key, what,
                         size - 1);
    memcpy(out, key, length + 1);
    return STATUS_OK;
}

static enum status read_mesh(struct mesh *mesh, const struct yaml *yaml, const struct yaml_node *node) {
    int world = 1;
    TRY(yaml_expect(yaml, node, YAML_MAP, "mesh"));
    if (node->count == 0 || node->count > MESH_MAX_AXES)
        return yaml_fail(yaml, node, "the mesh has %d axes, expected 1 to %d", node->count, MESH_MAX_AXES);
    for (int i = 0; i < node->count; i++) {
        int64_t size;
        TRY(take_name(yaml, node->items[i], node->keys[i], mesh->name[i], MESH_NAME_MAX, "a mesh axis"));
        TRY(yaml_integer(yaml, node->items[i], 1, INT_MAX, &size));
        mesh->size[i] = (int)size;
        if (__builtin_mul_overflow(world, mesh->size[i], &world))
            return yaml_fail(yaml, node->items[i], "the mesh is too large, expected fewer than 2^31 ranks");
    }
    mesh->axes = node->count;
    return STATUS_OK;
}

static enum status read_axes(struct layout_file *file, const struct yaml *yaml, const struct yaml_node *node) {
    TRY(yaml_expect(yaml, node, YAML_MAP, "axes"));
    file->size = calloc((size_t)node->count + 1, sizeof *file->size);
    if (!file->size)
        return status_fail(STATUS_MEMORY, "%s: out of memory", file->path);
    for (int i = 0; i < node->count; i++) {
        struct axis_size *axis = &file->size[i];
        TRY(take_name(yaml, node->items[i], node->keys[i], axis->name, LINE_AXIS_MAX, "an axis"));
        TRY(yaml_integer(yaml, node->items[i], 1, SIZE_MAX_AXIS, &axis->size));
    }
    file->sizes = node->count;
    return STATUS_OK;
}

/* With a mesh in the file a bad line is found at once, else when a run brings its mesh. */
static enum status check_rule(const struct layout_file *file, const struct layout_rule *rule) {
    struct line line;
    char where[WHERE_MAX];
    if (file->mesh.axes == 0)
        return STATUS_OK;
    snprintf(where, sizeof where, "%s:%d", file->path, rule->at);
    return line_parse(&line, rule->line, &file->mesh, where);
}

static enum status read_rules(struct layout_file *file, const struct yaml *yaml, const struct yaml_node *node) {
    TRY(yaml_expect(yaml, node, YAML_MAP, "tensors"));
    if (node->count == 0)
        return yaml_fail(yaml, node, "'tensors' is empty, expected GLOB: LINE entries");
    file->rule = calloc((size_t)node->count, sizeof *file->rule);
    if (!file->rule)
        return status_fail(STATUS_MEMORY, "%s: out of memory", file->path);
    for (int i = 0; i < node->count; i++) {
        const char *line;
        struct layout_rule *rule = &file->rule[file->rules++];
        TRY(yaml_string(yaml, node->items[i], &line));
        *rule = (struct layout_rule){strdup(node->keys[i]), strdup(line), node->items[i]->line};
        if (!rule->glob || !rule->line)
            return status_fail(STATUS_MEMORY, "%s: out of memory", file->path);
        TRY(check_rule(file, rule));
    }
    return STATUS_OK;
}

static enum status read_sections(struct layout_file *file, const struct yaml *yaml) {
    const struct yaml_node *root = yaml->root;
    TRY(yaml_expect(yaml, root, YAML_MAP, "the layout file"));
    TRY(yaml_known(yaml, root, "layout file", sections));
    const struct yaml_node *mesh = yaml_get(root, "mesh"), *axes = yaml_get(root, "axes");
    const struct yaml_node *tensors = yaml_get(root, "tensors");
    if (mesh)
        TRY(read_mesh(&file->mesh, yaml, mesh));
    if (axes)
        TRY(read_axes(file, yaml, axes));
    if (!tensors)
        return yaml_fail(yaml, root, "'tensors' is missing, expected GLOB: LINE entries");
    return read_rules(file, yaml, tensors);
}

enum status layout_file_open(struct layout_file *out, const char *path) {
    enum status status;
    struct yaml yaml = {0};
    *out = (struct layout_file){.path = strdup(path)};
    if (!out->path)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    TRY_DONE(yaml_open(&yaml, path));
    TRY_DONE(read_sections(out, &yaml));
done:
    yaml_close(&yaml);
    if (status != STATUS_OK)
        layout_file_close(out);
    return status;
}

void layout_file_close(struct layout_file *file) {
    for (int i = 0; i < file->rules; i++) {
        free(file->rule[i].glob);
        free(file->rule[i].line);
    }
    free(file->rule);
    free(file->size);
    free(file->path);
    *file = (struct layout_file){0};
}

const struct layout_rule *layout_file_rule(const struct layout_file *file, const char *tensor) {
    for (int i = 0; i < file->rules; i++)
        if (glob_match(file->rule[i].glob, tensor))
            return &file->rule[i];
    return NULL;
}
