#include "harness/golden.h"

#include "harness/golden_answers.h"
#include "harness/golden_names.h"
#include "harness/judge_finding.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file */

static enum status check_entry(const struct golden *golden, const struct safetensors_entry *entry,
                               const struct job *job) {
    const char *path = golden->file.path;
    struct golden_name name;
    int64_t shape[3] = {0};
    char got[128], want[128];
    if (strlen(entry->name) != entry->name_length || !golden_name_parse(&name, entry->name, job, golden->tenant))
        return status_fail(
            STATUS_INPUT,
            "%s: tensor '%s' is not a golden name, expected delta/PARAMETER, merged/PARAMETER, "
            "base_forward/micro.M/logits, peft_forward/micro.M/logits, or step.S/ with "
            "micro.M/(logits, token_loss, hidden.L, router.L/...), loss, grad_norm, grad/KEY, param/KEY, "
            "optim/STATE/KEY of tenant %s",
            path, entry->name, job->tenant[golden->tenant].name);
    enum dtype dtype = golden_name_whole(&name) ? DTYPE_I64 : DTYPE_F64;
    if (entry->ndim != entry->tensor.ndim || entry->tensor.dtype != dtype)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' is %s, expected %s", path, entry->name,
                           dtype_name(entry->tensor.dtype), dtype_name(dtype));
    int ndim = golden_name_shape(&name, job, shape);
    if (ndim >= 0 && (entry->ndim != ndim || memcmp(shape, entry->tensor.shape, (size_t)ndim * sizeof *shape) != 0))
        return status_fail(STATUS_INPUT, "%s: tensor '%s' is %s, expected %s", path, entry->name,
                           shape_text(got, sizeof got, entry->ndim, entry->tensor.shape),
                           shape_text(want, sizeof want, ndim, shape));
    return STATUS_OK;
}

