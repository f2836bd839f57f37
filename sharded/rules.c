#include "sharded/rules.h"

#include <string.h>

#define IMPORT_B "out (rank expert[ep])"

static bool is_the_same(const char *name, const char *wanted) {
    return strcmp(name, wanted) == 0;
}

static bool begins_with(const char *name, const char *wanted) {
    return strncmp(name, wanted, strlen(wanted)) == 0;
}

const struct rules rules_right = {
    .import_b = IMPORT_B,
    .export_b = IMPORT_B,
    .slot_named = is_the_same,
    .reduce_times = 1,
    .skip = {.operation = COLLECTIVE_NONE},
};

/* A fault sets one field. */
#define PLANT(name, field, value)                                                                                      \
    static void name(struct rules *rules) {                                                                            \
        rules->field = value;                                                                                          \
    }

PLANT(import_b_expert_major, import_b, "out (expert[ep] rank)")
PLANT(export_b_plain_concat, export_b, "out (rank expert)[ep]")
PLANT(ep_slice_off_by_one, ep_shift, 1)
PLANT(fsdp_major_expert_order, ep_as_last_axis, true)
PLANT(balanced_split, balanced_shards, true)
PLANT(experts_unit_stale, experts_stay, true)
PLANT(regather_misordered, kept_as_strided, true)
PLANT(recompute_another_slot, recompute_slot_shift, 1)
PLANT(replicas_not_summed, unsummed_axis, "replicate")
PLANT(another_slots_tensor, b_slot_shift, 1)
PLANT(slot_name_prefix, slot_named, begins_with)
PLANT(slot_reset_first_rows, reset_first_rows, true)
PLANT(optimizer_state_survives_release, release_keeps.state, true)
PLANT(counter_survives_release, release_keeps.counter, true)
PLANT(delta_scale_missing, delta_scale, DELTA_SCALE_NONE)
PLANT(delta_scale_by_max_rank, delta_scale, DELTA_SCALE_BY_MAX_RANK)
PLANT(delta_rank_padding_read, delta_all_rows, true)
PLANT(delta_transposed, delta_turned, true)
PLANT(combine_weights_dropped, combine_unweighted, true)
PLANT(halves_swapped, up_before_gate, true)
PLANT(labels_not_shifted, label_lag, 1)
PLANT(backward_counts_swapped, backward_counts_kept, true)
PLANT(gradient_mean_for_sum, reduce_means, true)
PLANT(gradient_reduced_in_bf16, reduce_in_bfloat, true)
PLANT(master_copy_lost, master_lost, true)
PLANT(doubled_reduction, reduce_times, 2)
PLANT(expert_divisor_world, expert_divisor_world, true)
PLANT(loss_mean_of_means, loss_mean_of_means, true)
PLANT(accumulation_divides_per_micro, divide_per_micro, true)
PLANT(norm_over_all_tenants, norm.all_tenants, true)
PLANT(norm_per_rank, norm.per_rank, true)
PLANT(norm_counts_replicas, norm.replicas, true)
PLANT(norm_experts_one_ep_rank, norm.one_ep_rank, true)
PLANT(one_step_late, move_before_state, true)
PLANT(adamw_foreign_counter, one_counter, true)
PLANT(decay_on_inactive_rows, update_all_rows, true)
PLANT(checkpoint_moments_of_ep_rank_0, load.state_of_ep_rank_0, true)
PLANT(checkpoint_counter_lost, load.counter_lost, true)
PLANT(checkpoint_slot_order, load.slots_reversed, true)
PLANT(frozen_base_updated, decay_frozen, true)

#define PLANT_SUM(name, glob, along)                                                                                   \
    static void name(struct rules *rules) {                                                                            \
        rules->narrow_sum.tensors = glob;                                                                              \
        rules->narrow_sum.axis = along;                                                                                \
    }

PLANT_SUM(sum_wrong_group, "*", "fsdp")
PLANT_SUM(router_gradient_over_ep_only, "*.mlp.gate.weight*", "ep")
PLANT_SUM(expert_sum_missing, "*.mlp.experts.*", "")

static void reduce_scatter_left_out(struct rules *rules) {
    rules->skip.operation = COLLECTIVE_REDUCE_SCATTER;
    rules->skip.rank = 1;
    rules->skip.nth = 0;
}

