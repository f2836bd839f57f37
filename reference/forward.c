#include "reference/walk.h"

#include "reference/attention.h"
#include "reference/embedding.h"
#include "reference/experts.h"
#include "reference/linear.h"
#include "reference/loss.h"
#include "reference/norm.h"
#include "reference/repeat.h"
#include "reference/rotary.h"

/* One operation's result, stored and emitted under its name: `call` fills act[activation]. */
#define POINT(activation, call)                                                                                        \
    do {                                                                                                               \
        TRY(call);                                                                                                     \
        TRY(walk_emit(walk, PHASE_FORWARD, layer, activation, &act[activation]));                                      \
    } while (0)

static enum status inputs(struct walk *walk) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct model_config *c = walk->reference->config;
    struct value *act = walk->root;
    const int layer = -1;
    POINT(ACT_INPUT_IDS, value_from_tensor(m, &act[ACT_INPUT_IDS], &walk->micro->input_ids));
    POINT(ACT_LABELS, value_from_tensor(m, &act[ACT_LABELS], &walk->micro->labels));
    POINT(ACT_ROTARY_COS, value_rotary_tables(m, walk->micro->tokens, c->head_dim, c->rope_theta, &act[ACT_ROTARY_COS],
                                              &act[ACT_ROTARY_SIN]));
    return walk_emit(walk, PHASE_FORWARD, layer, ACT_ROTARY_SIN, &act[ACT_ROTARY_SIN]);
}

/* q or k: norm over each head. */
static enum status norm_heads(struct walk *walk, int layer, int64_t heads, enum activation projected,
                              enum activation scale, enum activation normed, enum param_kind norm) {
    const struct arithmetic *m = &walk->arithmetic;
    struct value *act = walk_layer(walk, layer);
    POINT(scale, value_norm_scale(m, &act[projected], heads, walk->reference->config->norm_eps, &act[scale]));
    POINT(normed, value_norm(m, &act[projected], &act[scale], walk_weight(walk, norm, layer), heads, &act[normed]));
    return STATUS_OK;
}

/* y = act[from] through a linear map of the layer, with its bias if it has one. */
static enum status project(struct walk *walk, int layer, enum activation from, enum param_kind weight,
                           enum param_kind bias, enum activation to) {
    struct value *act = walk_layer(walk, layer);
    POINT(to, value_linear(&walk->arithmetic, &act[from], walk_weight(walk, weight, layer),
                           walk_weight(walk, bias, layer), &act[to]));
    return STATUS_OK;
}

static enum status heads(struct walk *walk, int layer, const struct value *input) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct model_config *c = walk->reference->config;
    const struct value *cosine = &walk->root[ACT_ROTARY_COS], *sine = &walk->root[ACT_ROTARY_SIN];
    struct value *act = walk_layer(walk, layer);
    POINT(ACT_INPUT_NORM_SCALE, value_norm_scale(m, input, 0, c->norm_eps, &act[ACT_INPUT_NORM_SCALE]));
    POINT(ACT_INPUT_NORM, value_norm(m, input, &act[ACT_INPUT_NORM_SCALE], walk_weight(walk, PARAM_INPUT_NORM, layer),
                                     0, &act[ACT_INPUT_NORM]));
    TRY(project(walk, layer, ACT_INPUT_NORM, PARAM_Q, PARAM_Q_BIAS, ACT_Q));
    TRY(project(walk, layer, ACT_INPUT_NORM, PARAM_K, PARAM_K_BIAS, ACT_K));
    TRY(project(walk, layer, ACT_INPUT_NORM, PARAM_V, PARAM_V_BIAS, ACT_V));
    TRY(norm_heads(walk, layer, c->heads, ACT_Q, ACT_Q_NORM_SCALE, ACT_Q_NORM, PARAM_Q_NORM));
    TRY(norm_heads(walk, layer, c->kv_heads, ACT_K, ACT_K_NORM_SCALE, ACT_K_NORM, PARAM_K_NORM));
    POINT(ACT_Q_ROTARY, value_rotary(m, &act[ACT_Q_NORM], cosine, sine, false, &act[ACT_Q_ROTARY]));
    POINT(ACT_K_ROTARY, value_rotary(m, &act[ACT_K_NORM], cosine, sine, false, &act[ACT_K_ROTARY]));
    return STATUS_OK;
}

