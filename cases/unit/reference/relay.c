/* Relay: the reference goes on from what the hook leaves. */
#include "study.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int two = 2;

static void one_step(struct study *study, const char *tenant, enum dtype dtype) {
    study_open(study, "qwen3_moe_tiny", tenant, dtype);
    study_acquire(study, 0);
    study_train(study, 0, 1, &two);
}

/* ---- a float32 subject that rounds once at every point */

struct rounding {
    int points, elements, loose;
    double widest; /* e over half an ulp */
};

static bool is_integer_point(const struct point *point) {
    return point->activation == ACT_INPUT_IDS || point->activation == ACT_LABELS || point->activation == ACT_TOPK_INDEX;
}

/* What a subject can hold: where e = 0 the value itself must be a float32; else the nearest float32 lies within e,
 * unless it is too small to be normal, which eta covers. */
static enum status rounding_hook(void *context, const struct point *point, struct value *value) {
    struct rounding *rounding = context;
    char name[POINT_NAME_MAX];
    rounding->points++;
    for (int64_t i = 0; i < elements_of(value); i++) {
        double near = (double)(float)value->x[i];
        cr_assert(value->e[i] >= 0 && isfinite(value->e[i]), "%s[%lld]", point_name(name, point), (long long)i);
        cr_assert(fabs(near - value->x[i]) <= value->e[i], "%s[%lld]: %.17g, bound %g", point_name(name, point),
                  (long long)i, value->x[i], value->e[i]);
        value->x[i] = is_integer_point(point) ? value->x[i] : near;
        value->e[i] = 0;
        rounding->elements++;
    }
    return STATUS_OK;
}

static void assert_rounding(const char *fixture, const char *tenant) {
    struct study study;
    struct rounding rounding = {0};
    study_open(&study, fixture, tenant, DTYPE_F32);
    study_three_steps(&study);
    study_run(&study, (struct reference_options){.bounds = true, .norm = true}, rounding_hook, &rounding);
    cr_assert_gt(rounding.points, 700);
    study_close(&study);
}

static void assert_rounding_of_recipe(const char *fixture, const char *tenant, const char *recipe) {
    struct study study;
    struct rounding rounding = {0};
    study_open(&study, fixture, tenant, DTYPE_F32);
    study_recipe(&study, fixture, recipe);
    study_recipe_steps(&study, 0);
    study_run(&study, (struct reference_options){.bounds = true}, rounding_hook, &rounding);
    cr_assert_gt(rounding.points, 900);
    study_close(&study);
}

Test(relay, a_float32_record_of_a_recipe_lies_within_every_bound) {
    assert_rounding_of_recipe("qwen3_moe_tiny", "ada", "adamw");
    assert_rounding_of_recipe("qwen3_moe_uneven", "gus", "router");
}

Test(relay, a_float32_record_lies_within_every_bound) {
    assert_rounding("qwen3_moe_tiny", "eve");
    assert_rounding("qwen3_moe_uneven", "gus");
}

/* ---- movement and exact zeros have no bound */

static enum status zero_hook(void *context, const struct point *point, struct value *value) {
    int *masked = context;
    bool square = point->activation == ACT_SCORES || point->activation == ACT_PROBS;
    char name[POINT_NAME_MAX];
    for (int64_t i = 0; i < elements_of(value); i++) {
        if (point_kind(point) == POINT_EXACT)
            cr_assert_eq(value->e[i], 0, "%s is moved", point_name(name, point));
        int64_t tokens = square ? value->shape[3] : 1;
        if (square && i % tokens > i / tokens % tokens) {
            cr_assert(value->x[i] == 0 && value->e[i] == 0, "%s", point_name(name, point));
            (*masked)++;
        }
        value->x[i] = is_integer_point(point) ? value->x[i] : (double)(float)value->x[i];
        value->e[i] = 0;
    }
    return STATUS_OK;
}

Test(relay, movement_and_masked_places_are_exact) {
    struct study study;
    int masked = 0;
    one_step(&study, "bob", DTYPE_F32);
    study_run(&study, (struct reference_options){.bounds = true}, zero_hook, &masked);
    cr_assert_eq(masked,
                 2 * 2 * 2 * 4 * 6); /* forward and backward, scores and probabilities, layers, heads, 6 of 16 places */
    study_close(&study);
}

/* ---- poison: what must not be read */

struct poison {
    struct kept kept;
    bool on;
};

static void poison_rows(const struct adapter_target *target, const struct point *point, struct value *value) {
    int64_t in = target->in, rank = target->lora_rank;
    for (int64_t i = 0; i < elements_of(value); i++) {
        int64_t row = point->part == PART_LORA_A ? i / in % STUDY_RANK : i % STUDY_RANK;
        if (row >= rank)
            value->x[i] = NAN;
    }
}

