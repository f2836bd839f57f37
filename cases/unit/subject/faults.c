/* What each planted fault changes first, against the right run of the same world. */
#include "job_of.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TINY "qwen3_moe_tiny"
#define GRAD "step.0/grad/model.layers.0.mlp.experts.down_proj.lora_B"

/* The name of rank's first record, in recorded order, that differs between two runs of the same world; "" if none. */
static void first_difference(const struct run *a, const struct run *b, int rank, char *out) {
    out[0] = '\0';
    for (const struct kept *x = a->kept[rank], *y = b->kept[rank]; x && y; x = x->next, y = y->next) {
        cr_assert_str_eq(x->name, y->name);
        if (tensor_bytes(&x->tensor) != tensor_bytes(&y->tensor) ||
            memcmp(x->tensor.data, y->tensor.data, tensor_bytes(&x->tensor)) != 0)
            snprintf(out, POINT_NAME_MAX, "%s", x->name); /* latest first: the last one seen is the first recorded */
    }
}

static void compare(const char *fault, struct mesh mesh, const char *tenant, int rank, const char *want) {
    struct made_job made;
    struct run right = {0}, wrong = {.rules = rules_right};
    char name[POINT_NAME_MAX];
    rule_fault_named(fault)->plant(&wrong.rules);
    job_of(&made, TINY, tenant, NULL, DTYPE_F64, 1, 6);
    run_world(&right, &made.job, mesh);
    run_world(&wrong, &made.job, mesh);
    first_difference(&right, &wrong, rank, name);
    cr_expect_str_eq(name, want, "%s: %s", fault, name);
    run_done(&wrong);
    run_done(&right);
    job_done(&made);
}

Test(faults, import_b_expert_major) {
    compare("import_b_expert_major", mesh_of("ep", 2, "fsdp", 1), "ada", 0,
            "step.0/export/tenant.ada/base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight");
}

Test(faults, export_b_plain_concat) {
    compare("export_b_plain_concat", mesh_of("ep", 2, "fsdp", 1), "ada", 0,
            "step.0/export/tenant.ada/base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight");
    compare("export_b_plain_concat", mesh_of("ep", 1, "fsdp", 2), "ada", 0, "");
}

Test(faults, ep_slice_off_by_one) {
    compare("ep_slice_off_by_one", mesh_of("fsdp", 2, "ep", 3), "ada", 1,
            "step.0/param/model.layers.0.mlp.experts.gate_up_proj");
    compare("ep_slice_off_by_one", mesh_of("ep", 1, "fsdp", 2), "ada", 1, "");
}

Test(faults, expert_divisor_world) {
    struct made_job made;
    struct run right = {0}, wrong = {.rules = rules_right};
    rule_fault_named("expert_divisor_world")->plant(&wrong.rules);
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 6);
    run_world(&right, &made.job, mesh_of("ep", 2, "fsdp", 2));
    run_world(&wrong, &made.job, mesh_of("ep", 2, "fsdp", 2));
    const struct tensor *a = kept_need(&right, 3, GRAD), *b = kept_need(&wrong, 3, GRAD);
    for (int64_t i = 0; i < tensor_elements(a); i++)
        cr_expect_eq(tensor_get(a, i), 4 * tensor_get(b, i)); /* a power of two: exact */
    run_done(&wrong);
    run_done(&right);
    job_done(&made);
}

/* Micro-batch 0 of tiny has 6, 0, 2, 5, 1 counted labels in its five sequences: two ranks get 8 and 6, four get 6
 * (6+0), 7 (2+5), 1 and none. */
static void expect_counts(struct mesh mesh, const int *want) {
    struct made_job made;
    struct run wrong = {.rules = rules_right};
    rule_fault_named("loss_mean_of_means")->plant(&wrong.rules);
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 6);
    run_world(&wrong, &made.job, mesh);
    for (int rank = 0; rank < mesh_world(&mesh); rank++)
        cr_expect_eq(tensor_get(kept_need(&wrong, rank, "step.0/loss/count"), 0), want[rank], "rank %d", rank);
    run_done(&wrong);
    job_done(&made);
}

Test(faults, loss_mean_of_means) {
    expect_counts(mesh_of("ep", 2, "fsdp", 1), (int[]){8 * 2, 6 * 2});
    expect_counts(mesh_of("ep", 2, "fsdp", 2), (int[]){6 * 3, 7 * 3, 1 * 3, 14});
}

/* The ledger names rank 1, the collective that it left out and where the others stand. */
Test(faults, reduce_scatter_left_out) {
    struct made_job made;
    struct run wrong = {.rules = rules_right};
    struct board_fault fault;
    rule_fault_named("reduce_scatter_left_out")->plant(&wrong.rules);
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 6);
    run_failing_world(&wrong, &made.job, mesh_of("ep", 2, "fsdp", 2), &fault);
    cr_expect_eq(fault.kind, FAULT_ORDER);
    cr_expect_eq(fault.rank, 1);
    cr_expect_eq(fault.expected.operation, COLLECTIVE_REDUCE_SCATTER);
    cr_expect(strstr(fault.expected.site, "sharded/fsdp.c:"), "%s", fault.expected.site);
    cr_expect_str_eq(fault.expected.what, "model.layers.1");
    run_done(&wrong);
    job_done(&made);
}
