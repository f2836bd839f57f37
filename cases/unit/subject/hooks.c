/* Overwriting shards before a step, and evaluations under no adapter. */
#include "job_of.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TINY "qwen3_moe_tiny"

/* A whole tensor of whole numbers: element i is i + step / 2. */
static enum status write_over(struct subject *subject, const struct param *param, enum part part, int slot,
                              const char *state, int ndim, const int64_t *shape, int step) {
    struct tensor whole = {0};
    struct point point = POINT_NONE;
    TRY(tensor_make(&whole, subject->dtype, ndim, shape));
    for (int64_t i = 0; i < tensor_elements(&whole); i++)
        tensor_set(&whole, i, (double)i + step * 0.5);
    point.phase = PHASE_PARAM;
    point.step = step;
    point.param = param;
    point.part = part;
    point.slot = slot;
    point.state = state;
    enum status status = subject_overwrite(subject, &point, &whole);
    tensor_free(&whole);
    return status;
}

static enum status overwrite(void *context, struct subject *subject, int step) {
    const struct param *q = inventory_named(subject->inventory, "model.layers.1.self_attn.q_proj.weight");
    const struct param *down = inventory_named(subject->inventory, "model.layers.0.mlp.experts.down_proj");
    const int64_t b[] = {12, 20, 6}, a[] = {12, 6, 14};
    (void)context;
    TRY(write_over(subject, q, PART_WEIGHT, -1, NULL, 2, q->shape, step));
    TRY(write_over(subject, down, PART_LORA_B, -1, NULL, 3, b, step));
    TRY(write_over(subject, down, PART_LORA_A, -1, "momentum_buffer", 3, a, step));
    return write_over(subject, down, PART_LORA_A, 0, NULL, 3, a, step); /* the other tenant's slot */
}

/* Each rank's elements are whole numbers + step / 2, and over all ranks each stands once per holder. */
static void expect_overwritten(const struct run *run, int step, const char *tensor, int64_t elements) {
    int64_t total = 0;
    double sum = 0;
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++) {
        const struct tensor *piece = kept_need(run, rank, "step.%d/param/%s", step, tensor);
        for (int64_t i = 0; i < tensor_elements(piece); i++, total++)
            sum += tensor_get(piece, i) - step * 0.5;
    }
    cr_expect_eq(total, elements, "%s", tensor);
    cr_expect_eq(sum, (double)(elements * (elements - 1) / 2), "%s", tensor);
}

Test(hooks, overwrite_before_a_step) {
    struct made_job made;
    struct run run = {.before_step = overwrite};
    job_of(&made, TINY, "ada", "bob", DTYPE_F64, 3, 6);
    run_world(&run, &made.job, mesh_of("ep", 2, "fsdp", 2));
    for (int step = 0; step < STEPS; step++) {
        expect_overwritten(&run, step, "model.layers.1.self_attn.q_proj.weight", 24 * 20);
        expect_overwritten(&run, step, "model.layers.0.mlp.experts.down_proj.lora_B", 12 * 20 * 6);
        expect_overwritten(&run, step, "momentum_buffer/model.layers.0.mlp.experts.down_proj.lora_A", 12 * 6 * 14);
        expect_overwritten(&run, step, "slot.0/model.layers.0.mlp.experts.down_proj.lora_A", 12 * 6 * 14);
    }
    run_done(&run);
    job_done(&made);
}

/* States of a base weight: the acting tenant's, and the one of slot 0. */
static enum status overwrite_states(void *context, struct subject *subject, int step) {
    const struct param *q = inventory_named(subject->inventory, "model.layers.1.self_attn.q_proj.weight");
    (void)context;
    TRY(write_over(subject, q, PART_WEIGHT, -1, "exp_avg", 2, q->shape, step));
    return write_over(subject, q, PART_WEIGHT, 0, "exp_avg_sq", 2, q->shape, step);
}

