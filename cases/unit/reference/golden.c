/* The free-running reference against PyTorch + PEFT: every tensor of every file, each once. */
#include "study.h"

#include "core/safetensors.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Double precision on both sides, a few hundred operations deep: 1e-10; after a step answers have passed through an
 * update. */
#define BOUND_FIRST 1e-10
#define BOUND_LATER 1e-9

struct check {
    const struct study *study;
    struct safetensors file;
    bool *done;
    int compared;
};

static double worst_error(int64_t n, const double *got, const struct tensor *want) {
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(tensor_get(want, i)));
    for (int64_t i = 0; i < n; i++) {
        double w = tensor_get(want, i);
        double error = fabs(got[i] - w) / (largest > 0 ? fmax(fabs(w), 1e-3 * largest) : 1);
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

/* Holds `got` against the golden tensor of that name, if the file has it. */
static void hold(struct check *check, const char *name, const double *got, int64_t n, double bound) {
    const struct safetensors_entry *entry = safetensors_find(&check->file, name);
    if (!entry)
        return;
    ptrdiff_t place = entry - check->file.entries;
    cr_assert_not(check->done[place], "%s answered twice", name);
    cr_assert_eq(tensor_elements(&entry->tensor), n, "%s: %lld elements, not %lld", name, (long long)n,
                 (long long)tensor_elements(&entry->tensor));
    double error = worst_error(n, got, &entry->tensor);
    cr_assert(error <= (entry->tensor.dtype == DTYPE_I64 ? 0 : bound), "%s: error %g", name, error);
    check->done[place] = true;
    check->compared++;
}

static void hold_flat(struct check *check, const char *kind, const struct point *point, const struct value *value) {
    const struct adapter_target *target = adapter_find(&check->study->tenant[0].adapter, point->param);
    bool a = point->part == PART_LORA_A;
    char name[512];
    int64_t n = target->experts * target->lora_rank * (a ? target->in : target->out);
    double *flat = malloc((size_t)n * sizeof *flat);
    if (a)
        reference_flatten_a(target, STUDY_RANK, value->x, flat);
    else
        reference_flatten_b(target, STUDY_RANK, value->x, flat);
    snprintf(name, sizeof name, "step.%d/%s/%s", point->step, kind, a ? target->key_a : target->key_b);
    hold(check, name, flat, n, point->step ? BOUND_LATER : BOUND_FIRST);
    free(flat);
}

static void hold_forward(struct check *check, const struct point *point, const struct value *value) {
    static const char *const names[ACT_COUNT] = {
        [ACT_HEAD] = "logits",
        [ACT_TOKEN_LOSS] = "token_loss",
        [ACT_LAYER] = "hidden.%d",
        [ACT_ROUTER_LOGITS] = "router.%d/logits",
        [ACT_TOPK_INDEX] = "router.%d/topk_index",
        [ACT_TOPK_WEIGHT] = "router.%d/topk_weight",
    };
    char tail[64] = "", name[128];
    if (!names[point->activation])
        return;
    if (strstr(names[point->activation], "%d"))
        snprintf(tail, sizeof tail, "%.*s%d%s", (int)strcspn(names[point->activation], "%"), names[point->activation],
                 point->layer, strchr(names[point->activation], '%') + 2);
    else
        snprintf(tail, sizeof tail, "%s", names[point->activation]);
    snprintf(name, sizeof name, "step.%d/micro.%d/%s", point->step, point->micro, tail);
    hold(check, name, value->x, elements_of(value), point->step ? BOUND_LATER : BOUND_FIRST);
}

static enum status golden_hook(void *context, const struct point *point, struct value *value) {
    struct check *check = context;
    char name[128];
    double bound = point->step ? BOUND_LATER : BOUND_FIRST;
    switch (point->phase) {
    case PHASE_FORWARD:
        hold_forward(check, point, value);
        break;
    case PHASE_LOSS:
        snprintf(name, sizeof name, "step.%d/%s", point->step, point->scalar);
        hold(check, name, value->x, 1, bound);
        break;
    case PHASE_CLIP:
        snprintf(name, sizeof name, "step.%d/grad_norm", point->step);
        hold(check, name, value->x, 1, bound);
        break;
    case PHASE_GRAD:
        if (point->micro < 0)
            hold_flat(check, "grad", point, value);
        break;
    case PHASE_UPDATE:
        hold_flat(check, "param", point, value);
        break;
    case PHASE_OPTIMIZER:
        hold_flat(check, "optim/momentum_buffer", point, value);
        break;
    default:
        break;
    }
    return STATUS_OK;
}

typedef enum status answer(struct reference *reference, int tenant, const struct param *param, struct value *out);

static void hold_answers(struct check *check, struct reference *reference, const char *prefix, answer *ask) {
    const struct inventory *inventory = checkpoint_inventory(check->study->job.model);
    for (int i = 0; i < inventory->count; i++) {
        char name[256];
        struct value value;
        snprintf(name, sizeof name, "%s/%s", prefix, inventory->params[i].name);
        if (!safetensors_find(&check->file, name))
            continue;
        cr_assert_eq(ask(reference, 0, &inventory->params[i], &value), STATUS_OK, "%s", status_note());
        hold(check, name, value.x, elements_of(&value), BOUND_FIRST);
        value_free(&value);
    }
}

static enum status golden_acquired(void *context, struct reference *reference, int tenant) {
    struct check *check = context;
    cr_assert_eq(tenant, 0);
    hold_answers(check, reference, "delta", reference_answer_delta);
    hold_answers(check, reference, "merged", reference_answer_merged);
    for (int with = 0; with <= 1; with++) {
        struct value logits;
        cr_assert_eq(reference_answer_logits(reference, with ? 0 : -1, 0, &logits), STATUS_OK);
        hold(check, with ? "peft_forward/micro.0/logits" : "base_forward/micro.0/logits", logits.x,
             elements_of(&logits), BOUND_FIRST);
        value_free(&logits);
    }
    return STATUS_OK;
}

static void check_tenant(const char *fixture, const char *tenant, int tensors) {
    struct study study;
    struct check check = {.study = &study};
    char path[256];
    study_open(&study, fixture, tenant, DTYPE_F64);
    study_three_steps(&study);
    snprintf(path, sizeof path, "fixtures/golden/%s/golden/sgd/%s.safetensors", fixture, tenant);
    cr_assert_eq(safetensors_open(&check.file, path), STATUS_OK, "%s", status_note());
    check.done = calloc((size_t)check.file.count, sizeof *check.done);
    struct reference_hooks hooks = {&check, golden_hook, golden_acquired};
    struct reference_options options = {.norm = true};
    cr_assert_eq(reference_run(&study.job, &options, &hooks), STATUS_OK, "%s", status_note());
    for (int i = 0; i < check.file.count; i++)
        cr_assert(check.done[i], "%s was not compared", check.file.entries[i].name);
    cr_assert_eq(check.compared, tensors);
    free(check.done);
    safetensors_close(&check.file);
    study_close(&study);
}

/* The numbers of tensors: read from the files' headers with Python's json. */
Test(golden, tiny_ada) {
    check_tenant("qwen3_moe_tiny", "ada", 76);
}
Test(golden, tiny_bob) {
    check_tenant("qwen3_moe_tiny", "bob", 168);
}
Test(golden, tiny_cyd) {
    check_tenant("qwen3_moe_tiny", "cyd", 44);
}
Test(golden, tiny_dov) {
    check_tenant("qwen3_moe_tiny", "dov", 70);
}
Test(golden, tiny_eve) {
    check_tenant("qwen3_moe_tiny", "eve", 168);
}
Test(golden, uneven_fay) {
    check_tenant("qwen3_moe_uneven", "fay", 71);
}
Test(golden, uneven_gus) {
    check_tenant("qwen3_moe_uneven", "gus", 133);
}

/* Without a tenant, and with one that is switched off, the base model answers; a switched-off tenant to the last bit.
 */
Test(golden, evaluate_without_a_tenant_is_the_base) {
    struct study study;
    struct kept kept = {0};
    struct safetensors file;
    study_open(&study, "qwen3_moe_tiny", "ada", DTYPE_F64);
    study_acquire(&study, 0);
    study_evaluate(&study, -1, false, 0);
    study_evaluate(&study, 0, true, 0);
    study_evaluate(&study, 0, false, 0);
    study_run(&study, (struct reference_options){0}, kept_hook, &kept);
    const char *path = "fixtures/golden/qwen3_moe_tiny/golden/sgd/ada.safetensors";
    cr_assert_eq(safetensors_open(&file, path), STATUS_OK, "%s", status_note());
    const struct value *none = kept_find(&kept, "step.0/micro.0/forward/lm_head");
    const struct value *off = kept_find(&kept, "step.1/micro.0/forward/lm_head");
    const struct value *on = kept_find(&kept, "step.2/micro.0/forward/lm_head");
    int64_t n = elements_of(none);
    const struct tensor *base = &safetensors_find(&file, "base_forward/micro.0/logits")->tensor;
    const struct tensor *peft = &safetensors_find(&file, "peft_forward/micro.0/logits")->tensor;
    cr_assert(worst_error(n, none->x, base) <= BOUND_FIRST);
    cr_assert(worst_error(n, on->x, peft) <= BOUND_FIRST);
    cr_assert_not(worst_error(n, on->x, base) <= 1e-3); /* the adapter matters */
    cr_assert_eq(memcmp(none->x, off->x, (size_t)n * sizeof(double)), 0);
    safetensors_close(&file);
    kept_free(&kept);
    study_close(&study);
}
