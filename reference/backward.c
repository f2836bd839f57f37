#include "reference/pass.h"

#include "reference/adapter.h"
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
        TRY(pass_emit(pass, PHASE_BACKWARD, layer, activation, &grad[activation]));                                    \
    } while (0)

/* ---- gradients of parameters */

/* G, then dA and dB from it, of one linear map y = W x; nothing where the tenant does not adapt W. */
static enum status adapt(struct pass *pass, enum param_kind kind, int layer, const struct value *dy,
                         const struct value *x) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct param *param = pass_param(pass, kind, layer);
    const struct adapter_target *target = pass_target(pass, param);
    if (!target)
        return STATUS_OK;
    int index = inventory_index(pass->reference->inventory, param);
    int64_t max_rank = pass->reference->job->max_rank;
    const struct gathered *slot = &pass->gathered[index];
    struct slot_pair *out = &pass->parameter[index];
    if (param->expert)
        TRY(value_expert_weight_gradient(m, &pass->routing[layer], dy, x, &pass->whole));
    else
        TRY(value_linear_weight_gradient(m, dy, x, &pass->whole));
    TRY(pass_emit_parameter(pass, PHASE_BACKWARD, param, PART_WEIGHT, &pass->whole));
    TRY(value_delta_gradient_a(m, target, max_rank, &pass->whole, &slot->b, &out->a));
    TRY(pass_emit_parameter(pass, PHASE_BACKWARD, param, PART_LORA_A, &out->a));
    TRY(value_delta_gradient_b(m, target, max_rank, &pass->whole, &slot->a, &out->b));
    TRY(pass_emit_parameter(pass, PHASE_BACKWARD, param, PART_LORA_B, &out->b));
    value_free(&pass->whole);
    return STATUS_OK;
}

/* sum += part; the first part is the sum. What a hook put into part->e (the ranks' reduction) stays in it; adding to
 * the sum that stood there rounds once more. */
static enum status accumulate(const struct arithmetic *m, bool first, struct value *sum, const struct value *part) {
    struct value before = *sum;
    *sum = (struct value){0};
    enum status status = first ? value_copy(m, sum, part) : value_add(m, &before, part, sum);
    value_free(&before);
    return status;
}

/* The unit's partial gradients go into the running sums. */
static enum status reduce(struct pass *pass, int unit) {
    struct reference *r = pass->reference;
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        struct slot_pair *sum = &r->running[i], *part = &pass->parameter[i];
        if (param->unit != unit || !pass_target(pass, param))
            continue;
        bool first = sum->a.ndim == 0;
        TRY(accumulate(&pass->arithmetic, first, &sum->a, &part->a));
        TRY(pass_emit_parameter(pass, PHASE_GRAD, param, PART_LORA_A, &sum->a));
        TRY(accumulate(&pass->arithmetic, first, &sum->b, &part->b));
        TRY(pass_emit_parameter(pass, PHASE_GRAD, param, PART_LORA_B, &sum->b));
        value_free(&part->a);
        value_free(&part->b);
    }
    return STATUS_OK;
}

/* ---- the layer */

/* out = dy @ W of one map. */
static enum status through(struct pass *pass, enum param_kind kind, int layer, const struct value *dy,
                           struct value *out) {
    const struct value *weight = pass_weight(pass, kind, layer);
    return value_linear_input_gradient(&pass->arithmetic, 1, &dy, &weight, out);
}

