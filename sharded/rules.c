#include "sharded/rules.h"

#include <string.h>

#define IMPORT_B "out (rank expert[ep])"

const struct rules rules_right = {
    .import_b = IMPORT_B,
    .export_b = IMPORT_B,
    .skip = {.operation = COLLECTIVE_NONE},
};

static void import_expert_major(struct rules *rules) {
    rules->import_b = "out (expert[ep] rank)";
}

static void export_plain_concat(struct rules *rules) {
    rules->export_b = "out (rank expert)[ep]";
}

static void shift_slice(struct rules *rules) {
    rules->ep_shift = 1;
}

static void divide_by_world(struct rules *rules) {
    rules->expert_divisor_world = true;
}

static void leave_out_reduce_scatter(struct rules *rules) {
    rules->skip.operation = COLLECTIVE_REDUCE_SCATTER;
    rules->skip.rank = 1;
    rules->skip.nth = 0;
}

static void mean_of_means(struct rules *rules) {
    rules->loss_mean_of_means = true;
}

const struct rule_fault rule_faults[] = {
    {"import_b_expert_major", "PEFT's flat lora_B is read expert slow, rank fast: every expert gets scrambled rows.",
     import_expert_major},
    {"export_b_plain_concat", "The EP ranks' pieces of flat lora_B are put one behind the other on dim 1.",
     export_plain_concat},
    {"ep_slice_off_by_one", "Each EP rank loads its neighbour's block of the packed expert weights.", shift_slice},
    {"expert_divisor_world", "Gradients of expert slots are divided by the world size on top of the label count.",
     divide_by_world},
    {"reduce_scatter_left_out", "Rank 1 leaves its first reduce-scatter out.", leave_out_reduce_scatter},
    {"loss_mean_of_means", "Each rank divides by its own labels times the ranks that have any, not by all labels.",
     mean_of_means},
    {0},
};

const struct rule_fault *rule_fault_named(const char *name) {
    for (const struct rule_fault *fault = rule_faults; fault->name; fault++)
        if (strcmp(fault->name, name) == 0)
            return fault;
    return NULL;
}
