#include "core/config.h"

#include "core/yaml_null.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* No published model comes near; beyond them a config is damaged, and products of three sizes could overflow. */
#define MAX_SIZE ((int64_t)1 << 31)
#define MAX_LAYERS 10000
#define MAX_ELEMENTS ((int64_t)1 << 48)

static const char *const families[] = {"qwen3_moe", NULL};
#define FAMILY_LIST "qwen3_moe"

struct size_row {
    const char *key;
    size_t offset;
    int64_t high;
};

static const struct size_row size_rows[] = {
    {"vocab_size", offsetof(struct model_config, vocab), MAX_SIZE},
    {"hidden_size", offsetof(struct model_config, hidden), MAX_SIZE},
    {"num_hidden_layers", offsetof(struct model_config, layers), MAX_LAYERS},
    {"num_attention_heads", offsetof(struct model_config, heads), MAX_SIZE},
    {"num_key_value_heads", offsetof(struct model_config, kv_heads), MAX_SIZE},
    {"num_experts_per_tok", offsetof(struct model_config, experts_per_token), MAX_SIZE},
};

struct flag_row {
    const char *key;
    size_t offset;
};

static const struct flag_row flag_rows[] = {
    {"norm_topk_prob", offsetof(struct model_config, norm_topk)},
    {"tie_word_embeddings", offsetof(struct model_config, tied)},
    {"attention_bias", offsetof(struct model_config, attention_bias)},
};

static enum status take_size(const struct yaml *yaml, const struct yaml_node *map, const char *key, int64_t high,
                             int64_t *out) {
    const struct yaml_node *node = yaml_present(map, key);
    if (!node)
        return yaml_fail(yaml, map, "no key '%s', expected a size from 1 to %" PRId64, key, high);
    return yaml_integer(yaml, node, 1, high, out);
}

static enum status take_flag(const struct yaml *yaml, const struct yaml_node *map, const char *key, bool *out) {
    const struct yaml_node *node = yaml_present(map, key);
    return node ? yaml_boolean(yaml, node, out) : STATUS_OK;
}

/* `out` keeps its default where the key is absent. */
static enum status take_positive(const struct yaml *yaml, const struct yaml_node *map, const char *key, double *out) {
    const struct yaml_node *node = yaml_present(map, key);
    if (!node)
        return STATUS_OK;
    TRY(yaml_number(yaml, node, out));
    if (!(*out > 0))
        return yaml_fail(yaml, node, "%s is %g, expected a number above 0", key, *out);
    return STATUS_OK;
}

static enum status read_family(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *node = yaml_present(map, "model_type");
    if (!node)
        return yaml_fail(yaml, map, "no key 'model_type', expected one of: " FAMILY_LIST);
    const char *type;
    TRY(yaml_string(yaml, node, &type));
    for (int i = 0; families[i]; i++)
        if (strcmp(type, families[i]) == 0)
            out->family = families[i];
    if (!out->family)
        return yaml_fail(yaml, node, "model_type '%s' is not supported, expected one of: " FAMILY_LIST, type);
    return STATUS_OK;
}

static enum status read_experts(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *old = yaml_present(map, "num_experts");
    const struct yaml_node *local = yaml_present(map, "num_local_experts");
    if (!old && !local)
        return yaml_fail(yaml, map, "no key 'num_experts' or 'num_local_experts', expected one of them");
    int64_t count[2] = {0, 0};
    if (old)
        TRY(yaml_integer(yaml, old, 1, MAX_SIZE, &count[0]));
    if (local)
        TRY(yaml_integer(yaml, local, 1, MAX_SIZE, &count[1]));
    if (old && local && count[0] != count[1])
        return yaml_fail(yaml, local,
                         "num_local_experts is %" PRId64 " but num_experts is %" PRId64 ", expected the same", count[1],
                         count[0]);
    out->experts = local ? count[1] : count[0];
    if (out->experts_per_token > out->experts)
        return yaml_fail(yaml, yaml_present(map, "num_experts_per_tok"),
                         "num_experts_per_tok is %" PRId64 ", expected at most the %" PRId64 " experts",
                         out->experts_per_token, out->experts);
    return STATUS_OK;
}

static enum status read_heads(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *node = yaml_present(map, "head_dim");
    if (out->heads % out->kv_heads != 0)
        return yaml_fail(yaml, yaml_present(map, "num_key_value_heads"),
                         "num_key_value_heads is %" PRId64 ", expected a divisor of num_attention_heads %" PRId64,
                         out->kv_heads, out->heads);
    if (node) {
        TRY(yaml_integer(yaml, node, 1, MAX_SIZE, &out->head_dim));
    } else if (out->hidden % out->heads != 0) {
        return yaml_fail(yaml, map,
                         "no key 'head_dim', and hidden_size %" PRId64 " does not divide by the %" PRId64 " heads",
                         out->hidden, out->heads);
    } else {
        out->head_dim = out->hidden / out->heads;
    }
    if (out->head_dim % 2 != 0)
        return yaml_fail(yaml, node ? node : map, "head_dim is %" PRId64 ", expected an even number (rotary halves)",
                         out->head_dim);
    return STATUS_OK;
}

