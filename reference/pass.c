#include "reference/pass.h"

#include "reference/adapter.h"
#include "reference/linear.h"

#include <stdlib.h>

enum status pass_make(struct pass *out, struct reference *r, const struct micro_batch *micro, int tenant, bool quiet) {
    size_t params = (size_t)r->inventory->count, layers = (size_t)r->config->layers;
    *out = (struct pass){
        .reference = r,
        .arithmetic = arithmetic_make(r->job->dtype, r->options.dry, r->options.bounds && !quiet),
        .quiet = quiet,
        .micro = micro,
        .tenant = tenant,
        .root = calloc(ACT_COUNT, sizeof *out->root),
        .layer = calloc(layers * ACT_COUNT + 1, sizeof *out->layer),
        .gradient = calloc(ACT_COUNT, sizeof *out->gradient),
        .routing = calloc(layers + 1, sizeof *out->routing),
        .gathered = calloc(params + 1, sizeof *out->gathered),
        .parameter = calloc(params + 1, sizeof *out->parameter),
    };
    if (out->root && out->layer && out->gradient && out->routing && out->gathered && out->parameter)
        return STATUS_OK;
    pass_free(out);
    return status_fail(STATUS_MEMORY, "out of memory in the reference");
}

static void free_values(struct value *values, int64_t count) {
    for (int64_t i = 0; values && i < count; i++)
        value_free(&values[i]);
    free(values);
}

void pass_free(struct pass *pass) {
    int layers = pass->reference ? (int)pass->reference->config->layers : 0;
    int params = pass->reference ? pass->reference->inventory->count : 0;
    free_values(pass->root, ACT_COUNT);
    free_values(pass->layer, (int64_t)layers * ACT_COUNT);
    free_values(pass->gradient, ACT_COUNT);
    for (int i = 0; pass->routing && i < layers; i++)
        routing_free(&pass->routing[i]);
    free(pass->routing);
    for (int unit = 0; pass->gathered && unit <= layers; unit++)
        pass_release(pass, unit);
    free(pass->gathered);
    for (int i = 0; pass->parameter && i < params; i++) {
        value_free(&pass->parameter[i].a);
        value_free(&pass->parameter[i].b);
    }
    free(pass->parameter);
    value_free(&pass->whole);
    *pass = (struct pass){0};
}

struct value *pass_layer(const struct pass *pass, int layer) {
    return &pass->layer[layer * ACT_COUNT];
}

enum status pass_emit(struct pass *pass, enum phase phase, int layer, enum activation activation, struct value *value) {
    if (pass->quiet)
        return STATUS_OK;
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = pass->reference->step;
    point.micro = pass->micro->number;
    point.activation = activation;
    point.layer = layer;
    return reference_emit(pass->reference, &point, value);
}

enum status pass_emit_parameter(struct pass *pass, enum phase phase, const struct param *param, enum part part,
                                struct value *value) {
    if (pass->quiet)
        return STATUS_OK;
    struct point point = reference_parameter_point(pass->reference, phase, pass->micro->number, param, part);
    return reference_emit(pass->reference, &point, value);
}

const struct param *pass_param(const struct pass *pass, enum param_kind kind, int layer) {
    return inventory_find(pass->reference->inventory, kind, layer);
}

const struct adapter_target *pass_target(const struct pass *pass, const struct param *param) {
    return reference_target(pass->reference, pass->tenant, param);
}

static struct gathered *gathered_of(const struct pass *pass, const struct param *param) {
    return &pass->gathered[inventory_index(pass->reference->inventory, param)];
}

static enum status gather_copy(struct pass *pass, enum phase phase, const struct param *param, enum part part,
                               const struct value *from, struct value *to) {
    TRY(value_copy(&pass->arithmetic, to, from));
    return pass_emit_parameter(pass, phase, param, part, to);
}

static enum status gather_parameter(struct pass *pass, const struct param *param, enum phase phase) {
    struct reference *r = pass->reference;
    struct gathered *to = gathered_of(pass, param);
    if (param->alias < 0)
        TRY(gather_copy(pass, phase, param, PART_WEIGHT, &r->weight[inventory_index(r->inventory, param)],
                        &to->weight));
    if (!pass_target(pass, param))
        return STATUS_OK;
    const struct slot_pair *pair = reference_pair(r, r->slot, reference_slot(r, pass->tenant), param);
    TRY(gather_copy(pass, phase, param, PART_LORA_A, &pair->a, &to->a));
    return gather_copy(pass, phase, param, PART_LORA_B, &pair->b, &to->b);
}

/* W + D of one adapted parameter; backward makes D again but stores only the sum. */
static enum status merge(struct pass *pass, const struct param *param, enum phase phase) {
    const struct adapter_target *target = pass_target(pass, param);
    struct gathered *to = gathered_of(pass, param);
    const struct value *weight = &gathered_of(pass, reference_owner(pass->reference, param))->weight;
    struct value delta = {0};
    enum status status;
    if (!target)
        return STATUS_OK;
    TRY_DONE(value_delta(&pass->arithmetic, target, pass->reference->job->max_rank, &to->a, &to->b, &delta));
    if (phase == PHASE_GATHER)
        TRY_DONE(pass_emit_parameter(pass, PHASE_DELTA, param, PART_WEIGHT, &delta));
    TRY_DONE(value_add(&pass->arithmetic, weight, &delta, &to->merged));
    enum part part = phase == PHASE_GATHER ? PART_MERGED : PART_REMERGED;
    TRY_DONE(pass_emit_parameter(pass, PHASE_DELTA, param, part, &to->merged));
done:
    value_free(&delta);
    return status;
}

enum status pass_gather(struct pass *pass, int unit, enum phase phase) {
    const struct inventory *inventory = pass->reference->inventory;
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].unit == unit)
            TRY(gather_parameter(pass, &inventory->params[i], phase));
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].unit == unit)
            TRY(merge(pass, &inventory->params[i], phase));
    return STATUS_OK;
}

void pass_release(struct pass *pass, int unit) {
    const struct inventory *inventory = pass->reference->inventory;
    for (int i = 0; i < inventory->count; i++) {
        if (inventory->params[i].unit != unit)
            continue;
        value_free(&pass->gathered[i].weight);
        value_free(&pass->gathered[i].a);
        value_free(&pass->gathered[i].b);
        value_free(&pass->gathered[i].merged);
    }
}

const struct value *pass_weight(const struct pass *pass, enum param_kind kind, int layer) {
    const struct param *param = pass_param(pass, kind, layer);
    if (!param)
        return NULL;
    if (pass_target(pass, param))
        return &gathered_of(pass, param)->merged;
    return &gathered_of(pass, reference_owner(pass->reference, param))->weight;
}
