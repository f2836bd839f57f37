/* Bounds over whole operations: made again by hand in float32 from the records before, and carried through a whole
 * step. */
#include "study.h"

#include "core/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double uniform(uint64_t index) {
    return random_uniform(11, random_stream("bounds"), index);
}

/* ---- whole operations of a run, made again in float32 from the records before */

struct remake {
    struct value act[ACT_COUNT]; /* records of layer 0 */
    float *weight[PARAM_KINDS];  /* gathered, layer 0 */
    const struct study *study;
    int compared;
    double worst;
};

static void hold(struct remake *remake, const struct value *value, int64_t i, float got) {
    double ratio = value->e[i] > 0 ? fabs((double)got - value->x[i]) / value->e[i] : (double)got == value->x[i] ? 0 : 9;
    cr_assert(ratio <= 1, "element %lld: %.9g, not %.9g, bound %g", (long long)i, (double)got, value->x[i],
              value->e[i]);
    remake->worst = fmax(remake->worst, ratio);
    remake->compared++;
}

static float held(const struct remake *remake, enum activation activation, int64_t i) {
    return (float)remake->act[activation].x[i];
}

/* q, in descending order. */
static void remake_q(struct remake *remake, const struct value *value) {
    const struct model_config *c = checkpoint_config(remake->study->job.model);
    for (int64_t i = 0; i < elements_of(value); i++) {
        int64_t outs = c->heads * c->head_dim, row = i / outs, o = i % outs;
        volatile float sum = 0;
        for (int64_t j = c->hidden - 1; j >= 0; j--) {
            volatile float product =
                held(remake, ACT_INPUT_NORM, row * c->hidden + j) * remake->weight[PARAM_Q][o * c->hidden + j];
            sum = sum + product;
        }
        hold(remake, value, i, sum);
    }
}

static void remake_inverse_rms(struct remake *remake, const struct value *value) {
    const struct model_config *c = checkpoint_config(remake->study->job.model);
    volatile float share = (float)(1.0 / (double)c->hidden), eps = (float)c->norm_eps;
    for (int64_t row = 0; row < elements_of(value); row++) {
        float squares = 0;
        for (int64_t j = 0; j < c->hidden; j++)
            squares = fmaf(held(remake, ACT_EMBED, row * c->hidden + j), held(remake, ACT_EMBED, row * c->hidden + j),
                           squares);
        volatile float mean = squares * share, shifted = mean + eps, root = sqrtf(shifted);
        hold(remake, value, row, 1 / root);
    }
}

static void remake_scores(struct remake *remake, const struct value *value) {
    const struct model_config *c = checkpoint_config(remake->study->job.model);
    int64_t tokens = value->shape[3], d = c->head_dim;
    float factor = (float)(1 / sqrt((double)d));
    for (int64_t i = 0; i < elements_of(value); i++) {
        int64_t s = i % tokens, t = i / tokens % tokens, h = i / tokens / tokens % c->heads;
        int64_t b = i / tokens / tokens / c->heads, kv = h / (c->heads / c->kv_heads);
        volatile float sum = 0;
        for (int64_t j = d - 1; s <= t && j >= 0; j--) {
            volatile float product = held(remake, ACT_Q_ROTARY, ((b * tokens + t) * c->heads + h) * d + j) *
                                     held(remake, ACT_K_ROTARY, ((b * tokens + s) * c->kv_heads + kv) * d + j);
            sum = sum + product;
        }
        hold(remake, value, i, sum * factor);
    }
}