static const struct adapter *poisoned_adapter;

static enum status poison_hook(void *context, const struct point *point, struct value *value) {
    struct poison *poison = context;
    bool slot = point->param && (point->part == PART_LORA_A || point->part == PART_LORA_B) && !point->state;
    if (poison->on && slot && point->phase == PHASE_PARAM && point->slot < 0 && point->step == 0)
        poison_rows(adapter_find(poisoned_adapter, point->param), point, value);
    if (poison->on && slot && point->phase == PHASE_PARAM && point->slot >= 0 && point->step == 0)
        for (int64_t i = 0; i < elements_of(value); i++)
            value->x[i] = NAN;
    if (poison->on && (point->activation == ACT_SCORES || point->activation == ACT_PROBS)) {
        int64_t tokens = value->shape[3];
        for (int64_t i = 0; i < elements_of(value); i++)
            value->x[i] = i % tokens > i / tokens % tokens ? NAN : value->x[i];
    }
    if (slot && (point->phase == PHASE_PARAM || point->phase == PHASE_GATHER || point->phase == PHASE_REGATHER ||
                 point->phase == PHASE_UPDATE))
        return STATUS_OK;
    if (point->activation == ACT_SCORES || point->activation == ACT_PROBS)
        return STATUS_OK;
    return kept_hook(&poison->kept, point, value);
}

Test(relay, poisoned_rows_slots_and_masked_places_leave_no_trace) {
    struct study study;
    struct poison clean = {0}, poisoned = {.on = true};
    one_step(&study, "bob", DTYPE_F64);
    poisoned_adapter = &study.tenant[0].adapter;
    study_run(&study, (struct reference_options){0}, poison_hook, &clean);
    study_run(&study, (struct reference_options){0}, poison_hook, &poisoned);
    cr_assert_eq(clean.kept.count, poisoned.kept.count);
    cr_assert_gt(clean.kept.count, 200);
    for (int i = 0; i < clean.kept.count; i++) {
        const struct value *a = &clean.kept.value[i], *b = &poisoned.kept.value[i];
        cr_assert_eq(memcmp(a->x, b->x, (size_t)elements_of(a) * sizeof(double)), 0, "%s", clean.kept.name[i]);
    }
    kept_free(&clean.kept);
    kept_free(&poisoned.kept);
    study_close(&study);
}

static enum status stays_nan_hook(void *context, const struct point *point, struct value *value) {
    TRY(poison_hook(context, point, value));
    if (point->phase != PHASE_UPDATE)
        return STATUS_OK;
    const struct adapter_target *target = adapter_find(poisoned_adapter, point->param);
    for (int64_t i = 0; i < elements_of(value); i++) {
        int64_t row = point->part == PART_LORA_A ? i / target->in % STUDY_RANK : i % STUDY_RANK;
        cr_assert_eq(isnan(value->x[i]) != 0, row >= target->lora_rank);
    }
    return STATUS_OK;
}

Test(relay, poisoned_rows_stay_what_they_are_in_the_update) {
    struct study study;
    struct poison poisoned = {.on = true};
    one_step(&study, "bob", DTYPE_F64);
    poisoned_adapter = &study.tenant[0].adapter;
    study_run(&study, (struct reference_options){0}, stays_nan_hook, &poisoned);
    kept_free(&poisoned.kept);
    study_close(&study);
}

/* ---- following */

struct follow {
    struct kept kept;
    double wrong; /* what to put in place of the first choice */
};

static enum status follow_hook(void *context, const struct point *point, struct value *value) {
    struct follow *follow = context;
    if (point->activation == ACT_TOPK_INDEX && point->layer == 0)
        value->x[0] = follow->wrong;
    return kept_hook(&follow->kept, point, value);
}

Test(relay, another_choice_is_followed) {
    struct study study;
    struct follow follow = {0};
    struct kept own = {0};
    one_step(&study, "dov", DTYPE_F64);
    study_run(&study, (struct reference_options){0}, kept_hook, &own);
    const struct value *chosen = kept_find(&own, "step.0/micro.2/forward/model.layers.0.mlp.router.topk_index");
    while (follow.wrong == chosen->x[0] || follow.wrong == chosen->x[1] || follow.wrong == chosen->x[2])
        follow.wrong++;
    study_run(&study, (struct reference_options){0}, follow_hook, &follow);
    const struct value *scores = kept_find(&follow.kept, "step.0/micro.2/forward/model.layers.0.mlp.router.scores");
    const struct value *weight =
        kept_find(&follow.kept, "step.0/micro.2/forward/model.layers.0.mlp.router.topk_weight");
    double p[] = {scores->x[(int)follow.wrong], scores->x[(int)chosen->x[1]], scores->x[(int)chosen->x[2]]};
    for (int c = 0; c < 3; c++) /* two additions and a division, on both sides */
        cr_assert(fabs(weight->x[c] - p[c] / (p[0] + p[1] + p[2])) <= 6 * 0x1p-53 * weight->x[c]);
    const struct value *d_scores = kept_find(&follow.kept, "step.0/micro.2/backward/model.layers.0.mlp.router.scores");
    cr_assert_neq(d_scores->x[(int)follow.wrong], 0);
    cr_assert_eq(d_scores->x[(int)chosen->x[0]], 0);
    kept_free(&own);
    kept_free(&follow.kept);
    study_close(&study);
}

