/* The script of a case, flattened to actions: tenants, slots and micro-batches checked, steps numbered. */
#include "harness/case_flat.h"

#include <stdlib.h>
#include <string.h>

const struct yaml *flat_yaml(const struct flat *flat) {
    return flat->reader->yaml;
}

enum status flat_add(struct flat *flat, const struct action *action) {
    struct job *job = &flat->reader->one->job;
    if (job->actions == flat->room) {
        int room = flat->room ? 2 * flat->room : 16;
        struct action *grown = realloc(job->action, (size_t)room * sizeof *grown);
        if (!grown) {
            free((void *)action->micro);
            return status_fail(STATUS_MEMORY, "%s: out of memory", flat_yaml(flat)->path);
        }
        job->action = grown;
        flat->room = room;
    }
    job->action[job->actions++] = *action;
    return STATUS_OK;
}

enum status flat_add_step(struct flat *flat, struct action *action) {
    struct job *job = &flat->reader->one->job;
    action->step = job->steps++;
    for (int t = 0; t < job->tenants; t++)
        flat->tenant[t].exported = false;
    return flat_add(flat, action);
}

/* ---- what an entry names */

static enum status tenant_of(const struct flat *flat, const struct yaml_node *node, bool none, int *out) {
    const struct job *job = &flat->reader->one->job;
    const char *text;
    TRY(yaml_string(flat_yaml(flat), node, &text));
    if (none && strcmp(text, "none") == 0) {
        *out = -1;
        return STATUS_OK;
    }
    for (*out = 0; *out < job->tenants; ++*out)
        if (strcmp(job->tenant[*out].name, text) == 0)
            return STATUS_OK;
    return yaml_fail(flat_yaml(flat), node, "there is no tenant '%s', expected one of `tenants`%s", text,
                     none ? " or none" : "");
}

/* Acquired, and not another tenant's activation around it. */
static enum status may_act(const struct flat *flat, const struct yaml_node *node, int tenant) {
    const struct job *job = &flat->reader->one->job;
    if (tenant < 0)
        return STATUS_OK;
    if (!flat->tenant[tenant].acquired)
        return yaml_fail(flat_yaml(flat), node, "tenant %s has no slot here, expected `acquire: %s` before",
                         job->tenant[tenant].name, job->tenant[tenant].name);
    if (flat->active >= 0 && flat->active != tenant)
        return yaml_fail(flat_yaml(flat), node,
                         "tenant %s is named inside the activation of %s, expected the same tenant",
                         job->tenant[tenant].name, job->tenant[flat->active].name);
    return STATUS_OK;
}

enum status flat_tenant_key(const struct flat *flat, const struct yaml_node *map, bool none, int *out) {
    const struct yaml_node *node = yaml_get(map, "tenant");
    if (!node)
        return yaml_fail(flat_yaml(flat), map, "the key 'tenant' is missing, expected the name of one");
    TRY(tenant_of(flat, node, none, out));
    return may_act(flat, map, *out);
}

static enum status one_micro(const struct flat *flat, const struct yaml_node *node, int *out) {
    const struct job *job = &flat->reader->one->job;
    int64_t number;
    TRY(yaml_integer(flat_yaml(flat), node, 0, INT32_MAX, &number));
    for (*out = 0; *out < job->micros; ++*out)
        if (job->micro[*out].number == number)
            return STATUS_OK;
    return yaml_fail(flat_yaml(flat), node, "there is no micro-batch %lld, expected one of the %d in the batches",
                     (long long)number, job->micros);
}

static enum status read_micros(const struct flat *flat, const struct yaml_node *list, int *micro) {
    for (int i = 0; i < list->count; i++) {
        TRY(one_micro(flat, list->items[i], &micro[i]));
        for (int j = 0; j < i; j++)
            if (micro[j] == micro[i])
                return yaml_fail(flat_yaml(flat), list->items[i],
                                 "micro-batch %s stands twice in one step, expected each once", list->items[i]->text);
    }
    return STATUS_OK;
}

enum status flat_micros(const struct flat *flat, const struct yaml_node *map, struct action *action) {
    const struct yaml_node *list = yaml_get(map, "micro");
    if (!list)
        return yaml_fail(flat_yaml(flat), map, "the key 'micro' is missing, expected a list of micro-batches");
    TRY(yaml_expect(flat_yaml(flat), list, YAML_LIST, "micro"));
    if (list->count == 0)
        return yaml_fail(flat_yaml(flat), list, "micro is empty, expected at least one micro-batch");
    int *micro = calloc((size_t)list->count, sizeof *micro);
    if (!micro)
        return status_fail(STATUS_MEMORY, "%s: out of memory", flat_yaml(flat)->path);
    enum status status = read_micros(flat, list, micro);
    if (status != STATUS_OK) {
        free(micro);
        return status;
    }
    action->micro = micro;
    action->micros = list->count;
    return STATUS_OK;
}

