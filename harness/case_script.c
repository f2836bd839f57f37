/* The script of a case, flattened to actions: tenants, slots and micro-batches checked, steps numbered. */
#include "harness/case_private.h"

#include <stdlib.h>
#include <string.h>

struct flat { /* the state of the walk */
    struct case_reader *reader;
    int room;
    bool *acquired; /* [tenants] */
    int *own;       /* [tenants] own steps since acquire */
    bool *exported; /* [tenants] since the last step */
    int active;     /* tenant whose activation encloses the entry, -1: none */
};

static const struct yaml *yaml_of(const struct flat *flat) {
    return flat->reader->yaml;
}

static enum status add(struct flat *flat, const struct action *action) {
    struct job *job = &flat->reader->one->job;
    if (job->actions == flat->room) {
        int room = flat->room ? 2 * flat->room : 16;
        struct action *grown = realloc(job->action, (size_t)room * sizeof *grown);
        if (!grown) {
            free((void *)action->micro);
            return status_fail(STATUS_MEMORY, "%s: out of memory", yaml_of(flat)->path);
        }
        job->action = grown;
        flat->room = room;
    }
    job->action[job->actions++] = *action;
    return STATUS_OK;
}

/* ---- what an entry names */

static enum status tenant_of(const struct flat *flat, const struct yaml_node *node, bool none, int *out) {
    const struct job *job = &flat->reader->one->job;
    const char *text;
    TRY(yaml_string(yaml_of(flat), node, &text));
    if (none && strcmp(text, "none") == 0) {
        *out = -1;
        return STATUS_OK;
    }
    for (*out = 0; *out < job->tenants; ++*out)
        if (strcmp(job->tenant[*out].name, text) == 0)
            return STATUS_OK;
    return yaml_fail(yaml_of(flat), node, "there is no tenant '%s', expected one of `tenants`%s", text,
                     none ? " or none" : "");
}

static enum status tenant_key(const struct flat *flat, const struct yaml_node *map, bool none, int *out) {
    const struct yaml_node *node = yaml_get(map, "tenant");
    if (!node)
        return yaml_fail(yaml_of(flat), map, "the key 'tenant' is missing, expected the name of one");
    return tenant_of(flat, node, none, out);
}

/* Acquired, and not another tenant's activation around it. */
static enum status may_act(const struct flat *flat, const struct yaml_node *node, int tenant) {
    const struct job *job = &flat->reader->one->job;
    if (tenant < 0)
        return STATUS_OK;
    if (!flat->acquired[tenant])
        return yaml_fail(yaml_of(flat), node, "tenant %s has no slot here, expected `acquire: %s` before",
                         job->tenant[tenant].name, job->tenant[tenant].name);
    if (flat->active >= 0 && flat->active != tenant)
        return yaml_fail(yaml_of(flat), node,
                         "tenant %s is named inside the activation of %s, expected the same tenant",
                         job->tenant[tenant].name, job->tenant[flat->active].name);
    return STATUS_OK;
}

static enum status one_micro(const struct flat *flat, const struct yaml_node *node, int *out) {
    const struct job *job = &flat->reader->one->job;
    int64_t number;
    TRY(yaml_integer(yaml_of(flat), node, 0, INT32_MAX, &number));
    for (*out = 0; *out < job->micros; ++*out)
        if (job->micro[*out].number == number)
            return STATUS_OK;
    return yaml_fail(yaml_of(flat), node, "there is no micro-batch %lld, expected one of the %d in the batches",
                     (long long)number, job->micros);
}

static enum status read_micros(const struct flat *flat, const struct yaml_node *list, int *micro) {
    for (int i = 0; i < list->count; i++) {
        TRY(one_micro(flat, list->items[i], &micro[i]));
        for (int j = 0; j < i; j++)
            if (micro[j] == micro[i])
                return yaml_fail(yaml_of(flat), list->items[i],
                                 "micro-batch %s stands twice in one step, expected each once", list->items[i]->text);
    }
    return STATUS_OK;
}

/* `micro: [0, 1]`; the array goes to the action. */
static enum status micros_of(const struct flat *flat, const struct yaml_node *map, struct action *action) {
    const struct yaml_node *list = yaml_get(map, "micro");
    if (!list)
        return yaml_fail(yaml_of(flat), map, "the key 'micro' is missing, expected a list of micro-batches");
    TRY(yaml_expect(yaml_of(flat), list, YAML_LIST, "micro"));
    if (list->count == 0)
        return yaml_fail(yaml_of(flat), list, "micro is empty, expected at least one micro-batch");
    int *micro = calloc((size_t)list->count, sizeof *micro);
    if (!micro)
        return status_fail(STATUS_MEMORY, "%s: out of memory", yaml_of(flat)->path);
    enum status status = read_micros(flat, list, micro);
    if (status != STATUS_OK) {
        free(micro);
        return status;
    }
    action->micro = micro;
    action->micros = list->count;
    return STATUS_OK;
}

