#include "reference/adapter.h"

#include "reference/bound.h"

/* Where element (e, q, i) of A and (e, o, q) of B stand, in slot form and in PEFT's flat form. There A's expert is the
 * slow index of its row, and B's expert the FAST index of its column. */
static int64_t slot_a_at(const struct adapter_target *t, int64_t max_rank, int64_t e, int64_t q, int64_t i) {
    return (e * max_rank + q) * t->in + i;
}

static int64_t slot_b_at(const struct adapter_target *t, int64_t max_rank, int64_t e, int64_t o, int64_t q) {
    return (e * t->out + o) * max_rank + q;
}

static int64_t flat_a_at(const struct adapter_target *t, int64_t e, int64_t q, int64_t i) {
    return (e * t->lora_rank + q) * t->in + i;
}

static int64_t flat_b_at(const struct adapter_target *t, int64_t e, int64_t o, int64_t q) {
    return o * t->lora_rank * t->experts + q * t->experts + e;
}

typedef void visit(void *context, int64_t slot, int64_t flat);

/* Every pair of places of A, rows q < r only; then the same of B. */
static void each_a(const struct adapter_target *t, int64_t max_rank, visit *visitor, void *context) {
    for (int64_t e = 0; e < t->experts; e++)
        for (int64_t q = 0; q < t->lora_rank; q++)
            for (int64_t i = 0; i < t->in; i++)
                visitor(context, slot_a_at(t, max_rank, e, q, i), flat_a_at(t, e, q, i));
}

static void each_b(const struct adapter_target *t, int64_t max_rank, visit *visitor, void *context) {
    for (int64_t e = 0; e < t->experts; e++)
        for (int64_t o = 0; o < t->out; o++)
            for (int64_t q = 0; q < t->lora_rank; q++)
                visitor(context, slot_b_at(t, max_rank, e, o, q), flat_b_at(t, e, o, q));
}

struct arrays {
    const double *from;
    double *to;
};

static void slot_to_flat(void *context, int64_t slot, int64_t flat) {
    struct arrays *arrays = context;
    arrays->to[flat] = arrays->from[slot];
}

static void flat_to_slot(void *context, int64_t slot, int64_t flat) {
    struct arrays *arrays = context;
    arrays->to[slot] = arrays->from[flat];
}

void reference_flatten_a(const struct adapter_target *target, int64_t max_rank, const double *slot, double *flat) {
    each_a(target, max_rank, slot_to_flat, &(struct arrays){slot, flat});
}

void reference_flatten_b(const struct adapter_target *target, int64_t max_rank, const double *slot, double *flat) {
    each_b(target, max_rank, slot_to_flat, &(struct arrays){slot, flat});
}

void reference_unflatten_a(const struct adapter_target *target, int64_t max_rank, const double *flat, double *slot) {
    each_a(target, max_rank, flat_to_slot, &(struct arrays){flat, slot});
}

void reference_unflatten_b(const struct adapter_target *target, int64_t max_rank, const double *flat, double *slot) {
    each_b(target, max_rank, flat_to_slot, &(struct arrays){flat, slot});
}

static enum status make_slot(const struct arithmetic *m, const struct param *param, int64_t rows, int64_t columns,
                             struct value *out) {
    if (param->expert)
        TRY(value_new(m, out, 3, (const int64_t[]){param->shape[0], rows, columns}));
    else
        TRY(value_new(m, out, 2, (const int64_t[]){rows, columns}));
    value_zero(out);
    return STATUS_OK;
}

enum status value_slot_a(const struct arithmetic *m, const struct param *param, int64_t max_rank, struct value *out) {
    return make_slot(m, param, max_rank, param->shape[param->ndim - 1], out);
}

enum status value_slot_b(const struct arithmetic *m, const struct param *param, int64_t max_rank, struct value *out) {
    return make_slot(m, param, param->shape[param->ndim - 2], max_rank, out);
}

struct loading {
    enum dtype stored;
    const struct tensor *file;
    struct value *slot;
};

static void load_element(void *context, int64_t slot, int64_t flat) {
    struct loading *loading = context;
    num_set(loading->slot, slot, num_exact(dtype_round(loading->stored, tensor_get(loading->file, flat))));
}

static void fill(struct value *value, double x) {
    for (int64_t i = 0, n = value_elements(value); i < n; i++)
        num_set(value, i, num_exact(x));
}

void value_initial_slot(const struct arithmetic *m, enum dtype stored, const struct param *param, int slot,
                        struct value *a, struct value *b) {
    int64_t in = param->shape[param->ndim - 1];
    value_zero(b);
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(a); i < n; i++)
        num_set(a, i, num_exact(dtype_round(stored, slot_initial(param, slot, i, in))));
}

int64_t slot_row(enum part part, int64_t max_rank, int64_t in, int64_t at) {
    return part == PART_LORA_A ? at / in % max_rank : at % max_rank;
}