static enum status attention(struct walk *walk, int layer, const struct value *input) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct model_config *c = walk->reference->config;
    const struct attention_size size = {walk->micro->sequences, walk->micro->tokens, c->heads, c->kv_heads,
                                        c->head_dim};
    struct value *act = walk_layer(walk, layer);
    POINT(ACT_SCORES, value_attention_scores(m, &size, &act[ACT_Q_ROTARY], &act[ACT_K_ROTARY], &act[ACT_SCORES]));
    POINT(ACT_PROBS, value_attention_probabilities(m, &size, &act[ACT_SCORES], &act[ACT_PROBS]));
    POINT(ACT_CONTEXT, value_attention_context(m, &size, &act[ACT_PROBS], &act[ACT_V], &act[ACT_CONTEXT]));
    TRY(project(walk, layer, ACT_CONTEXT, PARAM_O, PARAM_O_BIAS, ACT_O));
    POINT(ACT_RESIDUAL, value_add(m, input, &act[ACT_O], &act[ACT_RESIDUAL]));
    POINT(ACT_POST_NORM_SCALE, value_norm_scale(m, &act[ACT_RESIDUAL], 0, c->norm_eps, &act[ACT_POST_NORM_SCALE]));
    POINT(ACT_POST_NORM, value_norm(m, &act[ACT_RESIDUAL], &act[ACT_POST_NORM_SCALE],
                                    walk_weight(walk, PARAM_POST_NORM, layer), 0, &act[ACT_POST_NORM]));
    return STATUS_OK;
}

static enum status flat_linear(const struct arithmetic *m, const struct value *x, const struct value *weight,
                               struct value *out) {
    TRY(value_linear(m, x, weight, NULL, out));
    value_reshape(out, 2, (const int64_t[]){value_rows(out), value_last(out)});
    return STATUS_OK;
}

/* Choices are made from the scores as they stand after emit; what follows goes by the choices as they stand after emit.
 */
static enum status route(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct model_config *c = walk->reference->config;
    struct value *act = walk_layer(walk, layer);
    struct routing *routing = &walk->routing[layer];
    POINT(ACT_ROUTER_LOGITS,
          flat_linear(m, &act[ACT_POST_NORM], walk_weight(walk, PARAM_ROUTER, layer), &act[ACT_ROUTER_LOGITS]));
    POINT(ACT_ROUTER_SCORES, value_router_scores(m, &act[ACT_ROUTER_LOGITS], &act[ACT_ROUTER_SCORES]));
    POINT(ACT_TOPK_INDEX, value_router_choices(m, &act[ACT_ROUTER_SCORES], c->experts_per_token, &act[ACT_TOPK_INDEX]));
    TRY(routing_make(m, routing, &act[ACT_TOPK_INDEX], c->experts));
    POINT(ACT_TOPK_WEIGHT,
          value_router_weights(m, routing, &act[ACT_ROUTER_SCORES], c->norm_topk, &act[ACT_TOPK_WEIGHT]));
    return STATUS_OK;
}

static enum status experts(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct routing *routing = &walk->routing[layer];
    struct value *act = walk_layer(walk, layer);
    POINT(ACT_EXPERT_INPUT, value_dispatch_tokens(m, routing, &act[ACT_POST_NORM], &act[ACT_EXPERT_INPUT]));
    POINT(ACT_EXPERT_GATE_UP, value_expert_linear(m, routing, &act[ACT_EXPERT_INPUT],
                                                  walk_weight(walk, PARAM_GATE_UP, layer), &act[ACT_EXPERT_GATE_UP]));
    POINT(ACT_EXPERT_HIDDEN, value_swiglu_packed(m, &act[ACT_EXPERT_GATE_UP], &act[ACT_EXPERT_HIDDEN]));
    POINT(ACT_EXPERT_DOWN, value_expert_linear(m, routing, &act[ACT_EXPERT_HIDDEN],
                                               walk_weight(walk, PARAM_DOWN, layer), &act[ACT_EXPERT_DOWN]));
    POINT(ACT_EXPERT_OUTPUT, value_to_choices(m, routing, &act[ACT_EXPERT_DOWN], &act[ACT_EXPERT_OUTPUT]));
    POINT(ACT_MLP, value_combine(m, routing, &act[ACT_TOPK_WEIGHT], &act[ACT_EXPERT_OUTPUT], &act[ACT_POST_NORM],
                                 &act[ACT_MLP]));
    return STATUS_OK;
}

