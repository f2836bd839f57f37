#include "reference/walk.h"

#include "reference/adapter.h"
#include "reference/linear.h"

#include <math.h>
#include <stdlib.h>

enum status walk_make(struct walk *out, struct reference *r, const struct micro_batch *micro, int tenant, bool quiet) {
    size_t params = (size_t)r->inventory->count, layers = (size_t)r->config->layers;
    *out = (struct walk){
        .reference = r,
        .arithmetic = arithmetic_make(r->job->dtype, r->options.dry, r->options.bounds && !quiet),
        .quiet = quiet,
        .micro = micro,
        .tenant = tenant,
        .holding = reference_holding(r, tenant),
        .root = calloc(ACT_COUNT, sizeof *out->root),
        .layer = calloc(layers * ACT_COUNT + 1, sizeof *out->layer),
        .gradient = calloc(ACT_COUNT, sizeof *out->gradient),
        .routing = calloc(layers + 1, sizeof *out->routing),
        .gathered = calloc(params + 1, sizeof *out->gathered),
        .parameter = calloc(params + 1, sizeof *out->parameter),
    };
    if (out->root && out->layer && out->gradient && out->routing && out->gathered && out->parameter)
        return STATUS_OK;
    walk_free(out);
    return status_fail(STATUS_MEMORY, "out of memory in the reference");
}

static void free_values(struct value *values, int64_t count) {
    for (int64_t i = 0; values && i < count; i++)
        value_free(&values[i]);
    free(values);
}

void walk_free(struct walk *walk) {
    int layers = walk->reference ? (int)walk->reference->config->layers : 0;
    int params = walk->reference ? walk->reference->inventory->count : 0;
    free_values(walk->root, ACT_COUNT);
    free_values(walk->layer, (int64_t)layers * ACT_COUNT);
    free_values(walk->gradient, ACT_COUNT);
    for (int i = 0; walk->routing && i < layers; i++)
        routing_free(&walk->routing[i]);
    free(walk->routing);
    for (int unit = 0; walk->gathered && unit <= layers; unit++)
        walk_release(walk, unit);
    free(walk->gathered);
    for (int i = 0; walk->parameter && i < params; i++)
        for (int part = 0; part < PARTS; part++)
            value_free(&walk->parameter[i].part[part]);
    free(walk->parameter);
    *walk = (struct walk){0};
}

struct value *walk_layer(const struct walk *walk, int layer) {
    return &walk->layer[layer * ACT_COUNT];
}

enum status walk_emit(struct walk *walk, enum phase phase, int layer, enum activation activation, struct value *value) {
    if (walk->quiet)
        return STATUS_OK;
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = walk->reference->step;
    point.micro = walk->micro->number;
    point.activation = activation;
    point.layer = layer;
    return reference_emit(walk->reference, &point, value);
}

enum status walk_emit_parameter(struct walk *walk, enum phase phase, const struct param *param, enum part part,
                                struct value *value) {
    if (walk->quiet)
        return STATUS_OK;
    struct point point = reference_parameter_point(walk->reference, phase, walk->micro->number, param, part);
    return reference_emit(walk->reference, &point, value);
}

const struct param *walk_param(const struct walk *walk, enum param_kind kind, int layer) {
    return inventory_find(walk->reference->inventory, kind, layer);
}

const struct adapter_target *walk_target(const struct walk *walk, const struct param *param) {
    return reference_target(walk->reference, walk->tenant, param);
}

static struct gathered *gathered_of(const struct walk *walk, const struct param *param) {
    return &walk->gathered[inventory_index(walk->reference->inventory, param)];
}

static enum status gather_copy(struct walk *walk, enum phase phase, const struct param *param, enum part part,
                               const struct value *from, struct value *to) {
    const struct precision *precision = &walk->reference->precision;
    TRY(value_copy(&walk->arithmetic, to, from));
    for (int64_t i = 0; to->x && precision->compute != precision->store && i < value_elements(to); i++)
        to->x[i] = dtype_round(precision->compute, to->x[i]);
    return walk_emit_parameter(walk, phase, param, part, to);
}

