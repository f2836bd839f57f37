#include "sharded/pass.h"

#include "sharded/record.h"
#include "sharded/state.h"

#include <stdlib.h>

#define TOKENS EXTENT_B, EXTENT_T
#define ATTENTION EXTENT_B, EXTENT_HEADS, EXTENT_T, EXTENT_T

static const enum extent activation_shape[ACT_COUNT][TENSOR_MAX_DIMS] = {
    [ACT_INPUT_IDS] = {TOKENS},
    [ACT_LABELS] = {TOKENS},
    [ACT_ROTARY_COS] = {EXTENT_T, EXTENT_PAIRS},
    [ACT_ROTARY_SIN] = {EXTENT_T, EXTENT_PAIRS},
    [ACT_EMBED] = {TOKENS, EXTENT_H},
    [ACT_INPUT_NORM_SCALE] = {TOKENS},
    [ACT_INPUT_NORM] = {TOKENS, EXTENT_H},
    [ACT_Q] = {TOKENS, EXTENT_Q},
    [ACT_K] = {TOKENS, EXTENT_KV},
    [ACT_V] = {TOKENS, EXTENT_KV},
    [ACT_Q_NORM_SCALE] = {TOKENS, EXTENT_HEADS},
    [ACT_Q_NORM] = {TOKENS, EXTENT_HEADS, EXTENT_D},
    [ACT_K_NORM_SCALE] = {TOKENS, EXTENT_KV_HEADS},
    [ACT_K_NORM] = {TOKENS, EXTENT_KV_HEADS, EXTENT_D},
    [ACT_Q_ROTARY] = {TOKENS, EXTENT_HEADS, EXTENT_D},
    [ACT_K_ROTARY] = {TOKENS, EXTENT_KV_HEADS, EXTENT_D},
    [ACT_SCORES] = {ATTENTION},
    [ACT_PROBS] = {ATTENTION},
    [ACT_CONTEXT] = {TOKENS, EXTENT_Q},
    [ACT_O] = {TOKENS, EXTENT_H},
    [ACT_RESIDUAL] = {TOKENS, EXTENT_H},
    [ACT_POST_NORM_SCALE] = {TOKENS},
    [ACT_POST_NORM] = {TOKENS, EXTENT_H},
    [ACT_ROUTER_LOGITS] = {EXTENT_N, EXTENT_E},
    [ACT_ROUTER_SCORES] = {EXTENT_N, EXTENT_E},
    [ACT_TOPK_INDEX] = {EXTENT_N, EXTENT_K},
    [ACT_TOPK_WEIGHT] = {EXTENT_N, EXTENT_K},
    [ACT_EXPERT_DISPATCH] = {EXTENT_N, EXTENT_K, EXTENT_H},
    [ACT_EXPERT_INPUT] = {EXTENT_ROWS, EXTENT_H},
    [ACT_EXPERT_GATE_UP] = {EXTENT_ROWS, EXTENT_2I},
    [ACT_EXPERT_HIDDEN] = {EXTENT_ROWS, EXTENT_I},
    [ACT_EXPERT_DOWN] = {EXTENT_ROWS, EXTENT_H},
    [ACT_EXPERT_OUTPUT] = {EXTENT_N, EXTENT_K, EXTENT_H},
    [ACT_ROUTER_INPUT] = {EXTENT_N, EXTENT_H},
    [ACT_MLP_GATE] = {TOKENS, EXTENT_F},
    [ACT_MLP_UP] = {TOKENS, EXTENT_F},
    [ACT_MLP_HIDDEN] = {TOKENS, EXTENT_F},
    [ACT_MLP] = {TOKENS, EXTENT_H},
    [ACT_LAYER] = {TOKENS, EXTENT_H},
    [ACT_NORM_SCALE] = {TOKENS},
    [ACT_NORM] = {TOKENS, EXTENT_H},
    [ACT_HEAD] = {TOKENS, EXTENT_V},
    [ACT_LOGSUMEXP] = {EXTENT_B, EXTENT_NEXT},
    [ACT_TOKEN_LOSS] = {EXTENT_B, EXTENT_NEXT},
};

