#include "reference/gradients.h"

#include "reference/attention.h"
#include "reference/experts.h"
#include "reference/linear.h"
#include "reference/loss.h"
#include "reference/norm.h"
#include "reference/rotary.h"

/* As in forward.c: `call` fills grad[activation]. */
#define POINT(activation, call)                                                                                        \
    do {                                                                                                               \
        TRY(call);                                                                                                     \
        TRY(walk_emit(walk, PHASE_BACKWARD, layer, activation, &grad[activation]));                                    \
    } while (0)

/* out = dy @ W of one map. */
static enum status through(struct walk *walk, enum param_kind kind, int layer, const struct value *dy,
                           struct value *out) {
    const struct value *weight = walk_weight(walk, kind, layer);
    return value_linear_input_gradient(&walk->arithmetic, 1, &dy, &weight, out);
}

static enum status experts(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct routing *routing = &walk->routing[layer];
    const struct value *act = walk_layer(walk, layer);
    struct value *grad = walk->gradient;
    const struct value *dy = &grad[ACT_LAYER];
    POINT(ACT_EXPERT_OUTPUT, value_combine_d_output(m, routing, &act[ACT_TOPK_WEIGHT], dy, &grad[ACT_EXPERT_OUTPUT]));
    POINT(ACT_TOPK_WEIGHT, value_combine_d_weight(m, routing, &act[ACT_EXPERT_OUTPUT], dy, &grad[ACT_TOPK_WEIGHT]));
    POINT(ACT_EXPERT_DOWN, value_to_rows(m, routing, &grad[ACT_EXPERT_OUTPUT], &grad[ACT_EXPERT_DOWN]));
    POINT(ACT_EXPERT_HIDDEN,
          value_expert_input_gradient(m, routing, &grad[ACT_EXPERT_DOWN], walk_weight(walk, PARAM_DOWN, layer),
                                      &grad[ACT_EXPERT_HIDDEN]));
    TRY(gradient_linear(walk, PARAM_DOWN, PARAM_KINDS, layer, &grad[ACT_EXPERT_DOWN], &act[ACT_EXPERT_HIDDEN]));
    POINT(ACT_EXPERT_GATE_UP, value_swiglu_packed_gradient(m, &act[ACT_EXPERT_GATE_UP], &grad[ACT_EXPERT_HIDDEN],
                                                           &grad[ACT_EXPERT_GATE_UP]));
    POINT(ACT_EXPERT_INPUT,
          value_expert_input_gradient(m, routing, &grad[ACT_EXPERT_GATE_UP], walk_weight(walk, PARAM_GATE_UP, layer),
                                      &grad[ACT_EXPERT_INPUT]));
    TRY(gradient_linear(walk, PARAM_GATE_UP, PARAM_KINDS, layer, &grad[ACT_EXPERT_GATE_UP], &act[ACT_EXPERT_INPUT]));
    POINT(ACT_EXPERT_DISPATCH, value_to_choices(m, routing, &grad[ACT_EXPERT_INPUT], &grad[ACT_EXPERT_DISPATCH]));
    return STATUS_OK;
}

static enum status route(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct routing *routing = &walk->routing[layer];
    const struct value *act = walk_layer(walk, layer);
    struct value *grad = walk->gradient;
    POINT(ACT_ROUTER_SCORES,
          value_router_d_scores(m, routing, &act[ACT_ROUTER_SCORES], &act[ACT_TOPK_WEIGHT], &grad[ACT_TOPK_WEIGHT],
                                walk->reference->config->norm_topk, &grad[ACT_ROUTER_SCORES]));
    POINT(ACT_ROUTER_LOGITS,
          value_router_d_logits(m, &act[ACT_ROUTER_SCORES], &grad[ACT_ROUTER_SCORES], &grad[ACT_ROUTER_LOGITS]));
    TRY(gradient_linear(walk, PARAM_ROUTER, PARAM_KINDS, layer, &grad[ACT_ROUTER_LOGITS], &act[ACT_POST_NORM]));
    POINT(ACT_ROUTER_INPUT, through(walk, PARAM_ROUTER, layer, &grad[ACT_ROUTER_LOGITS], &grad[ACT_ROUTER_INPUT]));
    POINT(ACT_POST_NORM, value_collect(m, routing, &grad[ACT_EXPERT_DISPATCH], &grad[ACT_ROUTER_INPUT],
                                       &act[ACT_POST_NORM], &grad[ACT_POST_NORM]));
    return STATUS_OK;
}

