/* What each planted fault of forward, backward, sums and step changes first, on a mesh that lets it show. */
#include "job_of.h"

#include <criterion/criterion.h>

#define TINY "qwen3_moe_tiny"
#define LAYER "model.layers.0."
#define Q LAYER "self_attn.q_proj.weight"
#define UP LAYER "mlp.experts.gate_up_proj"
#define ROUTER LAYER "mlp.gate.weight"

static const int windows[] = {0, 2}, third[] = {2};

/* bob in slot 1 of 2 with r = 5 of R = 6, ada in slot 0; AdamW with decay; the router trains; ada's window is open. */
static void rich_job_of(struct made_job *out) {
    empty_job_of(out, TINY, "ada", 2, 6);
    job_tenant(out, TINY, "bob");
    out->job.optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    out->job.clip = (struct clip){.present = true, .max = 0.5};
    out->job.beyond_nan = true;
    job_trains_base(out, "*.mlp.gate.weight");
    then_acquire(out, 0);
    then_acquire(out, 1);
    then_train(out, 0, 1, third);
    then_accumulate(out, 0, 1, third);
    then_train(out, 1, 2, windows);
    then_step(out, 0);
}

struct planted {
    const char *fault;
    int rank;          /* that sees it */
    const char *first; /* record that differs, in recorded order */
};

/* In the mesh {ep: 2, fsdp: 2}. Micro-batch 2 has one sequence, which is rank 0's. */
static const struct planted planted[] = {
    {"balanced_split", 1, "step.0/param/model.embed_tokens.weight"}, /* 53 rows: 14 14 14 11, not 14 13 13 13 */
    {"another_slots_tensor", 0, "step.0/micro.2/gather/" UP ".lora_B"},
    {"delta_scale_missing", 0, "step.0/micro.2/delta/" UP},
    {"delta_scale_by_max_rank", 0, "step.0/micro.2/delta/" UP},
    {"delta_rank_padding_read", 0, "step.0/micro.2/delta/" UP},
    {"delta_transposed", 0, "step.0/micro.2/delta/" UP},
    {"combine_weights_dropped", 0, "step.0/micro.2/forward/" LAYER "mlp"},
    {"halves_swapped", 0, "step.0/micro.2/forward/" LAYER "mlp.experts.hidden"},
    {"labels_not_shifted", 0, "step.0/micro.2/forward/token_loss"},
    {"sum_wrong_group", 3, "step.0/micro.2/grad/model.layers.1.mlp.gate.weight"},
    {"router_gradient_over_ep_only", 1, "step.0/micro.2/grad/model.layers.1.mlp.gate.weight"},
    /* rank 1 holds rows 3 to 5 of lora_A: ada has two */
    {"expert_sum_missing", 1, "step.0/micro.2/grad/model.layers.1.mlp.experts.gate_up_proj.lora_B"},
    {"gradient_mean_for_sum", 0, "step.0/micro.2/grad/model.layers.1.mlp.gate.weight"},
    {"doubled_reduction", 0, "step.0/micro.2/grad/model.layers.1.mlp.gate.weight"},
    {"accumulation_divides_per_micro", 0, "step.0/micro.2/grad/model.layers.1.mlp.gate.weight"},
    {"norm_over_all_tenants", 0, "step.2/clip/norm"},
    {"one_step_late", 0, "step.0/update/" ROUTER},
    {"adamw_foreign_counter", 0, "step.2/update/" Q ".lora_A"},
    {"frozen_base_updated", 0, "step.1/param/model.embed_tokens.weight"},
};

static void expect_first(const struct run *right, const struct job *job, const struct planted *planted_one) {
    struct run wrong = {.rules = rules_right};
    const char *first = "";
    rule_fault_named(planted_one->fault)->plant(&wrong.rules);
    run_world(&wrong, job, right->mesh);
    const struct kept *y = wrong.kept[planted_one->rank];
    for (const struct kept *x = right->kept[planted_one->rank]; x && y; x = x->next, y = y->next) {
        cr_assert_str_eq(x->name, y->name, "%s", planted_one->fault);
        if (!same_bits(&x->tensor, &y->tensor))
            first = x->name; /* latest first */
    }
    cr_expect_str_eq(first, planted_one->first, "%s: %s", planted_one->fault, first);
    run_done(&wrong);
}

Test(planted, first_difference) {
    struct made_job made;
    struct run right = {0};
    rich_job_of(&made);
    run_world(&right, &made.job, mesh_of("ep", 2, "fsdp", 2));
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++)
        expect_first(&right, &made.job, &planted[i]);
    run_done(&right);
    job_done(&made);
}

/* Rows beyond the rank: SGD's decay makes NaN of a gradient that is 0. Rank 0 holds rows 0 and 1 of lora_A, and columns
 * of all rows of lora_B. */
Test(planted, decay_on_inactive_rows) {
    const struct planted decay = {"decay_on_inactive_rows", 0, "step.2/optimizer/momentum_buffer/" Q ".lora_B"};
    struct made_job made;
    struct run right = {0};
    rich_job_of(&made);
    made.job.optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1, .weight_decay = 0.1, .momentum = 0.9};
    made.job.actions = 2; /* the two acquires */
    made.job.steps = 2;
    then_train(&made, 1, 1, third);
    run_world(&right, &made.job, mesh_of("ep", 2, "fsdp", 2));
    expect_first(&right, &made.job, &decay);
    run_done(&right);
    job_done(&made);
}

/* On {fsdp: 2, ep: 2} ep is the last axis: number and coordinate agree. On {ep: 2, fsdp: 2} ranks 1 and 2 do not. */
Test(planted, fsdp_major_expert_order) {
    const struct planted seen = {"fsdp_major_expert_order", 1, "step.0/param/" UP};
    const struct planted hidden = {"fsdp_major_expert_order", 0, ""};
    struct made_job made;
    struct run right = {0}, last = {0};
    rich_job_of(&made);
    made.job.actions = 2;
    made.job.steps = 0;
    then_evaluate(&made, -1, 1, third);
    run_world(&right, &made.job, mesh_of("ep", 2, "fsdp", 2));
    expect_first(&right, &made.job, &seen);
    run_world(&last, &made.job, mesh_of("fsdp", 2, "ep", 2));
    expect_first(&last, &made.job, &hidden);
    run_done(&last);
    run_done(&right);
    job_done(&made);
}

/* Forward's counts fit forward's way: in backward, rows are missing or too many where the two ways differ. */
Test(planted, backward_counts_swapped) {
    const struct planted one = {"backward_counts_swapped", 0,
                                "step.0/micro.2/backward/model.layers.1.mlp.experts.dispatch"};
    struct made_job made;
    struct run right = {0};
    rich_job_of(&made);
    run_world(&right, &made.job, mesh_of("ep", 2, "fsdp", 1));
    expect_first(&right, &made.job, &one);
    run_done(&right);
    job_done(&made);
}
