/* The backward pass of the SUM of token losses: no count and no world size in it. Order and records as core/points.h
 * has them; a weight's own gradient stands at the place of its linear map, a norm's behind its input's. */
#include "sharded/chain.h"
#include "sharded/pass.h"
#include "sharded/record.h"
#include "sharded/state.h"

/* ---- building blocks */

static enum status weight_gradients(struct pass *pass, int layer, enum param_kind kind, enum activation out,
                                    const void *x) {
    const struct blocks rows = pass_rows(pass);
    return linear_gradient(pass->subject, pass_param(pass, kind, layer), pass->micro, &rows,
                           gradient_of(pass, layer, out), x);
}

/* dx = dy W over all rows. */
static void through(struct pass *pass, int layer, enum param_kind kind, enum activation out, void *dx) {
    const struct blocks rows = pass_rows(pass);
    linear_backward(pass->subject, pass_param(pass, kind, layer), &rows, gradient_of(pass, layer, out), dx,
                    pass->subject->dtype, false);
}

struct map_back { /* one of several linear maps that read the same x */
    enum param_kind kind;
    enum activation out;
};

/* The gradient of the x that all maps read: one chain over dy W of each in turn. */
static enum status through_all(struct pass *pass, int layer, const struct map_back *maps, int count,
                               enum activation in) {
    enum status status = STATUS_OK;
    struct subject *subject = pass->subject;
    const struct blocks rows = pass_rows(pass);
    struct chain sum = {0};
    void *dx;
    TRY(gradient_make(pass, layer, in, &dx));
    TRY_DONE(chain_begin(&sum, subject, pass->extent[EXTENT_N] * pass->extent[EXTENT_H], dx));
    for (int i = 0; i < count; i++)
        linear_backward(subject, pass_param(pass, maps[i].kind, layer), &rows, gradient_of(pass, layer, maps[i].out),
                        sum.data, subject->wide, i > 0);
    chain_store(&sum, subject);
    TRY_DONE(gradient_record(pass, layer, in));
done:
    chain_free(&sum, subject);
    return status;
}

/* If the bias trains: its gradient, the sum of dy over all rows. */
static enum status bias_gradient(struct pass *pass, int layer, enum param_kind kind, enum activation out) {
    struct subject *subject = pass->subject;
    const struct param *bias = pass_param(pass, kind, layer);
    if (!bias || !store_trains(subject, bias))
        return STATUS_OK;
    struct tensor *partial = &store_weight(subject, bias)->trained.partial;
    TRY(device_make(subject->ops, partial, subject->wide, 1, bias->shape));
    subject->ops->sum_rows(subject->dtype, pass->extent[EXTENT_N], bias->shape[0], gradient_of(pass, layer, out),
                           partial->data);
    return record_param(subject, PHASE_BACKWARD, pass->micro, bias, PART_WEIGHT, partial);
}

struct norm { /* one RMS norm and the gradient that comes to it */
    enum param_kind weight;
    enum activation scale, out;
    int64_t rows, n;
};

static void norm_backward(struct pass *pass, int layer, const struct norm *norm, const void *x, const void *residual,
                          void *dx) {
    struct subject *subject = pass->subject;
    subject->ops->rms_norm_backward(subject->dtype, norm->rows, norm->n, gradient_of(pass, layer, norm->out), x,
                                    pass_weight(pass, norm->weight, layer), value_of(pass, layer, norm->scale),
                                    residual, dx);
}

/* If the norm's weight trains: its gradient. */
static enum status norm_gradient(struct pass *pass, int layer, const struct norm *norm, const void *x) {
    struct subject *subject = pass->subject;
    const struct param *param = pass_param(pass, norm->weight, layer);
    if (!store_trains(subject, param))
        return STATUS_OK;
    struct tensor *partial = &store_weight(subject, param)->trained.partial;
    TRY(device_make(subject->ops, partial, subject->wide, 1, param->shape));
    subject->ops->rms_norm_gradient(subject->dtype, norm->rows, norm->n, gradient_of(pass, layer, norm->out), x,
                                    value_of(pass, layer, norm->scale), partial->data);
    return record_param(subject, PHASE_BACKWARD, pass->micro, param, PART_WEIGHT, partial);
}

