/* config.json: what is read, which defaults hold, what is refused with file and line. */
#include "scratch.h"

#include <stdio.h>
#include <string.h>

static enum status read_text(struct model_config *config, const char *text) {
    struct yaml yaml = {0};
    DONE(yaml_parse(&yaml, "config.json", text, strlen(text)));
    enum status status = config_read(config, &yaml, yaml.root);
    yaml_close(&yaml);
    return status;
}

/* The small config with `extra` lines after line 1; keys that stand in `without` ("a" or "a,b") are left out. */
static enum status read_changed(struct model_config *config, const char *without, const char *extra) {
    char text[2048] = "", copy[2048], left_out[128];
    snprintf(copy, sizeof copy, "%s", small_config);
    snprintf(left_out, sizeof left_out, ",%s,", without);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) {
        char key[64] = "", listed[72];
        if (sscanf(line, " \"%63[a-z_]", key) == 1) {
            snprintf(listed, sizeof listed, ",%s,", key);
            if (strstr(left_out, listed))
                continue;
        }
        strcat(strcat(text, line), "\n");
        if (line[0] == '{')
            strcat(text, extra);
    }
    return read_text(config, text);
}

Test(config, tiny_as_it_lies) {
    struct model_config config;
    DONE(config_open(&config, "fixtures/golden/qwen3_moe_tiny/model/config.json"));
    cr_expect_str_eq(config.family, "qwen3_moe");
    const int64_t got[] = {config.vocab,        config.hidden,     config.layers,  config.heads,
                           config.kv_heads,     config.head_dim,   config.experts, config.experts_per_token,
                           config.expert_width, config.dense_width};
    const int64_t want[] = {53, 20, 2, 4, 2, 6, 12, 3, 14, 31};
    cr_expect_arr_eq(got, want, sizeof want);
    cr_expect(config.norm_topk && !config.tied && !config.attention_bias);
    cr_expect_eq(config.rope_theta, 10000);
    cr_expect_eq(config.norm_eps, 1e-6);
    cr_expect(config.sparse[0] && config.sparse[1]);
    config_free(&config);
}

Test(config, uneven_as_it_lies) {
    struct model_config config;
    DONE(config_open(&config, "fixtures/golden/qwen3_moe_uneven/model/config.json"));
    const int64_t got[] = {config.vocab,        config.hidden,     config.layers,  config.heads,
                           config.kv_heads,     config.head_dim,   config.experts, config.experts_per_token,
                           config.expert_width, config.dense_width};
    const int64_t want[] = {47, 18, 3, 3, 1, 14, 10, 4, 11, 25};
    cr_expect_arr_eq(got, want, sizeof want);
    cr_expect(!config.norm_topk && config.tied);
    cr_expect_eq(config.rope_theta, 2500);
    cr_expect(!config.sparse[0] && config.sparse[1] && config.sparse[2]);
    config_free(&config);
}

Test(config, defaults) {
    struct model_config config;
    DONE(read_changed(&config, "head_dim", "  \"head_dim\": null,\n"));
    cr_expect_eq(config.head_dim, 2); /* H 4 / nh 2 */
    cr_expect_eq(config.rope_theta, 10000);
    cr_expect_eq(config.norm_eps, 1e-6);
    cr_expect(!config.norm_topk && !config.tied && !config.attention_bias);
    config_free(&config);
}

Test(config, sparse_step_counts_from_one) {
    struct model_config config;
    DONE(read_changed(&config, "mlp_only_layers", "  \"decoder_sparse_step\": 2,\n"));
    cr_expect(!config.sparse[0] && config.sparse[1]); /* (L+1) % 2 == 0 */
    config_free(&config);
}

Test(config, rope_parameters_win) {
    struct model_config config;
    DONE(read_changed(&config, "", "  \"rope_theta\": 7.0,\n"));
    cr_expect_eq(config.rope_theta, 7);
    config_free(&config);
    DONE(read_changed(
        &config, "",
        "  \"rope_theta\": 7.0, \"rope_parameters\": {\"rope_theta\": 9.0, \"rope_type\": \"default\"},\n"));
    cr_expect_eq(config.rope_theta, 9);
    config_free(&config);
}

