/* Windows of a script: micro-batches accumulate until a step closes them. Every action of a window has the S of its
 * closing step. `train` is accumulate and step in one; inside an open window it closes that window. */
#include "harness/case_flat.h"

#include <stdlib.h>

static struct job *job_of(const struct flat *flat) {
    return &flat->reader->one->job;
}

static int64_t counted(const struct flat *flat, const struct action *action) {
    int64_t sum = 0;
    for (int i = 0; i < action->micros; i++)
        sum += job_of(flat)->micro[action->micro[i]].counted;
    return sum;
}

static bool in_window(const struct flat *flat, int tenant, int micro) {
    const struct job *job = job_of(flat);
    int first = flat->tenant[tenant].window;
    for (int a = first; first >= 0 && a < job->actions; a++)
        if (job->action[a].kind == ACTION_ACCUMULATE && job->action[a].tenant == tenant)
            for (int i = 0; i < job->action[a].micros; i++)
                if (job->action[a].micro[i] == micro)
                    return true;
    return false;
}

/* Micro-batches of an entry, none of which stands in the tenant's window already. */
static enum status window_micros(const struct flat *flat, const struct yaml_node *map, struct action *action) {
    TRY(flat_micros(flat, map, action));
    for (int i = 0; i < action->micros; i++) {
        if (!in_window(flat, action->tenant, action->micro[i]))
            continue;
        int number = job_of(flat)->micro[action->micro[i]].number;
        free((void *)action->micro);
        return yaml_fail(flat_yaml(flat), yaml_get(map, "micro")->items[i],
                         "micro-batch %d stands in the window of %s already, expected each once until its step", number,
                         job_of(flat)->tenant[action->tenant].name);
    }
    return STATUS_OK;
}

static enum status add_accumulate(struct flat *flat, struct action *action) {
    struct flat_tenant *tenant = &flat->tenant[action->tenant];
    action->kind = ACTION_ACCUMULATE;
    action->opens = tenant->window < 0;
    action->step = -1; /* known when the window is closed */
    action->own_step = tenant->own;
    if (action->opens)
        tenant->window = job_of(flat)->actions;
    tenant->counted += counted(flat, action);
    return flat_add(flat, action);
}

static enum status close_window(struct flat *flat, const struct yaml_node *node, int tenant_index) {
    struct flat_tenant *tenant = &flat->tenant[tenant_index];
    struct job *job = job_of(flat);
    if (tenant->counted == 0)
        return yaml_fail(flat_yaml(flat), node, "no label of this step counts, expected at least one");
    for (int a = tenant->window; a < job->actions; a++)
        if (job->action[a].kind == ACTION_ACCUMULATE && job->action[a].tenant == tenant_index)
            job->action[a].step = job->steps;
    tenant->window = -1;
    tenant->counted = 0;
    struct action action = {.kind = ACTION_STEP, .tenant = tenant_index, .own_step = tenant->own++, .line = node->line};
    return flat_add_step(flat, &action);
}

enum status flat_accumulate(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "micro", NULL};
    struct action action = {.line = node->line};
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "accumulate"));
    TRY(yaml_known(flat_yaml(flat), node, "accumulate", keys));
    TRY(flat_tenant_key(flat, node, false, &action.tenant));
    TRY(window_micros(flat, node, &action));
    return add_accumulate(flat, &action);
}

enum status flat_step(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", NULL};
    int tenant;
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "step"));
    TRY(yaml_known(flat_yaml(flat), node, "step", keys));
    TRY(flat_tenant_key(flat, node, false, &tenant));
    const char *name = job_of(flat)->tenant[tenant].name;
    if (flat->tenant[tenant].window < 0)
        return yaml_fail(flat_yaml(flat), node,
                         "step of %s without a window, expected `accumulate: {tenant: %s}` before", name, name);
    return close_window(flat, node, tenant);
}

static enum status add_train(struct flat *flat, const struct yaml_node *node, struct action *action) {
    if (counted(flat, action) == 0) {
        free((void *)action->micro);
        return yaml_fail(flat_yaml(flat), node, "no label of this step counts, expected at least one");
    }
    action->kind = ACTION_TRAIN;
    action->opens = true;
    action->own_step = flat->tenant[action->tenant].own++;
    return flat_add_step(flat, action);
}

enum status flat_train(struct flat *flat, const struct yaml_node *node) {
    static const char *const keys[] = {"tenant", "micro", NULL};
    struct action action = {.line = node->line};
    TRY(yaml_expect(flat_yaml(flat), node, YAML_MAP, "train"));
    TRY(yaml_known(flat_yaml(flat), node, "train", keys));
    TRY(flat_tenant_key(flat, node, false, &action.tenant));
    TRY(window_micros(flat, node, &action));
    if (flat->tenant[action.tenant].window < 0)
        return add_train(flat, node, &action);
    TRY(add_accumulate(flat, &action));
    return close_window(flat, node, action.tenant);
}

enum status flat_train_one(struct flat *flat, const struct yaml_node *node, int tenant, int micro) {
    struct action action = {.tenant = tenant, .micros = 1, .line = node->line};
    int *copy = malloc(sizeof *copy);
    if (!copy)
        return status_fail(STATUS_MEMORY, "%s: out of memory", flat_yaml(flat)->path);
    *copy = micro;
    action.micro = copy;
    return add_train(flat, node, &action);
}

enum status flat_windows_closed(const struct flat *flat) {
    const struct job *job = job_of(flat);
    for (int t = 0; t < job->tenants; t++) {
        struct yaml_node at = {0};
        if (flat->tenant[t].window < 0)
            continue;
        at.line = job->action[flat->tenant[t].window].line;
        return yaml_fail(flat_yaml(flat), &at,
                         "the window of %s is open at the end of the script, expected `step: {tenant: %s}`",
                         job->tenant[t].name, job->tenant[t].name);
    }
    return STATUS_OK;
}
