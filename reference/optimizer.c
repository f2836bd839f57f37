#include "reference/optimizer.h"

#include "reference/bound.h"

#include <stdlib.h>

enum status tally_make(struct tally *out, int micros) {
    *out = (struct tally){.micros = micros, .sums = calloc((size_t)micros + 1, sizeof *out->sums)};
    return out->sums ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory in the reference");
}

void tally_free(struct tally *tally) {
    for (int i = 0; tally->sums && i < tally->micros; i++)
        value_free(&tally->sums[i]);
    free(tally->sums);
    value_free(&tally->count);
    *tally = (struct tally){0};
}

static struct num divisor(const struct arithmetic *m, const struct tally *tally) {
    struct num count = num_at(&tally->count, 0);
    return (struct num){arithmetic_constant(m, count.x), count.e};
}

/* The sum over ranks and micro-batches in any nesting: a rank's partials meet micros - 1 roundings more than the ranks
 * - 1 that the hook put into e, on magnitudes of the ranks' own partials. (1 + gamma_a)(1 + gamma_b) - 1 >= (1 +
 * u)^(a+b) - 1. */
static struct num loss_of(const struct arithmetic *m, const struct tally *tally) {
    struct sum sum = {0};
    for (int i = 0; i < tally->micros; i++) {
        const struct value *part = &tally->sums[i];
        struct num term = num_at(part, 0);
        sum_term(&sum, term);
        if (part->mag)
            sum.s += part->mag[0] - fabs(term.x);
    }
    return num_divide(m, sum_close(m, &sum, tally->micros - 1), divisor(m, tally));
}

enum status reference_emit_loss(struct reference *r, struct tally *tally) {
    const struct arithmetic *m = &r->arithmetic;
    struct point point = reference_scalar_point(r, PHASE_LOSS, -1, "count");
    TRY(value_scalar(m, &tally->count, (double)tally->counted, 0));
    TRY(reference_emit(r, &point, &tally->count));
    struct num loss = m->dry ? num_exact(0) : loss_of(m, tally);
    struct value value;
    TRY(value_scalar(m, &value, loss.x, loss.e));
    point.scalar = "loss";
    enum status status = reference_emit(r, &point, &value);
    value_free(&value);
    return status;
}

/* Each pair of the acting tenant's targets, in inventory order. */
typedef enum status pair_step(struct reference *r, int tenant, const struct param *param, const struct tally *tally);

static enum status each_target(struct reference *r, int tenant, pair_step *step, const struct tally *tally) {
    for (int i = 0; i < r->inventory->count; i++)
        if (reference_target(r, tenant, &r->inventory->params[i]))
            TRY(step(r, tenant, &r->inventory->params[i], tally));
    return STATUS_OK;
}

static enum status emit_pair(struct reference *r, enum phase phase, const char *state, const struct param *param,
                             struct slot_pair *pair) {
    struct point point = reference_parameter_point(r, phase, -1, param, PART_LORA_A);
    point.state = state;
    TRY(reference_emit(r, &point, &pair->a));
    point.part = PART_LORA_B;
    return reference_emit(r, &point, &pair->b);
}

static void divide_all(const struct arithmetic *m, struct value *value, struct num by) {
    for (int64_t i = 0, n = value_elements(value); i < n; i++)
        num_set(value, i, num_divide(m, num_at(value, i), by));
}

static enum status divide(struct reference *r, int tenant, const struct param *param, const struct tally *tally) {
    (void)tenant;
    struct slot_pair *pair = reference_pair(r, r->running, 0, param);
    if (!r->arithmetic.dry) {
        divide_all(&r->arithmetic, &pair->a, divisor(&r->arithmetic, tally));
        divide_all(&r->arithmetic, &pair->b, divisor(&r->arithmetic, tally));
    }
    return emit_pair(r, PHASE_GRAD, NULL, param, pair);
}

/* buf = momentum*buf + g. */
static void push(const struct arithmetic *m, double momentum, const struct value *g, struct value *buffer) {
    struct num factor = num_exact(arithmetic_constant(m, momentum));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(g); i < n; i++)
        num_set(buffer, i, num_add(m, num_multiply(m, factor, num_at(buffer, i)), num_at(g, i)));
}

static enum status push_pair(struct reference *r, int tenant, const struct param *param, const struct tally *tally) {
    (void)tally;
    const struct slot_pair *g = reference_pair(r, r->running, 0, param);
    struct slot_pair *buffer = reference_pair(r, r->momentum, reference_slot(r, tenant), param);
    push(&r->arithmetic, r->job->optimizer.momentum, &g->a, &buffer->a);
    push(&r->arithmetic, r->job->optimizer.momentum, &g->b, &buffer->b);
    return emit_pair(r, PHASE_OPTIMIZER, "momentum_buffer", param, buffer);
}

/* p = p - lr*buf. Where buf is exactly 0 (rows beyond the tenant's rank), p stays what it is, NaN included. */
static void move(const struct arithmetic *m, double lr, const struct value *buffer, struct value *p) {
    struct num factor = num_exact(arithmetic_constant(m, lr));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(p); i < n; i++)
        num_set(p, i, num_subtract(m, num_at(p, i), num_multiply(m, factor, num_at(buffer, i))));
}

static enum status move_pair(struct reference *r, int tenant, const struct param *param, const struct tally *tally) {
    (void)tally;
    int slot = reference_slot(r, tenant);
    const struct slot_pair *buffer = reference_pair(r, r->momentum, slot, param);
    struct slot_pair *pair = reference_pair(r, r->slot, slot, param);
    move(&r->arithmetic, r->job->optimizer.lr, &buffer->a, &pair->a);
    move(&r->arithmetic, r->job->optimizer.lr, &buffer->b, &pair->b);
    return emit_pair(r, PHASE_UPDATE, NULL, param, pair);
}

static void add_squares(const struct value *value, struct sum *sum) {
    for (int64_t i = 0, n = value_elements(value); i < n; i++)
        sum_product(sum, num_at(value, i), num_at(value, i));
}

/* 2-norm over all gradients together. */
static enum status emit_norm(struct reference *r) {
    struct sum sum = {0};
    int64_t terms = 0;
    for (int i = 0; i < r->inventory->count; i++) {
        const struct slot_pair *pair = &r->running[i];
        if (pair->a.ndim == 0 || r->arithmetic.dry)
            continue;
        add_squares(&pair->a, &sum);
        add_squares(&pair->b, &sum);
        terms += value_elements(&pair->a) + value_elements(&pair->b);
    }
    struct num norm = num_root(&r->arithmetic, sum_close(&r->arithmetic, &sum, terms));
    struct point point = reference_scalar_point(r, PHASE_CLIP, -1, "norm");
    struct value value;
    TRY(value_scalar(&r->arithmetic, &value, norm.x, norm.e));
    enum status status = reference_emit(r, &point, &value);
    value_free(&value);
    return status;
}

static void forget(struct reference *r) {
    for (int i = 0; i < r->inventory->count; i++) {
        value_free(&r->running[i].a);
        value_free(&r->running[i].b);
    }
}

enum status reference_update(struct reference *r, int tenant, const struct tally *tally) {
    TRY(each_target(r, tenant, divide, tally));
    if (r->options.norm)
        TRY(emit_norm(r));
    TRY(each_target(r, tenant, push_pair, tally));
    TRY(each_target(r, tenant, move_pair, tally));
    r->trained[tenant] = true;
    forget(r);
    return STATUS_OK;
}
