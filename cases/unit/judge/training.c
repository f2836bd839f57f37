/* What training adds to the judge: state of slots and base tensors, clipping, rows beyond a tenant's rank, windows. A
 * perfect subject on mesh 2x2, one thing broken, the finding. */
#include "fake.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GATE_UP "model.layers.0.mlp.experts.gate_up_proj"
#define ROUTER "model.layers.0.mlp.gate.weight"

static struct fake fake;
static bool trains[64];

/* AdamW, clipping, NaN beyond ada's rank 2 of 3, routers that train. */
static void whole_training(struct job *job) {
    const struct inventory *inventory = checkpoint_inventory(job->model);
    job->optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    job->clip = (struct clip){.present = true, .max = 0.5};
    job->beyond_nan = true;
    for (int i = 0; i < inventory->count; i++)
        trains[i] = inventory->params[i].kind == PARAM_ROUTER;
    job->trains = trains;
}

static void start(void) {
    fake_make_of(&fake, 2, 2, DTYPE_F64, whole_training);
    fake_record(&fake, NULL, -1);
}

static const struct report_finding *verdict(const char *tensor, const char *phase, enum finding_kind kind, int rank,
                                            const char *tenant, int64_t slot) {
    const struct report_finding *finding = &fake.report.finding;
    fake_judge(&fake);
    cr_assert_eq(fake.report.verdict, VERDICT_FAIL);
    cr_assert_str_eq(finding->tensor, tensor, "%s", finding->text);
    cr_assert_str_eq(finding->phase, phase, "%s", finding->text);
    cr_assert_eq(finding->kind, kind, "%s", finding->text);
    cr_assert_eq(finding->rank, rank, "%s", finding->text);
    cr_assert_eq(finding->slot, slot, "%s", finding->text);
    if (tenant)
        cr_assert_str_eq(finding->tenant, tenant, "%s", finding->text);
    else
        cr_assert_null(finding->tenant, "%s", finding->text);
    return finding;
}

#define BEYOND (2 * 20) /* lora_A [12,3,20]: three experts on each rank; the first one's lora rank 2 begins here */

static void set(int rank, const char *name, int64_t at, double value) {
    tensor_set(fake_tensor(&fake, rank, name), at, value);
}

static void clean(int ep, int fsdp, enum dtype dtype) {
    fake_make_of(&fake, ep, fsdp, dtype, whole_training);
    fake_record(&fake, NULL, -1);
    fake_judge(&fake);
    cr_assert(!fake.report.finding.present, "%s", fake.report.finding.text);
    cr_assert_eq(fake.report.verdict, VERDICT_PASS);
    cr_assert_eq(fake.report.compared_records, fake.report.owed_records);
    fake_free(&fake);
}

Test(training, right_in_float64) {
    clean(2, 2, DTYPE_F64);
}

Test(training, right_in_float32) {
    clean(3, 1, DTYPE_F32);
}

/* ---- rows beyond the rank */

Test(training, nan_within_the_rank) {
    start();
    set(0, "step.0/param/" GATE_UP ".lora_A", 5, NAN);
    verdict(GATE_UP ".lora_A", "param", FINDING_NOT_FINITE, 0, "ada", 0);
    fake_free(&fake);
}

Test(training, nan_of_other_bits_beyond_the_rank) {
    start();
    set(1, "step.1/param/" GATE_UP ".lora_A", BEYOND + 5, -NAN);
    verdict(GATE_UP ".lora_A", "param", FINDING_NOT_FINITE, 1, "ada", 0);
    fake_free(&fake);
}

Test(training, nothing_beyond_the_rank_is_updated) {
    start();
    set(3, "step.0/update/" GATE_UP ".lora_A", BEYOND, 0);
    const struct report_finding *finding = verdict(GATE_UP ".lora_A", "update", FINDING_VALUE, 3, "ada", 0);
    cr_assert(finding->index[0] == 9 && finding->index[1] == 2, "%s", finding->text);
    fake_free(&fake);
}