enum status golden_open(struct golden *out, const char *path, int tenant, const struct job *job) {
    *out = (struct golden){.tenant = tenant};
    enum status status;
    TRY(safetensors_open(&out->file, path));
    out->reached = calloc((size_t)out->file.count + 1, sizeof *out->reached);
    TRY_DONE(out->reached ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory"));
    TRY_DONE(out->file.count ? STATUS_OK : status_fail(STATUS_INPUT, "%s: no tensors, expected golden answers", path));
    for (int i = 0; i < out->file.count; i++)
        TRY_DONE(check_entry(out, &out->file.entries[i], job));
done:
    if (status != STATUS_OK)
        golden_close(out);
    return status;
}

void golden_close(struct golden *golden) {
    safetensors_close(&golden->file);
    free(golden->reached);
    *golden = (struct golden){0};
}

/* ---- errors */

/* The golden answers and the reference are two double computations of the same formulas: they differ by rounding alone,
 * some 1e3 operations deep, 2^-53 each, amplified by the conditions of norms and softmaxes: 1e-10. An update hands that
 * on through lr and momentum to everything after it: ten times that (docs/formats.md). */
double golden_bound(int updates) {
    return updates > 0 ? 1e-9 : 1e-10;
}

double golden_error(int64_t n, const double *got, const double *want, int64_t *at) {
    double largest = 0, worst = -1;
    for (int64_t i = 0; i < n; i++)
        if (fabs(want[i]) > largest)
            largest = fabs(want[i]);
    *at = 0;
    for (int64_t i = 0; i < n; i++) {
        double scale = fabs(want[i]) > 1e-3 * largest ? fabs(want[i]) : 1e-3 * largest;
        double error = fabs(got[i] - want[i]);
        if (scale > 0)
            error /= scale;
        if (!(error <= DBL_MAX)) {
            *at = i;
            return INFINITY;
        }
        if (error > worst) {
            worst = error;
            *at = i;
        }
    }
    return worst > 0 ? worst : 0;
}

/* ---- a free run beside the files */

struct check {
    const struct job *job;
    struct golden *golden;
    int goldens;
    struct report_case *report;
    struct answers *answers; /* or NULL */
};

static char *copied(const char *text, enum status *status) {
    char *copy = strdup(text);
    if (!copy)
        *status = status_fail(STATUS_MEMORY, "out of memory");
    return copy;
}

static enum status golden_finding(const struct check *check, const struct golden *golden,
                                  const struct safetensors_entry *entry, const double *got, const double *want,
                                  int64_t at, double error, double bound) {
    struct report_finding *finding = &check->report->finding;
    struct golden_name name;
    enum status status = STATUS_OK;
    char text[2048] = "", place[160];
    const char *tenant = check->job->tenant[golden->tenant].name;
    if (finding->present)
        return report_strings_add(&check->report->consequences, entry->name);
    golden_name_parse(&name, entry->name, check->job, golden->tenant);
    *finding = (struct report_finding){.present = true,
                                       .kind = FINDING_GOLDEN,
                                       .step = name.step,
                                       .micro = name.micro,
                                       .slot = -1,
                                       .rank = -1,
                                       .expert = -1,
                                       .numbers = true,
                                       .dims = entry->ndim,
                                       .want = want[at],
                                       .got = got[at],
                                       .error = error,
                                       .bar = bound};
    unravel(entry->ndim, entry->tensor.shape, at, finding->index);
    say(text, sizeof text, "%s: the reference differs from the golden answer %s", golden->file.path, entry->name);
    if (entry->ndim > 0)
        say(text, sizeof text, " at %s", shape_text(place, sizeof place, entry->ndim, finding->index));
    say(text, sizeof text, " (tenant %s): got %.17g, want %.17g, relative error %.3g where %.0e is allowed.", tenant,
        got[at], want[at], error, bound);
    if (entry->ndim > 0)
        window_text(text, sizeof text, entry->tensor.shape[entry->ndim - 1], at, want, got);
    finding->tensor = copied(entry->name, &status);
    finding->tenant = copied(tenant, &status);
    finding->text = copied(text, &status);
    return status;
}

/* The first time a tensor is reached it is counted, and the first time it is wrong it is reported. */
static enum status note_entry(struct check *check, struct golden *golden, const struct safetensors_entry *entry,
                              const double *got, const double *want, double bound) {
    unsigned char *reached = &golden->reached[entry - golden->file.entries];
    int64_t at;
    double error = golden_error(tensor_elements(&entry->tensor), got, want, &at);
    if (*reached == GOLDEN_UNREACHED)
        check->report->golden_compared++;
    if (!(error <= check->report->golden_worst))
        check->report->golden_worst = error;
    bool fresh = *reached != GOLDEN_WRONG;
    if (error <= bound) {
        *reached = fresh ? GOLDEN_RIGHT : GOLDEN_WRONG;
        return STATUS_OK;
    }
    *reached = GOLDEN_WRONG;
    return fresh ? golden_finding(check, golden, entry, got, want, at, error, bound) : STATUS_OK;
}

/* Compares one tensor of a file. `got` is in the golden tensor's own form. */
static enum status compare_entry(struct check *check, struct golden *golden, const struct safetensors_entry *entry,
                                 const double *got, int64_t elements, int updates) {
    if (elements != tensor_elements(&entry->tensor))
        return status_fail(STATUS_INTERNAL, "%s: %s: %lld elements against %lld", golden->file.path, entry->name,
                           (long long)elements, (long long)tensor_elements(&entry->tensor));
    double *want = malloc((size_t)(elements + 1) * sizeof *want);
    if (!want)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < elements; i++)
        want[i] = tensor_get(&entry->tensor, i);
    enum status status = note_entry(check, golden, entry, got, want, golden_bound(updates));
    free(want);
    return status;
}

static int64_t elements_of(const struct value *value) {
    int64_t elements = 1;
    for (int d = 0; d < value->ndim; d++)
        elements *= value->shape[d];
    return elements;
}

/* ---- points of the run */

