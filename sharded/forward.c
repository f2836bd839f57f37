/* The forward pass of one micro-batch on one rank: formulas as in ops.h, order and records as core/points.h has them.
 */
#include "sharded/chain.h"
#include "sharded/pass.h"
#include "sharded/record.h"
#include "sharded/state.h"

/* ---- building blocks */

struct norm { /* one RMS norm */
    enum param_kind weight;
    enum activation scale, out;
    int64_t rows, n;
};

static enum status norm_forward(struct pass *pass, int layer, const struct norm *norm, const void *x) {
    struct subject *subject = pass->subject;
    void *scale, *out;
    TRY(value_make(pass, layer, norm->scale, &scale));
    TRY(value_make(pass, layer, norm->out, &out));
    subject->ops->rms_norm(subject->dtype, norm->rows, norm->n, dtype_round(subject->wide, subject->config->norm_eps),
                           x, pass_weight(pass, norm->weight, layer), scale, out);
    TRY(value_record(pass, layer, norm->scale));
    return value_record(pass, layer, norm->out);
}

#define NO_BIAS PARAM_KINDS

/* y = x W^T + bias, rounded once. */
static enum status biased(struct subject *subject, const struct param *param, const struct param *bias,
                          const struct blocks *rows, const void *x, void *y) {
    enum status status = STATUS_OK;
    const int64_t count = rows->begin[1], n = bias->shape[0];
    struct chain sum = {0}, shift = {0};
    TRY_DONE(chain_begin(&sum, subject, count * n, y));
    TRY_DONE(chain_widen(&shift, subject, n, store_effective(subject, bias)));
    linear_forward(subject, param, rows, x, sum.data, subject->wide);
    subject->ops->add_bias(subject->wide, count, n, sum.data, shift.data);
    chain_store(&sum, subject);
done:
    chain_free(&shift, subject);
    chain_free(&sum, subject);
    return status;
}

/* y = x W^T (+ bias, if the model has it) over all rows. */
static enum status project(struct pass *pass, int layer, enum param_kind kind, enum param_kind bias_kind, const void *x,
                           enum activation out) {
    struct subject *subject = pass->subject;
    const struct param *param = pass_param(pass, kind, layer);
    const struct param *bias = bias_kind == NO_BIAS ? NULL : pass_param(pass, bias_kind, layer);
    const struct blocks rows = pass_rows(pass);
    void *y;
    TRY(value_make(pass, layer, out, &y));
    if (bias)
        TRY(biased(subject, param, bias, &rows, x, y));
    else
        linear_forward(subject, param, &rows, x, y, subject->dtype);
    return value_record(pass, layer, out);
}

static enum status add_forward(struct pass *pass, int layer, enum activation out, const void *a, const void *b) {
    void *sum;
    TRY(value_make(pass, layer, out, &sum));
    pass->subject->ops->add(pass->subject->dtype, pass->extent[EXTENT_N] * pass->extent[EXTENT_H], sum, a, b);
    return value_record(pass, layer, out);
}

/* ---- attention */

static enum status rotate(struct pass *pass, int layer, int64_t heads, enum activation in, enum activation out) {
    struct subject *subject = pass->subject;
    void *y;
    TRY(value_make(pass, layer, out, &y));
    subject->ops->rotary(subject->dtype, pass->extent[EXTENT_B], pass->extent[EXTENT_T], heads, pass->extent[EXTENT_D],
                         false, value_of(pass, layer, in), value_of(pass, OUTSIDE, ACT_ROTARY_COS),
                         value_of(pass, OUTSIDE, ACT_ROTARY_SIN), y);
    return value_record(pass, layer, out);
}

static enum status attend(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    void *scores, *probabilities, *context;
    TRY(value_make(pass, layer, ACT_SCORES, &scores));
    TRY(value_make(pass, layer, ACT_PROBS, &probabilities));
    TRY(value_make(pass, layer, ACT_CONTEXT, &context));
    subject->ops->attention(subject->dtype, extent[EXTENT_B], extent[EXTENT_T], extent[EXTENT_HEADS],
                            extent[EXTENT_KV_HEADS], extent[EXTENT_D], value_of(pass, layer, ACT_Q_ROTARY),
                            value_of(pass, layer, ACT_K_ROTARY), value_of(pass, layer, ACT_V), scores, probabilities,
                            context);
    TRY(value_record(pass, layer, ACT_SCORES));
    TRY(value_record(pass, layer, ACT_PROBS));
    return value_record(pass, layer, ACT_CONTEXT);
}