/* ---- sparse layers */

static enum status combine_backward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    struct route *route = &pass_tape(pass, layer)->route;
    void *output, *weight, *down;
    TRY(gradient_make(pass, layer, ACT_EXPERT_OUTPUT, &output));
    TRY(gradient_make(pass, layer, ACT_TOPK_WEIGHT, &weight));
    subject->ops->combine_backward(subject->dtype, extent[EXTENT_N], extent[EXTENT_K], extent[EXTENT_H],
                                   value_of(pass, layer, ACT_TOPK_WEIGHT), value_of(pass, layer, ACT_EXPERT_OUTPUT),
                                   gradient_of(pass, layer, ACT_LAYER), output, weight);
    TRY(gradient_record(pass, layer, ACT_EXPERT_OUTPUT));
    TRY(gradient_record(pass, layer, ACT_TOPK_WEIGHT));
    TRY(gradient_make(pass, layer, ACT_EXPERT_DOWN, &down));
    TRY(route_to_experts(route, subject, pass_experts_name(pass, layer), output, route->choice, extent[EXTENT_H],
                         down));
    return gradient_record(pass, layer, ACT_EXPERT_DOWN);
}

static enum status experts_backward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const struct blocks blocks = pass_experts(pass, layer);
    const struct param *up_param = pass_param(pass, PARAM_GATE_UP, layer);
    const struct param *down_param = pass_param(pass, PARAM_DOWN, layer);
    const int64_t width = pass->extent[EXTENT_I];
    const struct halves at = pass_halves(pass);
    const void *down = gradient_of(pass, layer, ACT_EXPERT_DOWN);
    const char *gate_up = value_of(pass, layer, ACT_EXPERT_GATE_UP);
    char *d_gate_up;
    void *hidden, *made, *input;
    TRY(gradient_make(pass, layer, ACT_EXPERT_HIDDEN, &hidden));
    linear_backward(subject, down_param, &blocks, down, hidden, subject->dtype, false);
    TRY(gradient_record(pass, layer, ACT_EXPERT_HIDDEN));
    TRY(linear_gradient(subject, down_param, pass->micro, &blocks, down, value_of(pass, layer, ACT_EXPERT_HIDDEN)));
    TRY(gradient_make(pass, layer, ACT_EXPERT_GATE_UP, &made));
    d_gate_up = made;
    subject->ops->swiglu_backward(subject->dtype, pass_tape(pass, layer)->route.arrived, width, gate_up + at.gate,
                                  2 * width, gate_up + at.up, 2 * width, hidden, d_gate_up + at.gate, 2 * width,
                                  d_gate_up + at.up, 2 * width);
    TRY(gradient_record(pass, layer, ACT_EXPERT_GATE_UP));
    TRY(gradient_make(pass, layer, ACT_EXPERT_INPUT, &input));
    linear_backward(subject, up_param, &blocks, d_gate_up, input, subject->dtype, false);
    TRY(gradient_record(pass, layer, ACT_EXPERT_INPUT));
    return linear_gradient(subject, up_param, pass->micro, &blocks, d_gate_up, value_of(pass, layer, ACT_EXPERT_INPUT));
}

static enum status dispatch_backward(struct pass *pass, int layer) {
    void *dispatch;
    TRY(gradient_make(pass, layer, ACT_EXPERT_DISPATCH, &dispatch));
    TRY(route_to_sources(&pass_tape(pass, layer)->route, pass->subject, pass_experts_name(pass, layer), PHASE_BACKWARD,
                         gradient_of(pass, layer, ACT_EXPERT_INPUT), pass->extent[EXTENT_H], dispatch));
    return gradient_record(pass, layer, ACT_EXPERT_DISPATCH);
}

