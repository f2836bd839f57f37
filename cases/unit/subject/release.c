/* Slots: what a free one holds, and that a released one is as good as new. */
#include "job_of.h"

#include "core/checkpoint.h"

#include <criterion/criterion.h>
#include <math.h>

#define TINY "qwen3_moe_tiny"
#define DOWN "model.layers.0.mlp.experts.down_proj"
#define Q "model.layers.1.self_attn.q_proj.weight"

static const int first_two[] = {0, 1}, third[] = {2}, fourth[] = {3};

/* tiny's down_proj has 12 experts and in 14; R is 5. Element i of the whole slot tensor, from its index alone. */
static void expect_initial(const struct run *run, int step, int slot) {
    const struct param *down = inventory_named(checkpoint_inventory(run->job->model), DOWN);
    const struct mesh *mesh = &run->mesh;
    int64_t held = 0;
    for (int rank = 0; rank < mesh_world(mesh); rank++) {
        const struct tensor *a = kept_need(run, rank, "step.%d/param/slot.%d/" DOWN ".lora_A", step, slot);
        const struct tensor *b = kept_need(run, rank, "step.%d/param/slot.%d/" DOWN ".lora_B", step, slot);
        /* ep cuts the experts in blocks; fsdp 3 does not divide R = 5, so that it cuts the block's experts further */
        int64_t experts = 12 / mesh_world(mesh);
        int64_t first = experts * rank; /* the mesh is {ep, fsdp}: row-major, as ranks are */
        cr_assert_eq(a->shape[0], experts);
        for (int64_t i = 0; i < tensor_elements(a); i++, held++)
            cr_expect_eq(tensor_get(a, i), slot_initial(down, slot, first * 5 * 14 + i, 14), "rank %d, %d", rank,
                         (int)i);
        for (int64_t i = 0; i < tensor_elements(b); i++)
            cr_expect_eq(tensor_get(b, i), 0);
    }
    cr_expect_eq(held, 12 * 5 * 14);
}

static void slots_job_of(struct made_job *out) {
    empty_job_of(out, TINY, "bob", 2, 5);
    job_tenant(out, TINY, "dov");
    out->job.optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
}

Test(release, free_slots_hold_their_initial_values) {
    struct made_job made;
    struct run run = {0};
    slots_job_of(&made);
    then_acquire(&made, 0);
    then_train(&made, 0, 2, first_two);
    then_release(&made, 0);
    then_evaluate(&made, -1, 1, third);
    run_world(&run, &made.job, mesh_of("ep", 2, "fsdp", 3));
    expect_initial(&run, 0, 1);
    expect_initial(&run, 1, 0);
    expect_initial(&run, 1, 1);
    cr_expect_null(kept_find(&run, 0, "step.1/param/slot.0/exp_avg/" DOWN ".lora_A"));
    kept_need(&run, 0, "step.0/param/exp_avg_sq/" DOWN ".lora_A");
    run_done(&run);
    job_done(&made);
}

/* The values differ: between slots, between parameters, and not all 0. */
Test(release, initial_values_differ) {
    struct made_job made;
    slots_job_of(&made);
    const struct param *down = inventory_named(checkpoint_inventory(made.job.model), DOWN);
    const struct param *q = inventory_named(checkpoint_inventory(made.job.model), Q);
    int different = 0;
    for (int64_t i = 0; i < 100; i++) {
        different += slot_initial(down, 0, i, 14) != slot_initial(down, 1, i, 14);
        different += slot_initial(down, 0, i, 14) != slot_initial(q, 0, i, 14);
        cr_expect(fabs(slot_initial(down, 0, i, 14)) < 1 / sqrt(14) * (1 + 1e-6)); /* rounded to float32 */
    }
    cr_expect_gt(different, 190);
    job_done(&made);
}

/* Records of one step that both runs have are the same bits; returns how many. */
static int expect_same_step(const struct run *a, const struct run *b, int step) {
    int compared = 0;
    for (int rank = 0; rank < mesh_world(&a->mesh); rank++)
        for (const struct kept *kept = a->kept[rank]; kept; kept = kept->next) {
            if (kept->point.step != step || kept->point.phase == PHASE_EXPORT)
                continue;
            const struct tensor *other = kept_need(b, rank, "%s", kept->name);
            cr_expect(same_bits(&kept->tensor, other), "rank %d: %s", rank, kept->name);
            compared++;
        }
    return compared;
}

/* Two steps of whoever was there before leave nothing, an open window neither. */
static void after_release(const struct rules *rules, struct mesh mesh, bool used, bool window, struct run *out,
                          struct made_job *made) {
    slots_job_of(made);
    if (used) {
        then_acquire(made, 0);
        then_train(made, 0, 2, first_two);
        then_train(made, 0, 1, third);
        if (window)
            then_accumulate(made, 0, 1, fourth);
        then_release(made, 0);
    }
    made->job.steps = 3;
    then_acquire(made, 1);
    then_train(made, 1, 2, first_two);
    then_train(made, 1, 1, fourth);
    *out = (struct run){.rules = *rules};
    run_world(out, &made->job, mesh);
}

static void expect_fresh(struct mesh mesh, bool window) {
    struct made_job a, b;
    struct run used, fresh;
    after_release(&rules_right, mesh, true, window, &used, &a);
    after_release(&rules_right, mesh, false, window, &fresh, &b);
    for (int step = 3; step < 6; step++) /* the last: what is held after the script */
        cr_expect_gt(expect_same_step(&used, &fresh, step), 50);
    run_done(&fresh);
    run_done(&used);
    job_done(&b);
    job_done(&a);
}