static enum status attention_forward(struct pass *pass, int layer, const void *x) {
    const int64_t *extent = pass->extent;
    const int64_t rows = extent[EXTENT_N];
    const struct norm input = {PARAM_INPUT_NORM, ACT_INPUT_NORM_SCALE, ACT_INPUT_NORM, rows, extent[EXTENT_H]};
    const struct norm q = {PARAM_Q_NORM, ACT_Q_NORM_SCALE, ACT_Q_NORM, rows * extent[EXTENT_HEADS], extent[EXTENT_D]};
    const struct norm k = {PARAM_K_NORM, ACT_K_NORM_SCALE, ACT_K_NORM, rows * extent[EXTENT_KV_HEADS],
                           extent[EXTENT_D]};
    TRY(norm_forward(pass, layer, &input, x));
    const void *h = value_of(pass, layer, ACT_INPUT_NORM);
    TRY(project(pass, layer, PARAM_Q, PARAM_Q_BIAS, h, ACT_Q));
    TRY(project(pass, layer, PARAM_K, PARAM_K_BIAS, h, ACT_K));
    TRY(project(pass, layer, PARAM_V, PARAM_V_BIAS, h, ACT_V));
    TRY(norm_forward(pass, layer, &q, value_of(pass, layer, ACT_Q)));
    TRY(norm_forward(pass, layer, &k, value_of(pass, layer, ACT_K)));
    TRY(rotate(pass, layer, extent[EXTENT_HEADS], ACT_Q_NORM, ACT_Q_ROTARY));
    TRY(rotate(pass, layer, extent[EXTENT_KV_HEADS], ACT_K_NORM, ACT_K_ROTARY));
    TRY(attend(pass, layer));
    TRY(project(pass, layer, PARAM_O, PARAM_O_BIAS, value_of(pass, layer, ACT_CONTEXT), ACT_O));
    return add_forward(pass, layer, ACT_RESIDUAL, x, value_of(pass, layer, ACT_O));
}

/* ---- sparse layers */

static enum status choose_experts(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const struct ops *ops = subject->ops;
    const int64_t rows = pass->extent[EXTENT_N], experts = pass->extent[EXTENT_E], choices = pass->extent[EXTENT_K];
    void *scores, *index, *weight;
    TRY(project(pass, layer, PARAM_ROUTER, NO_BIAS, value_of(pass, layer, ACT_POST_NORM), ACT_ROUTER_LOGITS));
    TRY(value_make(pass, layer, ACT_ROUTER_SCORES, &scores));
    ops->softmax(subject->dtype, rows, experts, value_of(pass, layer, ACT_ROUTER_LOGITS), scores);
    TRY(value_record(pass, layer, ACT_ROUTER_SCORES));
    TRY(value_make(pass, layer, ACT_TOPK_INDEX, &index));
    ops->topk(subject->wide, rows, experts, choices, scores, index);
    TRY(value_record(pass, layer, ACT_TOPK_INDEX));
    TRY(value_make(pass, layer, ACT_TOPK_WEIGHT, &weight));
    ops->router_weights(subject->wide, rows, experts, choices, subject->config->norm_topk, scores, index, weight);
    return value_record(pass, layer, ACT_TOPK_WEIGHT);
}

static enum status dispatch(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    struct route *route = &pass_tape(pass, layer)->route;
    const char *what = pass_experts_name(pass, layer);
    void *arrived;
    TRY(route_make(route, subject, what, value_of(pass, layer, ACT_TOPK_INDEX), pass->extent[EXTENT_N],
                   pass->extent[EXTENT_K], pass->extent[EXTENT_E]));
    TRY(value_make(pass, layer, ACT_EXPERT_INPUT, &arrived));
    TRY(route_to_experts(route, subject, what, value_of(pass, layer, ACT_POST_NORM), route->token,
                         pass->extent[EXTENT_H], arrived));
    return value_record(pass, layer, ACT_EXPERT_INPUT);
}