/* softmax, the sum in descending order. */
static void remake_probabilities(struct remake *remake, const struct value *value) {
    int64_t tokens = value->shape[3];
    for (int64_t row = 0; row < elements_of(value) / tokens; row++) {
        int64_t n = row % tokens + 1, at = row * tokens;
        volatile float sum = 0;
        double largest = -INFINITY;
        for (int64_t s = 0; s < n; s++)
            largest = fmax(largest, remake->act[ACT_SCORES].x[at + s]);
        for (int64_t s = n - 1; s >= 0; s--) {
            volatile float below = held(remake, ACT_SCORES, at + s) - (float)largest;
            volatile float power = (float)exp((double)below);
            sum = sum + power;
        }
        for (int64_t s = 0; s < n; s++) {
            volatile float below = held(remake, ACT_SCORES, at + s) - (float)largest;
            volatile float power = (float)exp((double)below);
            hold(remake, value, at + s, power / sum);
        }
    }
}

static void remake_hidden(struct remake *remake, const struct value *value) {
    int64_t width = value->shape[1];
    for (int64_t i = 0; i < elements_of(value); i++) {
        int64_t at = i / width * 2 * width + i % width;
        volatile float g = held(remake, ACT_EXPERT_GATE_UP, at), u = held(remake, ACT_EXPERT_GATE_UP, at + width);
        volatile float below = 1 + (float)exp(-(double)g);
        volatile float silu = g / below;
        hold(remake, value, i, silu * u);
    }
}

static void remake_point(struct remake *remake, const struct point *point, const struct value *value) {
    if (point->activation == ACT_Q)
        remake_q(remake, value);
    if (point->activation == ACT_INPUT_NORM_SCALE)
        remake_inverse_rms(remake, value);
    if (point->activation == ACT_SCORES)
        remake_scores(remake, value);
    if (point->activation == ACT_PROBS)
        remake_probabilities(remake, value);
    if (point->activation == ACT_EXPERT_HIDDEN)
        remake_hidden(remake, value);
}

static void keep_weight(struct remake *remake, const struct point *point, const struct value *value) {
    float **to = &remake->weight[point->param->kind];
    free(*to);
    *to = malloc((size_t)elements_of(value) * sizeof **to);
    for (int64_t i = 0; i < elements_of(value); i++)
        (*to)[i] = (float)value->x[i];
}

static enum status remake_hook(void *context, const struct point *point, struct value *value) {
    struct remake *remake = context;
    bool forward = point->phase == PHASE_FORWARD && (point->layer == 0 || point->activation == ACT_EMBED);
    if (forward)
        remake_point(remake, point, value);
    for (int64_t i = 0; i < elements_of(value); i++) {
        value->x[i] = point->activation == ACT_TOPK_INDEX ? value->x[i] : (double)(float)value->x[i];
        value->e[i] = 0;
    }
    if (point->phase == PHASE_GATHER && point->param->layer == 0 && point->part == PART_WEIGHT)
        keep_weight(remake, point, value);
    if (!forward)
        return STATUS_OK;
    struct value *record = &remake->act[point->activation];
    value_free(record);
    record->x = malloc((size_t)elements_of(value) * sizeof(double));
    memcpy(record->x, value->x, (size_t)elements_of(value) * sizeof(double));
    return STATUS_OK;
}

Test(remake, whole_operations_made_again_in_float32_are_within) {
    struct study study;
    struct remake remake = {.study = &study};
    study_open(&study, "qwen3_moe_tiny", "ada", DTYPE_F32);
    study_acquire(&study, 0);
    study_evaluate(&study, 0, false, 0);
    study_run(&study, (struct reference_options){.bounds = true}, remake_hook, &remake);
    /* B T = 35: q 24 each, one inverse rms, 4 heads of 7 scores, of which 4 on average are not masked, 3 choices of 14
     */
    cr_assert_eq(remake.compared, 35 * 24 + 35 + 35 * 4 * 7 + 35 * 4 * 4 + 35 * 3 * 14);
    cr_assert(remake.worst > 0.2 && remake.worst <= 1);
    for (int i = 0; i < ACT_COUNT; i++)
        value_free(&remake.act[i]);
    for (int i = 0; i < PARAM_KINDS; i++)
        free(remake.weight[i]);
    study_close(&study);
}

/* ---- errors that were already there: the whole step from a base with errors stays inside the running bound */

