/* The recipes adamw and router of fixtures/golden on worlds of threads against what PyTorch and PEFT computed: loss,
 * gradient norm, gradients and parameters of base tensors, exports, optimizer state. */
#include "job_of.h"

#include "core/checkpoint.h"
#include "core/safetensors.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define OK(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())
#define TINY "qwen3_moe_tiny"
#define UNEVEN "qwen3_moe_uneven"

/* The files' own measure and bounds: |got-want| / max(|want|, 1e-3 max|want|); 1e-10 before an update has acted, 1e-9
 * after. */
static void expect_golden(const struct safetensors_entry *want, const struct tensor *got, int step) {
    double largest = 0, worst = 0;
    int64_t n = tensor_elements(&want->tensor);
    cr_assert_eq(tensor_elements(got), n, "%s", want->name);
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(tensor_get(&want->tensor, i)));
    for (int64_t i = 0; i < n; i++) {
        double w = tensor_get(&want->tensor, i), difference = fabs(tensor_get(got, i) - w);
        double error = largest > 0 ? difference / fmax(fabs(w), 1e-3 * largest) : difference;
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    cr_expect(worst <= (step ? 1e-9 : 1e-10), "%s: %g", want->name, worst);
}

/* Tensors that are cut on dim 0 in rank order, as the built-in layout cuts all but experts. */
static void join(const struct run *run, const char *name, const struct tensor *like, struct tensor *out) {
    size_t at = 0;
    OK(tensor_make(out, DTYPE_F64, like->ndim, like->shape));
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++) {
        const struct tensor *piece = kept_need(run, rank, "%s", name);
        cr_assert_leq(at + tensor_bytes(piece), tensor_bytes(out), "%s", name);
        memcpy((char *)out->data + at, piece->data, tensor_bytes(piece));
        at += tensor_bytes(piece);
    }
    cr_assert_eq(at, tensor_bytes(out), "%s", name);
}

/* step.S/PHASE/BASE of the file against the joined record. */
static int expect_base(const struct run *run, const struct safetensors *file, int step, const char *phase,
                       const char *recorded, const char *state) {
    const struct inventory *inventory = checkpoint_inventory(run->job->model);
    int compared = 0;
    for (int i = 0; i < inventory->count; i++) {
        char name[POINT_NAME_MAX];
        struct tensor whole = {0};
        snprintf(name, sizeof name, "step.%d/%s/%s%s", step, phase, state, inventory->params[i].name);
        const struct safetensors_entry *want = safetensors_find(file, name);
        if (!want)
            continue;
        snprintf(name, sizeof name, "step.%d/%s/%s%s", step, recorded, state, inventory->params[i].name);
        join(run, name, &want->tensor, &whole);
        expect_golden(want, &whole, step);
        tensor_free(&whole);
        compared++;
    }
    return compared;
}

static int expect_exports(const struct run *run, const struct safetensors *file, const struct tenant *tenant,
                          int step) {
    int compared = 0;
    for (int i = 0; i < 2 * tenant->adapter.count; i++) {
        const struct adapter_target *target = &tenant->adapter.targets[i / 2];
        const char *key = i % 2 ? target->key_b : target->key_a;
        char name[POINT_NAME_MAX];
        snprintf(name, sizeof name, "step.%d/param/%s", step, key);
        const struct safetensors_entry *want = safetensors_find(file, name);
        for (int rank = 0; want && rank < mesh_world(&run->mesh); rank++, compared++)
            expect_golden(want, kept_need(run, rank, "step.%d/export/tenant.%s/%s", step + 1, tenant->name, key), step);
    }
    return compared;
}

static void expect_scalars(const struct run *run, const struct safetensors *file, int step) {
    char name[64];
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++) {
        snprintf(name, sizeof name, "step.%d/loss", step);
        expect_golden(safetensors_find(file, name), kept_need(run, rank, "step.%d/loss/loss", step), step);
        snprintf(name, sizeof name, "step.%d/grad_norm", step);
        expect_golden(safetensors_find(file, name), kept_need(run, rank, "step.%d/clip/norm", step), step);
    }
}

