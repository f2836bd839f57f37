/* The parameters of a model: names, shapes and axes, from the configuration alone.
 *
 * Order is data-flow order: embedding, layer 0 (input norm, q, k, v, o, q_norm, k_norm, post norm, router, experts or
 * dense mlp), layer 1, ..., final norm, head. A tied head stands in the list as an alias: it can hold an adapter, but
 * owns no weight. */
#ifndef CORE_INVENTORY_H
#define CORE_INVENTORY_H

#include "core/config.h"

enum param_kind {
    PARAM_EMBED,      /* model.embed_tokens.weight                       vocab hidden */
    PARAM_INPUT_NORM, /* model.layers.L.input_layernorm.weight           hidden */
    PARAM_Q,          /* model.layers.L.self_attn.q_proj.weight          out in */
    PARAM_K,
    PARAM_V,
    PARAM_O,
    PARAM_Q_BIAS, /* model.layers.L.self_attn.q_proj.bias            out */
    PARAM_K_BIAS,
    PARAM_V_BIAS,
    PARAM_O_BIAS,
    PARAM_Q_NORM, /* model.layers.L.self_attn.q_norm.weight          head_dim */
    PARAM_K_NORM,
    PARAM_POST_NORM, /* model.layers.L.post_attention_layernorm.weight  hidden */
    PARAM_ROUTER,    /* model.layers.L.mlp.gate.weight                  expert_out hidden: NOT cut by expert */
    PARAM_GATE_UP,   /* model.layers.L.mlp.experts.gate_up_proj         expert (half inter) hidden */
    PARAM_DOWN,      /* model.layers.L.mlp.experts.down_proj            expert hidden inter */
    PARAM_MLP_GATE,  /* model.layers.L.mlp.gate_proj.weight             out in      (dense layers) */
    PARAM_MLP_UP,
    PARAM_MLP_DOWN,
    PARAM_NORM, /* model.norm.weight                               hidden */
    PARAM_HEAD, /* lm_head.weight                                  vocab hidden */
    PARAM_KINDS
};

#define PARAM_NAME_MAX 160

struct param {
    char name[PARAM_NAME_MAX];   /* Hugging Face in-memory name */
    char module[PARAM_NAME_MAX]; /* the module that owns it: "model.layers.0.mlp.experts",
                                    "model.layers.0.self_attn.q_proj" */
    enum param_kind kind;
    int layer; /* -1: outside the layers */
    int unit;  /* FSDP2 unit: 0 = root (embedding, norm, head), 1 + L = layer L */
    int ndim;
    int64_t shape[3];
    const char *axes; /* logical axes, a layout line without cuts: "expert (half inter) hidden" */
    bool expert;      /* packed experts, [E, out, in]: dim 0 is the expert */
    bool linear; /* the weight of a linear map [.., out, in]: can hold an adapter (includes the router's 2-D weight) */
    int alias;   /* index of the parameter whose memory this is (tied head), or -1 */
    int slot_index; /* position among all `linear` params, or -1 */
};

struct inventory {
    int count;
    struct param *params;
    int units;  /* layers + 1 */
    int linear; /* how many can hold an adapter */
};

enum status inventory_make(struct inventory *out, const struct model_config *config);
void inventory_free(struct inventory *inventory);
/* kind and layer (-1 for those outside the layers) -> the param, NULL if the model has none. */
const struct param *inventory_find(const struct inventory *inventory, enum param_kind kind, int layer);
const struct param *inventory_named(const struct inventory *inventory, const char *name);
int inventory_index(const struct inventory *inventory, const struct param *param);

#endif