static enum status router_backward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const int64_t rows = pass->extent[EXTENT_N], experts = pass->extent[EXTENT_E];
    const void *scores = value_of(pass, layer, ACT_ROUTER_SCORES);
    void *d_scores, *logits, *input;
    TRY(gradient_make(pass, layer, ACT_ROUTER_SCORES, &d_scores));
    subject->ops->router_weights_backward(subject->wide, rows, experts, pass->extent[EXTENT_K],
                                          subject->config->norm_topk, scores, value_of(pass, layer, ACT_TOPK_INDEX),
                                          value_of(pass, layer, ACT_TOPK_WEIGHT),
                                          gradient_of(pass, layer, ACT_TOPK_WEIGHT), d_scores);
    TRY(gradient_record(pass, layer, ACT_ROUTER_SCORES));
    TRY(gradient_make(pass, layer, ACT_ROUTER_LOGITS, &logits));
    subject->ops->softmax_backward(subject->dtype, rows, experts, scores, d_scores, logits);
    TRY(gradient_record(pass, layer, ACT_ROUTER_LOGITS));
    TRY(weight_gradients(pass, layer, PARAM_ROUTER, ACT_ROUTER_LOGITS, value_of(pass, layer, ACT_POST_NORM)));
    TRY(gradient_make(pass, layer, ACT_ROUTER_INPUT, &input));
    through(pass, layer, PARAM_ROUTER, ACT_ROUTER_LOGITS, input);
    return gradient_record(pass, layer, ACT_ROUTER_INPUT);
}

/* What the experts and the router leave of the post norm's gradient: dispatched copies in ascending expert, then the
 * router's. */
static enum status sparse_input(struct pass *pass, int layer) {
    enum status status = STATUS_OK;
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    const int64_t elements = extent[EXTENT_N] * extent[EXTENT_H];
    struct chain sum = {0}, copies = {0}, router = {0};
    void *post;
    TRY(gradient_make(pass, layer, ACT_POST_NORM, &post));
    TRY_DONE(chain_begin(&sum, subject, elements, post));
    TRY_DONE(chain_widen(&copies, subject, elements * extent[EXTENT_K], gradient_of(pass, layer, ACT_EXPERT_DISPATCH)));
    TRY_DONE(chain_widen(&router, subject, elements, gradient_of(pass, layer, ACT_ROUTER_INPUT)));
    subject->ops->combine(subject->wide, extent[EXTENT_N], extent[EXTENT_K], extent[EXTENT_H],
                          value_of(pass, layer, ACT_TOPK_INDEX), NULL, copies.data, sum.data);
    subject->ops->add(subject->wide, elements, sum.data, sum.data, router.data);
    chain_store(&sum, subject);
    TRY_DONE(gradient_record(pass, layer, ACT_POST_NORM));
done:
    chain_free(&router, subject);
    chain_free(&copies, subject);
    chain_free(&sum, subject);
    return status;
}

static enum status sparse_backward(struct pass *pass, int layer) {
    const struct unit rest = pass_unit(pass, layer, UNIT_REST), experts = pass_unit(pass, layer, UNIT_EXPERTS);
    TRY(pass_open(pass, experts, PHASE_REGATHER));
    TRY(combine_backward(pass, layer));
    TRY(experts_backward(pass, layer));
    if (experts.part == UNIT_EXPERTS)
        TRY(pass_close(pass, experts));
    TRY(pass_open(pass, rest, PHASE_REGATHER));
    TRY(dispatch_backward(pass, layer));
    TRY(router_backward(pass, layer));
    return sparse_input(pass, layer);
}

/* ---- dense layers */