/* Layer L has experts iff L is not in mlp_only_layers and (L+1) % decoder_sparse_step == 0. */
static enum status read_sparse(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    int64_t every = 1;
    const struct yaml_node *step = yaml_present(map, "decoder_sparse_step");
    if (step)
        TRY(yaml_integer(yaml, step, 1, MAX_SIZE, &every));
    out->sparse = calloc((size_t)out->layers, sizeof *out->sparse);
    if (!out->sparse)
        return status_fail(STATUS_MEMORY, "%s: out of memory for %" PRId64 " layers", yaml->path, out->layers);
    for (int64_t layer = 0; layer < out->layers; layer++)
        out->sparse[layer] = (layer + 1) % every == 0;
    const struct yaml_node *dense = yaml_present(map, "mlp_only_layers");
    if (!dense)
        return STATUS_OK;
    TRY(yaml_expect(yaml, dense, YAML_LIST, "mlp_only_layers"));
    for (int i = 0; i < dense->count; i++) {
        int64_t layer;
        TRY(yaml_integer(yaml, dense->items[i], 0, MAX_SIZE, &layer));
        if (layer < out->layers)
            out->sparse[layer] = false;
    }
    return STATUS_OK;
}

/* The width of a kind of layer that the model has none of is not needed; 0 then, where it is absent. */
static enum status read_widths(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    bool any[2] = {false, false};
    for (int64_t layer = 0; layer < out->layers; layer++)
        any[out->sparse[layer]] = true;
    if (any[true] || yaml_present(map, "moe_intermediate_size"))
        TRY(take_size(yaml, map, "moe_intermediate_size", MAX_SIZE, &out->expert_width));
    if (any[false] || yaml_present(map, "intermediate_size"))
        TRY(take_size(yaml, map, "intermediate_size", MAX_SIZE, &out->dense_width));
    return STATUS_OK;
}

/* One map of rotary settings (rope_parameters, or rope_scaling of older files). */
static enum status read_rope_map(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map,
                                 const char *key) {
    const struct yaml_node *rope = yaml_present(map, key);
    if (!rope)
        return STATUS_OK;
    TRY(yaml_expect(yaml, rope, YAML_MAP, key));
    for (int i = 0; i < rope->count; i++)
        if (rope->items[i]->kind == YAML_MAP)
            return yaml_fail(yaml, rope->items[i], "%s.%s is a map, expected one set of rotary settings for all layers",
                             key, rope->keys[i]);
    const char *const type_keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const struct yaml_node *node = yaml_present(rope, type_keys[i]);
        const char *type = "default";
        if (node)
            TRY(yaml_string(yaml, node, &type));
        if (strcmp(type, "default") != 0)
            return yaml_fail(yaml, node, "%s '%s' is not supported, expected default", type_keys[i], type);
    }
    return take_positive(yaml, rope, "rope_theta", &out->rope_theta);
}

static enum status check_partial_rotary(const struct yaml *yaml, const struct yaml_node *map) {
    double factor = 1;
    if (!map || map->kind != YAML_MAP)
        return STATUS_OK;
    TRY(take_positive(yaml, map, "partial_rotary_factor", &factor));
    if (factor != 1)
        return yaml_fail(yaml, yaml_present(map, "partial_rotary_factor"),
                         "partial_rotary_factor %g is not supported, expected 1", factor);
    return STATUS_OK;
}

/* A value inside rope_parameters wins over the top level. */
static enum status read_rope(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    out->rope_theta = 10000;
    TRY(take_positive(yaml, map, "rope_theta", &out->rope_theta));
    TRY(read_rope_map(out, yaml, map, "rope_scaling"));
    TRY(read_rope_map(out, yaml, map, "rope_parameters"));
    TRY(check_partial_rotary(yaml, map));
    TRY(check_partial_rotary(yaml, yaml_present(map, "rope_scaling")));
    return check_partial_rotary(yaml, yaml_present(map, "rope_parameters"));
}