/* ---- entries */

/* The lowest free slot: there must be one. */
static enum status take_slot(struct flat *flat, const struct yaml_node *node, int tenant) {
    struct job *job = &flat->reader->one->job;
    struct action action = {.kind = ACTION_ACQUIRE, .tenant = tenant, .step = job->steps, .line = node->line};
    if (job->slots > 0 && flat->live >= job->slots)
        return yaml_fail(flat_yaml(flat), node,
                         "no slot is free for %s: %d tenants hold all %d, expected a release before",
                         job->tenant[tenant].name, flat->live, job->slots);
    flat->tenant[tenant] =
        (struct flat_tenant){.acquired = true, .window = -1, .exported = flat->tenant[tenant].exported};
    flat->live++;
    if (flat->live > flat->peak)
        flat->peak = flat->live;
    return flat_add(flat, &action);
}

static enum status add_acquire(struct flat *flat, const struct yaml_node *node) {
    int tenant;
    TRY(tenant_of(flat, node, false, &tenant));
    if (flat->tenant[tenant].acquired)
        return yaml_fail(flat_yaml(flat), node, "tenant %s holds a slot already, expected `release: %s` before",
                         node->text, node->text);
    if (flat->active >= 0)
        return yaml_fail(flat_yaml(flat), node, "acquire stands inside an activation, expected it outside");
    return take_slot(flat, node, tenant);
}

static enum status add_release(struct flat *flat, const struct yaml_node *node) {
    struct action action = {.kind = ACTION_RELEASE, .step = flat->reader->one->job.steps, .line = node->line};
    TRY(tenant_of(flat, node, false, &action.tenant));
    if (flat->active >= 0)
        return yaml_fail(flat_yaml(flat), node, "release stands inside an activation, expected it outside");
    TRY(may_act(flat, node, action.tenant));
    if (flat->tenant[action.tenant].window >= 0)
        return yaml_fail(flat_yaml(flat), node,
                         "tenant %s is released while its window is open, expected `step: {tenant: %s}` before",
                         node->text, node->text);
    flat->tenant[action.tenant].acquired = false;
    flat->live--;
    return flat_add(flat, &action);
}

/* `VERB: ada` or `VERB: [ada, bob]`. */
static enum status each_tenant(struct flat *flat, const struct yaml_node *node, const char *verb,
                               enum status (*add)(struct flat *flat, const struct yaml_node *node)) {
    if (node->kind == YAML_SCALAR)
        return add(flat, node);
    TRY(yaml_expect(flat_yaml(flat), node, YAML_LIST, verb));
    for (int i = 0; i < node->count; i++)
        TRY(add(flat, node->items[i]));
    return STATUS_OK;
}

static enum status entry_acquire(struct flat *flat, const struct yaml_node *node) {
    return each_tenant(flat, node, "acquire", add_acquire);
}

static enum status entry_release(struct flat *flat, const struct yaml_node *node) {
    return each_tenant(flat, node, "release", add_release);
}

static enum status entry_evaluate(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "micro", "disabled", NULL};
    struct action action = {.kind = ACTION_EVALUATE, .opens = true, .line = node->line};
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "evaluate"));
    TRY(yaml_known(flat_yaml(flat), node, "evaluate", keys));
    TRY(flat_tenant_key(flat, node, true, &action.tenant));
    if (yaml_get(node, "disabled"))
        TRY(yaml_boolean(flat_yaml(flat), yaml_get(node, "disabled"), &action.disabled));
    TRY(flat_micros(flat, node, &action));
    action.own_step = action.tenant >= 0 ? flat->tenant[action.tenant].own : 0;
    return flat_add_step(flat, &action);
}

