#include "reference/optimizer.h"

#include "reference/adapter.h"

enum status reference_emit_loss(struct reference *r, struct window *window) {
    const struct arithmetic *m = &r->arithmetic;
    struct point point = reference_scalar_point(r, PHASE_LOSS, -1, "count");
    TRY(window_count(m, window));
    TRY(reference_emit(r, &point, &window->count));
    struct value loss;
    TRY(window_loss(m, window, &loss));
    point.scalar = "loss";
    enum status status = reference_emit(r, &point, &loss);
    value_free(&loss);
    return status;
}

enum status each_trained(struct reference *r, struct holding *holding, trained_step *step, const void *context) {
    for (int i = 0; i < r->inventory->count; i++)
        for (int part = 0; part < PARTS; part++)
            if (reference_trains(r, holding->tenant, &r->inventory->params[i], (enum part)part))
                TRY(step(r, holding, &r->inventory->params[i], (enum part)part, context));
    return STATUS_OK;
}

static enum status divide_step(struct reference *r, struct holding *holding, const struct param *param, enum part part,
                               const void *context) {
    (void)context;
    struct value *g = &holding->gradient[inventory_index(r->inventory, param)].part[part];
    for (int64_t i = 0, n = r->arithmetic.dry ? 0 : value_elements(g); i < n; i++)
        num_set(g, i, num_divide(&r->arithmetic, num_at(g, i), window_divisor(&r->arithmetic, &holding->window)));
    struct point point = reference_parameter_point(r, PHASE_GRAD, -1, param, part);
    return reference_emit(r, &point, g);
}

/* ---- rules. Constants are made in double and rounded to the subject's dtype; multiplying by 1 does not round. */

struct rule {
    struct arithmetic m;
    const struct optimizer *optimizer;
    double decay;                     /* SGD: weight decay; AdamW: 1 - lr*wd */
    double fresh, fresh_square;       /* AdamW: 1 - b1, 1 - b2 */
    double rate, root_correction;     /* AdamW: lr/(1 - b1^t), sqrt(1 - b2^t); SGD: lr */
    double momentum, momentum_square; /* SGD: momentum; AdamW: b1, b2 */
    double eps;
};

/* t: the tenant's own updates, this one counted. */
static struct rule rule_make(const struct reference *r, int t) {
    const struct optimizer *o = &r->job->optimizer;
    const struct arithmetic *m = &r->arithmetic;
    struct rule rule = {.m = *m, .optimizer = o};
    bool adamw = o->kind == OPTIMIZER_ADAMW;
    rule.decay = arithmetic_constant(m, adamw ? 1 - o->lr * o->weight_decay : o->weight_decay);
    rule.momentum = arithmetic_constant(m, adamw ? o->beta1 : o->momentum);
    rule.rate = arithmetic_constant(m, adamw ? o->lr / (1 - pow(o->beta1, t)) : o->lr);
    if (!adamw)
        return rule;
    rule.momentum_square = arithmetic_constant(m, o->beta2);
    rule.fresh = arithmetic_constant(m, 1 - o->beta1);
    rule.fresh_square = arithmetic_constant(m, 1 - o->beta2);
    rule.root_correction = arithmetic_constant(m, sqrt(1 - pow(o->beta2, t)));
    rule.eps = arithmetic_constant(m, o->eps);
    return rule;
}

static struct num scaled(const struct rule *rule, double constant, struct num a) {
    return constant == 1 ? a : num_multiply(&rule->m, num_exact(constant), a);
}

/* g' = g + wd*p; without decay p is not read. */
static struct num sgd_gradient(const struct rule *rule, struct num g, struct num p) {
    return rule->optimizer->weight_decay == 0 ? g : num_add(&rule->m, g, scaled(rule, rule->decay, p));
}

/* Each element: states from gradient, states and parameter; then the parameter from all three. */
static void sgd_state(const struct rule *rule, struct num g, struct num p, struct num *state) {
    state[0] = num_add(&rule->m, scaled(rule, rule->momentum, state[0]), sgd_gradient(rule, g, p));
}

/* d = buf; nesterov: g' + momentum*buf; no momentum: g'. p - lr*d. */
static struct num sgd_update(const struct rule *rule, struct num g, struct num p, const struct num *state) {
    struct num direction = sgd_gradient(rule, g, p);
    if (rule->optimizer->nesterov)
        direction = num_add(&rule->m, direction, scaled(rule, rule->momentum, state[0]));
    else if (rule->optimizer->momentum != 0)
        direction = state[0];
    return num_subtract(&rule->m, p, scaled(rule, rule->rate, direction));
}

/* m = m*b1 + g*(1 - b1);  v = v*b2 + (g*g)*(1 - b2). */
static void adamw_state(const struct rule *rule, struct num g, struct num p, struct num *state) {
    (void)p;
    const struct arithmetic *m = &rule->m;
    state[0] = num_add(m, scaled(rule, rule->momentum, state[0]), scaled(rule, rule->fresh, g));
    state[1] = num_add(m, scaled(rule, rule->momentum_square, state[1]),
                       scaled(rule, rule->fresh_square, num_multiply(m, g, g)));
}

