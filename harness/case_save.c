/* Checkpoints of a script: what a load brings back of tenants and slots, and the segments that a load on another mesh
 * begins. */
#include "harness/case_flat.h"

#include <stdlib.h>
#include <string.h>

static struct job *job_of(const struct flat *flat) {
    return &flat->reader->one->job;
}

static enum status no_memory(const struct flat *flat) {
    return status_fail(STATUS_MEMORY, "%s: out of memory", flat_yaml(flat)->path);
}

/* ---- segments */

int case_segments(const struct test_case *one) {
    return one->segments > 0 ? one->segments : 1;
}

struct case_segment case_segment(const struct test_case *one, int index) {
    return one->segments > 0 ? one->segment[index] : (struct case_segment){one->mesh, 0, one->job.actions};
}

static enum status segment_begin(struct flat *flat, const struct mesh *mesh, int first) {
    struct test_case *one = flat->reader->one;
    struct case_segment *grown = realloc(one->segment, (size_t)(one->segments + 1) * sizeof *grown);
    if (!grown)
        return no_memory(flat);
    one->segment = grown;
    if (one->segments > 0)
        grown[one->segments - 1].end = first;
    grown[one->segments++] = (struct case_segment){.mesh = *mesh, .first = first};
    return STATUS_OK;
}

enum status flat_segments_close(struct flat *flat) {
    struct test_case *one = flat->reader->one;
    if (one->segments == 0)
        TRY(segment_begin(flat, &one->mesh, 0));
    one->segment[one->segments - 1].end = one->job.actions;
    return STATUS_OK;
}

/* The product of the sizes as far as they are numbers; the script itself is checked when it is read. */
static bool load_has_world(const struct yaml_node *entry, int size) {
    const struct yaml_node *load = entry->kind == YAML_MAP ? yaml_get(entry, "load") : NULL;
    const struct yaml_node *mesh = load && load->kind == YAML_MAP ? yaml_get(load, "mesh") : NULL;
    long world = 1;
    for (int i = 0; mesh && mesh->kind == YAML_MAP && i < mesh->count; i++)
        if (mesh->items[i]->kind == YAML_SCALAR)
            world *= strtol(mesh->items[i]->text, NULL, 10);
    return mesh && world == size;
}

bool case_has_world(const struct case_reader *reader, int size) {
    const struct yaml_node *script = case_field(reader, "script");
    if (mesh_world(&reader->one->mesh) == size)
        return true;
    for (int i = 0; script && script->kind == YAML_LIST && i < script->count; i++)
        if (load_has_world(script->items[i], size))
            return true;
    return false;
}

/* ---- entries */

static int save_named(const struct job *job, const char *name) {
    for (int i = 0; i < job->saves; i++)
        if (strcmp(job->save[i].name, name) == 0)
            return i;
    return -1;
}

/* Neither inside an activation nor while a window is open. */
static enum status stands_free(const struct flat *flat, const struct yaml_node *node, const char *verb) {
    const struct job *job = job_of(flat);
    if (flat->depth > 0)
        return yaml_fail(flat_yaml(flat), node, "%s stands inside an activation, expected it outside", verb);
    for (int t = 0; t < job->tenants; t++)
        if (flat->tenant[t].window >= 0)
            return yaml_fail(flat_yaml(flat), node,
                             "%s stands while the window of %s is open, expected `step: {tenant: %s}` before", verb,
                             job->tenant[t].name, job->tenant[t].name);
    return STATUS_OK;
}

