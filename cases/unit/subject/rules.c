/* The table of planted faults: each sets one field wrong, and is found by its name. */
#include "sharded/rules.h"

#include <criterion/criterion.h>
#include <string.h>

#define DIFFERS(field) (a->field != b->field)

static int fields_changed(const struct rules *a, const struct rules *b) {
    int changed = strcmp(a->import_b, b->import_b) != 0;
    changed += strcmp(a->export_b, b->export_b) != 0;
    changed += DIFFERS(ep_shift) + DIFFERS(ep_as_last_axis) + DIFFERS(balanced_shards);
    changed += DIFFERS(b_slot_shift) + DIFFERS(slot_named) + DIFFERS(reset_first_rows);
    changed += DIFFERS(release_keeps.state) + DIFFERS(release_keeps.counter);
    changed += DIFFERS(delta_scale) + DIFFERS(delta_all_rows) + DIFFERS(delta_turned);
    changed += DIFFERS(combine_unweighted) + DIFFERS(up_before_gate) + DIFFERS(label_lag);
    changed += DIFFERS(backward_counts_kept) + DIFFERS(narrow_sum.tensors) + DIFFERS(reduce_means);
    changed += DIFFERS(reduce_times) + DIFFERS(expert_divisor_world) + DIFFERS(loss_mean_of_means);
    changed += DIFFERS(divide_per_micro) + DIFFERS(norm.all_tenants) + DIFFERS(norm.per_rank);
    changed += DIFFERS(norm.replicas) + DIFFERS(norm.one_ep_rank) + DIFFERS(move_before_state);
    changed += DIFFERS(one_counter) + DIFFERS(update_all_rows) + DIFFERS(decay_frozen);
    changed += DIFFERS(skip.operation) + DIFFERS(reduce_in_bfloat) + DIFFERS(master_lost);
    changed += DIFFERS(experts_stay) + DIFFERS(kept_as_strided) + DIFFERS(recompute_slot_shift);
    changed += DIFFERS(unsummed_axis);
    changed += DIFFERS(load.state_of_ep_rank_0) + DIFFERS(load.counter_lost) + DIFFERS(load.slots_reversed);
    changed += DIFFERS(load.keys_by_depth);
    return changed;
}

Test(rules, each_fault_changes_one_field) {
    int count = 0;
    for (const struct rule_fault *fault = rule_faults; fault->name; fault++, count++) {
        struct rules rules = rules_right;
        fault->plant(&rules);
        cr_expect_eq(fields_changed(&rules, &rules_right), 1, "%s", fault->name);
        cr_expect_eq(rule_fault_named(fault->name), fault, "%s", fault->name);
        cr_expect(strlen(fault->about) > 20, "%s", fault->name);
    }
    cr_assert_eq(count, 44);
    cr_assert_null(rule_fault_named("no_such_fault"));
}

Test(rules, values_of_the_faults) {
    struct rules rules = rules_right;
    cr_assert_str_eq(rules.import_b, "out (rank expert[ep])");
    rule_fault_named("export_b_plain_concat")->plant(&rules);
    cr_assert_str_eq(rules.export_b, "out (rank expert)[ep]");
    rule_fault_named("import_b_expert_major")->plant(&rules);
    cr_assert_str_eq(rules.import_b, "out (expert[ep] rank)");
    rule_fault_named("reduce_scatter_left_out")->plant(&rules);
    cr_assert_eq(rules.skip.rank, 1);
    cr_assert_eq(rules.skip.nth, 0);
}