static enum status dense_mlp(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct value *act = walk_layer(walk, layer);
    struct value *grad = walk->gradient;
    POINT(ACT_MLP_HIDDEN, through(walk, PARAM_MLP_DOWN, layer, &grad[ACT_LAYER], &grad[ACT_MLP_HIDDEN]));
    TRY(gradient_linear(walk, PARAM_MLP_DOWN, PARAM_KINDS, layer, &grad[ACT_LAYER], &act[ACT_MLP_HIDDEN]));
    POINT(ACT_MLP_GATE, value_swiglu_gradient(m, &act[ACT_MLP_GATE], &act[ACT_MLP_UP], &grad[ACT_MLP_HIDDEN],
                                              &grad[ACT_MLP_GATE], &grad[ACT_MLP_UP]));
    TRY(walk_emit(walk, PHASE_BACKWARD, layer, ACT_MLP_UP, &grad[ACT_MLP_UP]));
    TRY(gradient_linear(walk, PARAM_MLP_GATE, PARAM_KINDS, layer, &grad[ACT_MLP_GATE], &act[ACT_POST_NORM]));
    TRY(gradient_linear(walk, PARAM_MLP_UP, PARAM_KINDS, layer, &grad[ACT_MLP_UP], &act[ACT_POST_NORM]));
    const struct value *dy[] = {&grad[ACT_MLP_GATE], &grad[ACT_MLP_UP]};
    const struct value *weights[] = {walk_weight(walk, PARAM_MLP_GATE, layer), walk_weight(walk, PARAM_MLP_UP, layer)};
    POINT(ACT_POST_NORM, value_linear_input_gradient(m, 2, dy, weights, &grad[ACT_POST_NORM]));
    return STATUS_OK;
}

static enum status attention(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct model_config *c = walk->reference->config;
    const struct attention_size size = {walk->micro->sequences, walk->micro->tokens, c->heads, c->kv_heads,
                                        c->head_dim};
    const struct value *act = walk_layer(walk, layer);
    struct value *grad = walk->gradient;
    POINT(ACT_RESIDUAL,
          value_norm_gradient(m, &grad[ACT_POST_NORM], &act[ACT_RESIDUAL], walk_weight(walk, PARAM_POST_NORM, layer),
                              &act[ACT_POST_NORM_SCALE], &grad[ACT_LAYER], &grad[ACT_RESIDUAL]));
    TRY(gradient_norm(walk, PARAM_POST_NORM, layer, &grad[ACT_POST_NORM], &act[ACT_RESIDUAL],
                      &act[ACT_POST_NORM_SCALE]));
    POINT(ACT_CONTEXT, through(walk, PARAM_O, layer, &grad[ACT_RESIDUAL], &grad[ACT_CONTEXT]));
    TRY(gradient_linear(walk, PARAM_O, PARAM_O_BIAS, layer, &grad[ACT_RESIDUAL], &act[ACT_CONTEXT]));
    POINT(ACT_PROBS, value_attention_d_probabilities(m, &size, &grad[ACT_CONTEXT], &act[ACT_V], &grad[ACT_PROBS]));
    POINT(ACT_SCORES, value_attention_d_scores(m, &size, &act[ACT_PROBS], &grad[ACT_PROBS], &grad[ACT_SCORES]));
    POINT(ACT_Q_ROTARY, value_attention_d_q(m, &size, &grad[ACT_SCORES], &act[ACT_K_ROTARY], &grad[ACT_Q_ROTARY]));
    POINT(ACT_K_ROTARY, value_attention_d_k(m, &size, &grad[ACT_SCORES], &act[ACT_Q_ROTARY], &grad[ACT_K_ROTARY]));
    POINT(ACT_V, value_attention_d_v(m, &size, &act[ACT_PROBS], &grad[ACT_CONTEXT], &grad[ACT_V]));
    return STATUS_OK;
}

static enum status heads(struct walk *walk, int layer) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct value *act = walk_layer(walk, layer);
    const struct value *cosine = &walk->root[ACT_ROTARY_COS], *sine = &walk->root[ACT_ROTARY_SIN];
    struct value *grad = walk->gradient;
    POINT(ACT_Q_NORM, value_rotary(m, &grad[ACT_Q_ROTARY], cosine, sine, true, &grad[ACT_Q_NORM]));
    POINT(ACT_K_NORM, value_rotary(m, &grad[ACT_K_ROTARY], cosine, sine, true, &grad[ACT_K_NORM]));
    POINT(ACT_Q, value_norm_gradient(m, &grad[ACT_Q_NORM], &act[ACT_Q], walk_weight(walk, PARAM_Q_NORM, layer),
                                     &act[ACT_Q_NORM_SCALE], NULL, &grad[ACT_Q]));
    POINT(ACT_K, value_norm_gradient(m, &grad[ACT_K_NORM], &act[ACT_K], walk_weight(walk, PARAM_K_NORM, layer),
                                     &act[ACT_K_NORM_SCALE], NULL, &grad[ACT_K]));
    TRY(gradient_norm(walk, PARAM_Q_NORM, layer, &grad[ACT_Q_NORM], &act[ACT_Q], &act[ACT_Q_NORM_SCALE]));
    TRY(gradient_norm(walk, PARAM_K_NORM, layer, &grad[ACT_K_NORM], &act[ACT_K], &act[ACT_K_NORM_SCALE]));
    TRY(gradient_linear(walk, PARAM_Q, PARAM_Q_BIAS, layer, &grad[ACT_Q], &act[ACT_INPUT_NORM]));
    TRY(gradient_linear(walk, PARAM_K, PARAM_K_BIAS, layer, &grad[ACT_K], &act[ACT_INPUT_NORM]));
    TRY(gradient_linear(walk, PARAM_V, PARAM_V_BIAS, layer, &grad[ACT_V], &act[ACT_INPUT_NORM]));
    const struct value *dy[] = {&grad[ACT_Q], &grad[ACT_K], &grad[ACT_V]};
    const struct value *weights[] = {walk_weight(walk, PARAM_Q, layer), walk_weight(walk, PARAM_K, layer),
                                     walk_weight(walk, PARAM_V, layer)};
    POINT(ACT_INPUT_NORM, value_linear_input_gradient(m, 3, dy, weights, &grad[ACT_INPUT_NORM]));
    return STATUS_OK;
}