static enum status experts(struct pass *pass, int layer) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct routing *routing = &pass->routing[layer];
    const struct value *act = pass_layer(pass, layer);
    struct value *grad = pass->gradient;
    const struct value *dy = &grad[ACT_LAYER];
    POINT(ACT_EXPERT_OUTPUT, value_combine_d_output(m, routing, &act[ACT_TOPK_WEIGHT], dy, &grad[ACT_EXPERT_OUTPUT]));
    POINT(ACT_TOPK_WEIGHT, value_combine_d_weight(m, routing, &act[ACT_EXPERT_OUTPUT], dy, &grad[ACT_TOPK_WEIGHT]));
    POINT(ACT_EXPERT_DOWN, value_to_rows(m, routing, &grad[ACT_EXPERT_OUTPUT], &grad[ACT_EXPERT_DOWN]));
    POINT(ACT_EXPERT_HIDDEN,
          value_expert_input_gradient(m, routing, &grad[ACT_EXPERT_DOWN], pass_weight(pass, PARAM_DOWN, layer),
                                      &grad[ACT_EXPERT_HIDDEN]));
    TRY(adapt(pass, PARAM_DOWN, layer, &grad[ACT_EXPERT_DOWN], &act[ACT_EXPERT_HIDDEN]));
    POINT(ACT_EXPERT_GATE_UP, value_swiglu_packed_gradient(m, &act[ACT_EXPERT_GATE_UP], &grad[ACT_EXPERT_HIDDEN],
                                                           &grad[ACT_EXPERT_GATE_UP]));
    POINT(ACT_EXPERT_INPUT,
          value_expert_input_gradient(m, routing, &grad[ACT_EXPERT_GATE_UP], pass_weight(pass, PARAM_GATE_UP, layer),
                                      &grad[ACT_EXPERT_INPUT]));
    TRY(adapt(pass, PARAM_GATE_UP, layer, &grad[ACT_EXPERT_GATE_UP], &act[ACT_EXPERT_INPUT]));
    POINT(ACT_EXPERT_DISPATCH, value_to_choices(m, routing, &grad[ACT_EXPERT_INPUT], &grad[ACT_EXPERT_DISPATCH]));
    return STATUS_OK;
}

static enum status route(struct pass *pass, int layer) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct routing *routing = &pass->routing[layer];
    const struct value *act = pass_layer(pass, layer);
    struct value *grad = pass->gradient;
    POINT(ACT_ROUTER_SCORES,
          value_router_d_scores(m, routing, &act[ACT_ROUTER_SCORES], &act[ACT_TOPK_WEIGHT], &grad[ACT_TOPK_WEIGHT],
                                pass->reference->config->norm_topk, &grad[ACT_ROUTER_SCORES]));
    POINT(ACT_ROUTER_LOGITS,
          value_router_d_logits(m, &act[ACT_ROUTER_SCORES], &grad[ACT_ROUTER_SCORES], &grad[ACT_ROUTER_LOGITS]));
    TRY(adapt(pass, PARAM_ROUTER, layer, &grad[ACT_ROUTER_LOGITS], &act[ACT_POST_NORM]));
    POINT(ACT_ROUTER_INPUT, through(pass, PARAM_ROUTER, layer, &grad[ACT_ROUTER_LOGITS], &grad[ACT_ROUTER_INPUT]));
    POINT(ACT_POST_NORM, value_collect(m, routing, &grad[ACT_EXPERT_DISPATCH], &grad[ACT_ROUTER_INPUT],
                                       &act[ACT_POST_NORM], &grad[ACT_POST_NORM]));
    return STATUS_OK;
}

static enum status dense_mlp(struct pass *pass, int layer) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct value *act = pass_layer(pass, layer);
    struct value *grad = pass->gradient;
    POINT(ACT_MLP_HIDDEN, through(pass, PARAM_MLP_DOWN, layer, &grad[ACT_LAYER], &grad[ACT_MLP_HIDDEN]));
    TRY(adapt(pass, PARAM_MLP_DOWN, layer, &grad[ACT_LAYER], &act[ACT_MLP_HIDDEN]));
    POINT(ACT_MLP_GATE, value_swiglu_gradient(m, &act[ACT_MLP_GATE], &act[ACT_MLP_UP], &grad[ACT_MLP_HIDDEN],
                                              &grad[ACT_MLP_GATE], &grad[ACT_MLP_UP]));
    TRY(pass_emit(pass, PHASE_BACKWARD, layer, ACT_MLP_UP, &grad[ACT_MLP_UP]));
    TRY(adapt(pass, PARAM_MLP_GATE, layer, &grad[ACT_MLP_GATE], &act[ACT_POST_NORM]));
    TRY(adapt(pass, PARAM_MLP_UP, layer, &grad[ACT_MLP_UP], &act[ACT_POST_NORM]));
    const struct value *dy[] = {&grad[ACT_MLP_GATE], &grad[ACT_MLP_UP]};
    const struct value *weights[] = {pass_weight(pass, PARAM_MLP_GATE, layer), pass_weight(pass, PARAM_MLP_UP, layer)};
    POINT(ACT_POST_NORM, value_linear_input_gradient(m, 2, dy, weights, &grad[ACT_POST_NORM]));
    return STATUS_OK;
}