/* fixture.json's recipes: the windows of the three steps. */
static const int adamw_windows[STEPS][2] = {{0, 2}, {3, 1}, {4, 5}};
static const int router_windows[STEPS][2] = {{0}, {2, 3}, {1}};
static const int router_micros[STEPS] = {1, 2, 1};

static void adamw_of(struct made_job *made, double max) {
    made->job.optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    made->job.clip = (struct clip){.present = true, .max = max};
    for (int step = 0; step < STEPS; step++) {
        then_train(made, 0, 2, adamw_windows[step]);
        then_export(made, 0);
    }
}

/* Each window in two pieces where it has two micro-batches. */
static void router_of(struct made_job *made, double max) {
    made->job.optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9};
    made->job.clip = (struct clip){.present = true, .infinity = true, .max = max};
    job_trains_base(made, "*.mlp.gate.weight");
    job_trains_base(made, "*norm.weight");
    job_trains_base(made, "*.self_attn.q_proj.weight");
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < router_micros[step]; i++)
            then_accumulate(made, 0, 1, &router_windows[step][i]);
        then_step(made, 0);
        then_export(made, 0);
    }
}

static void check(struct made_job *made, const char *fixture, const char *recipe, struct mesh mesh, int base) {
    const struct tenant *tenant = &made->tenants[0];
    struct safetensors file = {0};
    struct run run = {0};
    char path[256];
    int exports = 0, gradients = 0, parameters = 0, states = 0;
    snprintf(path, sizeof path, "fixtures/golden/%s/golden/%s/%s.safetensors", fixture, recipe, tenant->name);
    OK(safetensors_open(&file, path));
    run_world(&run, &made->job, mesh);
    for (int step = 0; step < STEPS; step++) {
        expect_scalars(&run, &file, step);
        exports += expect_exports(&run, &file, tenant, step);
        gradients += expect_base(&run, &file, step, "grad", "grad", "");
        parameters += expect_base(&run, &file, step, "param", "update", "");
        states += expect_base(&run, &file, step, "optim", "optimizer", "momentum_buffer/");
    }
    cr_expect_eq(exports, 2 * 2 * tenant->adapter.count * mesh_world(&mesh)); /* the first and the last step's */
    cr_expect_eq(gradients, STEPS * base);
    cr_expect_eq(parameters, 2 * base);
    cr_expect_eq(states, base);
    run_done(&run);
    safetensors_close(&file);
    job_done(made);
}

static void check_adamw(const char *fixture, const char *tenant, double max, struct mesh mesh) {
    struct made_job made;
    empty_job_of(&made, fixture, tenant, 2, 5);
    then_acquire(&made, 0);
    adamw_of(&made, max);
    check(&made, fixture, "adamw", mesh, 0);
}

static void check_router(const char *fixture, const char *tenant, double max, bool embedding, int base,
                         struct mesh mesh) {
    struct made_job made;
    empty_job_of(&made, fixture, tenant, 1, 4);
    if (embedding)
        job_trains_base(&made, "model.embed_tokens.weight");
    then_acquire(&made, 0);
    router_of(&made, max);
    check(&made, fixture, "router", mesh, base);
}

Test(recipes, adamw) {
    check_adamw(TINY, "ada", 2.4, mesh_of("ep", 1, "fsdp", 1));
    check_adamw(TINY, "ada", 2.4, mesh_of("ep", 2, "fsdp", 3));
    check_adamw(TINY, "dov", 2.4, mesh_of("fsdp", 2, "ep", 2));
    check_adamw(UNEVEN, "fay", 5.0, mesh_of("ep", 5, "fsdp", 1));
}

/* tiny: in each of two layers a router, q_proj and four norms, and the last norm. uneven: routers in two of its three
 * layers, and the tied embedding. */
Test(recipes, router) {
    check_router(TINY, "ada", 0.63, false, 2 * 6 + 1, mesh_of("ep", 1, "fsdp", 1));
    check_router(TINY, "dov", 0.63, false, 2 * 6 + 1, mesh_of("ep", 2, "fsdp", 2));
    check_router(UNEVEN, "gus", 0.77, true, 2 + 3 * 5 + 2, mesh_of("ep", 1, "fsdp", 1));
    check_router(UNEVEN, "gus", 0.77, true, 2 + 3 * 5 + 2, mesh_of("ep", 2, "fsdp", 4));
}