/* p*(1 - lr*wd) - (lr/(1 - b1^t) * m) / (sqrt(v)/sqrt(1 - b2^t) + eps). */
static struct num adamw_update(const struct rule *rule, struct num g, struct num p, const struct num *state) {
    (void)g;
    const struct arithmetic *m = &rule->m;
    struct num root = num_divide(m, num_root(m, state[1]), num_exact(rule->root_correction));
    struct num step = num_divide(m, scaled(rule, rule->rate, state[0]), num_add(m, root, num_exact(rule->eps)));
    return num_subtract(m, scaled(rule, rule->decay, p), step);
}

/* ---- elements of a trained tensor: of A and B only the tenant's rows, NaN may stand beyond */

struct trained {
    struct value *stored; /* the parameter */
    struct value *p;      /* what the update acts on: its wide copy if there is one, else itself */
    struct value *g;
    struct value *state[STATES]; /* as many as the optimizer has */
    int64_t in, rows;            /* rows 0: all elements */
    int64_t max_rank;
    enum part part;
};

static struct trained trained_of(const struct reference *r, struct holding *holding, const struct param *param,
                                 enum part part) {
    const char *const *states = optimizer_states(&r->job->optimizer);
    int index = inventory_index(r->inventory, param);
    struct value *stored = reference_tensor(r, holding, param, part);
    struct value *master = reference_master(r, holding, param, part);
    struct trained trained = {.stored = stored,
                              .p = master ? master : stored,
                              .g = &holding->gradient[index].part[part],
                              .max_rank = r->job->max_rank,
                              .part = part};
    for (int state = 0; state < STATES && states[state]; state++)
        trained.state[state] = &holding->state[state][index].part[part];
    if (part != PART_WEIGHT) {
        trained.in = param->shape[param->ndim - 1];
        trained.rows = reference_target(r, holding->tenant, param)->lora_rank;
    }
    return trained;
}

static bool acts_on(const struct trained *t, int64_t i) {
    return t->rows == 0 || slot_row(t->part, t->max_rank, t->in, i) < t->rows;
}

static void read_states(const struct trained *t, int64_t i, struct num state[STATES]) {
    for (int s = 0; s < STATES && t->state[s]; s++)
        state[s] = num_at(t->state[s], i);
}

static void push(const struct rule *rule, const struct trained *t) {
    for (int64_t i = 0, n = value_elements(t->p); i < n; i++) {
        struct num state[STATES];
        if (!acts_on(t, i))
            continue;
        read_states(t, i, state);
        (rule->optimizer->kind == OPTIMIZER_ADAMW ? adamw_state : sgd_state)(rule, num_at(t->g, i), num_at(t->p, i),
                                                                             state);
        for (int s = 0; s < STATES && t->state[s]; s++)
            num_set(t->state[s], i, state[s]);
    }
}

static void move(const struct rule *rule, const struct trained *t) {
    for (int64_t i = 0, n = value_elements(t->p); i < n; i++) {
        struct num state[STATES] = {{0}};
        if (!acts_on(t, i))
            continue;
        read_states(t, i, state);
        struct num p = num_at(t->p, i), g = num_at(t->g, i);
        num_set(t->p, i, (rule->optimizer->kind == OPTIMIZER_ADAMW ? adamw_update : sgd_update)(rule, g, p, state));
    }
}

/* The parameter is its wide copy, rounded when it is stored. */
static void take_master(const struct trained *t) {
    for (int64_t i = 0, n = value_elements(t->p); i < n; i++)
        if (acts_on(t, i))
            num_set(t->stored, i, num_at(t->p, i));
}

static enum status push_step(struct reference *r, struct holding *holding, const struct param *param, enum part part,
                             const void *rule) {
    const char *const *states = optimizer_states(&r->job->optimizer);
    struct trained trained = trained_of(r, holding, param, part);
    struct point point = reference_parameter_point(r, PHASE_OPTIMIZER, -1, param, part);
    if (!r->arithmetic.dry && states[0])
        push(rule, &trained);
    for (int state = 0; state < STATES && states[state]; state++) {
        point.state = states[state];
        TRY(reference_emit(r, &point, trained.state[state]));
    }
    if (trained.p == trained.stored)
        return STATUS_OK;
    if (!r->arithmetic.dry)
        move(rule, &trained);
    point.state = "master";
    return reference_emit(r, &point, trained.p);
}

static enum status move_step(struct reference *r, struct holding *holding, const struct param *param, enum part part,
                             const void *rule) {
    struct trained trained = trained_of(r, holding, param, part);
    struct point point = reference_parameter_point(r, PHASE_UPDATE, -1, param, part);
    if (!r->arithmetic.dry && trained.p == trained.stored)
        move(rule, &trained);
    else if (!r->arithmetic.dry)
        take_master(&trained);
    return reference_emit(r, &point, trained.stored);
}

enum status reference_update(struct reference *r, struct holding *holding) {
    struct rule rule = rule_make(r, holding->updates + 1);
    TRY(each_trained(r, holding, divide_step, NULL));
    TRY(reference_clip(r, holding));
    TRY(each_trained(r, holding, push_step, &rule));
    TRY(each_trained(r, holding, move_step, &rule));
    holding->updates++;
    holding_close_window(holding, r->inventory);
    return STATUS_OK;
}