Test(hooks, overwrite_states_of_the_base) {
    struct made_job made;
    struct run run = {.before_step = overwrite_states};
    job_of(&made, TINY, "ada", "bob", DTYPE_F64, 3, 6);
    job_trains_base(&made, "*.q_proj.weight");
    made.job.optimizer =
        (struct optimizer){.kind = OPTIMIZER_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    run_world(&run, &made.job, mesh_of("ep", 2, "fsdp", 2));
    for (int step = 0; step < STEPS; step++) {
        expect_overwritten(&run, step, "exp_avg/model.layers.1.self_attn.q_proj.weight", 24 * 20);
        expect_overwritten(&run, step, "slot.0/exp_avg_sq/model.layers.1.self_attn.q_proj.weight", 24 * 20);
    }
    run_done(&run);
    job_done(&made);
}

/* Evaluations: with the tenant, with the tenant switched off, with none; the last two are the base bit for bit. */
Test(hooks, disabled_is_the_base) {
    struct made_job made;
    struct run run = {0};
    int micro = 0;
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 2);
    made.actions[1] =
        (struct action){.kind = ACTION_EVALUATE, .tenant = 0, .micros = 1, .micro = &micro, .opens = true, .step = 0};
    made.actions[2] = (struct action){.kind = ACTION_ENTER, .tenant = 0};
    made.actions[3] = (struct action){
        .kind = ACTION_EVALUATE, .tenant = 0, .disabled = true, .micros = 1, .micro = &micro, .opens = true, .step = 1};
    made.actions[4] = (struct action){.kind = ACTION_LEAVE, .tenant = 0};
    made.actions[5] =
        (struct action){.kind = ACTION_EVALUATE, .tenant = -1, .micros = 1, .micro = &micro, .opens = true, .step = 2};
    made.job.actions = 6;
    run_world(&run, &made.job, mesh_of("ep", 2, "fsdp", 1));
    for (int rank = 0; rank < 2; rank++) {
        const struct tensor *with = kept_need(&run, rank, "step.0/micro.0/forward/lm_head");
        const struct tensor *off = kept_need(&run, rank, "step.1/micro.0/forward/lm_head");
        const struct tensor *none = kept_need(&run, rank, "step.2/micro.0/forward/lm_head");
        cr_expect_neq(memcmp(with->data, off->data, tensor_bytes(with)), 0);
        cr_expect_eq(memcmp(none->data, off->data, tensor_bytes(none)), 0);
        cr_expect_null(kept_find(&run, rank, "step.1/micro.0/gather/model.layers.0.mlp.experts.down_proj.lora_A"));
        kept_need(&run, rank, "step.1/param/slot.0/model.layers.0.mlp.experts.down_proj.lora_A");
        kept_need(&run, rank, "step.0/param/momentum_buffer/model.layers.0.mlp.experts.down_proj.lora_A");
        cr_expect_null(kept_find(&run, rank, "step.0/micro.0/backward/lm_head"));
    }
    run_done(&run);
    job_done(&made);
}

/* The acting slot of rank 2 in 6 rows, before the first step: rows below 2 small numbers, rows beyond `beyond`. */
static enum status fill_rows(struct subject *subject, double beyond) {
    const struct param *down = inventory_named(subject->inventory, "model.layers.0.mlp.experts.down_proj");
    const int64_t shapes[FACTORS][3] = {{12, 6, 14}, {12, 20, 6}};
    for (int which = 0; which < FACTORS; which++) {
        struct point point = POINT_NONE;
        struct tensor whole = {0};
        point.param = down;
        point.part = FACTOR_PART(which);
        TRY(tensor_make(&whole, subject->dtype, 3, shapes[which]));
        for (int64_t i = 0; i < tensor_elements(&whole); i++) {
            int64_t row = which == FACTOR_A ? i / 14 % 6 : i % 6;
            tensor_set(&whole, i, row < 2 ? 0.01 * (double)(i % 7 - 3) : beyond);
        }
        enum status status = subject_overwrite(subject, &point, &whole);
        tensor_free(&whole);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status zeros_beyond(void *context, struct subject *subject, int step) {
    (void)context;
    return step == 0 ? fill_rows(subject, 0.0) : STATUS_OK;
}

static enum status nan_beyond(void *context, struct subject *subject, int step) {
    (void)context;
    return step == 0 ? fill_rows(subject, NAN) : STATUS_OK;
}

static bool holds_slot_rows(const struct point *point) {
    bool held = point->phase == PHASE_PARAM || point->phase == PHASE_UPDATE || point->phase == PHASE_GATHER ||
                point->phase == PHASE_REGATHER;
    return held && point->part != PART_WEIGHT && !point->state;
}

/* NaN in the rows that the tenant does not have leaves no trace but where the rows themselves are shown. */
Test(hooks, rows_beyond_the_rank_are_not_read) {
    struct made_job made;
    struct run zeros = {.before_step = zeros_beyond}, nans = {.before_step = nan_beyond};
    int compared = 0;
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 6);
    run_world(&zeros, &made.job, mesh_of("ep", 2, "fsdp", 2));
    run_world(&nans, &made.job, mesh_of("ep", 2, "fsdp", 2));
    for (int rank = 0; rank < 4; rank++)
        for (const struct kept *a = zeros.kept[rank], *b = nans.kept[rank]; a; a = a->next, b = b->next, compared++)
            if (!holds_slot_rows(&a->point))
                cr_expect(memcmp(a->tensor.data, b->tensor.data, tensor_bytes(&a->tensor)) == 0, "%s", a->name);
    cr_expect_gt(compared, 1000);
    run_done(&nans);
    run_done(&zeros);
    job_done(&made);
}