static void assert_refused(double choice) {
    struct study study;
    struct follow follow = {.wrong = choice};
    one_step(&study, "dov", DTYPE_F64);
    struct reference_hooks hooks = {.context = &follow, .emit = follow_hook};
    struct reference_options options = {0};
    cr_assert_eq(reference_run(&study.job, &options, &hooks), STATUS_INTERNAL, "choice %g", choice);
    kept_free(&follow.kept);
    status_clear();
    study_close(&study);
}

Test(relay, choices_that_name_no_expert_are_refused) {
    assert_refused(12);
    assert_refused(-1);
    assert_refused(1.5);
    assert_refused(NAN);
}

static enum status stop_hook(void *context, const struct point *point, struct value *value) {
    (void)value;
    int *left = context;
    (void)point;
    return --*left ? STATUS_OK : STATUS_RANK;
}

/* A hook can end the run anywhere; its status comes back and all memory goes (seen under ASan). */
Test(relay, a_hook_that_fails_ends_the_run) {
    struct study study;
    one_step(&study, "bob", DTYPE_F32);
    for (int stop = 1; stop < 400; stop += 23) {
        int left = stop;
        struct reference_hooks hooks = {.context = &left, .emit = stop_hook};
        struct reference_options options = {.bounds = true};
        cr_assert_eq(reference_run(&study.job, &options, &hooks), STATUS_RANK);
        cr_assert_eq(left, 0);
    }
    study_close(&study);
}

/* Equal scores go to the lower expert, the larger score first. */
static enum status tie_hook(void *context, const struct point *point, struct value *value) {
    if (point->activation == ACT_ROUTER_SCORES && point->phase == PHASE_FORWARD && point->layer == 0) {
        static const double scores[12] = {.05, .1, .2, .1, .05, .2, .05, .05, .05, .05, .05, .05};
        memcpy(value->x, scores, sizeof scores);
    }
    return kept_hook(context, point, value);
}

Test(relay, equal_scores_go_to_the_lower_expert) {
    struct study study;
    struct kept kept = {0};
    one_step(&study, "dov", DTYPE_F64);
    study_run(&study, (struct reference_options){0}, tie_hook, &kept);
    const struct value *index = kept_find(&kept, "step.0/micro.2/forward/model.layers.0.mlp.router.topk_index");
    cr_assert_eq(index->x[0], 2);
    cr_assert_eq(index->x[1], 5);
    cr_assert_eq(index->x[2], 1);
    kept_free(&kept);
    study_close(&study);
}

/* ---- the ranks' own rounding: what a hook says about partials goes into what follows */

struct shares {
    double e, sum, first;
    double loss_e, loss;
};

static enum status shares_hook(void *context, const struct point *point, struct value *value) {
    struct shares *shares = context;
    bool lora = point->param && point->part == PART_LORA_A && strstr(point->param->name, "layers.0.self_attn.q_proj");
    cr_assert_eq(value->mag != NULL, point_is_partial(point));
    for (int64_t i = 0; i < elements_of(value); i++)
        value->e[i] = 0;
    for (int64_t i = 0; value->mag && i < elements_of(value); i++)
        cr_assert_eq(value->mag[i], fabs(value->x[i]));
    if (lora && point->phase == PHASE_BACKWARD)
        value->e[0] = 0.25;
    if (lora && point->phase == PHASE_GRAD && point->micro == 3)
        shares->first = value->x[0];
    if (point->phase == PHASE_LOSS_SUM) {
        value->e[0] = 0.5;
        value->mag[0] = 100;
    }
    return STATUS_OK;
}

static enum status shares_after(void *context, const struct point *point, struct value *value) {
    struct shares *shares = context;
    bool lora = point->param && point->part == PART_LORA_A && strstr(point->param->name, "layers.0.self_attn.q_proj");
    if (lora && point->phase == PHASE_GRAD && point->micro == 2) {
        shares->e = value->e[0];
        shares->sum = value->x[0];
    }
    if (point->phase == PHASE_LOSS && strcmp(point->scalar, "loss") == 0) {
        shares->loss = value->x[0];
        shares->loss_e = value->e[0];
    }
    return shares_hook(context, point, value);
}

