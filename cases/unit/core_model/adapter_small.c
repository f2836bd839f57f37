/* PEFT's matching rules and refusals on the small model (E 3, H 4, I 2, q 4, k v 2, F 5, V 7; layer 0 dense). */
#include "scratch.h"

#include "core/adapter.h"
#include "core/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTN "base_model.model.model.layers.0.self_attn."
#define ATTN1 "base_model.model.model.layers.1.self_attn."
#define EXPERTS "base_model.model.model.layers.1.mlp.experts."
#define DENSE "base_model.model.model.layers.0.mlp."

#define PAIR(module, wide, in, out)                                                                                    \
    {module "lora_A.weight", DTYPE_F32, 2, {wide, in}}, {                                                              \
        module "lora_B.weight", DTYPE_F32, 2, {                                                                        \
            out, wide                                                                                                  \
        }                                                                                                              \
    }

/* Writes config (peft_type, r 2 and lora_alpha 6 on line 2, `settings` from line 3) and tensors, and opens them. */
static enum status open_small(struct adapter *adapter, const struct inventory *inventory, const char *settings,
                              const struct scratch_tensor *tensors, int count) {
    char *folder = scratch_folder(), *text;
    cr_assert(asprintf(&text, "{\n\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 6,\n%s\n}\n", settings) >= 0);
    scratch_text(folder, "adapter_config.json", text);
    scratch_tensors(folder, "adapter_model.safetensors", tensors, count);
    enum status status = adapter_open(adapter, folder, inventory);
    if (status == STATUS_OK)
        cr_expect_str_eq(adapter->config_text, text);
    scratch_remove(folder);
    free(text);
    return status;
}

static const struct scratch_tensor q_both[] = {PAIR(ATTN "q_proj.", 2, 4, 4), PAIR(ATTN1 "q_proj.", 2, 4, 4)};
static const struct scratch_tensor q_first[] = {PAIR(ATTN "q_proj.", 2, 4, 4)};
static const struct scratch_tensor down_alone[] = {PAIR(EXPERTS, 6, 2, 4)};

/* Each entry of `targets` is the name of a target, in order. */
static void expect_targets(const char *settings, const struct scratch_tensor *tensors, int count,
                           const char *const *targets) {
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    int expected = 0;
    DONE(open_small(&adapter, &inventory, settings, tensors, count));
    for (; targets[expected]; expected++) {
        cr_assert_lt(expected, adapter.count, "%s", settings);
        cr_expect_str_eq(adapter.targets[expected].param->name, targets[expected]);
    }
    cr_expect_eq(adapter.count, expected, "%s", settings);
    adapter_free(&adapter);
    inventory_free(&inventory);
}
#define TARGETS(settings, tensors, ...)                                                                                \
    expect_targets(settings, tensors, (int)(sizeof tensors / sizeof *tensors), (const char *const[]){__VA_ARGS__, NULL})

Test(adapter_small, list_regex_and_null) {
    TARGETS("\"target_modules\": [\"q_proj\"]", q_both, "model.layers.0.self_attn.q_proj.weight",
            "model.layers.1.self_attn.q_proj.weight");
    TARGETS("\"target_modules\": [\"model.layers.0.self_attn.q_proj\"], \"target_parameters\": null", q_first,
            "model.layers.0.self_attn.q_proj.weight");
    TARGETS("\"target_modules\": [\"0.self_attn.q_proj\", \"nowhere\"]", q_first,
            "model.layers.0.self_attn.q_proj.weight");
    TARGETS("\"target_modules\": \".*\\\\.0\\\\.[\\\\w.]*q_proj\"", q_first, "model.layers.0.self_attn.q_proj.weight");
    TARGETS("\"target_modules\": null, \"target_parameters\": [\"experts.down_proj\"]", down_alone,
            "model.layers.1.mlp.experts.down_proj");
}

Test(adapter_small, head_and_all_linear) {
    static const struct scratch_tensor head[] = {PAIR("base_model.model.lm_head.", 2, 4, 7)};
    static const struct scratch_tensor all[] = {
        PAIR(ATTN "q_proj.", 2, 4, 4),     PAIR(ATTN "k_proj.", 2, 4, 2),     PAIR(ATTN "v_proj.", 2, 4, 2),
        PAIR(ATTN "o_proj.", 2, 4, 4),     PAIR(DENSE "gate_proj.", 2, 4, 5), PAIR(DENSE "up_proj.", 2, 4, 5),
        PAIR(DENSE "down_proj.", 2, 5, 4), PAIR(ATTN1 "q_proj.", 2, 4, 4),    PAIR(ATTN1 "k_proj.", 2, 4, 2),
        PAIR(ATTN1 "v_proj.", 2, 4, 2),    PAIR(ATTN1 "o_proj.", 2, 4, 4)};
    TARGETS("\"target_modules\": [\"lm_head\"]", head, "lm_head.weight");
    TARGETS("\"target_modules\": \"all-linear\"", all, "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
            "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
            "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
            "model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight");
}