static enum status experts_forward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const struct route *route = &pass_tape(pass, layer)->route;
    const struct blocks blocks = pass_experts(pass, layer);
    const int64_t width = pass->extent[EXTENT_I];
    const struct halves at = pass_halves(pass);
    char *gate_up;
    void *made, *hidden, *down;
    TRY(value_make(pass, layer, ACT_EXPERT_GATE_UP, &made));
    gate_up = made;
    linear_forward(subject, pass_param(pass, PARAM_GATE_UP, layer), &blocks, value_of(pass, layer, ACT_EXPERT_INPUT),
                   gate_up, subject->dtype);
    TRY(value_record(pass, layer, ACT_EXPERT_GATE_UP));
    TRY(value_make(pass, layer, ACT_EXPERT_HIDDEN, &hidden));
    subject->ops->swiglu(subject->dtype, route->arrived, width, gate_up + at.gate, 2 * width, gate_up + at.up,
                         2 * width, hidden);
    TRY(value_record(pass, layer, ACT_EXPERT_HIDDEN));
    TRY(value_make(pass, layer, ACT_EXPERT_DOWN, &down));
    linear_forward(subject, pass_param(pass, PARAM_DOWN, layer), &blocks, hidden, down, subject->dtype);
    return value_record(pass, layer, ACT_EXPERT_DOWN);
}

static enum status combine(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    const bool weighted = !subject->rules->combine_unweighted;
    void *output, *mlp;
    TRY(value_make(pass, layer, ACT_EXPERT_OUTPUT, &output));
    TRY(route_to_sources(&pass_tape(pass, layer)->route, subject, pass_experts_name(pass, layer), PHASE_FORWARD,
                         value_of(pass, layer, ACT_EXPERT_DOWN), extent[EXTENT_H], output));
    TRY(value_record(pass, layer, ACT_EXPERT_OUTPUT));
    TRY(value_make(pass, layer, ACT_MLP, &mlp));
    subject->ops->combine(subject->dtype, extent[EXTENT_N], extent[EXTENT_K], extent[EXTENT_H],
                          value_of(pass, layer, ACT_TOPK_INDEX),
                          weighted ? value_of(pass, layer, ACT_TOPK_WEIGHT) : NULL, output, mlp);
    return value_record(pass, layer, ACT_MLP);
}

static enum status sparse_forward(struct pass *pass, int layer, enum phase gather) {
    const struct unit rest = pass_unit(pass, layer, UNIT_REST), experts = pass_unit(pass, layer, UNIT_EXPERTS);
    TRY(choose_experts(pass, layer));
    TRY(dispatch(pass, layer));
    if (experts.part == UNIT_EXPERTS)
        TRY(pass_leave(pass, rest));
    TRY(pass_open(pass, experts, gather));
    TRY(experts_forward(pass, layer));
    TRY(pass_leave(pass, experts));
    return combine(pass, layer);
}

/* ---- dense layers */

static enum status dense_forward(struct pass *pass, int layer) {
    struct subject *subject = pass->subject;
    const void *h = value_of(pass, layer, ACT_POST_NORM);
    const int64_t width = pass->extent[EXTENT_F];
    void *hidden;
    TRY(project(pass, layer, PARAM_MLP_GATE, NO_BIAS, h, ACT_MLP_GATE));
    TRY(project(pass, layer, PARAM_MLP_UP, NO_BIAS, h, ACT_MLP_UP));
    TRY(value_make(pass, layer, ACT_MLP_HIDDEN, &hidden));
    subject->ops->swiglu(subject->dtype, pass->extent[EXTENT_N], width, value_of(pass, layer, ACT_MLP_GATE), width,
                         value_of(pass, layer, ACT_MLP_UP), width, hidden);
    TRY(value_record(pass, layer, ACT_MLP_HIDDEN));
    return project(pass, layer, PARAM_MLP_DOWN, NO_BIAS, hidden, ACT_MLP);
}

/* ---- the whole */

/* All but the layer's output. `gather`: the phase of the gathers. */
static enum status layer_inside(struct pass *pass, int layer, const void *x, enum phase gather) {
    const struct norm post = {PARAM_POST_NORM, ACT_POST_NORM_SCALE, ACT_POST_NORM, pass->extent[EXTENT_N],
                              pass->extent[EXTENT_H]};
    TRY(pass_open(pass, pass_unit(pass, layer, UNIT_REST), gather));
    TRY(attention_forward(pass, layer, x));
    TRY(norm_forward(pass, layer, &post, value_of(pass, layer, ACT_RESIDUAL)));
    if (pass->subject->config->sparse[layer])
        TRY(sparse_forward(pass, layer, gather));
    else
        TRY(dense_forward(pass, layer));
    return pass_leave(pass, pass_unit(pass, layer, UNIT_REST));
}