/* Gradients and state hold 0 there. */
Test(training, nan_in_a_gradient_beyond_the_rank) {
    start();
    set(1, "step.0/grad/" GATE_UP ".lora_A", BEYOND + 7, NAN);
    verdict(GATE_UP ".lora_A", "grad", FINDING_NOT_FINITE, 1, "ada", 0);
    fake_free(&fake);
}

Test(training, nan_in_state_beyond_the_rank) {
    start();
    set(1, "step.0/optimizer/exp_avg/" GATE_UP ".lora_A", BEYOND + 7, NAN);
    verdict("exp_avg/" GATE_UP ".lora_A", "optimizer", FINDING_NOT_FINITE, 1, "ada", 0);
    fake_free(&fake);
}

/* A free slot holds its initial values, no NaN. */
Test(training, nan_in_a_free_slot) {
    start();
    set(1, "step.0/param/slot.1/" GATE_UP ".lora_A", BEYOND + 7, NAN);
    const struct report_finding *finding = verdict(GATE_UP ".lora_A", "param", FINDING_NOT_FINITE, 1, NULL, 1);
    cr_assert(strstr(finding->text, "(slot 1, free)"), "%s", finding->text);
    fake_free(&fake);
}

/* ---- state, base tensors, clipping */

static void scale(int rank, const char *name, double factor) {
    struct tensor *tensor = fake_tensor(&fake, rank, name);
    for (int64_t i = 0; i < tensor_elements(tensor); i++)
        tensor_set(tensor, i, tensor_get(tensor, i) * factor);
}

Test(training, state_of_a_base_tensor) {
    start();
    scale(2, "step.1/param/exp_avg_sq/" ROUTER, 2);
    const struct report_finding *finding = verdict("exp_avg_sq/" ROUTER, "param", FINDING_VALUE, 2, "ada", 0);
    cr_assert(strstr(finding->text, "(tenant ada, slot 0)"), "%s", finding->text);
    fake_free(&fake);
}

/* In step 2, an evaluation of the base, nobody acts: ada's slot goes by its number. */
Test(training, state_of_a_base_tensor_of_who_does_not_act) {
    start();
    scale(1, "step.2/param/slot.0/exp_avg/" ROUTER, 2);
    verdict("exp_avg/" ROUTER, "param", FINDING_VALUE, 1, "ada", 0);
    fake_free(&fake);
}

Test(training, gradient_of_a_base_tensor) {
    start();
    scale(1, "step.0/micro.0/backward/" ROUTER, 1 + 1e-9);
    verdict(ROUTER, "backward", FINDING_VALUE, 0, "ada", -1);
    cr_assert_eq(fake.report.finding.ranks, 4);
    fake_free(&fake);
}

Test(training, update_of_a_base_tensor) {
    start();
    scale(3, "step.1/update/" ROUTER, 1 + 1e-12);
    verdict(ROUTER, "update", FINDING_VALUE, 3, "ada", -1);
    fake_free(&fake);
}

Test(training, norm) {
    start();
    for (int rank = 0; rank < 4; rank++)
        scale(rank, "step.1/clip/norm", 1 + 1e-9);
    verdict("norm", "clip", FINDING_VALUE, 0, "ada", -1);
    cr_assert_eq(fake.report.finding.ranks, 4);
    /* the clipped gradients follow from the norm that was recorded */
    cr_assert_geq(fake.report.consequences.count, 1);
    fake_free(&fake);
}

Test(training, norm_of_one_rank) {
    start();
    scale(2, "step.0/clip/norm", 0.5);
    verdict("norm", "clip", FINDING_REPLICA, 2, "ada", -1);
    fake_free(&fake);
}

Test(training, gradient_that_was_not_clipped) {
    start();
    struct tensor *clipped = fake_tensor(&fake, 1, "step.0/clip/" ROUTER);
    memcpy(clipped->data, fake_tensor(&fake, 1, "step.0/grad/" ROUTER)->data, tensor_bytes(clipped));
    verdict(ROUTER, "clip", FINDING_VALUE, 1, "ada", -1);
    fake_free(&fake);
}

