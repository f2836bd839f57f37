/* Clipping and updates, element by element: the formulas of torch.nn.utils.clip_grad_norm_, torch.optim.SGD and AdamW
 * written again here, in double to the last bit, and in float32 (one rounding an operation) within every bound. */
#include "study.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A run that is recorded by a subject of our own, which holds the nearest float32 of every value that the reference
 * makes (float64: the value). */
struct log {
    struct study study;
    bool narrow;                       /* float32 */
    struct kept made, bound, recorded; /* entry by entry the same points */
    double worst;                      /* error over bound */
    int compared;
};

static double rounded(const struct log *log, double x) {
    return log->narrow ? (double)(float)x : x;
}

static enum status log_hook(void *context, const struct point *point, struct value *value) {
    struct log *log = context;
    TRY(kept_hook(&log->made, point, value));
    struct value e = *value;
    e.x = value->e;
    TRY(kept_hook(&log->bound, point, &e));
    bool integers =
        point->activation == ACT_INPUT_IDS || point->activation == ACT_LABELS || point->activation == ACT_TOPK_INDEX;
    for (int64_t i = 0; log->narrow && i < elements_of(value); i++) {
        value->x[i] = integers ? value->x[i] : rounded(log, value->x[i]);
        value->e[i] = 0;
    }
    return kept_hook(&log->recorded, point, value);
}

static void run_log(struct log *log, enum dtype dtype, struct optimizer optimizer, struct clip clip) {
    static const int windows[] = {0, 2, 3, 1, 4};
    *log = (struct log){.narrow = dtype == DTYPE_F32};
    struct study *study = &log->study;
    study_open(study, "qwen3_moe_tiny", "dov", dtype);
    study->job.trains = NULL;
    study_trains(study, "*.mlp.gate.weight");
    study_trains(study, "*norm.weight");
    study->job.optimizer = optimizer;
    study->job.clip = clip;
    study_acquire(study, 0);
    study_train(study, 0, 2, windows);
    study_train(study, 0, 2, windows + 2);
    study_train(study, 0, 1, windows + 4);
    study_run(study, (struct reference_options){.bounds = log->narrow}, log_hook, log);
}

static void close_log(struct log *log) {
    kept_free(&log->made);
    kept_free(&log->bound);
    kept_free(&log->recorded);
    study_close(&log->study);
}

static const struct value *find(const struct kept *kept, int step, const char *kind, const char *tensor) {
    char name[2 * POINT_NAME_MAX];
    snprintf(name, sizeof name, "step.%d/%s/%s", step, kind, tensor);
    return kept_find(kept, name);
}

static const double *recorded(const struct log *log, int step, const char *kind, const char *tensor) {
    return find(&log->recorded, step, kind, tensor)->x;
}

/* What the subject got, against what the reference made. */
static void hold(struct log *log, int step, const char *kind, const char *tensor, int64_t i, double got) {
    double made = find(&log->made, step, kind, tensor)->x[i];
    const double *e = find(&log->bound, step, kind, tensor)->x;
    double error = fabs(got - made);
    double ratio = error == 0 ? 0 : e ? error / e[i] : INFINITY;
    cr_assert(ratio <= 1, "step %d %s %s[%lld]: %.17g, not %.17g, bound %g", step, kind, tensor, (long long)i, got,
              made, e ? e[i] : 0);
    log->worst = fmax(log->worst, ratio);
    log->compared++;
}

/* Calls `check` for every trained tensor of every step, by name. */
typedef void check_tensor(struct log *log, int step, const char *tensor, int64_t elements);

static int each_update(struct log *log, check_tensor *check) {
    int tensors = 0;
    for (int i = 0; i < log->made.count; i++) {
        const char *tail = strstr(log->made.name[i], "/update/");
        if (!tail)
            continue;
        check(log, atoi(log->made.name[i] + strlen("step.")), tail + strlen("/update/"),
              elements_of(&log->made.value[i]));
        tensors++;
    }
    return tensors;
}

static const char *gradient_kind(const struct log *log) {
    return log->study.job.clip.present ? "clip" : "grad";
}

/* ---- the norm and what it does */

