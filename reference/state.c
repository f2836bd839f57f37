#include "reference/state.h"

#include "reference/adapter.h"
#include "reference/saved.h"

#include <stdlib.h>

int reference_slot(const struct reference *r, int tenant) {
    for (int slot = 0; tenant >= 0 && slot < r->job->slots; slot++)
        if (r->holding[slot].tenant == tenant)
            return slot;
    return -1;
}

struct holding *reference_holding(const struct reference *r, int tenant) {
    int slot = reference_slot(r, tenant);
    return slot < 0 ? NULL : &r->holding[slot];
}

const struct adapter_target *reference_target(const struct reference *r, int tenant, const struct param *param) {
    return tenant < 0 ? NULL : adapter_find(&r->job->tenant[tenant].adapter, param);
}

bool reference_trains(const struct reference *r, int tenant, const struct param *param, enum part part) {
    return part == PART_WEIGHT ? job_trains(r->job, param) : reference_target(r, tenant, param) != NULL;
}

const struct param *reference_owner(const struct reference *r, const struct param *param) {
    return param->alias >= 0 ? &r->inventory->params[param->alias] : param;
}

struct value *reference_tensor(const struct reference *r, const struct holding *holding, const struct param *param,
                               enum part part) {
    int index = inventory_index(r->inventory, param);
    return part == PART_WEIGHT ? &r->weight[index] : &holding->slot[index].part[part];
}

struct value *reference_master(const struct reference *r, const struct holding *holding, const struct param *param,
                               enum part part) {
    int index = inventory_index(r->inventory, param);
    if (!r->precision.master)
        return NULL;
    return part == PART_WEIGHT ? &r->master[index] : &holding->master[index].part[part];
}

/* ---- memory */

static enum status allocate_holding(struct holding *holding, size_t params) {
    *holding = (struct holding){.tenant = -1};
    holding->slot = calloc(params + 1, sizeof *holding->slot);
    holding->gradient = calloc(params + 1, sizeof *holding->gradient);
    holding->master = calloc(params + 1, sizeof *holding->master);
    bool complete = holding->slot && holding->gradient && holding->master;
    for (int state = 0; state < STATES; state++) {
        holding->state[state] = calloc(params + 1, sizeof *holding->state[state]);
        complete = complete && holding->state[state];
    }
    return complete ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory in the reference");
}

static enum status allocate(struct reference *r) {
    r->weight = calloc((size_t)r->inventory->count + 1, sizeof *r->weight);
    r->master = calloc((size_t)r->inventory->count + 1, sizeof *r->master);
    r->holding = calloc((size_t)r->job->slots + 1, sizeof *r->holding);
    r->saved = calloc((size_t)r->job->saves + 1, sizeof *r->saved);
    if (!r->weight || !r->master || !r->holding || !r->saved)
        return status_fail(STATUS_MEMORY, "out of memory in the reference");
    for (int slot = 0; slot < r->job->slots; slot++)
        TRY(allocate_holding(&r->holding[slot], (size_t)r->inventory->count));
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

/* Zeros: the weight's shape if it trains, A and B if the parameter is a target. */
static enum status make_parts(struct reference *r, const struct param *param, bool weight, struct parts *out) {
    const struct arithmetic *m = &r->arithmetic;
    if (weight && job_trains(r->job, param)) {
        TRY(value_new(m, &out->part[PART_WEIGHT], param->ndim, param->shape));
        value_zero(&out->part[PART_WEIGHT]);
    }
    if (!job_targets(r->job, param))
        return STATUS_OK;
    TRY(value_slot_a(m, param, r->job->max_rank, &out->part[PART_LORA_A]));
    return value_slot_b(m, param, r->job->max_rank, &out->part[PART_LORA_B]);
}

static enum status fill(struct reference *r) {
    const char *const *states = optimizer_states(&r->job->optimizer);
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        if (param->alias < 0)
            TRY(read_weight(r, param, &r->weight[i]));
        if (r->precision.master && job_trains(r->job, param))
            TRY(value_copy(&r->arithmetic, &r->master[i], &r->weight[i]));
        for (int slot = 0; slot < r->job->slots; slot++) {
            struct holding *holding = &r->holding[slot];
            TRY(make_parts(r, param, false, &holding->slot[i]));
            if (r->precision.master)
                TRY(make_parts(r, param, false, &holding->master[i]));
            for (int state = 0; state < STATES && states[state]; state++)
                TRY(make_parts(r, param, true, &holding->state[state][i]));
            if (job_targets(r->job, param))
                value_initial_slot(&r->arithmetic, r->precision.store, param, slot, &holding->slot[i].part[PART_LORA_A],
                                   &holding->slot[i].part[PART_LORA_B]);
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
        .precision = job_precision(job),
        .arithmetic = arithmetic_make(job->dtype, options->dry, options->bounds),
    };
    enum status status = allocate(out);
    if (status == STATUS_OK)
        status = fill(out);
    if (status != STATUS_OK)
        reference_free(out);
    return status;
}

static void empty_parts(struct parts *parts, int count) {
    for (int i = 0; parts && i < count; i++)
        for (int part = 0; part < PARTS; part++)
            value_free(&parts[i].part[part]);
}

static void free_holding(struct holding *holding, int params) {
    empty_parts(holding->slot, params);
    empty_parts(holding->gradient, params);
    empty_parts(holding->master, params);
    free(holding->master);
    free(holding->slot);
    free(holding->gradient);
    for (int state = 0; state < STATES; state++) {
        empty_parts(holding->state[state], params);
        free(holding->state[state]);
    }
    window_free(&holding->window);
}

void reference_free(struct reference *r) {
    int params = r->inventory ? r->inventory->count : 0, slots = r->job ? r->job->slots : 0;
    for (int i = 0; r->weight && i < params; i++)
        value_free(&r->weight[i]);
    for (int i = 0; r->master && i < params; i++)
        value_free(&r->master[i]);
    free(r->weight);
    free(r->master);
    for (int slot = 0; r->holding && slot < slots; slot++)
        free_holding(&r->holding[slot], params);
    free(r->holding);
    for (int save = 0; r->saved && save < r->job->saves; save++)
        saved_free(&r->saved[save], params, slots);
    free(r->saved);
    *r = (struct reference){0};
}

/* ---- tenants come and go */

void holding_close_window(struct holding *holding, const struct inventory *inventory) {
    empty_parts(holding->gradient, inventory->count);
    window_free(&holding->window);
}

static void forget(const struct reference *r, struct holding *holding) {
    holding_close_window(holding, r->inventory);
    holding->updates = 0;
    for (int state = 0; state < STATES; state++)
        for (int i = 0; i < r->inventory->count; i++)
            for (int part = 0; part < PARTS; part++)
                if (holding->state[state][i].part[part].ndim)
                    value_zero(&holding->state[state][i].part[part]);
}

enum status reference_acquire(struct reference *r, int tenant) {
    int slot = 0;
    while (slot < r->job->slots && r->holding[slot].tenant >= 0)
        slot++;
    if (slot >= r->job->slots || reference_slot(r, tenant) >= 0)
        return status_fail(STATUS_INTERNAL, "tenant %s: no free slot, or it has one", r->job->tenant[tenant].name);
    struct holding *holding = &r->holding[slot];
    forget(r, holding);
    holding->tenant = tenant;
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        const struct adapter_target *target = reference_target(r, tenant, param);
        struct value *a = &holding->slot[i].part[PART_LORA_A], *b = &holding->slot[i].part[PART_LORA_B];
        if (target && r->precision.master)
            value_load_slot(&r->arithmetic, r->precision.store, target, r->job->max_rank, false,
                            &holding->master[i].part[PART_LORA_A], &holding->master[i].part[PART_LORA_B]);
        if (target)
            value_load_slot(&r->arithmetic, r->precision.store, target, r->job->max_rank, r->job->beyond_nan, a, b);
        else if (job_targets(r->job, param)) {
            value_zero(a);
            value_zero(b);
        }
    }
    return STATUS_OK;
}

