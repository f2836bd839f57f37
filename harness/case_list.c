/* Files and folders of cases, and what a matrix makes of one file. */
#include "harness/case_private.h"

#include "core/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 200 /* a folder's name has at most 255 */

static enum status list_add(struct case_list *list, const struct yaml *yaml, struct test_case *one) {
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->item[i]->name, one->name) == 0)
            return status_fail(STATUS_INPUT, "%s:%d: case '%s' has this name already in %s:%d, expected a unique name",
                               yaml->path, one->line, one->name, list->item[i]->file, list->item[i]->line);
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 64;
        struct test_case **item = realloc(list->item, (size_t)room * sizeof *item);
        if (!item)
            return status_fail(STATUS_MEMORY, "%s: out of memory", yaml->path);
        list->item = item;
        list->room = room;
    }
    list->item[list->count++] = one;
    return STATUS_OK;
}

/* ---- the matrix */

static enum status check_matrix(const struct yaml *yaml, const struct yaml_node *matrix) {
    static const char *const keys[] = {"model",  "mesh",    "layout",    "dtype",     "precision", "fsdp",
                                       "slots",  "tenants", "trainable", "optimizer", "clip",      "batches",
                                       "script", "zero",    "limit",     NULL};
    TRY(yaml_expect(yaml, matrix, YAML_MAP, "matrix"));
    TRY(yaml_known(yaml, matrix, "matrix", keys));
    if (matrix->count > MATRIX_MAX_KEYS)
        return yaml_fail(yaml, matrix, "matrix has %d keys, expected at most %d", matrix->count, MATRIX_MAX_KEYS);
    for (int i = 0; i < matrix->count; i++) {
        TRY(yaml_expect(yaml, matrix->items[i], YAML_LIST, matrix->keys[i]));
        if (matrix->items[i]->count == 0)
            return yaml_fail(yaml, matrix->items[i], "matrix: '%s' has no values, expected at least one",
                             matrix->keys[i]);
    }
    return STATUS_OK;
}

/* One component of a variant's name: scalars as they are, a mesh as ep2.fsdp3, anything else as key and index. */
static void name_component(char *out, size_t size, const char *key, const struct yaml_node *value, int index) {
    size_t used = strlen(out);
    const char *dot = used && out[used - 1] != '[' ? "." : "";
    if (value->kind == YAML_SCALAR) {
        snprintf(out + used, size - used, "%s%s", dot, value->text);
    } else if (strcmp(key, "mesh") == 0 && value->kind == YAML_MAP) {
        for (int i = 0; i < value->count; i++) {
            used = strlen(out);
            snprintf(out + used, size - used, "%s%s%s", i ? "." : dot, value->keys[i],
                     value->items[i]->kind == YAML_SCALAR ? value->items[i]->text : "?");
        }
    } else {
        snprintf(out + used, size - used, "%s%s%d", dot, key, index);
    }
}

/* A name is printed, and becomes a folder of --keep. */
static enum status check_name(const struct yaml *yaml, const struct yaml_node *matrix, const char *name) {
    if (strlen(name) > NAME_MAX_BYTES)
        return yaml_fail(yaml, matrix, "the name %.40s... has more than %d bytes, expected a shorter one", name,
                         NAME_MAX_BYTES);
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            return yaml_fail(yaml, matrix, "a value of the matrix has a control character, expected a printable name");
    return STATUS_OK;
}

static void variant_name(const struct case_reader *reader, const char *base, const struct yaml_node *matrix,
                         const int *choice, char *out, size_t size) {
    snprintf(out, size, "%s", base);
    if (!matrix)
        return;
    snprintf(out + strlen(out), size - strlen(out), "[");
    for (int i = 0; i < matrix->count; i++) {
        if (reader->options->replace_dtype && strcmp(matrix->keys[i], "dtype") == 0) {
            size_t used = strlen(out);
            snprintf(out + used, size - used, "%s%s", i ? "." : "", dtype_word(reader->options->dtype));
        } else {
            name_component(out, size, matrix->keys[i], matrix->items[i]->items[choice[i]], choice[i]);
        }
    }
    snprintf(out + strlen(out), size - strlen(out), "]");
}

/* Moves to the next choice of the product; false after the last. A replaced dtype stands still. */
static bool next_choice(const struct case_reader *reader, const struct yaml_node *matrix, int *choice) {
    if (!matrix)
        return false;
    for (int i = matrix->count - 1; i >= 0; i--) {
        if (reader->options->replace_dtype && strcmp(matrix->keys[i], "dtype") == 0)
            continue;
        if (++choice[i] < matrix->items[i]->count)
            return true;
        choice[i] = 0;
    }
    return false;
}