/* The key of a trained tensor: the adapter's of a slot tensor, the base name of a parameter; NULL: neither. */
static const char *tensor_key(const struct point *point, const struct adapter_target *target) {
    if (!point->param || point->activation != ACT_NONE)
        return NULL;
    if (point->part == PART_WEIGHT)
        return point->param->name;
    if (!target || (point->part != PART_LORA_A && point->part != PART_LORA_B))
        return NULL;
    return point->part == PART_LORA_B ? target->key_b : target->key_a;
}

/* The golden name of a point of the tenant's own step S; false if golden files hold nothing like it. */
static bool point_golden_name(char *out, size_t size, const struct point *point, int step,
                              const struct adapter_target *target) {
    const char *key = tensor_key(point, target);
    switch (point->phase) {
    case PHASE_FORWARD:
        switch (point->activation) {
        case ACT_HEAD:
            return snprintf(out, size, "step.%d/micro.%d/logits", step, point->micro) > 0;
        case ACT_TOKEN_LOSS:
            return snprintf(out, size, "step.%d/micro.%d/token_loss", step, point->micro) > 0;
        case ACT_LAYER:
            return snprintf(out, size, "step.%d/micro.%d/hidden.%d", step, point->micro, point->layer) > 0;
        case ACT_ROUTER_LOGITS:
            return snprintf(out, size, "step.%d/micro.%d/router.%d/logits", step, point->micro, point->layer) > 0;
        case ACT_TOPK_INDEX:
            return snprintf(out, size, "step.%d/micro.%d/router.%d/topk_index", step, point->micro, point->layer) > 0;
        case ACT_TOPK_WEIGHT:
            return snprintf(out, size, "step.%d/micro.%d/router.%d/topk_weight", step, point->micro, point->layer) > 0;
        default:
            return false;
        }
    case PHASE_LOSS:
        return strcmp(point->scalar, "loss") == 0 && snprintf(out, size, "step.%d/loss", step) > 0;
    case PHASE_CLIP:
        return point->scalar && snprintf(out, size, "step.%d/grad_norm", step) > 0;
    case PHASE_GRAD:
        return key && point->micro < 0 && snprintf(out, size, "step.%d/grad/%s", step, key) > 0;
    case PHASE_UPDATE:
        return key && snprintf(out, size, "step.%d/param/%s", step, key) > 0;
    case PHASE_OPTIMIZER:
        return key && snprintf(out, size, "step.%d/optim/%s/%s", step, point->state, key) > 0;
    default:
        return false;
    }
}

/* A slot tensor in PEFT's flat form; anything else as it is. The caller frees *out. */
static enum status golden_form(const struct check *check, const struct point *point, const struct value *value,
                               const struct adapter_target *target, double **out, int64_t *elements) {
    *elements = elements_of(value);
    if (target)
        *elements = tensor_elements(point->part == PART_LORA_B ? &target->b : &target->a);
    *out = malloc((size_t)(*elements + 1) * sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < *elements; i++)
        (*out)[i] = NAN;
    if (!target)
        memcpy(*out, value->x, (size_t)*elements * sizeof **out);
    else if (point->part == PART_LORA_B)
        reference_flatten_b(target, check->job->max_rank, value->x, *out);
    else
        reference_flatten_a(target, check->job->max_rank, value->x, *out);
    return STATUS_OK;
}

static enum status check_point(struct check *check, struct golden *golden, const struct point *point,
                               const struct value *value, int own_step, int updates) {
    char name[POINT_NAME_MAX];
    const struct adapter_target *target = NULL;
    if (point->activation == ACT_NONE && point->param && point->part != PART_WEIGHT)
        target = adapter_find(&check->job->tenant[golden->tenant].adapter, point->param);
    if (!point_golden_name(name, sizeof name, point, own_step, target))
        return STATUS_OK;
    const struct safetensors_entry *entry = safetensors_find(&golden->file, name);
    if (!entry)
        return STATUS_OK;
    double *got;
    int64_t elements;
    TRY(golden_form(check, point, value, target, &got, &elements));
    enum status status = compare_entry(check, golden, entry, got, elements, updates);
    free(got);
    return status;
}

