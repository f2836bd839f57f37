#include "study.h"

#include "core/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_up(struct study *study, enum dtype dtype) {
    struct job *job = &study->job;
    job->dtype = dtype;
    job->slots = 2;
    job->max_rank = STUDY_RANK;
    job->tenant = study->tenant;
    job->optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9};
    job->action = study->action;
}

static void open_fixture(struct study *study, const char *fixture, enum dtype dtype) {
    char path[256];
    *study = (struct study){0};
    struct job *job = &study->job;
    snprintf(path, sizeof path, "fixtures/golden/%s/model", fixture);
    cr_assert_eq(checkpoint_open(&job->model, path), STATUS_OK, "%s", status_note());
    snprintf(path, sizeof path, "fixtures/golden/%s/batches.safetensors", fixture);
    int64_t vocab = checkpoint_config(job->model)->vocab;
    cr_assert_eq(batches_open(&job->micro, &job->micros, path, vocab), STATUS_OK, "%s", status_note());
    set_up(study, dtype);
}

void study_tenant(struct study *study, const char *fixture, const char *name) {
    struct tenant *tenant = &study->tenant[study->job.tenants++];
    char path[256];
    snprintf(path, sizeof path, "fixtures/golden/%s/adapters/%s", fixture, name);
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    cr_assert_eq(adapter_open(&tenant->adapter, path, checkpoint_inventory(study->job.model)), STATUS_OK, "%s",
                 status_note());
}

void study_open(struct study *study, const char *fixture, const char *tenant, enum dtype dtype) {
    open_fixture(study, fixture, dtype);
    study_tenant(study, fixture, tenant);
}

void study_trains(struct study *study, const char *glob) {
    const struct inventory *inventory = checkpoint_inventory(study->job.model);
    int found = 0;
    cr_assert_leq(inventory->count, STUDY_PARAMS);
    for (int i = 0; i < inventory->count; i++) {
        if (inventory->params[i].alias >= 0 || !glob_match(glob, inventory->params[i].name))
            continue;
        study->trains[i] = true;
        found++;
    }
    cr_assert_gt(found, 0, "%s matches no parameter", glob);
    study->job.trains = study->trains;
}

void study_made_tenant(struct study *study, const char *const *modules) {
    static const char *const router[] = {"mlp.gate.weight"};
    struct tenant *tenant = &study->tenant[study->job.tenants++];
    struct adapter_spec spec = {.rank = 2, .alpha = 3, .seed = 5, .target_modules = modules};
    spec.parameters = 1;
    spec.target_parameters = router;
    while (modules[spec.modules])
        spec.modules++;
    snprintf(tenant->name, sizeof tenant->name, "made");
    cr_assert_eq(adapter_make(&tenant->adapter, &spec, checkpoint_inventory(study->job.model), "test:1"), STATUS_OK,
                 "%s", status_note());
}

void study_make(struct study *study, const char *fixture, const char *const *modules, enum dtype dtype) {
    open_fixture(study, fixture, dtype);
    study_made_tenant(study, modules);
}

void study_config(struct study *study, const char *json, enum dtype dtype) {
    struct yaml yaml = {0};
    *study = (struct study){0};
    struct job *job = &study->job;
    cr_assert_eq(yaml_parse(&yaml, "config", json, strlen(json)), STATUS_OK, "%s", status_note());
    cr_assert_eq(checkpoint_make(&job->model, &yaml, yaml.root, 3, DATA_RANDOM), STATUS_OK, "%s", status_note());
    yaml_close(&yaml);
    job->micros = 2;
    cr_assert_eq(batches_make(&job->micro, 2, (const int64_t[]){3, 2}, (const int64_t[]){5, 4}, 9, DATA_RANDOM,
                              checkpoint_config(job->model)->vocab),
                 STATUS_OK, "%s", status_note());
    set_up(study, dtype);
}

void study_close(struct study *study) {
    for (int i = 0; i < study->job.tenants; i++)
        adapter_free(&study->tenant[i].adapter);
    batches_free(study->job.micro, study->job.micros);
    checkpoint_close(study->job.model);
}

static struct action *add_action(struct study *study, enum action_kind kind, int tenant) {
    cr_assert_lt(study->job.actions, STUDY_ACTIONS);
    struct action *action = &study->action[study->job.actions++];
    *action = (struct action){.kind = kind, .tenant = tenant, .step = study->job.steps, .line = 1};
    return action;
}