static int64_t counted(const struct flat *flat, const struct action *action) {
    int64_t sum = 0;
    for (int i = 0; i < action->micros; i++)
        sum += flat->reader->one->job.micro[action->micro[i]].counted;
    return sum;
}

/* ---- entries */

static enum status add_acquire(struct flat *flat, const struct yaml_node *node) {
    struct action action = {.kind = ACTION_ACQUIRE, .step = flat->reader->one->job.steps, .line = node->line};
    TRY(tenant_of(flat, node, false, &action.tenant));
    if (flat->acquired[action.tenant])
        return yaml_fail(yaml_of(flat), node, "tenant %s holds a slot already, expected one acquire each", node->text);
    if (flat->active >= 0)
        return yaml_fail(yaml_of(flat), node, "acquire stands inside an activation, expected it outside");
    flat->acquired[action.tenant] = true;
    return add(flat, &action);
}

static enum status entry_acquire(struct flat *flat, const struct yaml_node *node) {
    if (node->kind == YAML_SCALAR)
        return add_acquire(flat, node);
    TRY(yaml_expect(yaml_of(flat), node, YAML_LIST, "acquire"));
    for (int i = 0; i < node->count; i++)
        TRY(add_acquire(flat, node->items[i]));
    return STATUS_OK;
}

static enum status add_step(struct flat *flat, struct action *action) {
    struct job *job = &flat->reader->one->job;
    action->step = job->steps++;
    memset(flat->exported, 0, (size_t)job->tenants * sizeof *flat->exported);
    return add(flat, action);
}

static enum status entry_train(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "micro", NULL};
    struct action action = {.kind = ACTION_TRAIN, .line = node->line};
    TRY(yaml_expect(yaml_of(flat), node, YAML_MAP, "train"));
    TRY(yaml_known(yaml_of(flat), node, "train", keys));
    TRY(tenant_key(flat, node, false, &action.tenant));
    TRY(may_act(flat, node, action.tenant));
    TRY(micros_of(flat, node, &action));
    if (counted(flat, &action) == 0) {
        free((void *)action.micro);
        return yaml_fail(yaml_of(flat), node, "no label of this step counts, expected at least one");
    }
    action.own_step = flat->own[action.tenant]++;
    return add_step(flat, &action);
}

static enum status entry_evaluate(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "micro", "disabled", NULL};
    struct action action = {.kind = ACTION_EVALUATE, .line = node->line};
    TRY(yaml_expect(yaml_of(flat), node, YAML_MAP, "evaluate"));
    TRY(yaml_known(yaml_of(flat), node, "evaluate", keys));
    TRY(tenant_key(flat, node, true, &action.tenant));
    TRY(may_act(flat, node, action.tenant));
    if (yaml_get(node, "disabled"))
        TRY(yaml_boolean(yaml_of(flat), yaml_get(node, "disabled"), &action.disabled));
    TRY(micros_of(flat, node, &action));
    action.own_step = action.tenant >= 0 ? flat->own[action.tenant] : 0;
    return add_step(flat, &action);
}

static enum status entry_export(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "merged", NULL};
    struct action action = {.kind = ACTION_EXPORT, .step = flat->reader->one->job.steps, .line = node->line};
    bool merged = false;
    TRY(yaml_expect(yaml_of(flat), node, YAML_MAP, "export"));
    TRY(yaml_known(yaml_of(flat), node, "export", keys));
    TRY(tenant_key(flat, node, false, &action.tenant));
    TRY(may_act(flat, node, action.tenant));
    if (yaml_get(node, "merged"))
        TRY(yaml_boolean(yaml_of(flat), yaml_get(node, "merged"), &merged));
    if (merged)
        return yaml_fail(yaml_of(flat), node,
                         "export of merged weights is not supported by version " REPORT_VERSION
                         ", expected merged: false");
    if (flat->exported[action.tenant])
        return yaml_fail(yaml_of(flat), node, "tenant %s is exported twice without a step between, expected one export",
                         flat->reader->one->job.tenant[action.tenant].name);
    flat->exported[action.tenant] = true;
    action.own_step = flat->own[action.tenant];
    return add(flat, &action);
}

static enum status walk(struct flat *flat, const struct yaml_node *list);