static enum status dense_backward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const struct blocks rows = pass_rows(pass);
    const struct param *down = pass_param(pass, PARAM_MLP_DOWN, layer);
    const void *dy = gradient_of(pass, layer, ACT_LAYER);
    const void *h = value_of(pass, layer, ACT_POST_NORM);
    const int64_t width = pass->extent[EXTENT_F];
    const struct map_back maps[] = {{PARAM_MLP_GATE, ACT_MLP_GATE}, {PARAM_MLP_UP, ACT_MLP_UP}};
    void *hidden, *gate, *up;
    TRY(pass_open(pass, pass_unit(pass, layer, UNIT_REST), PHASE_REGATHER));
    TRY(gradient_make(pass, layer, ACT_MLP_HIDDEN, &hidden));
    linear_backward(subject, down, &rows, dy, hidden, subject->dtype, false);
    TRY(gradient_record(pass, layer, ACT_MLP_HIDDEN));
    TRY(linear_gradient(subject, down, pass->micro, &rows, dy, value_of(pass, layer, ACT_MLP_HIDDEN)));
    TRY(gradient_make(pass, layer, ACT_MLP_GATE, &gate));
    TRY(gradient_make(pass, layer, ACT_MLP_UP, &up));
    subject->ops->swiglu_backward(subject->dtype, pass->extent[EXTENT_N], width, value_of(pass, layer, ACT_MLP_GATE),
                                  width, value_of(pass, layer, ACT_MLP_UP), width, hidden, gate, width, up, width);
    TRY(gradient_record(pass, layer, ACT_MLP_GATE));
    TRY(gradient_record(pass, layer, ACT_MLP_UP));
    TRY(weight_gradients(pass, layer, PARAM_MLP_GATE, ACT_MLP_GATE, h));
    TRY(weight_gradients(pass, layer, PARAM_MLP_UP, ACT_MLP_UP, h));
    return through_all(pass, layer, maps, 2, ACT_POST_NORM);
}

/* ---- attention */

static enum status attend_backward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    void *probabilities, *scores, *q, *k, *v;
    TRY(gradient_make(pass, layer, ACT_PROBS, &probabilities));
    TRY(gradient_make(pass, layer, ACT_SCORES, &scores));
    TRY(gradient_make(pass, layer, ACT_Q_ROTARY, &q));
    TRY(gradient_make(pass, layer, ACT_K_ROTARY, &k));
    TRY(gradient_make(pass, layer, ACT_V, &v));
    subject->ops->attention_backward(subject->dtype, extent[EXTENT_B], extent[EXTENT_T], extent[EXTENT_HEADS],
                                     extent[EXTENT_KV_HEADS], extent[EXTENT_D], value_of(pass, layer, ACT_Q_ROTARY),
                                     value_of(pass, layer, ACT_K_ROTARY), value_of(pass, layer, ACT_V),
                                     value_of(pass, layer, ACT_PROBS), gradient_of(pass, layer, ACT_CONTEXT),
                                     probabilities, scores, q, k, v);
    TRY(gradient_record(pass, layer, ACT_PROBS));
    TRY(gradient_record(pass, layer, ACT_SCORES));
    TRY(gradient_record(pass, layer, ACT_Q_ROTARY));
    TRY(gradient_record(pass, layer, ACT_K_ROTARY));
    return gradient_record(pass, layer, ACT_V);
}

static enum status rotate_backward(struct pass *pass, int layer, int64_t heads, enum activation out,
                                   enum activation in) {
    struct subject *subject = pass->subject;
    void *dx;
    TRY(gradient_make(pass, layer, in, &dx));
    subject->ops->rotary(subject->dtype, pass->extent[EXTENT_B], pass->extent[EXTENT_T], heads, pass->extent[EXTENT_D],
                         true, gradient_of(pass, layer, out), value_of(pass, OUTSIDE, ACT_ROTARY_COS),
                         value_of(pass, OUTSIDE, ACT_ROTARY_SIN), dx);
    return gradient_record(pass, layer, in);
}

static enum status head_norm_backward(struct pass *pass, int layer, const struct norm *norm, enum activation in) {
    void *dx;
    TRY(gradient_make(pass, layer, in, &dx));
    norm_backward(pass, layer, norm, value_of(pass, layer, in), NULL, dx);
    return gradient_record(pass, layer, in);
}