const struct rule_fault rule_faults[] = {
    {"import_b_expert_major", "PEFT's flat lora_B is read expert slow, rank fast: every expert gets scrambled rows.",
     import_b_expert_major},
    {"export_b_plain_concat", "The EP ranks' pieces of flat lora_B are put one behind the other on dim 1.",
     export_b_plain_concat},
    {"ep_slice_off_by_one", "Each EP rank loads its neighbour's block of the packed expert weights.",
     ep_slice_off_by_one},
    {"fsdp_major_expert_order",
     "Expert blocks are dealt out by rank number modulo ep, as if ep were the last mesh axis.",
     fsdp_major_expert_order},
    {"balanced_split",
     "Tensors other than experts are cut into pieces of nearly equal size instead of by torch.chunk's rule.",
     balanced_split},
    {"experts_unit_stale", "Packed experts are not resharded: the next gather finds them gathered and moves nothing.",
     experts_unit_stale},
    {"regather_misordered",
     "A rank of a smaller group keeps the piece that a strided group would give it, and the group gathers by blocks.",
     regather_misordered},
    {"recompute_another_slot", "Recomputation in backward gathers the factors of the slot behind the acting one.",
     recompute_another_slot},
    {"replicas_not_summed", "Gradients are summed over the shards of one replica alone.", replicas_not_summed},
    {"another_slots_tensor", "lora_B is gathered from the slot behind the acting one.", another_slots_tensor},
    {"slot_name_prefix",
     "A release resets every slot whose name begins with the released one's: lora_1 takes lora_10 along.",
     slot_name_prefix},
    {"slot_reset_first_rows", "A release copies the first rows of the whole initial tensor into every rank's shard.",
     slot_reset_first_rows},
    {"optimizer_state_survives_release",
     "A released slot keeps its optimizer state: the next tenant starts with the last one's.",
     optimizer_state_survives_release},
    {"counter_survives_release",
     "A released slot keeps its step counter: the next tenant's bias correction is too weak.",
     counter_survives_release},
    {"delta_scale_missing", "The delta is B A without the adapter's scale.", delta_scale_missing},
    {"delta_scale_by_max_rank",
     "The delta's scale divides alpha by the rank of the physical slot, not by the tenant's.", delta_scale_by_max_rank},
    {"delta_rank_padding_read",
     "The delta is made of all rows of the physical slot, also those beyond the tenant's rank.",
     delta_rank_padding_read},
    {"delta_transposed", "The delta is laid down transposed, [in,out] where [out,in] is read.", delta_transposed},
    {"combine_weights_dropped", "Experts' results are added up without the router's weights.", combine_weights_dropped},
    {"halves_swapped", "The gate and up halves of the packed experts are taken for each other.", halves_swapped},
    {"labels_not_shifted", "Logits are compared with the label of their own token, not of the next.",
     labels_not_shifted},
    {"backward_counts_swapped", "In backward, rows go back to their sources with the counts that they came with.",
     backward_counts_swapped},
    {"sum_wrong_group", "Gradients are summed over the fsdp ranks alone, where the whole world owes a part.",
     sum_wrong_group},
    {"router_gradient_over_ep_only", "The router's gradients are summed over the ep ranks alone.",
     router_gradient_over_ep_only},
    {"expert_sum_missing", "Gradients of expert tensors are cut into shards without a sum over the fsdp ranks.",
     expert_sum_missing},
    {"gradient_mean_for_sum",
     "Gradients are averaged over the ranks of the reduction, FSDP2's default, and then divided by the label count.",
     gradient_mean_for_sum},
    {"gradient_reduced_in_bf16", "Partial gradients are rounded to bfloat16 before they are summed over the ranks.",
     gradient_reduced_in_bf16},
    {"doubled_reduction", "Every reduced gradient is added to the running sum twice.", doubled_reduction},
    {"expert_divisor_world", "Gradients of expert slots are divided by the world size on top of the label count.",
     expert_divisor_world},
    {"loss_mean_of_means", "Each rank divides by its own labels times the ranks that have any, not by all labels.",
     loss_mean_of_means},
    {"accumulation_divides_per_micro",
     "Each micro-batch's gradient is divided by its own label count, and their sum by their number.",
     accumulation_divides_per_micro},
    {"norm_over_all_tenants",
     "The gradient norm also runs over what other tenants have summed up in their open windows.",
     norm_over_all_tenants},
    {"norm_per_rank", "Each rank clips by the norm of its own shards.", norm_per_rank},
    {"norm_counts_replicas", "Tensors that lie on several ranks count in the norm once per rank.",
     norm_counts_replicas},
    {"norm_experts_one_ep_rank", "Of the experts, only those of EP rank 0 count in the norm.",
     norm_experts_one_ep_rank},
    {"one_step_late", "Parameters move by the optimizer state of before the step.", one_step_late},
    {"adamw_foreign_counter", "AdamW's bias correction takes its step number from slot 0's counter, whoever trains.",
     adamw_foreign_counter},
    {"decay_on_inactive_rows", "Updates, weight decay with them, act on the rows beyond the tenant's rank.",
     decay_on_inactive_rows},
    {"master_copy_lost", "Updates start from the rounded parameter instead of its float32 master copy.",
     master_copy_lost},
    {"frozen_base_updated", "Weight decay reaches the base weights that do not train.", frozen_base_updated},
    {"checkpoint_moments_of_ep_rank_0", "A load gives every EP rank the experts' optimizer state of EP rank 0.",
     checkpoint_moments_of_ep_rank_0},
    {"checkpoint_counter_lost", "A load forgets the step counters: AdamW's bias correction begins anew.",
     checkpoint_counter_lost},
    {"checkpoint_slot_order", "A load lists the slots in falling order: tenants get each other's tensors.",
     checkpoint_slot_order},
    {"reduce_scatter_left_out", "Rank 1 leaves its first reduce-scatter out.", reduce_scatter_left_out},
    {0},
};

const struct rule_fault *rule_fault_named(const char *name) {
    for (const struct rule_fault *fault = rule_faults; fault->name; fault++)
        if (strcmp(fault->name, name) == 0)
            return fault;
    return NULL;
}