static enum status base_name(const struct yaml *yaml, const struct yaml_node *root, const char **out) {
    const struct yaml_node *name = yaml_get(root, "case");
    if (!name)
        return yaml_fail(yaml, root, "the key 'case' is missing, expected a unique name [a-z0-9_]+");
    TRY(yaml_string(yaml, name, out));
    if (!**out || (*out)[strspn(*out, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return yaml_fail(yaml, name, "case '%s' is no name, expected [a-z0-9_]+", *out);
    return STATUS_OK;
}

static enum status add_variant(struct case_list *list, struct case_reader *reader, const char *name) {
    reader->one = calloc(1, sizeof *reader->one);
    if (!reader->one)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    enum status status = case_read(reader, name);
    if (status == STATUS_OK && !reader->unwanted)
        status = list_add(list, reader->yaml, reader->one);
    if (status != STATUS_OK || reader->unwanted)
        case_free(reader->one);
    return status;
}

static enum status load_file(struct case_list *list, const char *path, const struct case_options *options) {
    struct yaml yaml = {0};
    enum status status;
    struct case_reader reader = {.yaml = &yaml, .options = options, .shelf = list->shelf};
    TRY(yaml_open(&yaml, path));
    reader.root = yaml.root;
    reader.folder = path_folder(path);
    int choice[MATRIX_MAX_KEYS] = {0};
    const char *base;
    TRY_DONE(reader.folder ? STATUS_OK : status_fail(STATUS_MEMORY, "%s: out of memory", path));
    TRY_DONE(yaml_expect(&yaml, yaml.root, YAML_MAP, "a case file"));
    TRY_DONE(base_name(&yaml, yaml.root, &base));
    const struct yaml_node *matrix = yaml_get(yaml.root, "matrix");
    if (matrix)
        TRY_DONE(check_matrix(&yaml, matrix));
    do {
        char name[512];
        variant_name(&reader, base, matrix, choice, name, sizeof name);
        TRY_DONE(check_name(&yaml, matrix ? matrix : yaml.root, name));
        reader.variant.keys = matrix ? matrix->count : 0;
        for (int i = 0; i < reader.variant.keys; i++) {
            reader.variant.key[i] = matrix->keys[i];
            reader.variant.value[i] = matrix->items[i]->items[choice[i]];
        }
        TRY_DONE(add_variant(list, &reader, name));
    } while (next_choice(&reader, matrix, choice));
done:
    free(reader.folder);
    yaml_close(&yaml);
    return status;
}

/* ---- folders */

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool is_yaml(const char *name) {
    size_t length = strlen(name);
    return length > 5 && strcmp(name + length - 5, ".yaml") == 0;
}

static enum status load_path(struct case_list *list, const char *path, const struct case_options *options);

/* Below a folder every *.yaml is a case; folders called `layouts` hold layout files. */
static enum status load_folder(struct case_list *list, const char *path, const struct case_options *options) {
    struct dirent **entry = NULL;
    int count = scandir(path, &entry, NULL, by_name);
    if (count < 0)
        return status_fail(STATUS_INPUT, "%s: cannot be read, expected a folder of case files", path);
    enum status status = STATUS_OK;
    for (int i = 0; i < count; i++) {
        const char *name = entry[i]->d_name;
        char *below = NULL;
        if (status == STATUS_OK && name[0] != '.' && strcmp(name, "layouts") != 0) {
            below = path_join(path, name);
            if (!below)
                status = status_fail(STATUS_MEMORY, "%s: out of memory", path);
            else if (is_yaml(name) || path_is_folder(below))
                status = load_path(list, below, options);
        }
        free(below);
        free(entry[i]);
    }
    free(entry);
    return status;
}

static enum status load_path(struct case_list *list, const char *path, const struct case_options *options) {
    if (path_is_folder(path))
        return load_folder(list, path, options);
    return load_file(list, path, options);
}

enum status cases_load(struct case_list *list, const char *path, const struct case_options *options) {
    if (!list->shelf)
        TRY(case_shelf_make(&list->shelf));
    return load_path(list, path, options);
}

void cases_free(struct case_list *list) {
    for (int i = 0; i < list->count; i++)
        case_free(list->item[i]);
    free(list->item);
    case_shelf_free(list->shelf);
    *list = (struct case_list){0};
}