static double exact_norm(const struct log *log, int step, int64_t *terms) {
    char prefix[32];
    double squares = 0, largest = 0;
    *terms = 0;
    snprintf(prefix, sizeof prefix, "step.%d/grad/", step);
    for (int n = log->recorded.count - 1; n >= 0; n--) {
        const struct value *g = &log->recorded.value[n];
        if (strncmp(log->recorded.name[n], prefix, strlen(prefix)) != 0)
            continue;
        for (int64_t i = 0; i < elements_of(g); i++) {
            squares += g->x[i] * g->x[i];
            largest = fmax(largest, fabs(g->x[i]));
        }
        *terms += elements_of(g);
    }
    return log->study.job.clip.infinity ? largest : sqrt(squares);
}

/* The bar of a 2-norm is the final rounding and the double sums of both sides, n 2^-53 each at most in the sum of
 * squares, half of that in the root (1.001: terms of second order); of the largest |g|: nothing. */
static void check_norm(struct log *log, int step) {
    int64_t terms;
    double norm = exact_norm(log, step, &terms), made = find(&log->made, step, "clip", "norm")->x[0];
    const double *e = find(&log->bound, step, "clip", "norm")->x;
    cr_assert_gt(norm, 0);
    cr_assert(fabs(norm - made) <= (double)terms * 0x1p-53 * norm, "%.17g, not %.17g", made, norm);
    if (log->study.job.clip.infinity)
        cr_assert(made == norm && (!e || e[0] == 0));
    else if (e)
        cr_assert(e[0] >= 0x1p-24 * norm && e[0] <= 1.001 * (0x1p-24 + (double)(terms + 2) * 0x1p-53) * norm);
    if (e)
        hold(log, step, "clip", "norm", 0, rounded(log, norm));
}

static void check_clipped(struct log *log, int step, const char *tensor, int64_t elements) {
    double norm = recorded(log, step, "clip", "norm")[0];
    double factor = rounded(log, fmin(1, log->study.job.clip.max / (norm + 1e-6)));
    const double *g = recorded(log, step, "grad", tensor);
    for (int64_t i = 0; i < elements; i++)
        hold(log, step, "clip", tensor, i, rounded(log, g[i] * factor));
}

static void assert_clip(enum dtype dtype, struct clip clip) {
    struct log log;
    run_log(&log, dtype, (struct optimizer){.lr = 0.05}, clip);
    for (int step = 0; step < 3; step++)
        check_norm(&log, step);
    cr_assert_eq(each_update(&log, check_clipped), 3 * (8 + 2 + 4 * 2 + 1));
    cr_assert(clip.max > 1e3 || !log.narrow || log.worst > 0.2, "%g", log.worst);
    for (int64_t i = 0; clip.max > 1e3 && i < 20; i++) { /* a factor of 1 does not round */
        cr_assert_eq(find(&log.made, 0, "clip", "model.norm.weight")->x[i],
                     recorded(&log, 0, "grad", "model.norm.weight")[i]);
        cr_assert_eq(find(&log.bound, 0, "clip", "model.norm.weight")->x[i], 0);
    }
    close_log(&log);
}

Test(training, clipping_by_the_two_norm) {
    assert_clip(DTYPE_F64, (struct clip){.present = true, .max = 0.7});
    assert_clip(DTYPE_F32, (struct clip){.present = true, .max = 0.7});
}

Test(training, clipping_by_the_largest) {
    assert_clip(DTYPE_F64, (struct clip){.present = true, .infinity = true, .max = 0.2});
    assert_clip(DTYPE_F32, (struct clip){.present = true, .infinity = true, .max = 0.2});
}

Test(training, a_large_maximum_changes_no_bit) {
    assert_clip(DTYPE_F32, (struct clip){.present = true, .max = 1e4});
    assert_clip(DTYPE_F32, (struct clip){.present = true, .infinity = true, .max = 1e4});
}

/* ---- updates */

static void check_sgd(struct log *log, int step, const char *tensor, int64_t elements) {
    const struct optimizer *o = &log->study.job.optimizer;
    const double *g = recorded(log, step, gradient_kind(log), tensor), *p = recorded(log, step, "param", tensor);
    bool state = o->momentum != 0;
    const double *before = state ? recorded(log, step, "param/momentum_buffer", tensor) : NULL;
    const double *after = state ? recorded(log, step, "optimizer/momentum_buffer", tensor) : NULL;
    double decay = rounded(log, o->weight_decay), momentum = rounded(log, o->momentum), lr = rounded(log, o->lr);
    for (int64_t i = 0; i < elements; i++) {
        double d = g[i];
        if (o->weight_decay != 0)
            d = rounded(log, g[i] + rounded(log, decay * p[i]));
        if (state) {
            double buffer = step ? rounded(log, rounded(log, momentum * before[i]) + d) : d;
            hold(log, step, "optimizer/momentum_buffer", tensor, i, buffer);
            d = o->nesterov ? rounded(log, d + rounded(log, momentum * after[i])) : after[i];
        }
        hold(log, step, "update", tensor, i, rounded(log, p[i] - rounded(log, lr * d)));
    }
}

