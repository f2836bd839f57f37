/* The list of parameters, by hand for both fixtures. */
#include "scratch.h"

#include "core/checkpoint.h"

#include <string.h>

static void expect_param(const struct inventory *inventory, int index, const char *name, int ndim,
                         const int64_t *shape) {
    const struct param *param = &inventory->params[index];
    cr_expect_str_eq(param->name, name);
    cr_assert_eq(param->ndim, ndim, "%s", name);
    cr_expect_arr_eq(param->shape, shape, (size_t)ndim * sizeof *shape, "%s", name);
    cr_expect_eq(inventory_named(inventory, name), param);
    cr_expect_eq(inventory_find(inventory, param->kind, param->layer), param);
    cr_expect_eq(inventory_index(inventory, param), index);
}

#define PARAM(index, name, ...)                                                                                        \
    expect_param(inventory, index, name, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                    \
                 (const int64_t[]){__VA_ARGS__})

Test(inventory, tiny_in_data_flow_order) {
    struct checkpoint *checkpoint;
    DONE(checkpoint_open(&checkpoint, "fixtures/golden/qwen3_moe_tiny/model"));
    const struct inventory *inventory = checkpoint_inventory(checkpoint);
    cr_assert_eq(inventory->count, 25); /* 2 layers of 11, embedding, norm, head */
    cr_expect_eq(inventory->units, 3);
    cr_expect_eq(inventory->linear, 15); /* q k v o router gate_up down, twice, and the head */
    PARAM(0, "model.embed_tokens.weight", 53, 20);
    PARAM(1, "model.layers.0.input_layernorm.weight", 20);
    PARAM(2, "model.layers.0.self_attn.q_proj.weight", 24, 20);
    PARAM(3, "model.layers.0.self_attn.k_proj.weight", 12, 20);
    PARAM(4, "model.layers.0.self_attn.v_proj.weight", 12, 20);
    PARAM(5, "model.layers.0.self_attn.o_proj.weight", 20, 24);
    PARAM(6, "model.layers.0.self_attn.q_norm.weight", 6);
    PARAM(7, "model.layers.0.self_attn.k_norm.weight", 6);
    PARAM(8, "model.layers.0.post_attention_layernorm.weight", 20);
    PARAM(9, "model.layers.0.mlp.gate.weight", 12, 20);
    PARAM(10, "model.layers.0.mlp.experts.gate_up_proj", 12, 28, 20);
    PARAM(11, "model.layers.0.mlp.experts.down_proj", 12, 20, 14);
    PARAM(12, "model.layers.1.input_layernorm.weight", 20);
    PARAM(22, "model.layers.1.mlp.experts.down_proj", 12, 20, 14);
    PARAM(23, "model.norm.weight", 20);
    PARAM(24, "lm_head.weight", 53, 20);
    const struct param *gate_up = &inventory->params[10];
    cr_expect_str_eq(gate_up->module, "model.layers.0.mlp.experts");
    cr_expect_str_eq(gate_up->axes, "expert (half inter) hidden");
    cr_expect(gate_up->expert && gate_up->linear && gate_up->slot_index == 5 && gate_up->unit == 1);
    cr_expect(inventory->params[9].linear && !inventory->params[9].expert);
    cr_expect(!inventory->params[0].linear && inventory->params[0].slot_index == -1);
    cr_expect(inventory->params[24].alias == -1 && inventory->params[24].slot_index == 14);
    cr_expect_eq(inventory->params[24].unit, 0);
    cr_expect_null(inventory_named(inventory, "model.layers.2.input_layernorm.weight"));
    cr_expect_null(inventory_find(inventory, PARAM_MLP_GATE, 0));
    checkpoint_close(checkpoint);
}

Test(inventory, uneven_has_a_dense_layer_and_a_tied_head) {
    struct checkpoint *checkpoint;
    DONE(checkpoint_open(&checkpoint, "fixtures/golden/qwen3_moe_uneven/model"));
    const struct inventory *inventory = checkpoint_inventory(checkpoint);
    cr_assert_eq(inventory->count, 36);
    cr_expect_eq(inventory->units, 4);
    cr_expect_eq(inventory->linear, 22);
    PARAM(5, "model.layers.0.self_attn.o_proj.weight", 18, 42);
    PARAM(9, "model.layers.0.mlp.gate_proj.weight", 25, 18);
    PARAM(10, "model.layers.0.mlp.up_proj.weight", 25, 18);
    PARAM(11, "model.layers.0.mlp.down_proj.weight", 18, 25);
    PARAM(21, "model.layers.1.mlp.experts.gate_up_proj", 10, 22, 18);
    PARAM(35, "lm_head.weight", 47, 18);
    cr_expect_eq(inventory->params[35].alias, 0);
    cr_expect(inventory->params[35].linear);
    checkpoint_close(checkpoint);
}

Test(inventory, attention_bias_adds_four) {
    char text[1024] = "{\"attention_bias\": true,";
    strcat(text, small_config + 1);
    struct yaml yaml = {0};
    struct model_config config;
    struct inventory made;
    const struct inventory *inventory = &made;
    DONE(yaml_parse(&yaml, "config.json", text, strlen(text)));
    DONE(config_read(&config, &yaml, yaml.root));
    DONE(inventory_make(&made, &config));
    cr_assert_eq(inventory->count, 3 + 2 * (8 + 4 + 3));
    PARAM(6, "model.layers.0.self_attn.q_proj.bias", 4);
    PARAM(7, "model.layers.0.self_attn.k_proj.bias", 2);
    PARAM(8, "model.layers.0.self_attn.v_proj.bias", 2);
    PARAM(9, "model.layers.0.self_attn.o_proj.bias", 4);
    cr_expect_str_eq(inventory->params[9].module, "model.layers.0.self_attn.o_proj");
    cr_expect(!inventory->params[9].linear);
    inventory_free(&made);
    config_free(&config);
    yaml_close(&yaml);
}