void value_load_slot(const struct arithmetic *m, enum dtype stored, const struct adapter_target *target,
                     int64_t max_rank, bool beyond_nan, struct value *a, struct value *b) {
    if (m->dry)
        return;
    fill(a, beyond_nan ? NAN : 0);
    fill(b, beyond_nan ? NAN : 0);
    each_a(target, max_rank, load_element, &(struct loading){stored, &target->a, a});
    each_b(target, max_rank, load_element, &(struct loading){stored, &target->b, b});
}

enum status value_flat_a(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                         const struct value *slot, struct value *out) {
    TRY(value_new(m, out, 2, (const int64_t[]){target->experts * target->lora_rank, target->in}));
    if (out->x)
        reference_flatten_a(target, max_rank, slot->x, out->x);
    if (out->e)
        reference_flatten_a(target, max_rank, slot->e, out->e);
    return STATUS_OK;
}

enum status value_flat_b(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                         const struct value *slot, struct value *out) {
    TRY(value_new(m, out, 2, (const int64_t[]){target->out, target->lora_rank * target->experts}));
    if (out->x)
        reference_flatten_b(target, max_rank, slot->x, out->x);
    if (out->e)
        reference_flatten_b(target, max_rank, slot->e, out->e);
    return STATUS_OK;
}

enum status value_delta(const struct arithmetic *m, const struct adapter_target *t, int64_t max_rank,
                        const struct value *a, const struct value *b, struct value *out) {
    TRY(value_new(m, out, t->param->ndim, t->param->shape));
    struct num scale = num_exact(arithmetic_constant(m, t->scale));
    for (int64_t at = 0, n = m->dry ? 0 : value_elements(out); at < n; at++) {
        int64_t i = at % t->in, o = at / t->in % t->out, e = at / t->in / t->out;
        struct sum sum = {0};
        for (int64_t q = 0; q < t->lora_rank; q++)
            sum_product(&sum, num_at(b, slot_b_at(t, max_rank, e, o, q)), num_at(a, slot_a_at(t, max_rank, e, q, i)));
        num_set(out, at, num_multiply(m, scale, sum_close(m, &sum, t->lora_rank)));
    }
    return STATUS_OK;
}

/* A product of partials: ranks hold G_1 + ... + G_n = G, and each rounds its own chain scale * (sum of c G_j): k
 * roundings in the sum, 1 in the scaling. What is judged is the sum over the ranks, so magnitudes add up over them: S =
 * sum |c| mag >= sum over ranks of sum |c||G_j| e = |scale| e_sum + u (|scale| S + |scale| e_sum) + eta, e_sum =
 * gamma_k (S + p) + p. */
static void partial_product(const struct value *g, int64_t at, struct num c, struct sum *sum) {
    struct num partial = num_at(g, at);
    double magnitude = g->mag ? g->mag[at] : fabs(partial.x);
    sum->x += c.x * partial.x;
    sum->s += fabs(c.x) * magnitude;
    sum->p += fabs(c.x) * partial.e + magnitude * c.e + c.e * partial.e;
}

static struct num partial_close(const struct arithmetic *m, const struct sum *sum, int64_t k, double scale) {
    struct num total = sum_close(m, sum, k);
    if (sum->s == 0 && sum->p == 0)
        return num_exact(scale * total.x);
    double most = fabs(scale) * (sum->s + total.e);
    return (struct num){scale * total.x, fabs(scale) * total.e + m->u * most + m->eta};
}

enum status value_delta_gradient_a(const struct arithmetic *m, const struct adapter_target *t, int64_t max_rank,
                                   const struct value *g, const struct value *b, struct value *out) {
    TRY(value_slot_a(m, t->param, max_rank, out));
    double scale = arithmetic_constant(m, t->scale);
    for (int64_t row = 0; row < (m->dry ? 0 : t->experts * t->lora_rank); row++) {
        int64_t e = row / t->lora_rank, q = row % t->lora_rank;
        for (int64_t i = 0; i < t->in; i++) {
            struct sum sum = {0};
            for (int64_t o = 0; o < t->out; o++)
                partial_product(g, (e * t->out + o) * t->in + i, num_at(b, slot_b_at(t, max_rank, e, o, q)), &sum);
            num_set(out, slot_a_at(t, max_rank, e, q, i), partial_close(m, &sum, t->out, scale));
        }
    }
    return STATUS_OK;
}

enum status value_delta_gradient_b(const struct arithmetic *m, const struct adapter_target *t, int64_t max_rank,
                                   const struct value *g, const struct value *a, struct value *out) {
    TRY(value_slot_b(m, t->param, max_rank, out));
    double scale = arithmetic_constant(m, t->scale);
    for (int64_t row = 0; row < (m->dry ? 0 : t->experts * t->out); row++) {
        int64_t e = row / t->out, o = row % t->out;
        for (int64_t q = 0; q < t->lora_rank; q++) {
            struct sum sum = {0};
            for (int64_t i = 0; i < t->in; i++)
                partial_product(g, row * t->in + i, num_at(a, slot_a_at(t, max_rank, e, q, i)), &sum);
            num_set(out, slot_b_at(t, max_rank, e, o, q), partial_close(m, &sum, t->in, scale));
        }
    }
    return STATUS_OK;
}
