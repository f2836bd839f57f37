/* Training on worlds of threads against what PyTorch and PEFT computed (fixtures/golden): loss, gradients, parameters.
 */
#include "job_of.h"

#include "core/safetensors.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())

/* The fixtures' own measure: |got-want| / max(|want|, 1e-3 max|want|), or |got-want| where the tensor is zero. */
static double golden_error(const struct tensor *got, const struct tensor *want) {
    double largest = 0, worst = 0;
    int64_t n = tensor_elements(want);
    if (tensor_elements(got) != n)
        return INFINITY;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(tensor_get(want, i)));
    for (int64_t i = 0; i < n; i++) {
        double w = tensor_get(want, i), difference = fabs(tensor_get(got, i) - w);
        double error = largest > 0 ? difference / fmax(fabs(w), 1e-3 * largest) : difference;
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

/* 1e-10 before an update has acted on the answer, 1e-9 after: the bounds at which the files were checked. */
static void expect_golden(const struct safetensors *file, const char *name, const struct tensor *got, double bound) {
    const struct safetensors_entry *want = safetensors_find(file, name);
    cr_assert_not_null(want, "%s", name);
    double error = golden_error(got, &want->tensor);
    cr_expect(error <= bound, "%s: %g", name, error);
}

/* A gradient in slot form at world 1, as PEFT stores it: A row e*r+k, B column k*E+e. */
static void flatten(const struct adapter_target *target, bool a, int64_t max_rank, const struct tensor *slot,
                    struct tensor *flat) {
    int64_t width = a ? target->in : target->out, r = target->lora_rank;
    OK(tensor_make(flat, DTYPE_F64, 2, a ? target->a.shape : target->b.shape));
    for (int64_t e = 0; e < target->experts; e++)
        for (int64_t k = 0; k < r; k++)
            for (int64_t x = 0; x < width; x++) {
                int64_t from = a ? (e * max_rank + k) * width + x : (e * width + x) * max_rank + k;
                int64_t to = a ? (e * r + k) * width + x : (x * r + k) * target->experts + e;
                tensor_set(flat, to, tensor_get(slot, from));
            }
}

static void expect_gradients(const struct run *run, const struct safetensors *file, const struct adapter *adapter,
                             int step) {
    char name[POINT_NAME_MAX];
    int compared = 0;
    for (int i = 0; i < adapter->count; i++)
        for (int a = 0; a < 2; a++) {
            const struct adapter_target *target = &adapter->targets[i];
            struct tensor flat = {0};
            snprintf(name, sizeof name, "step.%d/grad/%s", step, a ? target->key_a : target->key_b);
            if (!safetensors_find(file, name))
                continue;
            flatten(target, a, run->job->max_rank,
                    kept_need(run, 0, "step.%d/grad/%s.lora_%s", step, target->param->name, a ? "A" : "B"), &flat);
            expect_golden(file, name, &flat, step ? 1e-9 : 1e-10);
            tensor_free(&flat);
            compared++;
        }
    cr_expect_gt(compared, 0);
}

static int expect_exports(const struct run *run, int rank, const struct safetensors *file, const struct tenant *tenant,
                          int step) {
    char name[POINT_NAME_MAX];
    int compared = 0;
    for (int i = 0; i < tenant->adapter.count; i++)
        for (int a = 0; a < 2; a++) {
            const struct adapter_target *target = &tenant->adapter.targets[i];
            const char *key = a ? target->key_a : target->key_b;
            snprintf(name, sizeof name, "step.%d/param/%s", step, key);
            if (!safetensors_find(file, name))
                continue;
            const struct tensor *got = kept_need(run, rank, "step.%d/export/tenant.%s/%s", step + 1, tenant->name, key);
            cr_expect_eq(got->dtype, DTYPE_F64);
            expect_golden(file, name, got, step ? 1e-9 : 1e-10);
            compared++;
        }
    return compared;
}

static void check(const char *fixture, const char *first, const char *second, int slots, int64_t max_rank,
                  struct mesh mesh, const struct layout_file *layout) {
    struct made_job made;
    struct safetensors file = {0};
    struct run run = {.layout = layout};
    char path[256], name[64];
    int exports = 0;
    snprintf(path, sizeof path, "fixtures/golden/%s/golden/sgd/%s.safetensors", fixture, first);
    OK(safetensors_open(&file, path));
    job_of(&made, fixture, first, second, DTYPE_F64, slots, max_rank);
    run_world(&run, &made.job, mesh);
    for (int step = 0; step < STEPS; step++) {
        snprintf(name, sizeof name, "step.%d/loss", step);
        for (int rank = 0; rank < mesh_world(&mesh); rank++) {
            cr_expect_eq(run.records[rank], run.records[0], "rank %d", rank);
            expect_golden(&file, name, kept_need(&run, rank, "step.%d/loss/loss", step), step ? 1e-9 : 1e-10);
            exports += expect_exports(&run, rank, &file, &made.tenants[made.job.tenants - 1], step);
        }
        if (mesh_world(&mesh) == 1)
            expect_gradients(&run, &file, &made.tenants[made.job.tenants - 1].adapter, step);
    }
    cr_expect_geq(exports, 2 * made.tenants[made.job.tenants - 1].adapter.count * mesh_world(&mesh));
    run_done(&run);
    job_done(&made);
    safetensors_close(&file);
}

#define TINY "qwen3_moe_tiny"
#define UNEVEN "qwen3_moe_uneven"

Test(golden, first_loss_of_tiny) {
    struct made_job made;
    struct run run = {0};
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 2);
    run_world(&run, &made.job, mesh_of("ep", 1, "fsdp", 1));
    double loss = tensor_get(kept_need(&run, 0, "step.0/loss/loss"), 0);
    cr_expect(fabs(loss - 4.575754351624279) <= 4.575754351624279 * 1e-10, "%.17g", loss);
    cr_expect_eq(tensor_get(kept_need(&run, 0, "step.0/loss/count"), 0), 14);
    run_done(&run);
    job_done(&made);
}

