#include "sharded/linear.h"

#include "sharded/chain.h"
#include "sharded/record.h"
#include "sharded/state.h"

#include <math.h>

struct map { /* one adapted linear map, gathered */
    int64_t experts, in, out;
    int64_t rank, max_rank; /* r, R */
    double scale;           /* as the wide type rounds it */
};

static int64_t param_in(const struct param *param) {
    return param->shape[param->ndim - 1];
}

static int64_t param_out(const struct param *param) {
    return param->shape[param->ndim - 2];
}

static double scale_of(const struct subject *subject, const struct adapter_target *adapter) {
    switch (subject->rules->delta_scale) {
    case DELTA_SCALE:
        return adapter->scale;
    case DELTA_SCALE_BY_MAX_RANK:
        return adapter->alpha / (double)subject->job->max_rank;
    case DELTA_SCALE_NONE:
        return 1;
    }
    return NAN;
}

/* `adapter` may be NULL: a map that trains and is not adapted. */
static struct map map_of(const struct subject *subject, const struct param *param,
                         const struct adapter_target *adapter) {
    const struct shard *used = &store_base(subject, param)->place.used;
    return (struct map){
        .experts = param->expert ? used->shape[0] : 1,
        .in = param_in(param),
        .out = param_out(param),
        .rank = adapter ? adapter->lora_rank : 0,
        .max_rank = subject->job->max_rank,
        .scale = adapter ? dtype_round(subject->wide, scale_of(subject, adapter)) : 0,
    };
}

/* Expert e of a pack of [rows, columns] matrices. */
static void *expert_of(enum dtype dtype, void *pack, int64_t e, int64_t rows, int64_t columns) {
    return (char *)pack + (size_t)(e * rows * columns) * dtype_bytes(dtype);
}

/* ---- W + D */

/* The product's transpose: C^T = B^T A^T. */
static struct matmul turned(const struct matmul *p) {
    return (struct matmul){.m = p->n,
                           .n = p->m,
                           .k = p->k,
                           .a = p->b,
                           .a_row = p->b_col,
                           .a_col = p->b_row,
                           .b = p->a,
                           .b_row = p->a_col,
                           .b_col = p->a_row,
                           .c = p->c,
                           .c_row = p->m,
                           .c_wide = p->c_wide};
}

/* `out` is of the wide type. */
static void delta(const struct subject *subject, const struct map *map, void *a, void *b, void *out) {
    for (int64_t e = 0; e < map->experts; e++) {
        struct matmul product = {
            .m = map->out,
            .n = map->in,
            .k = subject->rules->delta_all_rows ? map->max_rank : map->rank,
            .a = expert_of(subject->dtype, b, e, map->out, map->max_rank),
            .a_row = map->max_rank,
            .a_col = 1,
            .b = expert_of(subject->dtype, a, e, map->max_rank, map->in),
            .b_row = map->in,
            .b_col = 1,
            .c = expert_of(subject->wide, out, e, map->out, map->in),
            .c_row = map->in,
            .c_wide = true,
        };
        if (subject->rules->delta_turned)
            product = turned(&product);
        subject->ops->matmul(subject->dtype, &product);
    }
    subject->ops->scale(subject->wide, map->experts * map->out * map->in, out, map->scale);
}

static enum status merge(struct subject *subject, const struct param *param, enum part part, int micro) {
    enum status status = STATUS_OK;
    struct tensor d = {0};
    struct chain made = {0};
    struct weight *weight = store_weight(subject, param);
    const struct tensor *base = &store_base(subject, param)->used;
    const struct map map = map_of(subject, param, slots_adapter(subject, param));
    struct factor *factor = weight->target->factor;
    TRY_DONE(device_make(subject->ops, &d, subject->dtype, base->ndim, base->shape));
    TRY_DONE(device_make(subject->ops, &weight->merged, subject->dtype, base->ndim, base->shape));
    TRY_DONE(chain_begin(&made, subject, tensor_elements(&d), d.data));
    delta(subject, &map, factor[FACTOR_A].used.data, factor[FACTOR_B].used.data, made.data);
    chain_store(&made, subject);
    subject->ops->add(subject->dtype, tensor_elements(&d), weight->merged.data, base->data, d.data);
    if (part == PART_MERGED)
        TRY_DONE(record_param(subject, PHASE_DELTA, micro, param, PART_WEIGHT, &d));
    TRY_DONE(record_param(subject, PHASE_DELTA, micro, param, part, &weight->merged));
done:
    chain_free(&made, subject);
    device_free(subject->ops, &d);
    return status;
}

enum status linear_merge_unit(struct subject *subject, struct unit unit, enum part part, int micro) {
    for (int i = 0; i < subject->inventory->count; i++) {
        const struct param *param = &subject->inventory->params[i];
        if (unit_holds(unit, param) && slots_adapter(subject, param))
            TRY(merge(subject, param, part, micro));
    }
    return STATUS_OK;
}

/* ---- products */

static const void *row_at(enum dtype dtype, const void *rows, int64_t row, int64_t columns) {
    return (const char *)rows + (size_t)(row * columns) * dtype_bytes(dtype);
}

void linear_forward(const struct subject *subject, const struct param *param, const struct blocks *blocks,
                    const void *x, void *y, enum dtype to) {
    int64_t in = param_in(param), out = param_out(param);
    const void *weight = store_effective(subject, param);
    for (int64_t e = 0; e < blocks->count; e++) {
        const struct matmul product = {
            .m = blocks->begin[e + 1] - blocks->begin[e],
            .n = out,
            .k = in,
            .a = row_at(subject->dtype, x, blocks->begin[e], in),
            .a_row = in,
            .a_col = 1,
            .b = row_at(subject->dtype, weight, e * out, in),
            .b_row = 1,
            .b_col = in,
            .c = (void *)row_at(to, y, blocks->begin[e], out),
            .c_row = out,
            .c_wide = to != subject->dtype,
        };
        subject->ops->matmul(subject->dtype, &product);
    }
}

