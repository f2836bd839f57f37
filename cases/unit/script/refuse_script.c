/* Scripts that cannot be: each refused at its line, with the one message. */
#include "written.h"

#include <criterion/criterion.h>

#define SCRIPT "script:\n  - acquire: ada\n  - train: {tenant: ada, micro: [0]}\n"
#define AFTER 8 /* the line behind it */

static void refused(const char *rest, int line, const char *message) {
    written_refused(rest, line, message);
}

Test(refuse_script, step_without_accumulate) {
    refused(SCRIPT "  - step: {tenant: ada}", AFTER,
            "step of ada without a window, expected `accumulate: {tenant: ada}` before");
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1]}\n  - step: {tenant: ada}\n  - step: {tenant: ada}",
            AFTER + 2, "step of ada without a window, expected `accumulate: {tenant: ada}` before");
}

Test(refuse_script, step_of_another) {
    refused("script:\n  - acquire: [ada, bob]\n  - accumulate: {tenant: ada, micro: [1]}\n  - step: {tenant: bob}", 8,
            "step of bob without a window, expected `accumulate: {tenant: bob}` before");
    refused(SCRIPT "  - step: {tenant: bob}", AFTER, "tenant bob has no slot here, expected `acquire: bob` before");
    refused(SCRIPT "  - step: {tenant: zed}", AFTER, "there is no tenant 'zed', expected one of `tenants`");
    refused(SCRIPT "  - step: {}", AFTER, "the key 'tenant' is missing, expected the name of one");
}

Test(refuse_script, release_while_a_window_is_open) {
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1]}\n  - release: ada", AFTER + 1,
            "tenant ada is released while its window is open, expected `step: {tenant: ada}` before");
}

Test(refuse_script, release_of_who_holds_nothing) {
    refused(SCRIPT "  - release: zed", AFTER, "there is no tenant 'zed', expected one of `tenants`");
    refused(SCRIPT "  - release: bob", AFTER, "tenant bob has no slot here, expected `acquire: bob` before");
    refused(SCRIPT "  - release: [ada, ada]", AFTER, "tenant ada has no slot here, expected `acquire: ada` before");
}

Test(refuse_script, after_a_release_nobody_acts) {
    refused(SCRIPT "  - release: ada\n  - train: {tenant: ada, micro: [0]}", AFTER + 1,
            "tenant ada has no slot here, expected `acquire: ada` before");
    refused(SCRIPT "  - release: ada\n  - export: {tenant: ada}", AFTER + 1,
            "tenant ada has no slot here, expected `acquire: ada` before");
}

Test(refuse_script, no_free_slot_at_that_point) {
    refused("slots: {count: 2}\nscript:\n  - acquire: [ada, bob]\n  - release: ada\n  - acquire: ada\n  - acquire: cyd",
            10, "no slot is free for cyd: 2 tenants hold all 2, expected a release before");
    refused("slots: {count: 2}", 1, "no slot is free for cyd: 2 tenants hold all 2, expected a release before");
}

Test(refuse_script, acquire_of_who_holds_a_slot) {
    refused(SCRIPT "  - acquire: ada", AFTER, "tenant ada holds a slot already, expected `release: ada` before");
}

Test(refuse_script, slots_change_outside_activations) {
    refused(SCRIPT "  - activate: {tenant: ada, script: [{acquire: bob}]}", AFTER,
            "acquire stands inside an activation, expected it outside");
    refused(SCRIPT "  - activate: {tenant: ada, script: [{release: ada}]}", AFTER,
            "release stands inside an activation, expected it outside");
    refused("script:\n  - acquire: [ada, bob]\n"
            "  - activate: {tenant: ada, script: [{accumulate: {tenant: bob, micro: [0]}}]}",
            7, "tenant bob is named inside the activation of ada, expected the same tenant");
}

Test(refuse_script, micro_batch_twice_in_a_window) {
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1, 1]}", AFTER,
            "micro-batch 1 stands twice in one step, expected each once");
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1, 3]}\n  - accumulate: {tenant: ada, micro: [2, 3]}",
            AFTER + 1, "micro-batch 3 stands in the window of ada already, expected each once until its step");
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1]}\n  - train: {tenant: ada, micro: [1]}", AFTER + 1,
            "micro-batch 1 stands in the window of ada already, expected each once until its step");
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [6]}", AFTER,
            "there is no micro-batch 6, expected one of the 6 in the batches");
}