static enum status layer_forward(struct pass *pass, int layer, const void *x) {
    TRY(layer_inside(pass, layer, x, PHASE_GATHER));
    TRY(add_forward(pass, layer, ACT_LAYER, value_of(pass, layer, ACT_RESIDUAL), value_of(pass, layer, ACT_MLP)));
    if (pass->trains && pass->subject->job->fsdp.recompute)
        pass_drop_layer(pass, layer);
    return STATUS_OK;
}

enum status pass_recompute(struct pass *pass, int layer) {
    const void *x = layer > 0 ? value_of(pass, layer - 1, ACT_LAYER) : value_of(pass, OUTSIDE, ACT_EMBED);
    pass->recomputing = true;
    enum status status = layer_inside(pass, layer, x, PHASE_REGATHER);
    pass->recomputing = false;
    return status;
}

static enum status inputs(struct pass *pass) {
    struct subject *subject = pass->subject;
    void *cosine, *sine;
    TRY(value_record(pass, OUTSIDE, ACT_INPUT_IDS));
    TRY(value_record(pass, OUTSIDE, ACT_LABELS));
    TRY(value_make(pass, OUTSIDE, ACT_ROTARY_COS, &cosine));
    TRY(value_make(pass, OUTSIDE, ACT_ROTARY_SIN, &sine));
    subject->ops->rotary_tables(subject->wide, pass->extent[EXTENT_T], pass->extent[EXTENT_D],
                                subject->config->rope_theta, cosine, sine);
    TRY(value_record(pass, OUTSIDE, ACT_ROTARY_COS));
    return value_record(pass, OUTSIDE, ACT_ROTARY_SIN);
}

static enum status embed(struct pass *pass) {
    struct subject *subject = pass->subject;
    void *out;
    TRY(value_make(pass, OUTSIDE, ACT_EMBED, &out));
    subject->ops->gather_rows(subject->dtype, pass->extent[EXTENT_N], pass->extent[EXTENT_H], out,
                              pass_weight(pass, PARAM_EMBED, OUTSIDE), value_of(pass, OUTSIDE, ACT_INPUT_IDS));
    return value_record(pass, OUTSIDE, ACT_EMBED);
}

static enum status losses(struct pass *pass) {
    struct subject *subject = pass->subject;
    const int64_t *extent = pass->extent;
    void *lse, *loss;
    TRY(value_make(pass, OUTSIDE, ACT_LOGSUMEXP, &lse));
    TRY(value_make(pass, OUTSIDE, ACT_TOKEN_LOSS, &loss));
    subject->ops->cross_entropy(subject->dtype, extent[EXTENT_B], extent[EXTENT_T], extent[EXTENT_V],
                                value_of(pass, OUTSIDE, ACT_HEAD), pass_labels(pass), lse, loss);
    TRY(value_record(pass, OUTSIDE, ACT_LOGSUMEXP));
    TRY(value_record(pass, OUTSIDE, ACT_TOKEN_LOSS));
    struct tensor sum = {0};
    TRY(tensor_make(&sum, subject->wide, 0, NULL));
    tensor_set(&sum, 0, subject->ops->sum(subject->wide, extent[EXTENT_B] * extent[EXTENT_NEXT], loss));
    enum status status = device_upload(subject->ops, &pass->loss, &sum);
    tensor_free(&sum);
    TRY(status);
    return record_scalar(subject, PHASE_LOSS_SUM, pass->micro, "loss", &pass->loss);
}

enum status pass_forward(struct pass *pass) {
    const struct norm last = {PARAM_NORM, ACT_NORM_SCALE, ACT_NORM, pass->extent[EXTENT_N], pass->extent[EXTENT_H]};
    const void *x;
    TRY(inputs(pass));
    TRY(pass_open(pass, UNIT_ROOT, PHASE_GATHER));
    TRY(embed(pass));
    x = value_of(pass, OUTSIDE, ACT_EMBED);
    for (int layer = 0; layer < pass->subject->config->layers; layer++) {
        TRY(layer_forward(pass, layer, x));
        x = value_of(pass, layer, ACT_LAYER);
    }
    TRY(norm_forward(pass, OUTSIDE, &last, x));
    TRY(project(pass, OUTSIDE, PARAM_HEAD, NO_BIAS, value_of(pass, OUTSIDE, ACT_NORM), ACT_HEAD));
    TRY(pass_leave(pass, UNIT_ROOT));
    return losses(pass);
}