static enum status entry_activate(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "script", NULL};
    struct action action = {.kind = ACTION_ENTER, .step = flat->reader->one->job.steps, .line = node->line};
    TRY(yaml_expect(yaml_of(flat), node, YAML_MAP, "activate"));
    TRY(yaml_known(yaml_of(flat), node, "activate", keys));
    TRY(tenant_key(flat, node, true, &action.tenant));
    TRY(may_act(flat, node, action.tenant));
    if (!yaml_get(node, "script"))
        return yaml_fail(yaml_of(flat), node, "activate has no 'script', expected a list of entries");
    TRY(add(flat, &action));
    int outer = flat->active;
    if (action.tenant >= 0)
        flat->active = action.tenant;
    TRY(walk(flat, yaml_get(node, "script")));
    flat->active = outer;
    action.kind = ACTION_LEAVE;
    action.step = flat->reader->one->job.steps;
    return add(flat, &action);
}

static enum status entry_later(struct flat *flat, const struct yaml_node *node) {
    return yaml_fail(yaml_of(flat), node,
                     "this script entry is not supported by version " REPORT_VERSION
                     ", expected acquire, train, evaluate, activate or export");
}

static enum status walk(struct flat *flat, const struct yaml_node *list) {
    static const struct {
        const char *verb;
        enum status (*read)(struct flat *flat, const struct yaml_node *node);
    } verbs[] = {
        {"acquire", entry_acquire},   {"train", entry_train},   {"evaluate", entry_evaluate},
        {"activate", entry_activate}, {"export", entry_export}, {"accumulate", entry_later},
        {"step", entry_later},        {"release", entry_later}, {"save", entry_later},
        {"load", entry_later},
    };
    static const char *const known[] = {"acquire", "train",   "evaluate", "activate", "export", "accumulate",
                                        "step",    "release", "save",     "load",     NULL};
    TRY(yaml_expect(yaml_of(flat), list, YAML_LIST, "script"));
    for (int i = 0; i < list->count; i++) {
        const struct yaml_node *entry = list->items[i];
        TRY(yaml_expect(yaml_of(flat), entry, YAML_MAP, "a script entry"));
        TRY(yaml_known(yaml_of(flat), entry, "script entry", known));
        if (entry->count != 1)
            return yaml_fail(yaml_of(flat), entry, "a script entry has %d keys, expected one", entry->count);
        for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++)
            if (strcmp(verbs[v].verb, entry->keys[0]) == 0)
                TRY(verbs[v].read(flat, entry->items[0]));
    }
    return STATUS_OK;
}

/* Acquire all; for each micro-batch in turn, for each tenant: train {tenant, micro: [it]}. */
static enum status default_script(struct flat *flat) {
    struct job *job = &flat->reader->one->job;
    for (int t = 0; t < job->tenants; t++) {
        struct action action = {.kind = ACTION_ACQUIRE, .tenant = t, .line = flat->reader->root->line};
        TRY(add(flat, &action));
    }
    for (int m = 0; m < job->micros; m++) {
        for (int t = 0; t < job->tenants; t++) {
            int *micro = malloc(sizeof *micro);
            if (!micro)
                return status_fail(STATUS_MEMORY, "%s: out of memory", yaml_of(flat)->path);
            *micro = m;
            struct action action = {.kind = ACTION_TRAIN,
                                    .tenant = t,
                                    .micros = 1,
                                    .micro = micro,
                                    .own_step = flat->own[t]++,
                                    .line = flat->reader->root->line};
            if (counted(flat, &action) == 0) {
                free(micro);
                return yaml_fail(yaml_of(flat), flat->reader->root,
                                 "no label of micro-batch %d counts, expected at least one", job->micro[m].number);
            }
            TRY(add_step(flat, &action));
        }
    }
    return STATUS_OK;
}

enum status case_read_script(struct case_reader *reader) {
    const struct yaml_node *script = case_field(reader, "script");
    size_t tenants = (size_t)reader->one->job.tenants + 1;
    struct flat flat = {.reader = reader, .active = -1};
    enum status status;
    flat.acquired = calloc(tenants, sizeof *flat.acquired);
    flat.own = calloc(tenants, sizeof *flat.own);
    flat.exported = calloc(tenants, sizeof *flat.exported);
    if (!flat.acquired || !flat.own || !flat.exported)
        status = status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    else
        status = script ? walk(&flat, script) : default_script(&flat);
    free(flat.acquired);
    free(flat.own);
    free(flat.exported);
    TRY(status);
    if (reader->one->job.steps == 0)
        return yaml_fail(reader->yaml, script ? script : reader->root,
                         "the script has no step and no evaluation, expected at least one");
    return STATUS_OK;
}
