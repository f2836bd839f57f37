/* Gradients that no golden file holds (adapters on router, dense MLP, head, tied head; base parameters of all kinds),
 * against differences of the loss. */
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

/* ---- base parameters: weights of all maps, norms, biases, embeddings; some adapted at the same time */

/* Elements of one trained parameter: the first, the last and one between; of the embedding a row of a word that occurs.
 */
static void check_parameter(const struct study *study, const struct param *param) {
    int64_t elements = 1, row = param->shape[param->ndim - 1];
    for (int dim = 0; dim < param->ndim; dim++)
        elements *= param->shape[dim];
    int64_t at[] = {0, elements / 2, elements - 1};
    if (param->kind == PARAM_EMBED) {
        const struct tensor *ids = &study->job.micro[study->action[1].micro[0]].input_ids;
        at[0] = (int64_t)tensor_get(ids, 0) * row;
        at[1] = (int64_t)tensor_get(ids, 1) * row + row / 2;
    }
    for (int i = 0; i < 3; i++)
        check_element(study, (struct nudge){.param = param, .part = PART_WEIGHT, .at = at[i]});
}

static void check_base(struct study *study, const int *numbers, int at_least) {
    const struct inventory *inventory = checkpoint_inventory(study->job.model);
    int checked = 0;
    study_acquire(study, 0);
    study_train(study, 0, 2, numbers);
    for (int i = 0; i < inventory->count; i++) {
        if (!study->trains[i])
            continue;
        check_parameter(study, &inventory->params[i]);
        checked++;
    }
    cr_assert_geq(checked, at_least);
    study_close(study);
}

/* Untied: embedding, norms, attention, router, experts, head; q, head and router adapted, too. */
Test(gradient, every_base_parameter_of_a_sparse_model) {
    static const int numbers[] = {2, 3};
    struct study study;
    study_make(&study, "qwen3_moe_tiny", (const char *const[]){"q_proj", "lm_head", NULL}, DTYPE_F64);
    study_trains(&study, "*");
    check_base(&study, numbers, 3 + 2 * 11);
}

/* Tied and adapted: both uses of the embedding, and the dense layer. */
Test(gradient, a_tied_embedding_and_a_dense_layer) {
    static const int numbers[] = {2, 3};
    struct study study;
    study_make(&study, "qwen3_moe_uneven", (const char *const[]){"lm_head", "mlp.up_proj", NULL}, DTYPE_F64);
    study_trains(&study, "model.embed_tokens.weight");
    study_trains(&study, "model.layers.0.*");
    check_base(&study, numbers, 1 + 11);
}

/* Tied, the head not adapted. */
Test(gradient, a_tied_embedding_without_an_adapter_on_the_head) {
    static const int numbers[] = {2, 3};
    struct study study;
    study_make(&study, "qwen3_moe_uneven", (const char *const[]){"q_proj", NULL}, DTYPE_F64);
    study_trains(&study, "model.embed_tokens.weight");
    check_base(&study, numbers, 1);
}

Test(gradient, biases_of_the_projections) {
    static const int numbers[] = {0, 1};
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 10, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
        "\"num_key_value_heads\": 1, \"head_dim\": 4, \"vocab_size\": 17, \"num_experts\": 5, \"num_experts_per_tok\": "
        "2,"
        "\"moe_intermediate_size\": 3, \"intermediate_size\": 7, \"attention_bias\": true, \"norm_topk_prob\": true}";
    struct study study;
    study_config(&study, config, DTYPE_F64);
    study_made_tenant(&study, (const char *const[]){"k_proj", NULL});
    study_trains(&study, "*.bias");
    check_base(&study, numbers, 2 * 4);
}
