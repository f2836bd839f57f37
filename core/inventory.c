#include "core/inventory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum rule {
    RULE_EMBED,
    RULE_LAYER,
    RULE_SPARSE,
    RULE_DENSE,
    RULE_BIAS,
    RULE_END
}; /* where a kind stands */

enum size {
    SIZE_VOCAB,
    SIZE_HIDDEN,
    SIZE_Q,
    SIZE_KV,
    SIZE_HEAD_DIM,
    SIZE_EXPERTS,
    SIZE_I,
    SIZE_2I,
    SIZE_F,
    SIZE_COUNT
};

/* One row per kind, in data-flow order inside its rule; layer rows stand under model.layers.L. */
struct kind_row {
    const char *module, *leaf, *axes; /* name = module [. leaf] */
    enum rule rule;
    int ndim;
    enum size shape[3];
    bool linear;
};

static const struct kind_row kind_rows[PARAM_KINDS] = {
    [PARAM_EMBED] = {"model.embed_tokens", "weight", "vocab hidden", RULE_EMBED, 2, {SIZE_VOCAB, SIZE_HIDDEN}, false},
    [PARAM_INPUT_NORM] = {"input_layernorm", "weight", "hidden", RULE_LAYER, 1, {SIZE_HIDDEN}, false},
    [PARAM_Q] = {"self_attn.q_proj", "weight", "out in", RULE_LAYER, 2, {SIZE_Q, SIZE_HIDDEN}, true},
    [PARAM_K] = {"self_attn.k_proj", "weight", "out in", RULE_LAYER, 2, {SIZE_KV, SIZE_HIDDEN}, true},
    [PARAM_V] = {"self_attn.v_proj", "weight", "out in", RULE_LAYER, 2, {SIZE_KV, SIZE_HIDDEN}, true},
    [PARAM_O] = {"self_attn.o_proj", "weight", "out in", RULE_LAYER, 2, {SIZE_HIDDEN, SIZE_Q}, true},
    [PARAM_Q_BIAS] = {"self_attn.q_proj", "bias", "out", RULE_BIAS, 1, {SIZE_Q}, false},
    [PARAM_K_BIAS] = {"self_attn.k_proj", "bias", "out", RULE_BIAS, 1, {SIZE_KV}, false},
    [PARAM_V_BIAS] = {"self_attn.v_proj", "bias", "out", RULE_BIAS, 1, {SIZE_KV}, false},
    [PARAM_O_BIAS] = {"self_attn.o_proj", "bias", "out", RULE_BIAS, 1, {SIZE_HIDDEN}, false},
    [PARAM_Q_NORM] = {"self_attn.q_norm", "weight", "head_dim", RULE_LAYER, 1, {SIZE_HEAD_DIM}, false},
    [PARAM_K_NORM] = {"self_attn.k_norm", "weight", "head_dim", RULE_LAYER, 1, {SIZE_HEAD_DIM}, false},
    [PARAM_POST_NORM] = {"post_attention_layernorm", "weight", "hidden", RULE_LAYER, 1, {SIZE_HIDDEN}, false},
    [PARAM_ROUTER] = {"mlp.gate", "weight", "expert_out hidden", RULE_SPARSE, 2, {SIZE_EXPERTS, SIZE_HIDDEN}, true},
    [PARAM_GATE_UP] = {"mlp.experts",
                       "gate_up_proj",
                       "expert (half inter) hidden",
                       RULE_SPARSE,
                       3,
                       {SIZE_EXPERTS, SIZE_2I, SIZE_HIDDEN},
                       true},
    [PARAM_DOWN] =
        {"mlp.experts", "down_proj", "expert hidden inter", RULE_SPARSE, 3, {SIZE_EXPERTS, SIZE_HIDDEN, SIZE_I}, true},
    [PARAM_MLP_GATE] = {"mlp.gate_proj", "weight", "out in", RULE_DENSE, 2, {SIZE_F, SIZE_HIDDEN}, true},
    [PARAM_MLP_UP] = {"mlp.up_proj", "weight", "out in", RULE_DENSE, 2, {SIZE_F, SIZE_HIDDEN}, true},
    [PARAM_MLP_DOWN] = {"mlp.down_proj", "weight", "out in", RULE_DENSE, 2, {SIZE_HIDDEN, SIZE_F}, true},
    [PARAM_NORM] = {"model.norm", "weight", "hidden", RULE_END, 1, {SIZE_HIDDEN}, false},
    [PARAM_HEAD] = {"lm_head", "weight", "vocab hidden", RULE_END, 2, {SIZE_VOCAB, SIZE_HIDDEN}, true},
};