void study_acquire(struct study *study, int tenant) {
    add_action(study, ACTION_ACQUIRE, tenant);
}

static struct action *open_window(struct study *study, int tenant) {
    for (int i = study->job.actions - 1; i >= 0; i--) {
        struct action *action = &study->action[i];
        if (action->tenant == tenant && action->kind != ACTION_ACCUMULATE && action->kind != ACTION_EVALUATE)
            return NULL;
        if (action->tenant == tenant && action->kind == ACTION_ACCUMULATE && action->opens)
            return action;
    }
    return NULL;
}

void study_accumulate(struct study *study, int tenant, int micros, const int *micro) {
    bool opens = !open_window(study, tenant);
    struct action *action = add_action(study, ACTION_ACCUMULATE, tenant);
    action->opens = opens;
    action->micros = micros;
    action->micro = micro;
}

void study_step(struct study *study, int tenant) {
    for (struct action *a = open_window(study, tenant); a < &study->action[study->job.actions]; a++)
        if (a->kind == ACTION_ACCUMULATE && a->tenant == tenant)
            a->step = study->job.steps;
    add_action(study, ACTION_STEP, tenant);
    study->job.steps++;
}

void study_release(struct study *study, int tenant) {
    add_action(study, ACTION_RELEASE, tenant);
}

void study_train(struct study *study, int tenant, int micros, const int *micro) {
    struct action *action = add_action(study, ACTION_TRAIN, tenant);
    action->opens = true;
    action->micros = micros;
    action->micro = micro;
    study->job.steps++;
}

void study_evaluate(struct study *study, int tenant, bool disabled, int micro) {
    static const int numbers[] = {0, 1, 2, 3, 4, 5};
    struct action *action = add_action(study, ACTION_EVALUATE, tenant);
    action->opens = true;
    action->disabled = disabled;
    action->micros = 1;
    action->micro = &numbers[micro];
    study->job.steps++;
}

void study_export(struct study *study, int tenant) {
    add_action(study, ACTION_EXPORT, tenant);
}

void study_recipe_steps(struct study *study, int tenant) {
    study_acquire(study, tenant);
    for (int i = 0; i < STUDY_STEPS; i++)
        study_train(study, tenant, study->micros[i], study->window[i]);
}

void study_three_steps(struct study *study) {
    static const int numbers[] = {0, 1, 2};
    study_acquire(study, 0);
    for (int i = 0; i < 3; i++)
        study_train(study, 0, 1, &numbers[i]);
}

void study_run(const struct study *study, struct reference_options options, study_hook *hook, void *context) {
    struct reference_hooks hooks = {.context = context, .emit = hook};
    enum status status = reference_run(&study->job, &options, &hooks);
    cr_assert_eq(status, STATUS_OK, "status %d: %s", (int)status, status_note());
}

int64_t elements_of(const struct value *value) {
    int64_t elements = 1;
    for (int i = 0; i < value->ndim; i++)
        elements *= value->shape[i];
    return elements;
}

static void grow(struct kept *kept) {
    if (kept->count < kept->room)
        return;
    kept->room = kept->room ? 2 * kept->room : 256;
    kept->name = realloc(kept->name, (size_t)kept->room * sizeof *kept->name);
    kept->value = realloc(kept->value, (size_t)kept->room * sizeof *kept->value);
    cr_assert(kept->name && kept->value);
}

enum status kept_hook(void *context, const struct point *point, struct value *value) {
    struct kept *kept = context;
    grow(kept);
    struct value *copy = &kept->value[kept->count];
    *copy = *value;
    copy->e = copy->mag = copy->x = NULL;
    if (value->x) {
        size_t bytes = (size_t)elements_of(value) * sizeof(double);
        copy->x = malloc(bytes + 1);
        cr_assert(copy->x);
        memcpy(copy->x, value->x, bytes);
    }
    point_name(kept->name[kept->count++], point);
    return STATUS_OK;
}

const struct value *kept_find(const struct kept *kept, const char *name) {
    for (int i = 0; i < kept->count; i++)
        if (strcmp(kept->name[i], name) == 0)
            return &kept->value[i];
    cr_assert(false, "no point %s", name);
    return NULL;
}

void kept_free(struct kept *kept) {
    for (int i = 0; i < kept->count; i++)
        value_free(&kept->value[i]);
    free(kept->name);
    free(kept->value);
    *kept = (struct kept){0};
}