static void extents_fill(int64_t *extent, const struct model_config *config, int64_t sequences, int64_t tokens) {
    extent[EXTENT_B] = sequences;
    extent[EXTENT_T] = tokens;
    extent[EXTENT_NEXT] = tokens > 0 ? tokens - 1 : 0;
    extent[EXTENT_N] = sequences * tokens;
    extent[EXTENT_H] = config->hidden;
    extent[EXTENT_Q] = config->heads * config->head_dim;
    extent[EXTENT_KV] = config->kv_heads * config->head_dim;
    extent[EXTENT_HEADS] = config->heads;
    extent[EXTENT_KV_HEADS] = config->kv_heads;
    extent[EXTENT_D] = config->head_dim;
    extent[EXTENT_PAIRS] = config->head_dim / 2;
    extent[EXTENT_E] = config->experts;
    extent[EXTENT_K] = config->experts_per_token;
    extent[EXTENT_I] = config->expert_width;
    extent[EXTENT_2I] = 2 * config->expert_width;
    extent[EXTENT_F] = config->dense_width;
    extent[EXTENT_V] = config->vocab;
}

/* ---- activations by name */

struct tape *pass_tape(const struct pass *pass, int layer) {
    return &pass->tape[layer == OUTSIDE ? pass->subject->config->layers : layer];
}

void *value_of(const struct pass *pass, int layer, enum activation activation) {
    return pass_tape(pass, layer)->value[activation].data;
}

void *gradient_of(const struct pass *pass, int layer, enum activation activation) {
    return pass_tape(pass, layer)->gradient[activation].data;
}

static enum status activation_make(const struct pass *pass, enum phase phase, int layer, enum activation activation,
                                   struct tensor *out) {
    struct point point = POINT_NONE;
    point.phase = phase;
    point.activation = activation;
    int64_t shape[TENSOR_MAX_DIMS];
    int ndim = 0;
    for (; activation_shape[activation][ndim] != EXTENT_NONE; ndim++) {
        enum extent extent = activation_shape[activation][ndim];
        shape[ndim] = extent == EXTENT_ROWS ? pass_tape(pass, layer)->route.arrived : pass->extent[extent];
    }
    return device_make(pass->subject->ops, out, point_dtype(&point, &pass->subject->precision), ndim, shape);
}

enum status value_make(struct pass *pass, int layer, enum activation activation, void **out) {
    struct tensor *tensor = &pass_tape(pass, layer)->value[activation];
    TRY(activation_make(pass, PHASE_FORWARD, layer, activation, tensor));
    *out = tensor->data;
    return STATUS_OK;
}

enum status gradient_make(struct pass *pass, int layer, enum activation activation, void **out) {
    struct tensor *tensor = &pass_tape(pass, layer)->gradient[activation];
    TRY(activation_make(pass, PHASE_BACKWARD, layer, activation, tensor));
    *out = tensor->data;
    return STATUS_OK;
}

static enum status activation_record(const struct pass *pass, enum phase phase, int layer, enum activation activation,
                                     const struct tensor *tensor) {
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = pass->subject->step;
    point.micro = pass->micro;
    point.activation = activation;
    point.layer = layer;
    return record_tensor(pass->subject, &point, tensor);
}

enum status value_record(const struct pass *pass, int layer, enum activation activation) {
    if (pass->recomputing)
        return STATUS_OK;
    return activation_record(pass, PHASE_FORWARD, layer, activation, &pass_tape(pass, layer)->value[activation]);
}

enum status gradient_record(const struct pass *pass, int layer, enum activation activation) {
    return activation_record(pass, PHASE_BACKWARD, layer, activation, &pass_tape(pass, layer)->gradient[activation]);
}

/* ---- parameters and rows */