enum status reference_release(struct reference *r, int tenant) {
    int slot = reference_slot(r, tenant);
    if (slot < 0)
        return status_fail(STATUS_INTERNAL, "a tenant without a slot is released");
    struct holding *holding = &r->holding[slot];
    forget(r, holding);
    holding->tenant = -1;
    for (int i = 0; i < r->inventory->count; i++)
        if (job_targets(r->job, &r->inventory->params[i]))
            value_initial_slot(&r->arithmetic, r->precision.store, &r->inventory->params[i], slot,
                               &holding->slot[i].part[PART_LORA_A], &holding->slot[i].part[PART_LORA_B]);
    return STATUS_OK;
}

/* ---- emit */

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

/* The states of one tensor that the slot's holder trains; under the name of the slot, or as the acting one. */
static enum status emit_states(struct reference *r, const struct param *param, enum part part, int slot, int acting) {
    const char *const *states = optimizer_states(&r->job->optimizer);
    const struct holding *holding = &r->holding[slot];
    if (holding->tenant < 0 || !reference_trains(r, holding->tenant, param, part))
        return STATUS_OK;
    struct point point = reference_parameter_point(r, PHASE_PARAM, -1, param, part);
    point.slot = slot == acting ? -1 : slot;
    for (int state = 0; state < STATES && states[state]; state++) {
        point.state = states[state];
        TRY(reference_emit(r, &point, &holding->state[state][inventory_index(r->inventory, param)].part[part]));
    }
    if (!r->precision.master || part == PART_WEIGHT)
        return STATUS_OK;
    point.state = "master";
    return reference_emit(r, &point, reference_master(r, holding, param, part));
}

static enum status emit_weight(struct reference *r, const struct param *param, int acting) {
    struct point point = reference_parameter_point(r, PHASE_PARAM, -1, param, PART_WEIGHT);
    TRY(reference_emit(r, &point, reference_tensor(r, NULL, param, PART_WEIGHT)));
    point.state = "master";
    if (r->precision.master && job_trains(r->job, param))
        TRY(reference_emit(r, &point, reference_master(r, NULL, param, PART_WEIGHT)));
    for (int slot = 0; slot < r->job->slots; slot++)
        TRY(emit_states(r, param, PART_WEIGHT, slot, acting));
    return STATUS_OK;
}

static enum status emit_slot(struct reference *r, const struct param *param, int slot, int acting) {
    struct point point = reference_parameter_point(r, PHASE_PARAM, -1, param, PART_LORA_A);
    point.slot = slot == acting ? -1 : slot;
    TRY(reference_emit(r, &point, reference_tensor(r, &r->holding[slot], param, PART_LORA_A)));
    point.part = PART_LORA_B;
    TRY(reference_emit(r, &point, reference_tensor(r, &r->holding[slot], param, PART_LORA_B)));
    TRY(emit_states(r, param, PART_LORA_A, slot, acting));
    return emit_states(r, param, PART_LORA_B, slot, acting);
}

enum status reference_emit_state(struct reference *r, int acting) {
    for (int i = 0; i < r->inventory->count; i++) {
        const struct param *param = &r->inventory->params[i];
        if (param->alias < 0)
            TRY(emit_weight(r, param, acting));
        for (int slot = 0; job_targets(r->job, param) && slot < r->job->slots; slot++)
            TRY(emit_slot(r, param, slot, acting));
    }
    return STATUS_OK;
}