static enum status projections_backward(struct pass *pass, int layer) {
    const void *h = value_of(pass, layer, ACT_INPUT_NORM);
    const struct map_back maps[] = {{PARAM_Q, ACT_Q}, {PARAM_K, ACT_K}, {PARAM_V, ACT_V}};
    TRY(weight_gradients(pass, layer, PARAM_Q, ACT_Q, h));
    TRY(bias_gradient(pass, layer, PARAM_Q_BIAS, ACT_Q));
    TRY(weight_gradients(pass, layer, PARAM_K, ACT_K, h));
    TRY(bias_gradient(pass, layer, PARAM_K_BIAS, ACT_K));
    TRY(weight_gradients(pass, layer, PARAM_V, ACT_V, h));
    TRY(bias_gradient(pass, layer, PARAM_V_BIAS, ACT_V));
    return through_all(pass, layer, maps, 3, ACT_INPUT_NORM);
}

static enum status attention_backward(struct pass *pass, int layer) {
    const int64_t *extent = pass->extent;
    const int64_t rows = extent[EXTENT_N];
    const struct norm q = {PARAM_Q_NORM, ACT_Q_NORM_SCALE, ACT_Q_NORM, rows * extent[EXTENT_HEADS], extent[EXTENT_D]};
    const struct norm k = {PARAM_K_NORM, ACT_K_NORM_SCALE, ACT_K_NORM, rows * extent[EXTENT_KV_HEADS],
                           extent[EXTENT_D]};
    void *context;
    TRY(gradient_make(pass, layer, ACT_CONTEXT, &context));
    through(pass, layer, PARAM_O, ACT_RESIDUAL, context);
    TRY(gradient_record(pass, layer, ACT_CONTEXT));
    TRY(weight_gradients(pass, layer, PARAM_O, ACT_RESIDUAL, value_of(pass, layer, ACT_CONTEXT)));
    TRY(bias_gradient(pass, layer, PARAM_O_BIAS, ACT_RESIDUAL));
    TRY(attend_backward(pass, layer));
    TRY(rotate_backward(pass, layer, extent[EXTENT_HEADS], ACT_Q_ROTARY, ACT_Q_NORM));
    TRY(rotate_backward(pass, layer, extent[EXTENT_KV_HEADS], ACT_K_ROTARY, ACT_K_NORM));
    TRY(head_norm_backward(pass, layer, &q, ACT_Q));
    TRY(head_norm_backward(pass, layer, &k, ACT_K));
    TRY(norm_gradient(pass, layer, &q, value_of(pass, layer, ACT_Q)));
    TRY(norm_gradient(pass, layer, &k, value_of(pass, layer, ACT_K)));
    return projections_backward(pass, layer);
}

/* ---- the whole */

struct place_in_flow { /* an activation between two layers */
    int layer;
    enum activation activation;
};

/* What goes into a layer: the output of the one before, or the embedding. */
static struct place_in_flow input_of(int layer) {
    return layer > 0 ? (struct place_in_flow){layer - 1, ACT_LAYER} : (struct place_in_flow){OUTSIDE, ACT_EMBED};
}