struct drift {
    struct kept truth;
    struct kept bound; /* e as x */
    int perturb;       /* the run whose weights are moved by up to e */
};

static enum status drift_truth(void *context, const struct point *point, struct value *value) {
    struct drift *drift = context;
    if (point->phase == PHASE_PARAM && point->part == PART_WEIGHT && point->step == 0)
        for (int64_t i = 0; i < elements_of(value); i++)
            value->e[i] = 1e-13 * fabs(value->x[i]);
    TRY(kept_hook(&drift->truth, point, value));
    struct value e = *value;
    e.x = value->e;
    return kept_hook(&drift->bound, point, &e);
}

static enum status drift_perturbed(void *context, const struct point *point, struct value *value) {
    struct drift *drift = context;
    if (point->phase == PHASE_PARAM && point->part == PART_WEIGHT && point->step == 0)
        for (int64_t i = 0; i < elements_of(value); i++)
            value->x[i] += 0.999e-13 * fabs(value->x[i]) * uniform((uint64_t)i + 7);
    char name[POINT_NAME_MAX];
    const struct value *x = &drift->truth.value[drift->perturb], *e = &drift->bound.value[drift->perturb];
    cr_assert_str_eq(point_name(name, point), drift->truth.name[drift->perturb]);
    for (int64_t i = 0; i < elements_of(value); i++) {
        double error = fabs(value->x[i] - x->x[i]);
        cr_assert(error <= e->x[i], "%s[%lld]: %g off, bound %g", name, (long long)i, error, e->x[i]);
    }
    drift->perturb++;
    return STATUS_OK;
}

Test(remake, errors_of_the_operands_are_carried) {
    static const int two = 2;
    struct study study;
    struct drift drift = {0};
    study_open(&study, "qwen3_moe_tiny", "bob", DTYPE_F64);
    study_acquire(&study, 0);
    study_train(&study, 0, 1, &two);
    study_run(&study, (struct reference_options){.bounds = true}, drift_truth, &drift);
    study_run(&study, (struct reference_options){0}, drift_perturbed, &drift);
    cr_assert_eq(drift.perturb, drift.truth.count);
    kept_free(&drift.truth);
    kept_free(&drift.bound);
    study_close(&study);
}

/* ---- and operation by operation: after every point each element is known to SHARE of itself, and the other run goes
 * on from somewhere within. What it makes of that must lie within the bound; nothing piles up, so the bounds say
 * something everywhere. */
#define SHARE 1e-8

struct steps {
    struct drift drift;
    double worst[PHASE_COUNT];
    int infinite;
};

static bool is_exact(const struct point *point) {
    bool integers =
        point->activation == ACT_INPUT_IDS || point->activation == ACT_LABELS || point->activation == ACT_TOPK_INDEX;
    return integers || (point->scalar && strcmp(point->scalar, "count") == 0);
}

static enum status steps_truth(void *context, const struct point *point, struct value *value) {
    struct steps *steps = context;
    TRY(kept_hook(&steps->drift.truth, point, value));
    struct value e = *value;
    e.x = value->e;
    TRY(kept_hook(&steps->drift.bound, point, &e));
    for (int64_t i = 0; i < elements_of(value); i++)
        value->e[i] = is_exact(point) ? 0 : SHARE * fabs(value->x[i]);
    return STATUS_OK;
}

static enum status steps_other(void *context, const struct point *point, struct value *value) {
    struct steps *steps = context;
    int at = steps->drift.perturb++;
    const double *x = steps->drift.truth.value[at].x, *e = steps->drift.bound.value[at].x;
    char name[POINT_NAME_MAX];
    cr_assert_str_eq(point_name(name, point), steps->drift.truth.name[at]);
    for (int64_t i = 0; i < elements_of(value); i++) {
        double error = fabs(value->x[i] - x[i]);
        if (point->activation == ACT_TOPK_INDEX)
            error = 0; /* the other run's choices are its own */
        cr_assert(error <= e[i], "%s[%lld]: %g off, bound %g", name, (long long)i, error, e[i]);
        steps->infinite += isinf(e[i]) != 0;
        if (error > 0)
            steps->worst[point->phase] = fmax(steps->worst[point->phase], error / e[i]);
        double within = 0.999 * SHARE * fabs(x[i]) * uniform((uint64_t)i * 3 + (uint64_t)at);
        value->x[i] = is_exact(point) ? x[i] : x[i] + within;
    }
    return STATUS_OK;
}