Test(relay, reductions_carry_what_the_hook_says) {
    static const int both[] = {3, 2};
    const double u = 0x1p-24, eta = 0x1p-126;
    struct study study;
    struct shares shares = {0};
    study_open(&study, "qwen3_moe_tiny", "dov", DTYPE_F32);
    study_acquire(&study, 0);
    study_train(&study, 0, 2, both);
    study_run(&study, (struct reference_options){.bounds = true}, shares_after, &shares);
    /* second micro: the sum so far (e = 0 after emit) + partials with e = 0.25, one rounding */
    double want = 0.25 + u * (fabs(shares.sum) + 0.25) + eta;
    cr_assert(fabs(shares.e - want) <= 1e-12 * want, "%g, not %g", shares.e, want);
    /* loss: S = 2 * 100, p = 2 * 0.5, one addition, divided by 2 + 10 labels */
    double sum_e = u / (1 - u) * (200 + 1) + 1 + eta;
    double divided = sum_e / 12;
    double loss_want = divided + u * (fabs(shares.loss) + divided) + eta;
    cr_assert(fabs(shares.loss_e - loss_want) <= 1e-12 * loss_want, "%g, not %g", shares.loss_e, loss_want);
    study_close(&study);
}

/* ---- attention biases: taken away by the hook, exactly they are missing */

struct biases {
    struct kept kept;
    bool off;
};

static enum status bias_hook(void *context, const struct point *point, struct value *value) {
    struct biases *biases = context;
    enum param_kind kind = point->param ? point->param->kind : PARAM_KINDS;
    bool bias = kind >= PARAM_Q_BIAS && kind <= PARAM_O_BIAS;
    TRY(kept_hook(&biases->kept, point, value));
    for (int64_t i = 0; biases->off && bias && point->phase == PHASE_PARAM && i < elements_of(value); i++)
        value->x[i] = 0;
    return STATUS_OK;
}

static void assert_bias(struct biases *with, struct biases *without, const char *tensor) {
    char name[POINT_NAME_MAX];
    snprintf(name, sizeof name, "step.0/micro.0/forward/model.layers.0.self_attn.%s", tensor);
    const struct value *a = kept_find(&with->kept, name), *b = kept_find(&without->kept, name);
    snprintf(name, sizeof name, "step.0/param/model.layers.0.self_attn.%s.bias", tensor);
    const struct value *bias = kept_find(&with->kept, name);
    int64_t n = elements_of(bias);
    for (int64_t i = 0; i < elements_of(a); i++) /* one addition */
        cr_assert(fabs(a->x[i] - b->x[i] - bias->x[i % n]) <= 0x1p-52 * (fabs(a->x[i]) + fabs(b->x[i])));
    cr_assert_neq(bias->x[0], 0);
}

Test(relay, biases_of_the_projections_are_added) {
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 10, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
        "\"num_key_value_heads\": 1, \"head_dim\": 4, \"vocab_size\": 17, \"num_experts\": 5, \"num_experts_per_tok\": "
        "2,"
        "\"moe_intermediate_size\": 3, \"intermediate_size\": 7, \"attention_bias\": true, \"norm_topk_prob\": true}";
    struct study study;
    struct biases with = {0}, without = {.off = true};
    study_config(&study, config, DTYPE_F64);
    study_evaluate(&study, -1, false, 0);
    study_run(&study, (struct reference_options){0}, bias_hook, &with);
    study_run(&study, (struct reference_options){0}, bias_hook, &without);
    assert_bias(&with, &without, "q_proj");
    assert_bias(&with, &without, "k_proj");
    assert_bias(&with, &without, "v_proj");
    const struct value *o = kept_find(&with.kept, "step.0/micro.0/forward/model.layers.0.self_attn.o_proj");
    const struct value *c = kept_find(&with.kept, "step.0/micro.0/forward/model.layers.0.self_attn.context");
    const struct value *w = kept_find(&with.kept, "step.0/micro.0/gather/model.layers.0.self_attn.o_proj.weight");
    const struct value *b = kept_find(&with.kept, "step.0/micro.0/gather/model.layers.0.self_attn.o_proj.bias");
    for (int64_t i = 0; i < 10; i++) {
        double sum = 0;
        for (int64_t j = 0; j < 8; j++)
            sum += w->x[i * 8 + j] * c->x[j];
        cr_assert_eq(o->x[i], sum + b->x[i]);
    }
    kept_free(&with.kept);
    kept_free(&without.kept);
    study_close(&study);
}
