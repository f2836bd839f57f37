/* The subject records exactly the points that the reference emits, in the same order: names from two independent walks.
 */
#include "job_of.h"

#include "reference/reference.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emitted {
    char name[POINT_NAME_MAX];
    int64_t elements;
    double *x;
};

struct emissions {
    int count, room;
    struct emitted *list;
};

static enum status collect(void *context, const struct point *point, struct value *value) {
    struct emissions *all = context;
    if (all->count == all->room) {
        all->room = 2 * all->room + 64;
        all->list = realloc(all->list, (size_t)all->room * sizeof *all->list);
    }
    struct emitted *one = &all->list[all->count++];
    point_name(one->name, point);
    one->elements = 1;
    for (int dim = 0; dim < value->ndim; dim++)
        one->elements *= value->shape[dim];
    one->x = malloc((size_t)one->elements * sizeof *one->x + 1);
    memcpy(one->x, value->x, (size_t)one->elements * sizeof *one->x);
    return STATUS_OK;
}

/* Largest difference over the largest value. Both sides run in float64 on their own; the golden files' bound after an
 * update, 1e-9, is what three steps of this size stay within. */
static double error_of(const struct tensor *got, const struct emitted *want) {
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < want->elements; i++) {
        if (isnan(want->x[i]) && isnan(tensor_get(got, i))) /* rows beyond a tenant's rank */
            continue;
        double difference = fabs(tensor_get(got, i) - want->x[i]);
        largest = fmax(largest, fabs(want->x[i]));
        if (!(difference <= worst))
            worst = isnan(difference) ? INFINITY : difference;
    }
    return largest > 0 ? worst / largest : worst;
}

static void expect_order(const struct job *job) {
    const struct reference_options options = {.dry = false};
    struct emissions owed = {0};
    const struct reference_hooks hooks = {.context = &owed, .emit = collect};
    struct run run = {0};
    cr_assert_eq(reference_run(job, &options, &hooks), STATUS_OK, "%s", status_note());
    run_world(&run, job, mesh_of("ep", 1, "fsdp", 1));
    int at = run.records[0];
    cr_assert_eq(at, owed.count);
    for (const struct kept *kept = run.kept[0]; kept; kept = kept->next) {
        const struct emitted *want = &owed.list[--at];
        cr_assert_str_eq(kept->name, want->name, "record %d", at);
        cr_assert_eq(tensor_elements(&kept->tensor), want->elements, "%s", kept->name);
        double error = error_of(&kept->tensor, want);
        cr_expect(error <= 1e-9, "%s: %g", kept->name, error);
        free(want->x);
    }
    free(owed.list);
    run_done(&run);
}

Test(order, of_two_tenants) {
    struct made_job made;
    job_of(&made, "qwen3_moe_tiny", "bob", "ada", DTYPE_F64, 3, 6);
    expect_order(&made.job);
    job_done(&made);
}

Test(order, of_a_tied_model) {
    struct made_job made;
    tied_job_of(&made);
    expect_order(&made.job);
    job_done(&made);
}

static const int first_two[] = {0, 1}, third[] = {2}, fourth[] = {3};

/* Two windows open at once, a release, another acquire; AdamW, clipping, router, norms and q_proj train. */
Test(order, of_windows_and_releases) {
    struct made_job made;
    empty_job_of(&made, "qwen3_moe_tiny", "bob", 3, 6);
    job_tenant(&made, "qwen3_moe_tiny", "ada");
    made.job.optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    made.job.clip = (struct clip){.present = true, .max = 1.5};
    job_trains_base(&made, "*norm.weight");
    job_trains_base(&made, "*.mlp.gate.weight");
    job_trains_base(&made, "*.q_proj.weight");
    then_acquire(&made, 0);
    then_acquire(&made, 1);
    then_accumulate(&made, 0, 2, first_two);
    then_accumulate(&made, 1, 1, third);
    then_accumulate(&made, 0, 1, fourth);
    then_step(&made, 0);
    then_evaluate(&made, 0, 1, fourth);
    then_step(&made, 1);
    then_release(&made, 0);
    then_train(&made, 1, 1, third);
    then_acquire(&made, 0);
    then_train(&made, 0, 1, fourth);
    then_export(&made, 0);
    expect_order(&made.job);
    job_done(&made);
}

static void everything_trains(bool tied, struct optimizer optimizer, struct clip clip) {
    static const int both[] = {0, 1};
    struct made_job made;
    biased_job_of(&made, tied);
    made.job.optimizer = optimizer;
    made.job.clip = clip;
    made.job.beyond_nan = true;
    job_trains_base(&made, "*");
    then_acquire(&made, 0);
    then_train(&made, 0, 2, both);
    then_train(&made, 0, 1, both);
    then_release(&made, 0);
    then_evaluate(&made, -1, 1, both);
    expect_order(&made.job);
    job_done(&made);
}

/* Every base tensor with biases, a dense layer, tied and untied embedding; NaN beyond the rank. */
Test(order, of_a_base_that_trains) {
    const struct optimizer nesterov = {
        .kind = OPTIMIZER_SGD, .lr = 0.05, .weight_decay = 0.2, .momentum = 0.8, .nesterov = true};
    const struct optimizer plain = {.kind = OPTIMIZER_SGD, .lr = 0.05, .weight_decay = 0.2};
    const struct optimizer adamw = {
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.3, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-8};
    everything_trains(false, nesterov, (struct clip){.present = true, .infinity = true, .max = 0.1});
    everything_trains(true, plain, (struct clip){0});
    everything_trains(true, adamw, (struct clip){.present = true, .max = 100});
}