static int64_t size_of(enum size size, const struct model_config *config) {
    const int64_t sizes[SIZE_COUNT] = {
        [SIZE_VOCAB] = config->vocab,
        [SIZE_HIDDEN] = config->hidden,
        [SIZE_Q] = config->heads * config->head_dim,
        [SIZE_KV] = config->kv_heads * config->head_dim,
        [SIZE_HEAD_DIM] = config->head_dim,
        [SIZE_EXPERTS] = config->experts,
        [SIZE_I] = config->expert_width,
        [SIZE_2I] = 2 * config->expert_width,
        [SIZE_F] = config->dense_width,
    };
    return sizes[size];
}

static bool layer_has(enum rule rule, const struct model_config *config, int layer) {
    switch (rule) {
    case RULE_LAYER:
        return true;
    case RULE_SPARSE:
        return config->sparse[layer];
    case RULE_DENSE:
        return !config->sparse[layer];
    case RULE_BIAS:
        return config->attention_bias;
    default:
        return false;
    }
}

static void add(struct inventory *out, enum param_kind kind, int layer, const struct model_config *config) {
    const struct kind_row *row = &kind_rows[kind];
    struct param *param = &out->params[out->count++];
    char prefix[32] = "";
    if (layer >= 0)
        snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    snprintf(param->module, sizeof param->module, "%s%s", prefix, row->module);
    snprintf(param->name, sizeof param->name, "%s%s.%s", prefix, row->module, row->leaf);
    param->kind = kind;
    param->layer = layer;
    param->unit = layer + 1;
    param->ndim = row->ndim;
    for (int i = 0; i < row->ndim; i++)
        param->shape[i] = size_of(row->shape[i], config);
    param->axes = row->axes;
    param->expert = row->ndim == 3;
    param->linear = row->linear;
    param->alias = kind == PARAM_HEAD && config->tied ? 0 : -1; /* the embedding comes first */
    param->slot_index = row->linear ? out->linear++ : -1;
}

enum status inventory_make(struct inventory *out, const struct model_config *config) {
    *out = (struct inventory){.units = (int)config->layers + 1};
    out->params = calloc((size_t)(config->layers + 1) * PARAM_KINDS, sizeof *out->params);
    if (!out->params)
        return status_fail(STATUS_MEMORY, "out of memory for the parameters of %" PRId64 " layers", config->layers);
    add(out, PARAM_EMBED, -1, config);
    for (int layer = 0; layer < config->layers; layer++)
        for (int kind = 0; kind < PARAM_KINDS; kind++)
            if (layer_has(kind_rows[kind].rule, config, layer))
                add(out, (enum param_kind)kind, layer, config);
    add(out, PARAM_NORM, -1, config);
    add(out, PARAM_HEAD, -1, config);
    return STATUS_OK;
}

void inventory_free(struct inventory *inventory) {
    free(inventory->params);
    *inventory = (struct inventory){0};
}

const struct param *inventory_find(const struct inventory *inventory, enum param_kind kind, int layer) {
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].kind == kind && inventory->params[i].layer == layer)
            return &inventory->params[i];
    return NULL;
}

const struct param *inventory_named(const struct inventory *inventory, const char *name) {
    for (int i = 0; i < inventory->count; i++)
        if (strcmp(inventory->params[i].name, name) == 0)
            return &inventory->params[i];
    return NULL;
}

int inventory_index(const struct inventory *inventory, const struct param *param) {
    return (int)(param - inventory->params);
}