void linear_backward(const struct subject *subject, const struct param *param, const struct blocks *blocks,
                     const void *dy, void *dx, enum dtype to, bool accumulate) {
    int64_t in = param_in(param), out = param_out(param);
    const void *weight = store_effective(subject, param);
    for (int64_t e = 0; e < blocks->count; e++) {
        const struct matmul product = {
            .m = blocks->begin[e + 1] - blocks->begin[e],
            .n = in,
            .k = out,
            .a = row_at(subject->dtype, dy, blocks->begin[e], out),
            .a_row = out,
            .a_col = 1,
            .b = row_at(subject->dtype, weight, e * out, in),
            .b_row = in,
            .b_col = 1,
            .c = (void *)row_at(to, dx, blocks->begin[e], in),
            .c_row = in,
            .c_wide = to != subject->dtype,
            .accumulate = accumulate,
        };
        subject->ops->matmul(subject->dtype, &product);
    }
}

/* ---- gradients of the factors */

static void weight_gradient(const struct subject *subject, const struct map *map, const struct blocks *blocks,
                            const void *dy, const void *x, void *g) {
    for (int64_t e = 0; e < blocks->count; e++) {
        const struct matmul product = {
            .m = map->out,
            .n = map->in,
            .k = blocks->begin[e + 1] - blocks->begin[e],
            .a = row_at(subject->dtype, dy, blocks->begin[e], map->out),
            .a_row = 1,
            .a_col = map->out,
            .b = row_at(subject->dtype, x, blocks->begin[e], map->in),
            .b_row = map->in,
            .b_col = 1,
            .c = expert_of(subject->wide, g, e, map->out, map->in),
            .c_row = map->in,
            .c_wide = true,
        };
        subject->ops->matmul(subject->dtype, &product);
    }
}

static void a_gradient(const struct subject *subject, const struct map *map, void *g, void *b, void *da) {
    for (int64_t e = 0; e < map->experts; e++) {
        const struct matmul product = {
            .m = map->rank,
            .n = map->in,
            .k = map->out,
            .a = expert_of(subject->dtype, b, e, map->out, map->max_rank),
            .a_row = 1,
            .a_col = map->max_rank,
            .b = expert_of(subject->wide, g, e, map->out, map->in),
            .b_wide = true,
            .b_row = map->in,
            .b_col = 1,
            .c = expert_of(subject->wide, da, e, map->max_rank, map->in),
            .c_wide = true,
            .c_row = map->in,
        };
        subject->ops->matmul(subject->dtype, &product);
    }
}

static void b_gradient(const struct subject *subject, const struct map *map, void *g, void *a, void *db) {
    for (int64_t e = 0; e < map->experts; e++) {
        const struct matmul product = {
            .m = map->out,
            .n = map->rank,
            .k = map->in,
            .a = expert_of(subject->wide, g, e, map->out, map->in),
            .a_wide = true,
            .a_row = map->in,
            .a_col = 1,
            .b = expert_of(subject->dtype, a, e, map->max_rank, map->in),
            .b_row = 1,
            .b_col = map->in,
            .c = expert_of(subject->wide, db, e, map->out, map->max_rank),
            .c_wide = true,
            .c_row = map->max_rank,
        };
        subject->ops->matmul(subject->dtype, &product);
    }
}

static enum status factor_gradients(struct subject *subject, const struct param *param, int micro,
                                    const struct map *map, void *g) {
    struct factor *factor = store_weight(subject, param)->target->factor;
    struct tensor *da = &factor[FACTOR_A].trained.partial, *db = &factor[FACTOR_B].trained.partial;
    for (int which = 0; which < FACTORS; which++) {
        const struct shard *used = &factor[which].place.used;
        TRY(device_zeros(subject->ops, &factor[which].trained.partial, subject->wide, used->ndim, used->shape));
    }
    a_gradient(subject, map, g, factor[FACTOR_B].used.data, da->data);
    b_gradient(subject, map, g, factor[FACTOR_A].used.data, db->data);
    for (int which = 0; which < FACTORS; which++) {
        struct tensor *partial = &factor[which].trained.partial;
        subject->ops->scale(subject->wide, tensor_elements(partial), partial->data, map->scale);
        TRY(record_param(subject, PHASE_BACKWARD, micro, param, FACTOR_PART(which), partial));
    }
    return STATUS_OK;
}

enum status linear_gradient(struct subject *subject, const struct param *param, int micro, const struct blocks *blocks,
                            const void *dy, const void *x) {
    enum status status = STATUS_OK;
    struct tensor passing = {0};
    struct weight *base = store_base(subject, param);
    const struct adapter_target *adapter = slots_adapter(subject, param);
    const bool trains = store_trains(subject, param);
    if (!adapter && !trains)
        return STATUS_OK;
    const struct map map = map_of(subject, param, adapter);
    struct tensor *g = trains ? &base->trained.partial : &passing;
    TRY_DONE(device_make(subject->ops, g, subject->wide, base->used.ndim, base->used.shape));
    weight_gradient(subject, &map, blocks, dy, x, g->data);
    TRY_DONE(record_param(subject, PHASE_BACKWARD, micro, param, PART_WEIGHT, g));
    if (adapter)
        TRY_DONE(factor_gradients(subject, param, micro, &map, g->data));
done:
    device_free(subject->ops, &passing);
    return status;
}