/* The router's weight is 2-D: one map of 3 outputs, not 3 experts. */
Test(adapter_small, router_by_parameter) {
    static const struct scratch_tensor router[] = {PAIR("base_model.model.model.layers.1.mlp.gate.", 2, 4, 3)};
    TARGETS("\"target_parameters\": [\"gate.weight\"]", router, "model.layers.1.mlp.gate.weight");
}

Test(adapter_small, the_last_registered_parameter_is_outermost) {
    static const struct scratch_tensor both[] = {PAIR(EXPERTS, 6, 2, 4), PAIR(EXPERTS "base_layer.", 6, 4, 4)};
    static const struct scratch_tensor gate_up_alone[] = {PAIR(EXPERTS, 6, 4, 4)};
    TARGETS("\"target_parameters\": [\"experts.down_proj\", \"experts.gate_up_proj\"]", both,
            "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj");
    TARGETS("\"target_parameters\": [\"gate_up_proj\"]", gate_up_alone, "model.layers.1.mlp.experts.gate_up_proj");
}

/* The first pattern in file order wins: on module names for modules, on parameter names for target_parameters. */
Test(adapter_small, patterns) {
    static const struct scratch_tensor tensors[] = {PAIR(ATTN "q_proj.", 1, 4, 4), PAIR(ATTN1 "q_proj.", 4, 4, 4),
                                                    PAIR(EXPERTS, 9, 2, 4)};
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    DONE(open_small(&adapter, &inventory,
                    "\"target_modules\": [\"q_proj\"], \"target_parameters\": [\"down_proj\"],\n"
                    "\"rank_pattern\": {\"layers.0.*q_proj\": 1, \"q_proj\": 4, \"mlp.experts.down_proj\": 3, "
                    "\"mlp.experts\": 7},\n"
                    "\"alpha_pattern\": {\"1.self_attn.q_proj\": 2.5, \"self_attn.q_proj.weight\": 9}",
                    tensors, 6));
    cr_assert_eq(adapter.count, 3);
    cr_expect_eq(adapter.targets[0].lora_rank, 1);
    cr_expect_eq(adapter.targets[0].scale, 6); /* lora_alpha 6 / 1: a weight's name is no module's name */
    cr_expect_eq(adapter.targets[1].lora_rank, 4);
    cr_expect_eq(adapter.targets[1].scale, 0.625); /* 2.5 / 4 */
    cr_expect_eq(adapter.targets[2].lora_rank, 3);
    cr_expect_eq(adapter.targets[2].alpha, 6);
    cr_expect_eq(adapter.targets[2].scale, 2);
    adapter_free(&adapter);
    inventory_free(&inventory);
}

Test(adapter_small, bfloat16_stays_bfloat16) {
    static const struct scratch_tensor tensors[] = {{ATTN "q_proj.lora_A.weight", DTYPE_BF16, 2, {2, 4}},
                                                    {ATTN "q_proj.lora_B.weight", DTYPE_F64, 2, {4, 2}}};
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    DONE(open_small(&adapter, &inventory, "\"target_modules\": [\"0.self_attn.q_proj\"]", tensors, 2));
    cr_expect_eq(adapter.targets[0].a.dtype, DTYPE_BF16);
    cr_expect_eq(adapter.targets[0].b.dtype, DTYPE_F64);
    cr_expect_eq(tensor_get(&adapter.targets[0].b, 7), 2007);
    adapter_free(&adapter);
    inventory_free(&inventory);
}