static enum status gather_parameter(struct walk *walk, const struct param *param, enum phase phase) {
    struct reference *r = walk->reference;
    struct gathered *to = gathered_of(walk, param);
    if (param->alias < 0)
        TRY(gather_copy(walk, phase, param, PART_WEIGHT, reference_tensor(r, NULL, param, PART_WEIGHT), &to->weight));
    if (!walk_target(walk, param))
        return STATUS_OK;
    TRY(gather_copy(walk, phase, param, PART_LORA_A, reference_tensor(r, walk->holding, param, PART_LORA_A), &to->a));
    return gather_copy(walk, phase, param, PART_LORA_B, reference_tensor(r, walk->holding, param, PART_LORA_B), &to->b);
}

/* Stored in bfloat16, but not recorded. The subject computed some y' within [x - e, x + e]; rounding is monotone, so
 * that it stored something between the roundings of both ends: most often there is only one such number. */
static void round_unseen(struct value *value) {
    for (int64_t i = 0, n = value->x ? value_elements(value) : 0; i < n; i++) {
        double e = value->e ? value->e[i] : 0, x = value->x[i], stored = dtype_round(DTYPE_BF16, x);
        double above = dtype_round(DTYPE_BF16, dtype_round(DTYPE_F32, x + e));
        double below = dtype_round(DTYPE_BF16, dtype_round(DTYPE_F32, x - e));
        value->x[i] = stored;
        if (value->e)
            value->e[i] = fmax(above - stored, stored - below);
    }
}

/* W + D of one adapted parameter; backward makes D again but stores only the sum. */
static enum status merge(struct walk *walk, const struct param *param, enum phase phase) {
    const struct adapter_target *target = walk_target(walk, param);
    struct gathered *to = gathered_of(walk, param);
    const struct value *weight = &gathered_of(walk, reference_owner(walk->reference, param))->weight;
    struct value delta = {0};
    enum status status;
    if (!target)
        return STATUS_OK;
    TRY_DONE(value_delta(&walk->arithmetic, target, walk->reference->job->max_rank, &to->a, &to->b, &delta));
    if (phase == PHASE_GATHER)
        TRY_DONE(walk_emit_parameter(walk, PHASE_DELTA, param, PART_WEIGHT, &delta));
    else if (walk->reference->precision.compute == DTYPE_BF16)
        round_unseen(&delta);
    TRY_DONE(value_add(&walk->arithmetic, weight, &delta, &to->merged));
    enum part part = phase == PHASE_GATHER ? PART_MERGED : PART_REMERGED;
    TRY_DONE(walk_emit_parameter(walk, PHASE_DELTA, param, part, &to->merged));
done:
    value_free(&delta);
    return status;
}

enum status walk_gather(struct walk *walk, int unit, enum phase phase) {
    const struct inventory *inventory = walk->reference->inventory;
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].unit == unit)
            TRY(gather_parameter(walk, &inventory->params[i], phase));
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].unit == unit)
            TRY(merge(walk, &inventory->params[i], phase));
    return STATUS_OK;
}

void walk_release(struct walk *walk, int unit) {
    const struct inventory *inventory = walk->reference->inventory;
    for (int i = 0; i < inventory->count; i++) {
        if (inventory->params[i].unit != unit)
            continue;
        value_free(&walk->gathered[i].weight);
        value_free(&walk->gathered[i].a);
        value_free(&walk->gathered[i].b);
        value_free(&walk->gathered[i].merged);
    }
}

void walk_reshard(struct walk *walk, int unit) {
    if (!walk->reference->job->fsdp.keep_gathered)
        walk_release(walk, unit);
}

enum status walk_regather(struct walk *walk, int unit) {
    return walk->reference->job->fsdp.keep_gathered ? STATUS_OK : walk_gather(walk, unit, PHASE_REGATHER);
}

const struct value *walk_weight(const struct walk *walk, enum param_kind kind, int layer) {
    const struct param *param = walk_param(walk, kind, layer);
    if (!param)
        return NULL;
    if (walk_target(walk, param))
        return &gathered_of(walk, param)->merged;
    return &gathered_of(walk, reference_owner(walk->reference, param))->weight;
}