Test(config, harmless_settings_are_read_past) {
    struct model_config config;
    DONE(read_changed(&config, "",
                      "  \"sliding_window\": 4096, \"use_sliding_window\": false, \"rope_scaling\": null,\n"
                      "  \"num_local_experts\": 3, \"layer_types\": [\"full_attention\"], \"nobody_knows\": 1,\n"));
    cr_expect_eq(config.experts, 3);
    config_free(&config);
}

Test(config, refusals) {
    static const struct {
        const char *without, *extra, *place, *text;
    } rows[] = {
        {"model_type", "\"model_type\": \"gpt_oss\",\n",
         "config.json:2:", "'gpt_oss' is not supported, expected one of: qwen3_moe"},
        {"model_type", "", "config.json:1:", "no key 'model_type'"},
        {"vocab_size", "", "config.json:1:", "no key 'vocab_size'"},
        {"hidden_size", "\"hidden_size\": 0,\n", "config.json:2:", ""},
        {"hidden_size", "\"hidden_size\": 4294967296,\n", "config.json:2:", ""},
        {"hidden_size,vocab_size", "\"hidden_size\": 2147483648, \"vocab_size\": 2147483648,\n",
         "config.json:1:", "an embedding of 2147483648 x 2147483648"},
        {"head_dim,num_attention_heads", "\"head_dim\": 2147483648, \"num_attention_heads\": 2147483648,\n",
         "config.json:1:", "an attention projection"},
        {"num_hidden_layers", "\"num_hidden_layers\": 1000000,\n", "config.json:2:", ""},
        {"num_experts", "", "config.json:1:", "no key 'num_experts' or 'num_local_experts'"},
        {"", "\"num_local_experts\": 4,\n", "config.json:2:", "num_local_experts is 4 but num_experts is 3"},
        {"num_experts_per_tok", "\"num_experts_per_tok\": 4,\n", "config.json:2:", "at most the 3 experts"},
        {"num_key_value_heads", "\"num_key_value_heads\": 3,\n",
         "config.json:2:", "a divisor of num_attention_heads 2"},
        {"head_dim", "\"head_dim\": 3,\n", "config.json:2:", "an even number"},
        {"moe_intermediate_size", "", "config.json:1:", "no key 'moe_intermediate_size'"},
        {"", "\"use_sliding_window\": true, \"sliding_window\": 4,\n", "config.json:2:", "use_sliding_window"},
        {"", "\"use_sliding_window\": true,\n", "config.json:2:", "use_sliding_window"},
        {"", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2},\n",
         "config.json:2:", "'linear' is not supported"},
        {"", "\"rope_parameters\":\n {\"rope_type\": \"yarn\"},\n", "config.json:3:", "'yarn' is not supported"},
        {"", "\"rope_theta\": -1,\n", "config.json:2:", "above 0"},
        {"", "\"partial_rotary_factor\": 0.5,\n", "config.json:2:", "partial_rotary_factor"},
        {"", "\"hidden_act\": \"gelu\",\n", "config.json:2:", "'gelu' is not supported, expected silu"},
        {"", "\"attention_dropout\": 0.1,\n", "config.json:2:", "attention_dropout"},
        {"", "\"output_router_logits\": true,\n", "config.json:2:", "auxiliary loss"},
        {"", "\"quantization_config\": {\"bits\": 4},\n", "config.json:2:", "quantization_config"},
        {"", "\"layer_types\": [\"sliding_attention\"],\n", "config.json:2:", "sliding_attention"},
        {"", "\"decoder_sparse_step\": 0,\n", "config.json:2:", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_config config;
        REFUSED(read_changed(&config, rows[i].without, rows[i].extra), rows[i].place, rows[i].text);
        cr_expect_null(config.sparse, "row %zu", i);
    }
}