Test(adapter_small, settings_that_are_refused) {
    static const struct {
        const char *settings, *place, *text;
    } rows[] = {
        {"\"target_modules\": [\"q_proj\"],\n\"use_dora\": true",
         "adapter_config.json:4:", "use_dora is not supported"},
        {"\"target_modules\": [\"q_proj\"], \"lora_bias\": true", "adapter_config.json:3:", "lora_bias"},
        {"\"target_modules\": [\"q_proj\"], \"fan_in_fan_out\": true", ":3:", "fan_in_fan_out"},
        {"\"target_modules\": [\"q_proj\"], \"use_qalora\": true", ":3:", "use_qalora"},
        {"\"target_modules\": [\"q_proj\"], \"bias\": \"all\"", ":3:", "bias 'all' is not supported, expected none"},
        {"\"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"lm_head\"]", ":3:", "modules_to_save"},
        {"\"target_modules\": [\"q_proj\"], \"layer_replication\": [[0, 1]]", ":3:", "layer_replication"},
        {"\"target_modules\": [\"q_proj\"], \"trainable_token_indices\": [1]", ":3:", "trainable_token_indices"},
        {"\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 0", ":3:", "layers_to_transform"},
        {"\"target_modules\": [\"q_proj\"], \"exclude_modules\": [\"k_proj\"]", ":3:", "exclude_modules"},
        {"\"target_modules\": [\"q_proj\"], \"eva_config\": {\"rho\": 2}", ":3:", "eva_config"},
        {"\"target_modules\": [\"q_proj\"], \"lora_dropout\": 0.1", ":3:", "lora_dropout 0.1"},
        {"\"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"q_proj\": 0}", ":3:", ""},
        {"\"target_modules\": [\"q_proj\"], \"alpha_pattern\": {\"(q_proj\": 3}", ":3:", "no regular expression"},
        {"\"target_modules\": \".*(q_proj\"", ":3:", "no regular expression"},
        {"\"target_parameters\": \"experts.down_proj\"", ":3:", ""},
        {"\"target_modules\": [\"q_proj\",\n\"self_attn\"]",
         ":4:", "'self_attn' matches 'model.layers.0.self_attn', expected only linear modules"},
        {"\"target_modules\": \".*0.self_attn.*\"", ":3:", "'model.layers.0.self_attn', expected only linear modules"},
        {"\"target_modules\": [\"gate\"]", ":3:", "PEFT 0.21 may have moved 'gate'"},
        {"\"target_modules\": [\"embed_tokens\"]", ":3:", "expected only linear modules"},
        {"\"target_parameters\": [\"q_norm.weight\"]", ":3:", "'model.layers.0.self_attn.q_norm.weight'"},
        {"\"target_parameters\": [\"q_proj.weight\"], \"target_modules\": [\"q_proj\"]",
         ":3:", "target_modules has its module"},
        {"\"target_parameters\": [\"o_proj.weight\"], \"target_modules\": \"all-linear\"",
         ":3:", "target_modules has its module"},
        {"\"target_modules\": [\"nowhere\"]", ":3:", "match nothing in the model"},
        {"\"target_modules\": [\"proj\"]", ":3:", "match nothing in the model"},
        {"\"target_modules\": null", "adapter_config.json: ", "match nothing in the model"},
        {"\"target_parameters\": [\"experts.gate_up\"]", "adapter_config.json: ", "match nothing in the model"},
    };
    struct inventory inventory = small_inventory();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct adapter adapter;
        REFUSED(open_small(&adapter, &inventory, rows[i].settings, q_both, 4), rows[i].place, rows[i].text);
        cr_expect_null(adapter.targets);
    }
    inventory_free(&inventory);
}

Test(adapter_small, settings_without_influence_are_read_past) {
    TARGETS("\"target_modules\": [\"q_proj\"], \"loftq_config\": {}, \"modules_to_save\": [], \"use_bdlora\": null,\n"
            "\"megatron_config\": null, \"init_lora_weights\": \"gaussian\", \"inference_mode\": false, "
            "\"nobody_knows\": 3",
            q_both, "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight");
}

struct tensors_row {
    const char *settings;
    struct scratch_tensor tensors[6];
    const char *a, *b;
};