static enum status entry_export(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "merged", NULL};
    struct action action = {.kind = ACTION_EXPORT, .step = flat->reader->one->job.steps, .line = node->line};
    bool merged = false;
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "export"));
    TRY(yaml_known(flat_yaml(flat), node, "export", keys));
    TRY(flat_tenant_key(flat, node, false, &action.tenant));
    if (yaml_get(node, "merged"))
        TRY(yaml_boolean(flat_yaml(flat), yaml_get(node, "merged"), &merged));
    if (merged)
        return yaml_fail(flat_yaml(flat), node,
                         "export of merged weights is not supported by version " REPORT_VERSION
                         ", expected merged: false");
    if (flat->tenant[action.tenant].exported)
        return yaml_fail(flat_yaml(flat), node,
                         "tenant %s is exported twice without a step between, expected one export",
                         flat->reader->one->job.tenant[action.tenant].name);
    flat->tenant[action.tenant].exported = true;
    action.own_step = flat->tenant[action.tenant].own;
    return flat_add(flat, &action);
}

static enum status walk(struct flat *flat, const struct yaml_node *list);

static enum status entry_activate(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "script", NULL};
    struct action action = {.kind = ACTION_ENTER, .step = flat->reader->one->job.steps, .line = node->line};
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "activate"));
    TRY(yaml_known(flat_yaml(flat), node, "activate", keys));
    TRY(flat_tenant_key(flat, node, true, &action.tenant));
    if (!yaml_get(node, "script"))
        return yaml_fail(flat_yaml(flat), node, "activate has no 'script', expected a list of entries");
    TRY(flat_add(flat, &action));
    int outer = flat->active;
    if (action.tenant >= 0)
        flat->active = action.tenant;
    flat->depth++;
    TRY(walk(flat, yaml_get(node, "script")));
    flat->depth--;
    flat->active = outer;
    action.kind = ACTION_LEAVE;
    action.step = flat->reader->one->job.steps;
    return flat_add(flat, &action);
}

static enum status walk(struct flat *flat, const struct yaml_node *list) {
    static const struct {
        const char *verb;
        enum status (*read)(struct flat *flat, const struct yaml_node *node);
    } verbs[] = {
        {"acquire", entry_acquire},   {"release", entry_release},
        {"train", flat_train},        {"accumulate", flat_accumulate},
        {"step", flat_step},          {"evaluate", entry_evaluate},
        {"activate", entry_activate}, {"export", entry_export},
        {"save", flat_save},          {"load", flat_load},
    };
    static const char *const known[] = {"acquire", "train",   "evaluate", "activate", "export", "accumulate",
                                        "step",    "release", "save",     "load",     NULL};
    TRY(yaml_expect(flat_yaml(flat), list, YAML_LIST, "script"));
    for (int i = 0; i < list->count; i++) {
        const struct yaml_node *entry = list->items[i];
        TRY(yaml_expect(flat_yaml(flat), entry, YAML_MAP, "a script entry"));
        TRY(yaml_known(flat_yaml(flat), entry, "script entry", known));
        if (entry->count != 1)
            return yaml_fail(flat_yaml(flat), entry, "a script entry has %d keys, expected one", entry->count);
        for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++)
            if (strcmp(verbs[v].verb, entry->keys[0]) == 0)
                TRY(verbs[v].read(flat, entry->items[0]));
    }
    return STATUS_OK;
}

/* Acquire all; for each micro-batch in turn, for each tenant: train {tenant, micro: [it]}. */
static enum status default_script(struct flat *flat) {
    const struct job *job = &flat->reader->one->job;
    const struct yaml_node *root = flat->reader->root;
    for (int t = 0; t < job->tenants; t++)
        TRY(take_slot(flat, root, t));
    for (int m = 0; m < job->micros; m++)
        for (int t = 0; t < job->tenants; t++)
            TRY(flat_train_one(flat, root, t, m));
    return STATUS_OK;
}

static enum status whole_script(struct flat *flat, const struct yaml_node *script) {
    struct job *job = &flat->reader->one->job;
    TRY(script ? walk(flat, script) : default_script(flat));
    TRY(flat_windows_closed(flat));
    TRY(flat_segments_close(flat));
    if (job->slots == 0)
        job->slots = flat->peak > 0 ? flat->peak : 1;
    if (job->steps == 0)
        return yaml_fail(flat_yaml(flat), script ? script : flat->reader->root,
                         "the script has no step and no evaluation, expected at least one");
    return STATUS_OK;
}

enum status case_read_script(struct case_reader *reader) {
    const struct job *job = &reader->one->job;
    struct flat flat = {.reader = reader, .active = -1};
    flat.tenant = calloc((size_t)job->tenants + 1, sizeof *flat.tenant);
    if (!flat.tenant)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    for (int t = 0; t < job->tenants; t++)
        flat.tenant[t].window = -1;
    enum status status = whole_script(&flat, case_field(reader, "script"));
    flat_saved_free(&flat);
    free(flat.tenant);
    return status;
}
