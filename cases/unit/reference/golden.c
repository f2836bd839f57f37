/* The free-running reference against PyTorch + PEFT: every tensor of every file, each once. */
#include "study.h"

#include "core/safetensors.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Double precision on both sides, a few hundred operations deep: 1e-10; after a step answers have passed through an
 * update. */
#define BOUND_FIRST 1e-10
#define BOUND_LATER 1e-9
#define PATH_ROOM 1024

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

/* A trained tensor: a base parameter under its own name, a slot's A or B under its PEFT key and in its flat form. */
static void hold_trained(struct check *check, const char *kind, const struct point *point, const struct value *value) {
    const struct adapter_target *target = adapter_find(&check->study->tenant[0].adapter, point->param);
    bool a = point->part == PART_LORA_A;
    double bound = point->step ? BOUND_LATER : BOUND_FIRST;
    char name[512];
    if (point->part == PART_WEIGHT) {
        snprintf(name, sizeof name, "step.%d/%s/%s", point->step, kind, point->param->name);
        hold(check, name, value->x, elements_of(value), bound);
        return;
    }
    int64_t n = target->experts * target->lora_rank * (a ? target->in : target->out);
    double *flat = malloc((size_t)n * sizeof *flat);
    if (a)
        reference_flatten_a(target, STUDY_RANK, value->x, flat);
    else
        reference_flatten_b(target, STUDY_RANK, value->x, flat);
    snprintf(name, sizeof name, "step.%d/%s/%s", point->step, kind, a ? target->key_a : target->key_b);
    hold(check, name, flat, n, bound);
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
        if (point->param)
            break;
        snprintf(name, sizeof name, "step.%d/grad_norm", point->step);
        hold(check, name, value->x, 1, bound);
        break;
    case PHASE_GRAD:
        if (point->micro < 0)
            hold_trained(check, "grad", point, value);
        break;
    case PHASE_UPDATE:
        hold_trained(check, "param", point, value);
        break;
    case PHASE_OPTIMIZER:
        snprintf(name, sizeof name, "optim/%s", point->state);
        hold_trained(check, name, point, value);
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

struct row { /* no pointers: rows travel to the test's own process */
    char fixture[24], recipe[8], tenant[4];
    int tensors;
};

/* The numbers of tensors: read from the files' headers with Python's json. */
static struct row rows[] = {
    {"qwen3_moe_tiny", "sgd", "ada", 76},       {"qwen3_moe_tiny", "sgd", "bob", 168},
    {"qwen3_moe_tiny", "sgd", "cyd", 44},       {"qwen3_moe_tiny", "sgd", "dov", 70},
    {"qwen3_moe_tiny", "sgd", "eve", 168},      {"qwen3_moe_tiny", "adamw", "ada", 68},
    {"qwen3_moe_tiny", "adamw", "dov", 68},     {"qwen3_moe_tiny", "router", "ada", 136},
    {"qwen3_moe_tiny", "router", "dov", 136},   {"qwen3_moe_uneven", "sgd", "fay", 71},
    {"qwen3_moe_uneven", "sgd", "gus", 133},    {"qwen3_moe_uneven", "adamw", "fay", 68},
    {"qwen3_moe_uneven", "router", "gus", 220}, {"qwen3_moe_medium", "sgd", "ola", 50},
    {"qwen3_moe_medium", "sgd", "pia", 106},
};
#define ROWS (sizeof rows / sizeof *rows)

static char *row_path(char path[PATH_ROOM], const struct row *row) {
    snprintf(path, PATH_ROOM, "fixtures/golden/%s/golden/%s/%s.safetensors", row->fixture, row->recipe, row->tenant);
    return path;
}

ParameterizedTestParameters(golden, every_tensor_of_a_file) {
    return cr_make_param_array(struct row, rows, ROWS);
}

ParameterizedTest(struct row *row, golden, every_tensor_of_a_file) {
    struct study study;
    struct check check = {.study = &study};
    char path[PATH_ROOM];
    study_open(&study, row->fixture, row->tenant, DTYPE_F64);
    study_recipe(&study, row->fixture, row->recipe);
    study_recipe_steps(&study, 0);
    cr_assert_eq(safetensors_open(&check.file, row_path(path, row)), STATUS_OK, "%s", status_note());
    check.done = calloc((size_t)check.file.count, sizeof *check.done);
    struct reference_hooks hooks = {&check, golden_hook, golden_acquired};
    struct reference_options options = {.norm = true};
    cr_assert_eq(reference_run(&study.job, &options, &hooks), STATUS_OK, "%s", status_note());
    for (int i = 0; i < check.file.count; i++)
        cr_assert(check.done[i], "%s: %s was not compared", path, check.file.entries[i].name);
    cr_assert_eq(check.compared, row->tensors);
    free(check.done);
    safetensors_close(&check.file);
    study_close(&study);
}

Test(golden, every_file_has_a_row) {
    glob_t files;
    cr_assert_eq(glob("fixtures/golden/qwen3_*/golden/*/*.safetensors", 0, NULL, &files), 0);
    cr_assert_eq(files.gl_pathc, ROWS);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        bool found = false;
        for (size_t j = 0; j < ROWS; j++) {
            char path[PATH_ROOM];
            found = found || strcmp(row_path(path, &rows[j]), files.gl_pathv[i]) == 0;
        }
        cr_assert(found, "%s is compared by no test", files.gl_pathv[i]);
    }
    globfree(&files);
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
