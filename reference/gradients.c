#include "reference/gradients.h"

#include "reference/adapter.h"
#include "reference/embedding.h"
#include "reference/experts.h"
#include "reference/linear.h"
#include "reference/norm.h"
#include "reference/repeat.h"

static struct value *part_of(const struct walk *walk, const struct param *param, enum part part) {
    return &walk->parameter[inventory_index(walk->reference->inventory, param)].part[part];
}

static bool trains(const struct walk *walk, const struct param *param) {
    return param && reference_trains(walk->reference, walk->tenant, param, PART_WEIGHT);
}

static enum status emit(struct walk *walk, const struct param *param, enum part part, struct repeat repeat) {
    struct value *value = part_of(walk, param, part);
    repeat_offer(&repeat, walk, param, value);
    enum status status = walk_emit_parameter(walk, PHASE_BACKWARD, param, part, value);
    value->repeat = NULL;
    return status;
}

/* dA and dB from G. */
static enum status adapter_gradients(struct walk *walk, const struct param *param) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct adapter_target *target = walk_target(walk, param);
    if (!target)
        return STATUS_OK;
    int64_t max_rank = walk->reference->job->max_rank;
    const struct gathered *slot = &walk->gathered[inventory_index(walk->reference->inventory, param)];
    const struct value *whole = part_of(walk, param, PART_WEIGHT);
    TRY(value_delta_gradient_a(m, target, max_rank, whole, &slot->b, part_of(walk, param, PART_LORA_A)));
    TRY(emit(walk, param, PART_LORA_A, (struct repeat){.kind = REPEAT_LORA_A, .x = &slot->b}));
    TRY(value_delta_gradient_b(m, target, max_rank, whole, &slot->a, part_of(walk, param, PART_LORA_B)));
    return emit(walk, param, PART_LORA_B, (struct repeat){.kind = REPEAT_LORA_B, .x = &slot->a});
}

static enum status bias_gradient(struct walk *walk, enum param_kind kind, int layer, const struct value *dy) {
    const struct param *bias = kind == PARAM_KINDS ? NULL : walk_param(walk, kind, layer);
    if (!trains(walk, bias))
        return STATUS_OK;
    TRY(value_linear_bias_gradient(&walk->arithmetic, dy, part_of(walk, bias, PART_WEIGHT)));
    return emit(walk, bias, PART_WEIGHT, (struct repeat){.kind = REPEAT_BIAS, .dy = dy});
}

enum status gradient_linear(struct walk *walk, enum param_kind weight, enum param_kind bias, int layer,
                            const struct value *dy, const struct value *x) {
    const struct arithmetic *m = &walk->arithmetic;
    const struct param *param = walk_param(walk, weight, layer);
    struct value *whole = part_of(walk, param, PART_WEIGHT);
    bool kept = trains(walk, reference_owner(walk->reference, param));
    if (!kept && !walk_target(walk, param))
        return bias_gradient(walk, bias, layer, dy);
    if (param->expert)
        TRY(value_expert_weight_gradient(m, &walk->routing[layer], dy, x, whole));
    else
        TRY(value_linear_weight_gradient(m, dy, x, whole));
    enum repeat_kind kind = param->expert ? REPEAT_EXPERTS : REPEAT_LINEAR;
    TRY(emit(walk, param, PART_WEIGHT, (struct repeat){.kind = kind, .layer = layer, .dy = dy, .x = x}));
    TRY(adapter_gradients(walk, param));
    if (!kept)
        value_free(whole);
    return bias_gradient(walk, bias, layer, dy);
}

enum status gradient_norm(struct walk *walk, enum param_kind norm, int layer, const struct value *dy,
                          const struct value *x, const struct value *scale) {
    const struct param *param = walk_param(walk, norm, layer);
    if (!trains(walk, param))
        return STATUS_OK;
    TRY(value_norm_weight_gradient(&walk->arithmetic, dy, x, scale, param->shape[0],
                                   part_of(walk, param, PART_WEIGHT)));
    return emit(walk, param, PART_WEIGHT, (struct repeat){.kind = REPEAT_NORM, .dy = dy, .x = x, .scale = scale});
}

enum status gradient_embedding(struct walk *walk, const struct value *dy) {
    const struct param *param = walk_param(walk, PARAM_EMBED, -1), *head = walk_param(walk, PARAM_HEAD, -1);
    if (!trains(walk, param))
        return STATUS_OK;
    const struct value *start = head->alias >= 0 ? part_of(walk, head, PART_WEIGHT) : NULL;
    TRY(value_embed_gradient(&walk->arithmetic, &walk->root[ACT_INPUT_IDS], dy, param->shape[0], start,
                             part_of(walk, param, PART_WEIGHT)));
    return emit(
        walk, param, PART_WEIGHT,
        (struct repeat){.kind = REPEAT_EMBED, .dy = dy, .x = &walk->root[ACT_INPUT_IDS], .from = start ? head : NULL});
}

/* sum += part; the first part is the sum. What a hook put into part->e (the ranks' reduction) stays in it; adding to
 * the sum that stood there rounds once more. */
static enum status accumulate(const struct arithmetic *m, struct value *sum, const struct value *part) {
    struct value before = *sum;
    bool first = before.ndim == 0;
    *sum = (struct value){0};
    enum status status = first ? value_copy(m, sum, part) : value_add(m, &before, part, sum);
    value_free(&before);
    return status;
}

enum status gradient_reduce(struct walk *walk, int unit) {
    const struct reference *r = walk->reference;
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        for (int part = 0; param->unit == unit && part < PARTS; part++) {
            struct value *partial = &walk->parameter[i].part[part], *sum = &walk->holding->gradient[i].part[part];
            if (reference_trains(r, walk->tenant, param, (enum part)part)) {
                TRY(accumulate(&walk->arithmetic, sum, partial));
                TRY(walk_emit_parameter(walk, PHASE_GRAD, param, (enum part)part, sum));
            }
            value_free(partial);
        }
    }
    return STATUS_OK;
}