Test(refuse_script, window_left_open) {
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1]}\n  - evaluate: {tenant: ada, micro: [0]}", AFTER,
            "the window of ada is open at the end of the script, expected `step: {tenant: ada}`");
}

#define FEW                                                                                                            \
    "case: written\n"                                                                                                  \
    "model: {config: {model_type: qwen3_moe, vocab_size: 7, hidden_size: 4, num_hidden_layers: 1, "                    \
    "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 2, num_experts: 2, num_experts_per_tok: 1, "            \
    "moe_intermediate_size: 3, intermediate_size: 5}}\n"                                                               \
    "tenants: {tom: {rank: 1, target_modules: [q_proj]}}\n"                                                            \
    "batches: few.safetensors\n"

/* Micro-batch 1 has no label that counts; beside another it may stand, alone it makes no step. */
Test(refuse_script, window_without_a_label) {
    whole_refused(FEW "script:\n  - acquire: tom\n  - accumulate: {tenant: tom, micro: [1]}\n  - step: {tenant: tom}",
                  8, "no label of this step counts, expected at least one");
    whole_refused(FEW "script:\n  - acquire: tom\n  - train: {tenant: tom, micro: [1]}", 7,
                  "no label of this step counts, expected at least one");
    whole_refused(FEW "script:\n  - acquire: tom\n  - accumulate: {tenant: tom, micro: [1]}\n"
                      "  - train: {tenant: tom, micro: [0]}\n  - step: {tenant: tom}",
                  9, "step of tom without a window, expected `accumulate: {tenant: tom}` before");
}

Test(refuse_script, keys_of_entries) {
    refused(SCRIPT "  - accumulate: {tenant: ada}", AFTER,
            "the key 'micro' is missing, expected a list of micro-batches");
    refused(SCRIPT "  - step: {tenant: ada, micro: [0]}", AFTER, "step: unknown key 'micro', expected one of: tenant");
    refused(SCRIPT "  - save: {name: a, from: b}", AFTER, "save: unknown key 'from', did you mean 'form'?");
    refused(SCRIPT "  - load: {form: full}", AFTER, "load: unknown key 'form', did you mean 'from'?");
}

Test(refuse_script, checkpoints) {
    refused(SCRIPT "  - save: {form: full}", AFTER, "the key 'name' is missing, expected the name of a checkpoint");
    refused(SCRIPT "  - save: {name: ../a}", AFTER,
            "'../a' is no name of a checkpoint, expected at most 63 of [a-z0-9_]");
    refused(SCRIPT "  - save: {name: a, form: half}", AFTER, "form 'half' is unknown, expected sharded or full");
    refused(SCRIPT "  - save: {name: a}\n  - save: {name: a}", AFTER + 1, "'a' is saved twice, expected another name");
    refused(SCRIPT "  - save: {name: a}\n  - load: {from: b}", AFTER + 1,
            "no checkpoint 'b' was saved before, expected `save: {name: b}`");
    refused(SCRIPT "  - load: {from: a}\n  - save: {name: a}", AFTER,
            "no checkpoint 'a' was saved before, expected `save: {name: a}`");
    refused(SCRIPT "  - save: {name: a}\n  - load: {from: a, mesh: {tp: 2}}", AFTER + 1,
            "mesh: unknown key 'tp', did you mean 'ep'?");
}

Test(refuse_script, checkpoints_stand_free) {
    refused(SCRIPT "  - accumulate: {tenant: ada, micro: [1]}\n  - save: {name: a}", AFTER + 1,
            "save stands while the window of ada is open, expected `step: {tenant: ada}` before");
    refused(SCRIPT "  - save: {name: a}\n  - accumulate: {tenant: ada, micro: [1]}\n  - load: {from: a}", AFTER + 2,
            "load stands while the window of ada is open, expected `step: {tenant: ada}` before");
    refused(SCRIPT "  - activate: {tenant: none, script: [{save: {name: a}}]}", AFTER,
            "save stands inside an activation, expected it outside");
}

/* Tenants and slots are those of the save: who came later is gone, who left is back. */
Test(refuse_script, after_a_load_the_slots_are_those_of_the_save) {
    refused(SCRIPT "  - save: {name: a}\n  - acquire: bob\n  - load: {from: a}\n  - train: {tenant: bob, micro: [0]}",
            AFTER + 3, "tenant bob has no slot here, expected `acquire: bob` before");
    refused(SCRIPT "  - save: {name: a}\n  - release: ada\n  - load: {from: a}\n  - acquire: ada", AFTER + 3,
            "tenant ada holds a slot already, expected `release: ada` before");
}
