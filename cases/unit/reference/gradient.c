/* Gradients of maps that no golden file trains (router, dense MLP, head, tied head), against differences of the loss.
 */
#include "study.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nudge { /* adds `by` to one element of one slot tensor before each step, and keeps loss and gradient */
    const struct param *param;
    enum part part;
    int64_t at;
    double by;
    double loss, gradient;
    double largest;
};

static enum status nudge_hook(void *context, const struct point *point, struct value *value) {
    struct nudge *nudge = context;
    bool there = point->param == nudge->param && point->part == nudge->part && point->slot < 0 && !point->state;
    if (there && point->phase == PHASE_PARAM && point->step == 0)
        value->x[nudge->at] += nudge->by;
    if (point->phase == PHASE_LOSS && strcmp(point->scalar, "loss") == 0)
        nudge->loss = value->x[0];
    if (!there || point->phase != PHASE_GRAD || point->micro >= 0)
        return STATUS_OK;
    nudge->gradient = value->x[nudge->at];
    for (int64_t i = 0; i < elements_of(value); i++)
        nudge->largest = fmax(nudge->largest, fabs(value->x[i]));
    return STATUS_OK;
}

static double loss_at(const struct study *study, struct nudge nudge, double by) {
    nudge.by = by;
    study_run(study, (struct reference_options){0}, nudge_hook, &nudge);
    return nudge.loss;
}

/* D(h) = (L(+h) - L(-h)) / 2h has error h^2 L'''/6 + O(h^4), D(2h) four times that: |D(2h) - D(h)| is three times the
 * error of D(h). Rounding: each loss is a mean of logarithms whose last bits come out of a chain of products: 64 of its
 * ulps over h. */
static void check_element(const struct study *study, struct nudge nudge) {
    const double h = 0x1p-10;
    study_run(study, (struct reference_options){0}, nudge_hook, &nudge);
    double near = (loss_at(study, nudge, h) - loss_at(study, nudge, -h)) / (2 * h);
    double far = (loss_at(study, nudge, 2 * h) - loss_at(study, nudge, -2 * h)) / (4 * h);
    double bar = fabs(far - near) + 64 * 0x1p-53 * fabs(nudge.loss) / h;
    cr_assert_lt(bar, 1e-3 * nudge.largest, "%s: a bar of %g cannot judge %g", nudge.param->name, bar, nudge.largest);
    cr_assert(fabs(near - nudge.gradient) <= bar, "%s part %d element %lld: %.12g, not %.12g", nudge.param->name,
              (int)nudge.part, (long long)nudge.at, nudge.gradient, near);
}

static void check_all(const char *fixture, const char *const *modules, int at_least) {
    static const int numbers[] = {2, 3};
    struct study study;
    study_make(&study, fixture, modules, DTYPE_F64);
    study_acquire(&study, 0);
    study_train(&study, 0, 2, numbers);
    const struct adapter *adapter = &study.tenant[0].adapter;
    cr_assert_geq(adapter->count, at_least);
    for (int i = 0; i < adapter->count; i++) {
        const struct adapter_target *target = &adapter->targets[i];
        for (int64_t which = 0; which < 2; which++) {
            int64_t row = which * (target->out - 1), column = which * (target->in / 2);
            check_element(
                &study, (struct nudge){.param = target->param, .part = PART_LORA_A, .at = which * target->in + column});
            check_element(&study,
                          (struct nudge){.param = target->param, .part = PART_LORA_B, .at = row * STUDY_RANK + which});
        }
    }
    study_close(&study);
}

Test(gradient, router_and_attention_with_normalised_weights) {
    check_all("qwen3_moe_tiny", (const char *const[]){"q_proj", "v_proj", "lm_head", NULL}, 7);
}

Test(gradient, tied_head_dense_mlp_and_router_without_normalisation) {
    check_all("qwen3_moe_uneven",
              (const char *const[]){"lm_head", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", NULL}, 6);
}