static void check_adamw(struct log *log, int step, const char *tensor, int64_t elements) {
    const struct optimizer *o = &log->study.job.optimizer;
    const double *g = recorded(log, step, gradient_kind(log), tensor), *p = recorded(log, step, "param", tensor);
    const double *m = recorded(log, step, "param/exp_avg", tensor);
    const double *v = recorded(log, step, "param/exp_avg_sq", tensor);
    const double *m_after = recorded(log, step, "optimizer/exp_avg", tensor);
    const double *v_after = recorded(log, step, "optimizer/exp_avg_sq", tensor);
    double b1 = rounded(log, o->beta1), b2 = rounded(log, o->beta2), eps = rounded(log, o->eps);
    double c0 = rounded(log, 1 - o->lr * o->weight_decay), c1 = rounded(log, 1 - o->beta1);
    double c2 = rounded(log, 1 - o->beta2), c3 = rounded(log, o->lr / (1 - pow(o->beta1, step + 1)));
    double c4 = rounded(log, sqrt(1 - pow(o->beta2, step + 1)));
    for (int64_t i = 0; i < elements; i++) {
        double square = rounded(log, rounded(log, g[i] * g[i]) * c2);
        hold(log, step, "optimizer/exp_avg", tensor, i,
             rounded(log, rounded(log, m[i] * b1) + rounded(log, g[i] * c1)));
        hold(log, step, "optimizer/exp_avg_sq", tensor, i, rounded(log, rounded(log, v[i] * b2) + square));
        double d = rounded(log, rounded(log, rounded(log, sqrt(v_after[i])) / c4) + eps);
        double moved = rounded(log, rounded(log, c3 * m_after[i]) / d);
        hold(log, step, "update", tensor, i, rounded(log, rounded(log, p[i] * c0) - moved));
    }
}

static void assert_update(enum dtype dtype, struct optimizer optimizer, check_tensor *check) {
    struct log log;
    run_log(&log, dtype, optimizer, (struct clip){.present = true, .max = 0.7});
    cr_assert_eq(each_update(&log, check), 3 * (8 + 2 + 4 * 2 + 1));
    cr_assert_gt(log.compared, 3000);
    cr_assert(!log.narrow || log.worst > 0.2, "%g", log.worst);
    close_log(&log);
}

static void assert_sgd(struct optimizer optimizer) {
    assert_update(DTYPE_F64, optimizer, check_sgd);
    assert_update(DTYPE_F32, optimizer, check_sgd);
}

Test(training, sgd_in_all_its_forms) {
    assert_sgd((struct optimizer){.lr = 0.07});
    assert_sgd((struct optimizer){.lr = 0.07, .weight_decay = 0.03});
    assert_sgd((struct optimizer){.lr = 0.07, .momentum = 0.9});
    assert_sgd((struct optimizer){.lr = 0.07, .momentum = 0.9, .weight_decay = 0.03});
    assert_sgd((struct optimizer){.lr = 0.07, .momentum = 0.9, .nesterov = true});
    assert_sgd((struct optimizer){.lr = 0.07, .momentum = 0.9, .nesterov = true, .weight_decay = 0.03});
}