Test(release, leaves_nothing) {
    expect_fresh(mesh_of("ep", 1, "fsdp", 1), false);
    expect_fresh(mesh_of("ep", 2, "fsdp", 2), false);
    expect_fresh(mesh_of("fsdp", 3, "ep", 2), true);
}

/* The first record that differs on a rank between the right rules and a planted fault. */
static void expect_first(const char *fault, struct mesh mesh, int rank, const char *want) {
    struct made_job a, b;
    struct run right, wrong;
    struct rules rules = rules_right;
    const char *first = "";
    rule_fault_named(fault)->plant(&rules);
    after_release(&rules_right, mesh, true, true, &right, &a);
    after_release(&rules, mesh, true, true, &wrong, &b);
    const struct kept *y = wrong.kept[rank];
    for (const struct kept *x = right.kept[rank]; x && y; x = x->next, y = y->next)
        if (!same_bits(&x->tensor, &y->tensor))
            first = x->name; /* latest first */
    cr_expect_str_eq(first, want, "%s: %s", fault, first);
    run_done(&wrong);
    run_done(&right);
    job_done(&b);
    job_done(&a);
}

/* dov adapts q and v of both layers, bob these too: what bob's momenta leave there is dov's. The counter starts at 2
 * and not at 0: AdamW's first update is another. */
Test(release, planted_faults) {
    expect_first("optimizer_state_survives_release", mesh_of("ep", 2, "fsdp", 1), 0,
                 "step.3/param/exp_avg/model.layers.0.self_attn.q_proj.weight.lora_A");
    expect_first("counter_survives_release", mesh_of("ep", 2, "fsdp", 1), 1,
                 "step.3/update/model.layers.0.self_attn.q_proj.weight.lora_A");
}

/* Rank 1 holds experts 6 to 11, and gets the values of experts 0 to 5. */
Test(release, slot_reset_first_rows) {
    struct made_job made;
    struct run run = {.rules = rules_right};
    rule_fault_named("slot_reset_first_rows")->plant(&run.rules);
    slots_job_of(&made);
    then_acquire(&made, 0);
    then_release(&made, 0);
    then_evaluate(&made, -1, 1, third);
    run_world(&run, &made.job, mesh_of("ep", 2, "fsdp", 1));
    const struct param *down = inventory_named(checkpoint_inventory(made.job.model), DOWN);
    const struct tensor *released = kept_need(&run, 1, "step.0/param/slot.0/" DOWN ".lora_A");
    const struct tensor *untouched = kept_need(&run, 1, "step.0/param/slot.1/" DOWN ".lora_A");
    cr_assert_eq(tensor_elements(released), 6 * 5 * 14);
    for (int64_t i = 0; i < tensor_elements(released); i++) {
        cr_expect_eq(tensor_get(released, i), slot_initial(down, 0, i, 14));
        cr_expect_eq(tensor_get(untouched, i), slot_initial(down, 1, i + 6 * 5 * 14, 14));
    }
    run_done(&run);
    job_done(&made);
}

/* A release resets its own slot alone, though its name begins another's: with 11 slots, lora_1 and lora_10. */
static void eleven(const struct rules *rules, struct run *out, struct made_job *made) {
    empty_job_of(made, TINY, "dov", 11, 4);
    for (int i = 1; i < 11; i++)
        job_tenant(made, TINY, "dov");
    for (int i = 0; i < 11; i++)
        then_acquire(made, i);
    then_release(made, 1);
    then_evaluate(made, 10, 1, third);
    *out = (struct run){.rules = *rules};
    run_world(out, &made->job, mesh_of("ep", 1, "fsdp", 2));
}

Test(release, of_slot_1_leaves_slot_10) {
    struct made_job a, b;
    struct run right, wrong;
    struct rules rules = rules_right;
    rule_fault_named("slot_name_prefix")->plant(&rules);
    eleven(&rules_right, &right, &a);
    eleven(&rules, &wrong, &b);
    const struct tensor *ten = kept_need(&right, 0, "step.0/param/" Q ".lora_A");
    const struct tensor *two = kept_need(&right, 0, "step.0/param/slot.2/" Q ".lora_A");
    const struct tensor *one = kept_need(&right, 0, "step.0/param/slot.1/" Q ".lora_A");
    const struct tensor *lost = kept_need(&wrong, 0, "step.0/param/" Q ".lora_A");
    cr_expect(same_bits(ten, two));
    cr_expect_not(same_bits(ten, one));
    cr_expect_not(same_bits(ten, lost));
    run_done(&wrong);
    run_done(&right);
    job_done(&b);
    job_done(&a);
}

/* A tenant takes the lowest free slot, another one on its second stay; without a free one, acquire fails. */
Test(release, lowest_free_slot) {
    struct made_job made;
    struct run run = {0}, failing = {0};
    struct board_fault fault;
    slots_job_of(&made);
    then_acquire(&made, 0);
    then_acquire(&made, 1);
    then_release(&made, 0);
    then_evaluate(&made, -1, 1, third);
    then_release(&made, 1);
    then_acquire(&made, 1);
    then_acquire(&made, 0);
    then_evaluate(&made, -1, 1, third);
    run_world(&run, &made.job, mesh_of("ep", 1, "fsdp", 1));
    const struct tensor *before = kept_need(&run, 0, "step.0/param/slot.1/" Q ".lora_A");
    const struct tensor *after = kept_need(&run, 0, "step.1/param/slot.0/" Q ".lora_A");
    cr_expect(same_bits(before, after));
    run_done(&run);
    job_tenant(&made, TINY, "ada");
    then_acquire(&made, 2);
    run_failing_world(&failing, &made.job, mesh_of("ep", 1, "fsdp", 1), &fault);
    run_done(&failing);
    job_done(&made);
}