static enum status check_emit(void *context, const struct point *point, struct value *value) {
    struct check *check = context;
    const struct action *action = step_action(check->job, point->step);
    bool wanted = answer_wanted(point, check->job->clip.present);
    if (!action || (!wanted && point->phase != PHASE_CLIP))
        return STATUS_OK;
    bool after = point->phase == PHASE_UPDATE || point->phase == PHASE_OPTIMIZER;
    int updates = (int)step_updates(check->job, point->step) + after;
    for (int g = 0; g < check->goldens && action->kind != ACTION_EVALUATE; g++)
        if (check->golden[g].tenant == action->tenant)
            TRY(check_point(check, &check->golden[g], point, value, action->own_step, updates));
    return check->answers && wanted ? answers_add(check->answers, point, updates, value) : STATUS_OK;
}

/* ---- answers at a tenant's acquire */

static int micro_index(const struct job *job, int number) {
    for (int m = 0; m < job->micros; m++)
        if (job->micro[m].number == number)
            return m;
    return -1;
}

/* False: nothing in this job answers it. */
static enum status answer(const struct check *check, struct reference *reference, int tenant,
                          const struct golden_name *name, struct value *out, bool *answered) {
    int micro = micro_index(check->job, name->micro);
    bool adapted = name->param && adapter_find(&check->job->tenant[tenant].adapter, name->param);
    *answered = true;
    if (name->kind == GOLDEN_DELTA && adapted)
        return reference_answer_delta(reference, tenant, name->param, out);
    if (name->kind == GOLDEN_MERGED && adapted)
        return reference_answer_merged(reference, tenant, name->param, out);
    if (name->kind == GOLDEN_BASE_FORWARD && micro >= 0)
        return reference_answer_logits(reference, -1, micro, out);
    if (name->kind == GOLDEN_PEFT_FORWARD && micro >= 0)
        return reference_answer_logits(reference, tenant, micro, out);
    *answered = false;
    return STATUS_OK;
}

static enum status check_acquired(void *context, struct reference *reference, int tenant) {
    struct check *check = context;
    for (int g = 0; g < check->goldens; g++) {
        struct golden *golden = &check->golden[g];
        for (int i = 0; golden->tenant == tenant && i < golden->file.count; i++) {
            const struct safetensors_entry *entry = &golden->file.entries[i];
            struct golden_name name;
            struct value value = {0};
            bool answered = false;
            if (!golden_name_parse(&name, entry->name, check->job, tenant) || name.step >= 0)
                continue;
            if (golden->reached[i] != GOLDEN_UNREACHED && check->job->trains) /* the base has moved since */
                continue;
            enum status status = answer(check, reference, tenant, &name, &value, &answered);
            if (status == STATUS_OK && answered)
                status = compare_entry(check, golden, entry, value.x, elements_of(&value), 0);
            value_free(&value);
            TRY(status);
        }
    }
    return STATUS_OK;
}

enum status golden_check(const struct job *job, struct golden *golden, int goldens, struct report_case *one,
                         struct answers **answers) {
    struct check check = {.job = job, .golden = golden, .goldens = goldens, .report = one};
    struct reference_options options = {.norm = true};
    struct reference_hooks hooks = {.context = &check, .emit = check_emit, .acquired = check_acquired};
    if (answers) {
        *answers = check.answers = calloc(1, sizeof *check.answers);
        if (!check.answers)
            return status_fail(STATUS_MEMORY, "out of memory");
    }
    for (int g = 0; g < goldens; g++)
        memset(golden[g].reached, GOLDEN_UNREACHED, (size_t)golden[g].file.count);
    one->golden = goldens > 0;
    TRY(reference_run(job, &options, &hooks));
    for (int g = 0; g < goldens; g++)
        for (int i = 0; i < golden[g].file.count; i++)
            if (golden[g].reached[i] == GOLDEN_UNREACHED)
                TRY(report_strings_add(&one->golden_unreached, golden[g].file.entries[i].name));
    return STATUS_OK;
}