Test(training, adamw_with_and_without_decay) {
    struct optimizer optimizer = {.kind = OPTIMIZER_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    for (int decay = 0; decay < 2; decay++) {
        optimizer.weight_decay = 0.03 * decay;
        assert_update(DTYPE_F64, optimizer, check_adamw);
        assert_update(DTYPE_F32, optimizer, check_adamw);
    }
}

/* By hand: p = 1, g = 0.5 and then 0.25, lr 0.5, momentum 0.5, decay 0.25, nesterov. g' = 0.75, buf = 0.75, d = 1.125,
 * p = 0.4375; g' = 0.359375, buf = 0.734375, d = 0.7265625, p = 0.07421875. The gradient is put in by the hook. */
struct by_hand {
    double g[2], p[2];
    double e[2]; /* of the parameter, where its gradient, states and itself are exact */
};

static enum status hand_hook(void *context, const struct point *point, struct value *value) {
    struct by_hand *hand = context;
    bool here = point->param && point->param->kind == PARAM_NORM && point->slot < 0 && !point->state;
    if (here && point->phase == PHASE_PARAM && point->step == 0)
        value->x[1] = 1;
    if (here && point->phase == PHASE_GRAD && point->micro < 0)
        value->x[1] = hand->g[point->step];
    if (here && point->phase == PHASE_UPDATE) {
        hand->p[point->step] = value->x[1];
        hand->e[point->step] = value->e[1];
    }
    for (int64_t i = 0; i < elements_of(value); i++)
        value->e[i] = 0;
    return STATUS_OK;
}

static struct by_hand run_hand(enum dtype dtype, double g0, double g1, struct optimizer optimizer) {
    static const int numbers[] = {0, 1};
    struct study study;
    struct by_hand hand = {.g = {g0, g1}};
    study_open(&study, "qwen3_moe_tiny", "dov", dtype);
    study_trains(&study, "model.norm.weight");
    study.job.optimizer = optimizer;
    study_acquire(&study, 0);
    study_train(&study, 0, 1, numbers);
    study_train(&study, 0, 1, numbers + 1);
    study_run(&study, (struct reference_options){.bounds = true}, hand_hook, &hand);
    study_close(&study);
    return hand;
}

Test(training, nesterov_with_decay_by_hand) {
    struct by_hand hand = run_hand(
        DTYPE_F64, 0.5, 0.25, (struct optimizer){.lr = 0.5, .momentum = 0.5, .weight_decay = 0.25, .nesterov = true});
    cr_assert_eq(hand.p[0], 0.4375);
    cr_assert_eq(hand.p[1], 0.07421875);
}

/* b1 = b2 = 1/2, eps = 0, lr = 1/4, decay 1. First step: m = 1/4, v = 1/8, corrected 1/2 and 1/4: p = 3/4 - 1/4. Second
 * (g = 1/4): m = 1/8 + 1/8, v = 1/16 + 1/32, corrected by 3/4: m = 1/3, v = 1/8: p = 3/8 - sqrt(8)/12. */
Test(training, adamw_by_hand) {
    struct by_hand hand =
        run_hand(DTYPE_F64, 0.5, 0.25,
                 (struct optimizer){
                     .kind = OPTIMIZER_ADAMW, .lr = 0.25, .weight_decay = 1, .beta1 = 0.5, .beta2 = 0.5, .eps = 0});
    cr_assert(fabs(hand.p[0] - 0.5) <= 0x1p-50);
    cr_assert(fabs(hand.p[1] - (0.375 - sqrt(8) / 12)) <= 0x1p-50, "%.17g", hand.p[1]);
}

/* Bounds by hand, float32, u = 2^-24, gradient 0: without decay nothing is rounded, p stays; AdamW's decay 1 - 1/4 is
 * one product, SGD's 1 - 1/4 * (0 + 1/2 * 1) three roundings: u/2 of the decay (adding 0 is none), times 1/4, u/8 of
 * that product, u 7/8 of the difference. */
Test(training, bounds_of_an_update_by_hand) {
    const double u = 0x1p-24;
    struct optimizer adamw = {.kind = OPTIMIZER_ADAMW, .lr = 0.25, .beta1 = 0.5, .beta2 = 0.5, .eps = 0x1p-10};
    struct by_hand still = run_hand(DTYPE_F32, 0, 0, adamw);
    cr_assert(still.p[1] == 1 && still.e[0] == 0 && still.e[1] == 0);
    adamw.weight_decay = 1;
    struct by_hand decayed = run_hand(DTYPE_F32, 0, 0, adamw);
    cr_assert(decayed.p[0] == 0.75 && fabs(decayed.e[0] - 0.75 * u) <= 1e-6 * u);
    struct by_hand sgd = run_hand(DTYPE_F32, 0, 0, (struct optimizer){.lr = 0.25, .weight_decay = 0.5});
    cr_assert(sgd.p[0] == 0.875 && fabs(sgd.e[0] - (0.125 + 0.125 + 0.875) * u) <= 1e-6 * u, "%g u", sgd.e[0] / u);
}