static enum status attention(struct pass *pass, int layer) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct model_config *c = pass->reference->config;
    const struct attention_size size = {pass->micro->sequences, pass->micro->tokens, c->heads, c->kv_heads,
                                        c->head_dim};
    const struct value *act = pass_layer(pass, layer);
    struct value *grad = pass->gradient;
    POINT(ACT_RESIDUAL,
          value_norm_gradient(m, &grad[ACT_POST_NORM], &act[ACT_RESIDUAL], pass_weight(pass, PARAM_POST_NORM, layer),
                              &act[ACT_POST_NORM_SCALE], &grad[ACT_LAYER], &grad[ACT_RESIDUAL]));
    POINT(ACT_CONTEXT, through(pass, PARAM_O, layer, &grad[ACT_RESIDUAL], &grad[ACT_CONTEXT]));
    TRY(adapt(pass, PARAM_O, layer, &grad[ACT_RESIDUAL], &act[ACT_CONTEXT]));
    POINT(ACT_PROBS, value_attention_d_probabilities(m, &size, &grad[ACT_CONTEXT], &act[ACT_V], &grad[ACT_PROBS]));
    POINT(ACT_SCORES, value_attention_d_scores(m, &size, &act[ACT_PROBS], &grad[ACT_PROBS], &grad[ACT_SCORES]));
    POINT(ACT_Q_ROTARY, value_attention_d_q(m, &size, &grad[ACT_SCORES], &act[ACT_K_ROTARY], &grad[ACT_Q_ROTARY]));
    POINT(ACT_K_ROTARY, value_attention_d_k(m, &size, &grad[ACT_SCORES], &act[ACT_Q_ROTARY], &grad[ACT_K_ROTARY]));
    POINT(ACT_V, value_attention_d_v(m, &size, &act[ACT_PROBS], &grad[ACT_CONTEXT], &grad[ACT_V]));
    return STATUS_OK;
}

static enum status heads(struct pass *pass, int layer) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct value *act = pass_layer(pass, layer);
    const struct value *cosine = &pass->root[ACT_ROTARY_COS], *sine = &pass->root[ACT_ROTARY_SIN];
    struct value *grad = pass->gradient;
    POINT(ACT_Q_NORM, value_rotary(m, &grad[ACT_Q_ROTARY], cosine, sine, true, &grad[ACT_Q_NORM]));
    POINT(ACT_K_NORM, value_rotary(m, &grad[ACT_K_ROTARY], cosine, sine, true, &grad[ACT_K_NORM]));
    POINT(ACT_Q, value_norm_gradient(m, &grad[ACT_Q_NORM], &act[ACT_Q], pass_weight(pass, PARAM_Q_NORM, layer),
                                     &act[ACT_Q_NORM_SCALE], NULL, &grad[ACT_Q]));
    POINT(ACT_K, value_norm_gradient(m, &grad[ACT_K_NORM], &act[ACT_K], pass_weight(pass, PARAM_K_NORM, layer),
                                     &act[ACT_K_NORM_SCALE], NULL, &grad[ACT_K]));
    TRY(adapt(pass, PARAM_Q, layer, &grad[ACT_Q], &act[ACT_INPUT_NORM]));
    TRY(adapt(pass, PARAM_K, layer, &grad[ACT_K], &act[ACT_INPUT_NORM]));
    TRY(adapt(pass, PARAM_V, layer, &grad[ACT_V], &act[ACT_INPUT_NORM]));
    const struct value *dy[] = {&grad[ACT_Q], &grad[ACT_K], &grad[ACT_V]};
    const struct value *weights[] = {pass_weight(pass, PARAM_Q, layer), pass_weight(pass, PARAM_K, layer),
                                     pass_weight(pass, PARAM_V, layer)};
    POINT(ACT_INPUT_NORM, value_linear_input_gradient(m, 3, dy, weights, &grad[ACT_INPUT_NORM]));
    return STATUS_OK;
}