Test(golden, tiny_on_one_rank) {
    check(TINY, "ada", NULL, 1, 2, mesh_of("ep", 1, "fsdp", 1), NULL);
    check(TINY, "bob", NULL, 2, 6, mesh_of("ep", 1, "fsdp", 1), NULL);
    check(TINY, "cyd", NULL, 1, 3, mesh_of("ep", 1, "fsdp", 1), NULL);
    check(TINY, "dov", NULL, 1, 4, mesh_of("ep", 1, "fsdp", 1), NULL);
    check(TINY, "eve", NULL, 1, 7, mesh_of("ep", 1, "fsdp", 1), NULL);
}

Test(golden, uneven_on_one_rank) {
    check(UNEVEN, "fay", NULL, 1, 4, mesh_of("ep", 1, "fsdp", 1), NULL);
}

/* Another tenant holds slot 0. */
Test(golden, tiny_on_meshes) {
    check(TINY, "ada", "bob", 3, 6, mesh_of("ep", 2, "fsdp", 2), NULL);
    check(TINY, "bob", "ada", 2, 5, mesh_of("ep", 3, "fsdp", 2), NULL);
    check(TINY, "eve", "dov", 2, 6, mesh_of("fsdp", 3, "ep", 2), NULL);
    check(TINY, "eve", NULL, 1, 6, mesh_of("ep", 6, "fsdp", 1), NULL);
    check(TINY, "bob", NULL, 1, 5, mesh_of("ep", 1, "fsdp", 5), NULL);
    check(TINY, "bob", NULL, 1, 5, mesh_of("ep", 4, "fsdp", 2), NULL);
}

Test(golden, uneven_on_meshes) {
    check(UNEVEN, "fay", NULL, 2, 4, mesh_of("ep", 5, "fsdp", 2), NULL);
    check(UNEVEN, "gus", "fay", 2, 5, mesh_of("fsdp", 4, "ep", 2), NULL);
}

/* Another layout: experts cut on their last dim by the balanced rule, dense weights on both, norms nowhere; q_proj's
 * slots lie twice, on both ep ranks, and owe their sum over the world all the same. */
Test(golden, another_layout) {
    static const char text[] = "mesh: {fsdp: 3, ep: 2}\n"
                               "tensors:\n"
                               "  \"*norm.weight\": \"hidden\"\n"
                               "  \"*.experts.*\": \"expert[ep] out in[fsdp:balanced]\"\n"
                               "  \"*.q_proj.weight.lora_*\": \"out[fsdp] in\"\n"
                               "  \"*\": \"out[fsdp] in[ep]\"\n";
    char path[] = "/tmp/shardproof-layout-XXXXXX";
    struct layout_file layout = {0};
    int file = mkstemp(path);
    cr_assert_geq(file, 0);
    cr_assert_eq(write(file, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(file);
    OK(layout_file_open(&layout, path));
    check(TINY, "bob", "ada", 2, 6, mesh_of("fsdp", 3, "ep", 2), &layout);
    layout_file_close(&layout);
    unlink(path);
}
