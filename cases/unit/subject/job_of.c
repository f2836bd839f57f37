#include "job_of.h"

#include "core/checkpoint.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())

static void add_tenant(struct made_job *made, const char *fixture, const char *name) {
    struct tenant *tenant = &made->tenants[made->job.tenants++];
    char path[256];
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    snprintf(path, sizeof path, "fixtures/golden/%s/adapters/%s", fixture, name);
    OK(adapter_open(&tenant->adapter, path, checkpoint_inventory(made->job.model)));
}

void add_action(struct made_job *made, struct action action) {
    if (action.kind == ACTION_TRAIN || action.kind == ACTION_EVALUATE)
        action.opens = true;
    cr_assert_lt(made->job.actions, MOST_ACTIONS);
    made->actions[made->job.actions++] = action;
}

void job_of(struct made_job *out, const char *fixture, const char *first, const char *second, enum dtype dtype,
            int slots, int64_t max_rank) {
    char path[256];
    *out = (struct made_job){.job = {.dtype = dtype, .slots = slots, .max_rank = max_rank, .steps = STEPS}};
    out->job.optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9};
    snprintf(path, sizeof path, "fixtures/golden/%s/model", fixture);
    OK(checkpoint_open(&out->job.model, path));
    snprintf(path, sizeof path, "fixtures/golden/%s/batches.safetensors", fixture);
    OK(batches_open(&out->job.micro, &out->job.micros, path, checkpoint_config(out->job.model)->vocab));
    out->job.tenant = out->tenants;
    out->job.action = out->actions;
    if (second)
        add_tenant(out, fixture, second);
    add_tenant(out, fixture, first);
    for (int tenant = 0; tenant < out->job.tenants; tenant++)
        add_action(out, (struct action){.kind = ACTION_ACQUIRE, .tenant = tenant});
    int trains = out->job.tenants - 1;
    add_action(out, (struct action){.kind = ACTION_EXPORT, .tenant = trains});
    for (int step = 0; step < STEPS; step++) {
        out->micros[step] = step;
        add_action(out, (struct action){.kind = ACTION_TRAIN,
                                        .tenant = trains,
                                        .micros = 1,
                                        .micro = &out->micros[step],
                                        .step = step,
                                        .own_step = step});
        add_action(out, (struct action){.kind = ACTION_EXPORT, .tenant = trains, .step = step + 1});
    }
}

void tied_job_of(struct made_job *out) {
    static const char *const modules[] = {"lm_head", "down_proj", "gate_proj", "up_proj", "k_proj"};
    static const char *const parameters[] = {"mlp.gate.weight", "experts.down_proj"};
    static const int both[] = {1, 2};
    const struct adapter_spec spec = {.rank = 3,
                                      .alpha = 5,
                                      .seed = 9,
                                      .parameters = 2,
                                      .target_parameters = parameters,
                                      .modules = 5,
                                      .target_modules = modules};
    job_of(out, "qwen3_moe_uneven", "gus", NULL, DTYPE_F64, 2, 5);
    strcpy(out->tenants[1].name, "mad");
    OK(adapter_make(&out->tenants[1].adapter, &spec, checkpoint_inventory(out->job.model), "test:1"));
    out->job.tenants = 2;
    out->job.actions = 0;
    add_action(out, (struct action){.kind = ACTION_ACQUIRE, .tenant = 0});
    add_action(out, (struct action){.kind = ACTION_ACQUIRE, .tenant = 1});
    add_action(out, (struct action){.kind = ACTION_TRAIN, .tenant = 1, .micros = 2, .micro = both});
    add_action(out, (struct action){.kind = ACTION_EVALUATE, .tenant = 1, .micros = 1, .micro = both, .step = 1});
    add_action(out, (struct action){
                        .kind = ACTION_EVALUATE, .tenant = 0, .disabled = true, .micros = 1, .micro = both, .step = 2});
    add_action(out, (struct action){.kind = ACTION_EXPORT, .tenant = 1, .step = STEPS});
}

void job_done(struct made_job *made) {
    for (int i = 0; i < made->job.tenants; i++)
        adapter_free(&made->tenants[i].adapter);
    batches_free(made->job.micro, made->job.micros);
    checkpoint_close(made->job.model);
}

struct keeper {
    struct run *run;
    int rank;
};

static enum status keep(void *context, const struct point *point, const struct tensor *data) {
    struct keeper *keeper = context;
    char name[POINT_NAME_MAX];
    struct kept *kept = calloc(1, sizeof *kept);
    kept->name = strdup(point_name(name, point));
    kept->point = *point;
    TRY(tensor_make(&kept->tensor, data->dtype, data->ndim, data->shape));
    memcpy(kept->tensor.data, data->data, tensor_bytes(data));
    kept->next = keeper->run->kept[keeper->rank];
    keeper->run->kept[keeper->rank] = kept;
    keeper->run->records[keeper->rank]++;
    return STATUS_OK;
}

static enum status run_rank(struct comm *comm, void *context) {
    struct run *run = context;
    struct keeper keeper = {run, comm_rank(comm)};
    const struct subject_hooks hooks = {.context = &keeper,
                                        .record = keep,
                                        .before_step = run->before_step,
                                        .export_folder = run->export_folder,
                                        .save_folder = run->save_folder,
                                        .first = run->first,
                                        .end = run->end};
    return subject_run(run->job, &run->mesh, run->layout, &run->rules, comm, &hooks);
}

static void run_of(struct run *run, const struct job *job, struct mesh mesh) {
    run->job = job;
    run->mesh = mesh;
    if (!run->rules.import_b)
        run->rules = rules_right;
}

void run_world(struct run *run, const struct job *job, struct mesh mesh) {
    run_of(run, job, mesh);
    run_ranks(mesh_world(&mesh), run_rank, run);
}

void run_failing_world(struct run *run, const struct job *job, struct mesh mesh, struct board_fault *fault) {
    run_of(run, job, mesh);
    run_failing_ranks(mesh_world(&mesh), run_rank, run, fault);
}

void run_done(struct run *run) {
    for (int rank = 0; rank < 16; rank++)
        while (run->kept[rank]) {
            struct kept *kept = run->kept[rank];
            run->kept[rank] = kept->next;
            tensor_free(&kept->tensor);
            free(kept->name);
            free(kept);
        }
}

bool same_bits(const struct tensor *a, const struct tensor *b) {
    return tensor_bytes(a) == tensor_bytes(b) && memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

const struct tensor *kept_find(const struct run *run, int rank, const char *name) {
    for (const struct kept *kept = run->kept[rank]; kept; kept = kept->next)
        if (strcmp(kept->name, name) == 0)
            return &kept->tensor;
    return NULL;
}

const struct tensor *kept_need(const struct run *run, int rank, const char *format, ...) {
    char name[POINT_NAME_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const struct tensor *found = kept_find(run, rank, name);
    cr_assert_not_null(found, "rank %d recorded no %s", rank, name);
    return found;
}