/* The gradient that leaves a layer becomes the layer gradient of the one below; all else of this layer is done. */
static void descend(struct pass *pass, struct value *below) {
    for (int i = 0; i < ACT_COUNT; i++)
        value_free(&pass->gradient[i]);
    pass->gradient[ACT_LAYER] = *below;
}

static enum status below_layer(struct pass *pass, int layer) {
    const struct value *act = pass_layer(pass, layer);
    const struct value *input = layer ? &pass_layer(pass, layer - 1)[ACT_LAYER] : &pass->root[ACT_EMBED];
    struct value below = {0};
    enum status status;
    TRY_DONE(value_norm_gradient(&pass->arithmetic, &pass->gradient[ACT_INPUT_NORM], input,
                                 pass_weight(pass, PARAM_INPUT_NORM, layer), &act[ACT_INPUT_NORM_SCALE],
                                 &pass->gradient[ACT_RESIDUAL], &below));
    TRY_DONE(pass_emit(pass, PHASE_BACKWARD, layer - 1, layer ? ACT_LAYER : ACT_EMBED, &below));
    descend(pass, &below);
    return STATUS_OK;
done:
    value_free(&below);
    return status;
}

static enum status decoder_layer(struct pass *pass, int layer) {
    TRY(pass_gather(pass, layer + 1, PHASE_REGATHER));
    if (pass->reference->config->sparse[layer]) {
        TRY(experts(pass, layer));
        TRY(route(pass, layer));
    } else {
        TRY(dense_mlp(pass, layer));
    }
    TRY(attention(pass, layer));
    TRY(heads(pass, layer));
    TRY(below_layer(pass, layer));
    pass_release(pass, layer + 1);
    return reduce(pass, layer + 1);
}

static enum status head(struct pass *pass) {
    const struct arithmetic *m = &pass->arithmetic;
    const struct value *act = pass->root;
    struct value *grad = pass->gradient;
    int last = (int)pass->reference->config->layers - 1, layer = -1;
    const struct value *hidden = last >= 0 ? &pass_layer(pass, last)[ACT_LAYER] : &act[ACT_EMBED];
    TRY(pass_gather(pass, 0, PHASE_REGATHER));
    POINT(ACT_HEAD, value_loss_gradient(m, &act[ACT_HEAD], &act[ACT_LOGSUMEXP], &act[ACT_LABELS], &grad[ACT_HEAD]));
    POINT(ACT_NORM, through(pass, PARAM_HEAD, -1, &grad[ACT_HEAD], &grad[ACT_NORM]));
    TRY(adapt(pass, PARAM_HEAD, -1, &grad[ACT_HEAD], &act[ACT_NORM]));
    layer = last;
    POINT(ACT_LAYER, value_norm_gradient(m, &grad[ACT_NORM], hidden, pass_weight(pass, PARAM_NORM, -1),
                                         &act[ACT_NORM_SCALE], NULL, &grad[ACT_LAYER]));
    value_free(&grad[ACT_HEAD]);
    value_free(&grad[ACT_NORM]);
    pass_release(pass, 0);
    return STATUS_OK;
}

enum status pass_backward(struct pass *pass) {
    TRY(head(pass));
    for (int layer = (int)pass->reference->config->layers - 1; layer >= 0; layer--)
        TRY(decoder_layer(pass, layer));
    return reduce(pass, 0);
}