static enum status check_window(const struct yaml *yaml, const struct yaml_node *map) {
    bool window = false;
    TRY(take_flag(yaml, map, "use_sliding_window", &window));
    /* an absent sliding_window means the class default, 4096; only an explicit null means none */
    if (window && (yaml_present(map, "sliding_window") || !yaml_get(map, "sliding_window")))
        return yaml_fail(yaml, yaml_present(map, "use_sliding_window"),
                         "use_sliding_window is not supported, expected false");
    const struct yaml_node *types = yaml_present(map, "layer_types");
    if (!types)
        return STATUS_OK;
    TRY(yaml_expect(yaml, types, YAML_LIST, "layer_types"));
    for (int i = 0; i < types->count; i++) {
        const char *type;
        TRY(yaml_string(yaml, types->items[i], &type));
        if (strcmp(type, "full_attention") != 0)
            return yaml_fail(yaml, types->items[i], "layer type '%s' is not supported, expected full_attention", type);
    }
    return STATUS_OK;
}

/* What would change the computation and is not computed here. */
static enum status check_unsupported(const struct yaml *yaml, const struct yaml_node *map) {
    TRY(check_window(yaml, map));
    const struct yaml_node *act = yaml_present(map, "hidden_act");
    const char *name = "silu";
    if (act)
        TRY(yaml_string(yaml, act, &name));
    if (strcmp(name, "silu") != 0)
        return yaml_fail(yaml, act, "hidden_act '%s' is not supported, expected silu", name);
    double dropout = 0;
    const struct yaml_node *drop = yaml_present(map, "attention_dropout");
    if (drop)
        TRY(yaml_number(yaml, drop, &dropout));
    if (dropout != 0)
        return yaml_fail(yaml, drop, "attention_dropout %g is not supported, expected 0", dropout);
    bool auxiliary = false;
    TRY(take_flag(yaml, map, "output_router_logits", &auxiliary));
    if (auxiliary)
        return yaml_fail(yaml, yaml_present(map, "output_router_logits"),
                         "output_router_logits adds an auxiliary loss that is not supported, expected false");
    const struct yaml_node *quantized = yaml_present(map, "quantization_config");
    if (quantized)
        return yaml_fail(yaml, quantized, "quantization_config is not supported, expected weights in float types");
    return STATUS_OK;
}

static enum status check_elements(const struct yaml *yaml, const struct yaml_node *map, const char *what, int64_t a,
                                  int64_t b, int64_t c) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
        product > MAX_ELEMENTS)
        return yaml_fail(yaml, map, "%s of %" PRId64 " x %" PRId64 " x %" PRId64 " elements, expected at most 2^48",
                         what, a, b, c);
    return STATUS_OK;
}

static enum status check_products(const struct model_config *config, const struct yaml *yaml,
                                  const struct yaml_node *map) {
    TRY(check_elements(yaml, map, "an embedding", config->vocab, config->hidden, 1));
    TRY(check_elements(yaml, map, "an attention projection", config->heads, config->head_dim, config->hidden));
    TRY(check_elements(yaml, map, "experts", config->experts, 2 * config->expert_width, config->hidden));
    return check_elements(yaml, map, "a dense layer", config->dense_width, config->hidden, 1);
}

static enum status read_map(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    TRY(yaml_expect(yaml, map, YAML_MAP, "a model's configuration"));
    TRY(read_family(out, yaml, map));
    for (size_t i = 0; i < sizeof size_rows / sizeof *size_rows; i++)
        TRY(take_size(yaml, map, size_rows[i].key, size_rows[i].high, (int64_t *)((char *)out + size_rows[i].offset)));
    for (size_t i = 0; i < sizeof flag_rows / sizeof *flag_rows; i++)
        TRY(take_flag(yaml, map, flag_rows[i].key, (bool *)((char *)out + flag_rows[i].offset)));
    out->norm_eps = 1e-6;
    TRY(take_positive(yaml, map, "rms_norm_eps", &out->norm_eps));
    TRY(read_experts(out, yaml, map));
    TRY(read_heads(out, yaml, map));
    TRY(read_sparse(out, yaml, map));
    TRY(read_widths(out, yaml, map));
    TRY(read_rope(out, yaml, map));
    TRY(check_unsupported(yaml, map));
    return check_products(out, yaml, map);
}

enum status config_read(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map) {
    *out = (struct model_config){0};
    enum status status = read_map(out, yaml, map);
    if (status != STATUS_OK)
        config_free(out);
    return status;
}

enum status config_open(struct model_config *out, const char *path) {
    struct yaml yaml = {0};
    enum status status;
    *out = (struct model_config){0};
    TRY_DONE(yaml_open(&yaml, path));
    TRY_DONE(config_read(out, &yaml, yaml.root));
done:
    yaml_close(&yaml);
    return status;
}

void config_free(struct model_config *config) {
    free(config->sparse);
    *config = (struct model_config){0};
}