static enum status name_key(const struct flat *flat, const struct yaml_node *map, const char *key, const char **out) {
    const struct yaml_node *node = yaml_get(map, key);
    if (!node)
        return yaml_fail(flat_yaml(flat), map, "the key '%s' is missing, expected the name of a checkpoint", key);
    TRY(yaml_string(flat_yaml(flat), node, out));
    size_t length = strlen(*out);
    if (length == 0 || length >= SAVE_NAME_MAX || (*out)[strspn(*out, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return yaml_fail(flat_yaml(flat), node, "'%s' is no name of a checkpoint, expected at most %d of [a-z0-9_]",
                         *out, SAVE_NAME_MAX - 1);
    return STATUS_OK;
}

static enum status form_key(const struct flat *flat, const struct yaml_node *map, enum save_form *out) {
    const struct yaml_node *node = yaml_get(map, "form");
    const char *text = "sharded";
    if (node)
        TRY(yaml_string(flat_yaml(flat), node, &text));
    *out = SAVE_SHARDED;
    if (strcmp(text, "full") == 0)
        return yaml_fail(flat_yaml(flat), node,
                         "form full is not supported by version " REPORT_VERSION ", expected sharded");
    if (strcmp(text, "sharded") != 0)
        return yaml_fail(flat_yaml(flat), node, "form '%s' is unknown, expected sharded or full", text);
    return STATUS_OK;
}

static enum status keep_saved(struct flat *flat, const struct save *save) {
    struct job *job = job_of(flat);
    struct save *saves = realloc(job->save, (size_t)(job->saves + 1) * sizeof *saves);
    if (!saves)
        return no_memory(flat);
    job->save = saves;
    struct flat_saved *states = realloc(flat->saved, (size_t)(job->saves + 1) * sizeof *states);
    if (!states)
        return no_memory(flat);
    flat->saved = states;
    size_t bytes = (size_t)job->tenants * sizeof *flat->tenant;
    struct flat_tenant *tenant = malloc(bytes + 1);
    if (!tenant)
        return no_memory(flat);
    memcpy(tenant, flat->tenant, bytes);
    states[job->saves] = (struct flat_saved){tenant, flat->live};
    saves[job->saves++] = *save;
    return STATUS_OK;
}

enum status flat_save(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"name", "form", NULL};
    struct job *job = job_of(flat);
    struct action action = {.kind = ACTION_SAVE, .tenant = -1, .step = job->steps, .line = node->line};
    struct save save = {0};
    const char *name;
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "save"));
    TRY(yaml_known(flat_yaml(flat), node, "save", keys));
    TRY(name_key(flat, node, "name", &name));
    TRY(form_key(flat, node, &save.form));
    TRY(stands_free(flat, node, "save"));
    if (save_named(job, name) >= 0)
        return yaml_fail(flat_yaml(flat), node, "'%s' is saved twice, expected another name", name);
    memcpy(save.name, name, strlen(name) + 1);
    action.save = job->saves;
    TRY(keep_saved(flat, &save));
    return flat_add(flat, &action);
}

/* An export since the last step keeps its name taken. */
static void restore(struct flat *flat, const struct flat_saved *saved) {
    for (int t = 0; t < job_of(flat)->tenants; t++) {
        bool exported = flat->tenant[t].exported;
        flat->tenant[t] = saved->tenant[t];
        flat->tenant[t].exported = exported;
    }
    flat->live = saved->live;
}

static enum status load_mesh(struct flat *flat, const struct yaml_node *node) {
    struct test_case *one = flat->reader->one;
    struct mesh mesh = {0};
    TRY(case_mesh(flat->reader, node, &mesh));
    if (one->segments == 0)
        TRY(segment_begin(flat, &one->mesh, 0));
    return segment_begin(flat, &mesh, one->job.actions);
}

enum status flat_load(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"from", "mesh", NULL};
    struct job *job = job_of(flat);
    struct action action = {.kind = ACTION_LOAD, .tenant = -1, .step = job->steps, .line = node->line};
    const char *name;
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "load"));
    TRY(yaml_known(flat_yaml(flat), node, "load", keys));
    TRY(name_key(flat, node, "from", &name));
    TRY(stands_free(flat, node, "load"));
    action.save = save_named(job, name);
    if (action.save < 0)
        return yaml_fail(flat_yaml(flat), node, "no checkpoint '%s' was saved before, expected `save: {name: %s}`",
                         name, name);
    if (yaml_get(node, "mesh"))
        TRY(load_mesh(flat, yaml_get(node, "mesh")));
    restore(flat, &flat->saved[action.save]);
    return flat_add(flat, &action);
}

void flat_saved_free(struct flat *flat) {
    for (int i = 0; flat->saved && i < job_of(flat)->saves; i++)
        free(flat->saved[i].tenant);
    free(flat->saved);
}
