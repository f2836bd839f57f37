#include "reference/state.h"

#include "reference/adapter.h"

#include <stdlib.h>

struct slot_pair *reference_pair(const struct reference *r, struct slot_pair *of, int slot, const struct param *param) {
    return &of[slot * r->inventory->count + inventory_index(r->inventory, param)];
}

int reference_slot(const struct reference *r, int tenant) {
    for (int slot = 0; tenant >= 0 && slot < r->job->slots; slot++)
        if (r->holder[slot] == tenant)
            return slot;
    return -1;
}

const struct adapter_target *reference_target(const struct reference *r, int tenant, const struct param *param) {
    return tenant < 0 ? NULL : adapter_find(&r->job->tenant[tenant].adapter, param);
}

const struct param *reference_owner(const struct reference *r, const struct param *param) {
    return param->alias >= 0 ? &r->inventory->params[param->alias] : param;
}

static enum status allocate(struct reference *r) {
    size_t params = (size_t)r->inventory->count, slots = (size_t)r->job->slots;
    r->weight = calloc(params + 1, sizeof *r->weight);
    r->running = calloc(params + 1, sizeof *r->running);
    r->slot = calloc(slots * params + 1, sizeof *r->slot);
    r->momentum = calloc(slots * params + 1, sizeof *r->momentum);
    r->holder = calloc(slots + 1, sizeof *r->holder);
    r->trained = calloc((size_t)r->job->tenants + 1, sizeof *r->trained);
    if (!r->weight || !r->running || !r->slot || !r->momentum || !r->holder || !r->trained)
        return status_fail(STATUS_MEMORY, "out of memory in the reference");
    for (size_t slot = 0; slot < slots; slot++)
        r->holder[slot] = -1;
    return STATUS_OK;
}

static enum status read_weight(struct reference *r, const struct param *param, struct value *out) {
    if (r->arithmetic.dry)
        return value_new(&r->arithmetic, out, param->ndim, param->shape);
    struct tensor stored = {0};
    TRY(checkpoint_read(r->job->model, param, r->job->dtype, &stored));
    enum status status = value_from_tensor(&r->arithmetic, out, &stored);
    tensor_free(&stored);
    return status;
}

static enum status make_pair(struct reference *r, const struct param *param, struct slot_pair *pair) {
    TRY(value_slot_a(&r->arithmetic, param, r->job->max_rank, &pair->a));
    return value_slot_b(&r->arithmetic, param, r->job->max_rank, &pair->b);
}

static enum status fill(struct reference *r) {
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        if (param->alias < 0)
            TRY(read_weight(r, param, &r->weight[i]));
        for (int slot = 0; job_targets(r->job, param) && slot < r->job->slots; slot++) {
            TRY(make_pair(r, param, reference_pair(r, r->slot, slot, param)));
            TRY(make_pair(r, param, reference_pair(r, r->momentum, slot, param)));
        }
    }
    return STATUS_OK;
}

enum status reference_make(struct reference *out, const struct job *job, const struct reference_options *options,
                           const struct reference_hooks *hooks) {
    *out = (struct reference){
        .job = job,
        .config = checkpoint_config(job->model),
        .inventory = checkpoint_inventory(job->model),
        .options = *options,
        .hooks = hooks,
        .arithmetic = arithmetic_make(job->dtype, options->dry, options->bounds),
    };
    enum status status = allocate(out);
    if (status == STATUS_OK)
        status = fill(out);
    if (status != STATUS_OK)
        reference_free(out);
    return status;
}

static void free_pairs(struct slot_pair *pairs, int count) {
    for (int i = 0; pairs && i < count; i++) {
        value_free(&pairs[i].a);
        value_free(&pairs[i].b);
    }
    free(pairs);
}

void reference_free(struct reference *r) {
    int params = r->inventory ? r->inventory->count : 0, slots = r->job ? r->job->slots : 0;
    for (int i = 0; r->weight && i < params; i++)
        value_free(&r->weight[i]);
    free(r->weight);
    free_pairs(r->slot, slots * params);
    free_pairs(r->momentum, slots * params);
    free_pairs(r->running, params);
    free(r->holder);
    free(r->trained);
    *r = (struct reference){0};
}

enum status reference_acquire(struct reference *r, int tenant) {
    int slot = job_slot(r->job, tenant);
    if (slot < 0 || slot >= r->job->slots || r->holder[slot] >= 0)
        return status_fail(STATUS_INTERNAL, "tenant %s has no free slot", r->job->tenant[tenant].name);
    r->holder[slot] = tenant;
    r->trained[tenant] = false;
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        const struct adapter_target *target = reference_target(r, tenant, param);
        struct slot_pair *pair = reference_pair(r, r->slot, slot, param);
        struct slot_pair *momentum = reference_pair(r, r->momentum, slot, param);
        value_zero(&pair->a);
        value_zero(&pair->b);
        value_zero(&momentum->a);
        value_zero(&momentum->b);
        if (target)
            value_load_slot(&r->arithmetic, target, r->job->max_rank, &pair->a, &pair->b);
    }
    return STATUS_OK;
}

enum status reference_emit(struct reference *r, const struct point *point, struct value *value) {
    if (r->arithmetic.bounds && point_is_partial(point))
        TRY(value_add_magnitude(value));
    return r->hooks->emit(r->hooks->context, point, value);
}

struct point reference_parameter_point(const struct reference *r, enum phase phase, int micro,
                                       const struct param *param, enum part part) {
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = r->step;
    point.micro = micro;
    point.param = param;
    point.part = part;
    return point;
}

struct point reference_scalar_point(const struct reference *r, enum phase phase, int micro, const char *scalar) {
    struct point point = POINT_NONE;
    point.phase = phase;
    point.step = r->step;
    point.micro = micro;
    point.scalar = scalar;
    return point;
}

/* A pair under the name of its slot, or as the acting one. */
static enum status emit_slot(struct reference *r, const struct param *param, struct slot_pair *pair, int slot,
                             const char *state) {
    struct point point = reference_parameter_point(r, PHASE_PARAM, -1, param, PART_LORA_A);
    point.slot = slot;
    point.state = state;
    TRY(reference_emit(r, &point, &pair->a));
    point.part = PART_LORA_B;
    return reference_emit(r, &point, &pair->b);
}

static enum status emit_slots(struct reference *r, const struct param *param, int acting) {
    for (int slot = 0; slot < r->job->slots; slot++) {
        int named = slot == acting ? -1 : slot;
        TRY(emit_slot(r, param, reference_pair(r, r->slot, slot, param), named, NULL));
        if (reference_target(r, r->holder[slot], param))
            TRY(emit_slot(r, param, reference_pair(r, r->momentum, slot, param), named, "momentum_buffer"));
    }
    return STATUS_OK;
}

enum status reference_emit_state(struct reference *r, int acting) {
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        struct point point = reference_parameter_point(r, PHASE_PARAM, -1, param, PART_WEIGHT);
        if (param->alias < 0)
            TRY(reference_emit(r, &point, &r->weight[i]));
        if (job_targets(r->job, param))
            TRY(emit_slots(r, param, acting));
    }
    return STATUS_OK;
}