static enum status dense_mlp(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    struct value *act = walk_layer(walk, layer);
    const struct value *y = &act[ACT_POST_NORM];
    POINT(ACT_MLP_GATE, value_linear(m, y, walk_weight(walk, PARAM_MLP_GATE, layer), NULL, &act[ACT_MLP_GATE]));
    POINT(ACT_MLP_UP, value_linear(m, y, walk_weight(walk, PARAM_MLP_UP, layer), NULL, &act[ACT_MLP_UP]));
    POINT(ACT_MLP_HIDDEN, value_swiglu(m, &act[ACT_MLP_GATE], &act[ACT_MLP_UP], &act[ACT_MLP_HIDDEN]));
    POINT(ACT_MLP,
          value_linear(m, &act[ACT_MLP_HIDDEN], walk_weight(walk, PARAM_MLP_DOWN, layer), NULL, &act[ACT_MLP]));
    return STATUS_OK;
}

static enum status decoder_layer(struct walk *walk, int layer, const struct value *input) {
    struct value *act = walk_layer(walk, layer);
    TRY(walk_gather(walk, layer + 1, PHASE_GATHER));
    TRY(heads(walk, layer, input));
    TRY(attention(walk, layer, input));
    if (walk->reference->config->sparse[layer]) {
        TRY(route(walk, layer));
        TRY(experts(walk, layer));
    } else {
        TRY(dense_mlp(walk, layer));
    }
    POINT(ACT_LAYER, value_add(&walk->arithmetic, &act[ACT_RESIDUAL], &act[ACT_MLP], &act[ACT_LAYER]));
    walk_reshard(walk, layer + 1);
    return STATUS_OK;
}

static enum status head(struct walk *walk, const struct value *hidden) {
    const struct arithmetic *m = &walk->arithmetic;
    struct value *act = walk->root;
    const int layer = -1;
    POINT(ACT_NORM_SCALE, value_norm_scale(m, hidden, 0, walk->reference->config->norm_eps, &act[ACT_NORM_SCALE]));
    POINT(ACT_NORM, value_norm(m, hidden, &act[ACT_NORM_SCALE], walk_weight(walk, PARAM_NORM, -1), 0, &act[ACT_NORM]));
    POINT(ACT_HEAD, value_linear(m, &act[ACT_NORM], walk_weight(walk, PARAM_HEAD, -1), NULL, &act[ACT_HEAD]));
    POINT(ACT_LOGSUMEXP, value_logsumexp(m, &act[ACT_HEAD], &act[ACT_LOGSUMEXP]));
    POINT(ACT_TOKEN_LOSS,
          value_token_loss(m, &act[ACT_HEAD], &act[ACT_LOGSUMEXP], &act[ACT_LABELS], &act[ACT_TOKEN_LOSS]));
    TRY(value_loss_sum(m, &act[ACT_TOKEN_LOSS], &act[ACT_NONE]));
    if (walk->quiet)
        return STATUS_OK;
    struct point point = reference_scalar_point(walk->reference, PHASE_LOSS_SUM, walk->micro->number, "loss");
    struct repeat repeat = {.kind = REPEAT_LOSS, .x = &act[ACT_TOKEN_LOSS]};
    repeat_offer(&repeat, walk, NULL, &act[ACT_NONE]);
    enum status status = reference_emit(walk->reference, &point, &act[ACT_NONE]);
    act[ACT_NONE].repeat = NULL;
    return status;
}

enum status walk_forward(struct walk *walk) {
    const struct value *hidden = &walk->root[ACT_EMBED];
    struct value *act = walk->root;
    int layer = -1;
    TRY(inputs(walk));
    TRY(walk_gather(walk, 0, PHASE_GATHER));
    POINT(ACT_EMBED,
          value_embed(&walk->arithmetic, &act[ACT_INPUT_IDS], walk_weight(walk, PARAM_EMBED, -1), &act[ACT_EMBED]));
    for (layer = 0; layer < walk->reference->config->layers; layer++) {
        TRY(decoder_layer(walk, layer, hidden));
        hidden = &walk_layer(walk, layer)[ACT_LAYER];
    }
    TRY(head(walk, hidden));
    walk_reshard(walk, 0);
    return STATUS_OK;
}