static void carried_by_recipe(const char *fixture, const char *tenant, const char *recipe) {
    static const enum phase phases[] = {PHASE_DELTA, PHASE_FORWARD,   PHASE_BACKWARD, PHASE_GRAD,
                                        PHASE_CLIP,  PHASE_OPTIMIZER, PHASE_UPDATE};
    struct study study;
    struct steps steps = {0};
    study_open(&study, fixture, tenant, DTYPE_F64);
    study_recipe(&study, fixture, recipe);
    study.job.clip.max /= 4; /* every step clips */
    study_recipe_steps(&study, 0);
    study_run(&study, (struct reference_options){.bounds = true}, steps_truth, &steps);
    study_run(&study, (struct reference_options){0}, steps_other, &steps);
    cr_assert_eq(steps.drift.perturb, steps.drift.truth.count);
    cr_assert_eq(steps.infinite, 0);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        cr_assert_gt(steps.worst[phases[i]], 0.2, "%s: %g of the bound", phase_name(phases[i]), steps.worst[phases[i]]);
    kept_free(&steps.drift.truth);
    kept_free(&steps.drift.bound);
    study_close(&study);
}

/* Clipping by either norm, SGD and AdamW, base parameters, a tied embedding. */
Test(remake, errors_are_carried_by_every_operation_of_a_recipe) {
    carried_by_recipe("qwen3_moe_uneven", "gus", "router");
    carried_by_recipe("qwen3_moe_uneven", "fay", "adamw");
    carried_by_recipe("qwen3_moe_tiny", "dov", "router");
}

/* Constants are what the subject holds, so an update is p - (float)0.1 * buf, to the last bit of a double. */
struct update {
    struct value p[2], buffer[2];
    int compared;
};

static void keep(struct value *to, const struct value *value) {
    value_free(to);
    to->x = malloc((size_t)elements_of(value) * sizeof(double));
    memcpy(to->x, value->x, (size_t)elements_of(value) * sizeof(double));
}

static enum status update_hook(void *context, const struct point *point, struct value *value) {
    struct update *update = context;
    bool here = point->param && strcmp(point->param->name, "model.layers.1.self_attn.q_proj.weight") == 0;
    if (!here || point->slot >= 0 || (point->part != PART_LORA_A && point->part != PART_LORA_B))
        return STATUS_OK;
    int part = point->part == PART_LORA_B;
    if (point->phase == PHASE_PARAM && !point->state)
        keep(&update->p[part], value);
    if (point->phase == PHASE_OPTIMIZER)
        keep(&update->buffer[part], value);
    for (int64_t i = 0; point->phase == PHASE_UPDATE && i < elements_of(value); i++, update->compared++)
        cr_assert_eq(value->x[i], update->p[part].x[i] - (double)0.1f * update->buffer[part].x[i]);
    return STATUS_OK;
}

Test(remake, constants_are_rounded_first) {
    struct study study;
    struct update update = {0};
    study_open(&study, "qwen3_moe_tiny", "dov", DTYPE_F32);
    study_three_steps(&study);
    study_run(&study, (struct reference_options){.bounds = true}, update_hook, &update);
    cr_assert_eq(update.compared, 3 * STUDY_RANK * (20 + 24));
    for (int part = 0; part < 2; part++) {
        value_free(&update.p[part]);
        value_free(&update.buffer[part]);
    }
    study_close(&study);
}
