/* Rows beyond a tenant's rank are not read by anything, and no update touches them. */
#include "study.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int first[] = {0, 2}, second[] = {3, 1};

struct beyond {
    struct kept kept;
    const struct adapter *adapter;
    bool nan;
    int rows; /* elements beyond */
};

/* Rows beyond the rank: NaN or zero where the slot itself is recorded, zero in gradients and states; then they are put
 * to zero, so that runs can be compared. */
static enum status beyond_hook(void *context, const struct point *point, struct value *value) {
    struct beyond *beyond = context;
    bool lora = point->param && (point->part == PART_LORA_A || point->part == PART_LORA_B);
    const struct adapter_target *target = lora ? adapter_find(beyond->adapter, point->param) : NULL;
    char name[POINT_NAME_MAX];
    bool derived = point->state || point->phase == PHASE_GRAD || point->phase == PHASE_CLIP ||
                   point->phase == PHASE_OPTIMIZER || point->phase == PHASE_BACKWARD;
    struct value copy = *value;
    copy.x = malloc((size_t)elements_of(value) * sizeof(double));
    for (int64_t i = 0; i < elements_of(value); i++) {
        copy.x[i] = value->x[i];
        if (!target)
            continue;
        int64_t row = point->part == PART_LORA_A ? i / target->in % STUDY_RANK : i % STUDY_RANK;
        if (row < target->lora_rank)
            continue;
        cr_assert(beyond->nan && !derived ? isnan(value->x[i]) : value->x[i] == 0, "%s[%lld]: %g",
                  point_name(name, point), (long long)i, value->x[i]);
        copy.x[i] = 0;
        beyond->rows++;
    }
    for (int64_t i = 0; i < elements_of(value); i++)
        cr_assert(isfinite(copy.x[i]), "%s[%lld]", point_name(name, point), (long long)i);
    enum status status = kept_hook(&beyond->kept, point, &copy);
    free(copy.x);
    return status;
}

/* One slot, bob's from the first to the last record. */
static void run_beyond(struct optimizer optimizer, bool nan, struct beyond *beyond) {
    struct study study;
    study_open(&study, "qwen3_moe_tiny", "bob", DTYPE_F64);
    study.job.optimizer = optimizer;
    study.job.clip = (struct clip){.present = true, .max = 1};
    study.job.beyond_nan = nan;
    study.job.slots = 1;
    *beyond = (struct beyond){.adapter = &study.tenant[0].adapter, .nan = nan};
    study_acquire(&study, 0);
    study_train(&study, 0, 2, first);
    study_train(&study, 0, 2, second);
    study_export(&study, 0);
    study_evaluate(&study, 0, false, 2);
    study_run(&study, (struct reference_options){0}, beyond_hook, beyond);
    study_close(&study);
}

static void assert_no_trace(struct optimizer optimizer) {
    struct beyond zero, nan;
    run_beyond(optimizer, false, &zero);
    run_beyond(optimizer, true, &nan);
    cr_assert_eq(zero.kept.count, nan.kept.count);
    cr_assert_eq(zero.rows, nan.rows);
    cr_assert_gt(nan.rows, 10000);
    for (int i = 0; i < zero.kept.count; i++) {
        const struct value *a = &zero.kept.value[i], *b = &nan.kept.value[i];
        cr_assert_str_eq(zero.kept.name[i], nan.kept.name[i]);
        cr_assert_eq(memcmp(a->x, b->x, (size_t)elements_of(a) * sizeof(double)), 0, "%s", zero.kept.name[i]);
    }
    kept_free(&zero.kept);
    kept_free(&nan.kept);
}

Test(tenants, nan_beyond_the_rank_leaves_no_trace) {
    assert_no_trace((struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1});
    assert_no_trace(
        (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true});
    assert_no_trace((struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8});
}

/* Whatever stands there stays, also under weight decay. */
struct stays {
    const struct adapter *adapter;
    int seen;
};

static enum status stays_hook(void *context, const struct point *point, struct value *value) {
    struct stays *stays = context;
    bool slot = point->param && (point->part == PART_LORA_A || point->part == PART_LORA_B) && !point->state;
    bool put = point->phase == PHASE_PARAM && point->step == 0;
    if (!slot || point->slot >= 0 || (!put && point->phase != PHASE_UPDATE))
        return STATUS_OK;
    const struct adapter_target *target = adapter_find(stays->adapter, point->param);
    for (int64_t i = 0; i < elements_of(value); i++) {
        int64_t row = point->part == PART_LORA_A ? i / target->in % STUDY_RANK : i % STUDY_RANK;
        if (row < target->lora_rank)
            continue;
        if (!put)
            cr_assert_eq(value->x[i], 3);
        value->x[i] = 3;
        stays->seen += !put;
    }
    return STATUS_OK;
}

static void assert_stays(struct optimizer optimizer) {
    struct study study;
    study_open(&study, "qwen3_moe_tiny", "bob", DTYPE_F64);
    study.job.optimizer = optimizer;
    struct stays stays = {.adapter = &study.tenant[0].adapter};
    study_acquire(&study, 0);
    study_train(&study, 0, 2, first);
    study_train(&study, 0, 2, second);
    study_run(&study, (struct reference_options){0}, stays_hook, &stays);
    cr_assert_gt(stays.seen, 1000);
    study_close(&study);
}

Test(tenants, values_beyond_the_rank_stay) {
    assert_stays((struct optimizer){.lr = 0.1, .weight_decay = 0.5});
    assert_stays((struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.1, .weight_decay = 0.5, .beta1 = 0.5, .beta2 = 0.5, .eps = 1e-8});
}