Test(adapter_small, tensors_that_are_refused) {
    static const struct tensors_row rows[] = {
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {PAIR("base_model.model." ATTN "q_proj.", 2, 4, 4)},
         "'base_model.model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight' belongs to no target",
         "the prefix 'base_model.model.' stands twice"},
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {PAIR(ATTN "q_proj.", 2, 4, 4), PAIR(ATTN "v_proj.", 2, 4, 2)},
         "v_proj",
         "belongs to no target"},
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {{ATTN "q_proj.lora_A.weight", DTYPE_F32, 2, {2, 4}}},
         "no tensor '" ATTN "q_proj.lora_B.weight'",
         "'model.layers.0.self_attn.q_proj.weight'"},
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {PAIR(ATTN "q_proj.", 3, 4, 4)},
         "has shape [3,4], expected [2,4]",
         "r 2"},
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {{ATTN "q_proj.lora_A.weight", DTYPE_F32, 2, {2, 4}}, {ATTN "q_proj.lora_B.weight", DTYPE_F32, 2, {2, 4}}},
         "has shape [2,4], expected [4,2]",
         "lora_B"},
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {{ATTN "q_proj.lora_A.weight", DTYPE_F32, 1, {8}}, {ATTN "q_proj.lora_B.weight", DTYPE_F32, 2, {4, 2}}},
         "has 1 dims, expected shape [2,4]",
         "lora_A"},
        {"\"target_modules\": [\"0.self_attn.q_proj\"]",
         {{ATTN "q_proj.lora_A.weight", DTYPE_I64, 2, {2, 4}}, {ATTN "q_proj.lora_B.weight", DTYPE_F32, 2, {4, 2}}},
         "has type I64, expected F64, F32 or BF16",
         "lora_A"},
        /* one parameter alone has no base_layer */
        {"\"target_parameters\": [\"experts.gate_up_proj\"]",
         {PAIR(EXPERTS "base_layer.", 6, 4, 4)},
         "base_layer",
         "belongs to no target"},
        /* gate_up's tensors under down's key */
        {"\"target_parameters\": [\"experts.gate_up_proj\", \"experts.down_proj\"]",
         {PAIR(EXPERTS, 6, 4, 4), PAIR(EXPERTS "base_layer.", 6, 2, 4)},
         "base_layer.lora_A.weight' has shape [6,2], expected [6,4]",
         "experts 3, r 2"},
        /* PEFT's rewriting of target_modules */
        {"\"target_modules\": [\"down_proj\"]",
         {PAIR(EXPERTS, 6, 2, 4)},
         "belongs to no target",
         "PEFT 0.21 may have moved 'down_proj' of target_modules"},
    };
    struct inventory inventory = small_inventory();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct adapter adapter;
        int count = 0;
        while (count < 6 && rows[i].tensors[count].name)
            count++;
        REFUSED(open_small(&adapter, &inventory, rows[i].settings, rows[i].tensors, count),
                "adapter_model.safetensors: ", rows[i].a, rows[i].b);
    }
    inventory_free(&inventory);
}

Test(adapter_small, folders_that_are_none) {
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    char *folder = scratch_folder();
    REFUSED(adapter_open(&adapter, "fixtures/nowhere", &inventory), "fixtures/nowhere: no such folder");
    REFUSED(adapter_open(&adapter, folder, &inventory), folder, "no adapter_config.json");
    scratch_text(folder, "adapter_config.json", "{\"peft_type\": \"LORA\"");
    REFUSED(adapter_open(&adapter, folder, &inventory), folder, "no adapter_model.safetensors");
    scratch_tensors(folder, "adapter_model.safetensors", q_both, 4);
    REFUSED(adapter_open(&adapter, folder, &inventory), "adapter_config.json:");
    static const char nul[] =
        "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 1, \"target_modules\": [\"q_proj\"]}\0{}";
    char *path = path_join(folder, "adapter_config.json");
    DONE(file_write(path, nul, sizeof nul - 1));
    REFUSED(adapter_open(&adapter, folder, &inventory), "adapter_config.json:");
    free(path);
    scratch_text(folder, "adapter_config.json", "{\"peft_type\": \"IA3\"}");
    REFUSED(adapter_open(&adapter, folder, &inventory), "adapter_config.json:1:", "peft_type 'IA3' is not supported");
    scratch_text(folder, "adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 2}");
    REFUSED(adapter_open(&adapter, folder, &inventory), "adapter_config.json:1:", "no key 'lora_alpha'");
    scratch_remove(folder);
    inventory_free(&inventory);
}

Test(adapter_small, truncated_tensors) {
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    char *folder = scratch_folder(), *path = path_join(folder, "adapter_model.safetensors"), *bytes;
    size_t length;
    scratch_text(folder, "adapter_config.json",
                 "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 1, \"target_modules\": [\"q_proj\"]}");
    scratch_tensors(folder, "adapter_model.safetensors", q_both, 4);
    DONE(file_read(path, &bytes, &length));
    DONE(file_write(path, bytes, length - 4));
    REFUSED(adapter_open(&adapter, folder, &inventory), path);
    free(bytes);
    free(path);
    scratch_remove(folder);
    inventory_free(&inventory);
}