/* ---- who holds which slot, by hand */

static const struct action script[] = {
    {.kind = ACTION_ACQUIRE, .tenant = 0},
    {.kind = ACTION_ACQUIRE, .tenant = 1},
    {.kind = ACTION_ACCUMULATE, .tenant = 1, .step = 1, .opens = true, .micros = 1, .micro = (const int[]){0}},
    {.kind = ACTION_TRAIN, .tenant = 0, .step = 0, .opens = true, .micros = 1, .micro = (const int[]){0}},
    {.kind = ACTION_ACCUMULATE, .tenant = 1, .step = 1, .micros = 1, .micro = (const int[]){1}},
    {.kind = ACTION_STEP, .tenant = 1, .step = 1},
    {.kind = ACTION_RELEASE, .tenant = 0, .step = 2},
    {.kind = ACTION_ACQUIRE, .tenant = 2, .step = 2},
    {.kind = ACTION_ACQUIRE, .tenant = 0, .step = 2},
    {.kind = ACTION_EVALUATE, .tenant = 0, .step = 2, .opens = true, .micros = 1, .micro = (const int[]){0}},
    {.kind = ACTION_TRAIN, .tenant = 0, .step = 3, .opens = true, .micros = 1, .micro = (const int[]){1}},
    {.kind = ACTION_RELEASE, .tenant = 1, .step = 4},
};

static struct micro_batch micros[] = {{.number = 0}, {.number = 4}};

static struct job scripted(void) {
    return (struct job){.slots = 3,
                        .tenants = 3,
                        .micros = 2,
                        .micro = micros,
                        .actions = sizeof script / sizeof *script,
                        .action = (struct action *)(uintptr_t)script,
                        .steps = 4};
}

Test(script, slots_over_time) {
    static const int want[5][3] = {{0, 1, -1}, {0, 1, -1}, {2, 1, 0}, {2, 1, 0}, {2, -1, 0}};
    struct job job = scripted();
    for (int step = 0; step <= 4; step++)
        for (int n = 0; n < 3; n++) {
            cr_expect_eq(slot_tenant(&job, step, n), want[step][n], "step %d slot %d", step, n);
            if (want[step][n] >= 0)
                cr_expect_eq(tenant_slot(&job, step, want[step][n]), n);
        }
    cr_expect_eq(tenant_slot(&job, 4, 1), -1);
    cr_expect_eq(tenant_slot(&job, 1, 2), -1);
    cr_expect_eq(slot_tenant(&job, 1, 3), -1);
}

Test(script, who_acts) {
    struct job job = scripted();
    cr_expect_eq(step_tenant(&job, 0), 0);
    cr_expect_eq(step_tenant(&job, 1), 1);
    cr_expect_eq(step_action(&job, 1)->kind, ACTION_STEP);
    cr_expect_eq(step_tenant(&job, 2), 0);
    cr_expect_eq(step_tenant(&job, 4), -1);
}

/* The accumulate of micro-batch 4 comes behind tenant 0's update of the base, in a window that was opened before. */
Test(script, a_window_that_drifts) {
    struct job job = scripted();
    struct point point = POINT_NONE;
    point.phase = PHASE_FORWARD;
    point.step = 1;
    point.micro = 4;
    cr_expect_not(window_drifted(&job, &point), "no base tensor trains");
    job.trains = trains;
    cr_expect(window_drifted(&job, &point));
    point.micro = 0;
    cr_expect_not(window_drifted(&job, &point));
    point.step = 0;
    cr_expect_not(window_drifted(&job, &point));
    point.step = 3;
    point.micro = 4;
    cr_expect_not(window_drifted(&job, &point));
    point.step = 1;
    point.micro = -1;
    point.phase = PHASE_PARAM;
    cr_expect_not(window_drifted(&job, &point));
}