/* The gradient that leaves a layer becomes the layer gradient of the one below; all else of this layer is done. */
static void descend(struct walk *walk, struct value *below) {
    for (int i = 0; i < ACT_COUNT; i++)
        value_free(&walk->gradient[i]);
    walk->gradient[ACT_LAYER] = *below;
}

static enum status below_layer(struct walk *walk, int layer) {
    const struct value *act = walk_layer(walk, layer);
    const struct value *input = layer ? &walk_layer(walk, layer - 1)[ACT_LAYER] : &walk->root[ACT_EMBED];
    struct value below = {0};
    enum status status;
    TRY_DONE(value_norm_gradient(&walk->arithmetic, &walk->gradient[ACT_INPUT_NORM], input,
                                 walk_weight(walk, PARAM_INPUT_NORM, layer), &act[ACT_INPUT_NORM_SCALE],
                                 &walk->gradient[ACT_RESIDUAL], &below));
    TRY_DONE(walk_emit(walk, PHASE_BACKWARD, layer - 1, layer ? ACT_LAYER : ACT_EMBED, &below));
    TRY_DONE(gradient_norm(walk, PARAM_INPUT_NORM, layer, &walk->gradient[ACT_INPUT_NORM], input,
                           &act[ACT_INPUT_NORM_SCALE]));
    descend(walk, &below);
    return STATUS_OK;
done:
    value_free(&below);
    return status;
}

static enum status decoder_layer(struct walk *walk, int layer) {
    TRY(walk_regather(walk, layer + 1));
    if (walk->reference->config->sparse[layer]) {
        TRY(experts(walk, layer));
        TRY(route(walk, layer));
    } else {
        TRY(dense_mlp(walk, layer));
    }
    TRY(attention(walk, layer));
    TRY(heads(walk, layer));
    TRY(below_layer(walk, layer));
    walk_release(walk, layer + 1);
    return gradient_reduce(walk, layer + 1);
}

static enum status head(struct walk *walk) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct value *act = walk->root;
    struct value *grad = walk->gradient;
    int last = (int)walk->reference->config->layers - 1, layer = -1;
    const struct value *hidden = last >= 0 ? &walk_layer(walk, last)[ACT_LAYER] : &act[ACT_EMBED];
    TRY(walk_regather(walk, 0));
    POINT(ACT_HEAD, value_loss_gradient(m, &act[ACT_HEAD], &act[ACT_LOGSUMEXP], &act[ACT_LABELS], &grad[ACT_HEAD]));
    POINT(ACT_NORM, through(walk, PARAM_HEAD, -1, &grad[ACT_HEAD], &grad[ACT_NORM]));
    TRY(gradient_linear(walk, PARAM_HEAD, PARAM_KINDS, -1, &grad[ACT_HEAD], &act[ACT_NORM]));
    layer = last;
    POINT(ACT_LAYER, value_norm_gradient(m, &grad[ACT_NORM], hidden, walk_weight(walk, PARAM_NORM, -1),
                                         &act[ACT_NORM_SCALE], NULL, &grad[ACT_LAYER]));
    TRY(gradient_norm(walk, PARAM_NORM, -1, &grad[ACT_NORM], hidden, &act[ACT_NORM_SCALE]));
    value_free(&grad[ACT_HEAD]);
    value_free(&grad[ACT_NORM]);
    walk_release(walk, 0);
    return STATUS_OK;
}

enum status walk_backward(struct walk *walk) {
    TRY(head(walk));
    for (int layer = (int)walk->reference->config->layers - 1; layer >= 0; layer--)
        TRY(decoder_layer(walk, layer));
    TRY(gradient_embedding(walk, &walk->gradient[ACT_LAYER])); /* what the lowest layer left: d embed */
    return gradient_reduce(walk, 0);
}