const struct param *pass_param(const struct pass *pass, enum param_kind kind, int layer) {
    return inventory_find(pass->subject->inventory, kind, layer);
}

const void *pass_weight(const struct pass *pass, enum param_kind kind, int layer) {
    return store_effective(pass->subject, pass_param(pass, kind, layer));
}

/* The operation compares logits t with label t + 1. */
const int64_t *pass_labels(const struct pass *pass) {
    return (const int64_t *)value_of(pass, OUTSIDE, ACT_LABELS) - pass->subject->rules->label_lag;
}

struct halves pass_halves(const struct pass *pass) {
    const size_t half = (size_t)pass->extent[EXTENT_I] * dtype_bytes(pass->subject->dtype);
    const size_t gate = pass->subject->rules->up_before_gate ? half : 0;
    return (struct halves){gate, half - gate};
}

struct blocks pass_rows(const struct pass *pass) {
    return (struct blocks){1, pass->whole};
}

struct blocks pass_experts(const struct pass *pass, int layer) {
    const struct route *route = &pass_tape(pass, layer)->route;
    return (struct blocks){route->experts, route->begin};
}

const char *pass_experts_name(const struct pass *pass, int layer) {
    return pass_param(pass, PARAM_GATE_UP, layer)->module;
}

/* ---- the micro-batch */

static int64_t labels_counted(const int64_t *labels, int64_t sequences, int64_t tokens) {
    int64_t counted = 0;
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t t = 1; t < tokens; t++)
            counted += labels[b * tokens + t] != -100;
    return counted;
}

enum status pass_make(struct pass *out, struct subject *subject, const struct micro_batch *batch, bool trains) {
    int64_t first, sequences;
    void *ids, *labels, *tape;
    *out = (struct pass){.subject = subject, .micro = batch->number, .trains = trains};
    chunk_range(batch->sequences, subject->world, subject->rank, false, &first, &sequences);
    extents_fill(out->extent, subject->config, sequences, batch->tokens);
    int64_t rows = out->extent[EXTENT_N];
    if (sequences == 0)
        first = 0;
    const int64_t *own_labels = (const int64_t *)batch->labels.data + first * batch->tokens;
    out->whole[1] = rows;
    out->counted = labels_counted(own_labels, sequences, batch->tokens);
    TRY(host_zeros(&tape, (size_t)subject->config->layers + 1, sizeof *out->tape));
    out->tape = tape;
    TRY(value_make(out, OUTSIDE, ACT_INPUT_IDS, &ids));
    TRY(value_make(out, OUTSIDE, ACT_LABELS, &labels));
    subject->ops->to_device(ids, (const int64_t *)batch->input_ids.data + first * batch->tokens,
                            (size_t)rows * sizeof(int64_t));
    subject->ops->to_device(labels, own_labels, (size_t)rows * sizeof(int64_t));
    return STATUS_OK;
}

static void tape_free(const struct ops *ops, struct tape *tape) {
    for (int activation = 0; activation < ACT_COUNT; activation++) {
        device_free(ops, &tape->value[activation]);
        device_free(ops, &tape->gradient[activation]);
    }
    route_free(ops, &tape->route);
}

void pass_free_layer(struct pass *pass, int layer) {
    tape_free(pass->subject->ops, pass_tape(pass, layer));
}

void pass_drop_layer(struct pass *pass, int layer) {
    struct tape *tape = pass_tape(pass, layer);
    struct tensor output = tape->value[ACT_LAYER];
    tape->value[ACT_LAYER] = (struct tensor){0};
    tape_free(pass->subject->ops, tape);
    tape->value[ACT_LAYER] = output;
}

void pass_free(struct pass *pass) {
    const struct ops *ops = pass->subject->ops;
    for (int64_t layer = 0; pass->tape && layer <= pass->subject->config->layers; layer++)
        tape_free(ops, &pass->tape[layer]);
    device_free(ops, &pass->loss);
    free(pass->tape);
    pass->tape = NULL;
}