static enum status layer_backward(struct pass *pass, int layer) {
    const int64_t rows = pass->extent[EXTENT_N], hidden = pass->extent[EXTENT_H];
    const struct norm post = {PARAM_POST_NORM, ACT_POST_NORM_SCALE, ACT_POST_NORM, rows, hidden};
    const struct norm first = {PARAM_INPUT_NORM, ACT_INPUT_NORM_SCALE, ACT_INPUT_NORM, rows, hidden};
    const struct place_in_flow input = input_of(layer);
    void *residual, *x;
    if (pass->subject->job->fsdp.recompute)
        TRY(pass_recompute(pass, layer));
    if (pass->subject->config->sparse[layer])
        TRY(sparse_backward(pass, layer));
    else
        TRY(dense_backward(pass, layer));
    TRY(gradient_make(pass, layer, ACT_RESIDUAL, &residual));
    norm_backward(pass, layer, &post, value_of(pass, layer, ACT_RESIDUAL), gradient_of(pass, layer, ACT_LAYER),
                  residual);
    TRY(gradient_record(pass, layer, ACT_RESIDUAL));
    TRY(norm_gradient(pass, layer, &post, value_of(pass, layer, ACT_RESIDUAL)));
    TRY(attention_backward(pass, layer));
    TRY(gradient_make(pass, input.layer, input.activation, &x));
    norm_backward(pass, layer, &first, value_of(pass, input.layer, input.activation), residual, x);
    TRY(gradient_record(pass, input.layer, input.activation));
    TRY(norm_gradient(pass, layer, &first, value_of(pass, input.layer, input.activation)));
    TRY(pass_close(pass, pass_unit(pass, layer, UNIT_REST)));
    pass_free_layer(pass, layer);
    return STATUS_OK;
}

static enum status head_backward(struct pass *pass) {
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    const struct norm last = {PARAM_NORM, ACT_NORM_SCALE, ACT_NORM, extent[EXTENT_N], extent[EXTENT_H]};
    const struct place_in_flow input = input_of((int)subject->config->layers);
    void *logits, *norm, *x;
    TRY(gradient_make(pass, OUTSIDE, ACT_HEAD, &logits));
    subject->ops->cross_entropy_backward(subject->dtype, extent[EXTENT_B], extent[EXTENT_T], extent[EXTENT_V],
                                         value_of(pass, OUTSIDE, ACT_HEAD), pass_labels(pass),
                                         value_of(pass, OUTSIDE, ACT_LOGSUMEXP), logits);
    TRY(gradient_record(pass, OUTSIDE, ACT_HEAD));
    TRY(gradient_make(pass, OUTSIDE, ACT_NORM, &norm));
    through(pass, OUTSIDE, PARAM_HEAD, ACT_HEAD, norm);
    TRY(gradient_record(pass, OUTSIDE, ACT_NORM));
    TRY(weight_gradients(pass, OUTSIDE, PARAM_HEAD, ACT_HEAD, value_of(pass, OUTSIDE, ACT_NORM)));
    TRY(gradient_make(pass, input.layer, input.activation, &x));
    norm_backward(pass, OUTSIDE, &last, value_of(pass, input.layer, input.activation), NULL, x);
    TRY(gradient_record(pass, input.layer, input.activation));
    return norm_gradient(pass, OUTSIDE, &last, value_of(pass, input.layer, input.activation));
}

/* If the embedding trains: its rows' gradients on top of what a tied head has left there. */
static enum status embed_backward(struct pass *pass) {
    struct subject *subject = pass->subject;
    const struct param *param = pass_param(pass, PARAM_EMBED, OUTSIDE);
    if (!store_trains(subject, param))
        return STATUS_OK;
    struct tensor *partial = &store_weight(subject, param)->trained.partial;
    if (!partial->data)
        TRY(device_zeros(subject->ops, partial, subject->wide, param->ndim, param->shape));
    subject->ops->add_rows(subject->dtype, pass->extent[EXTENT_N], pass->extent[EXTENT_H], partial->data,
                           gradient_of(pass, OUTSIDE, ACT_EMBED), value_of(pass, OUTSIDE, ACT_INPUT_IDS));
    return record_param(subject, PHASE_BACKWARD, pass->micro, param, PART_WEIGHT, partial);
}

enum status pass_backward(struct pass *pass) {
    TRY(pass_open(pass, UNIT_ROOT, PHASE_REGATHER));
    TRY(head_backward(pass));
    for (int layer = (int)pass->subject->config->layers - 1; layer >= 0; layer--)
        TRY(layer_backward(pass, layer));
    TRY(embed_backward(pass));
    return pass_close(pass, UNIT_ROOT);
}
