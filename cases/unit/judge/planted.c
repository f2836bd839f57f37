/* One thing wrong in a perfect subject, and the finding that must follow. Mesh 2x2: rank = ep*2 + fsdp. */
#include "fake.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#define MLP "step.0/micro.0/forward/model.layers.0.mlp"
#define GATE_UP "model.layers.0.mlp.experts.gate_up_proj"

static struct fake fake;

static void start(const char *without, int rank) {
    fake_make(&fake, 2, 2, DTYPE_F64);
    fake_record(&fake, without, rank);
}

static const struct report_finding *verdict(const char *tensor, const char *phase, enum finding_kind kind, int rank) {
    const struct report_finding *finding = &fake.report.finding;
    fake_judge(&fake);
    cr_assert_eq(fake.report.verdict, VERDICT_FAIL);
    cr_assert(finding->present);
    cr_assert_str_eq(finding->tensor, tensor, "%s", finding->text);
    cr_assert_str_eq(finding->phase, phase);
    cr_assert_eq(finding->kind, kind, "%s: %s", finding_kind_name(finding->kind), finding->text);
    cr_assert_eq(finding->rank, rank, "%s", finding->text);
    return finding;
}

static void index_is(const struct report_finding *finding, int dims, int64_t a, int64_t b, int64_t c) {
    const int64_t want[] = {a, b, c};
    cr_assert_eq(finding->dims, dims);
    for (int d = 0; d < dims; d++)
        cr_assert_eq(finding->index[d], want[d], "%s", finding->text);
}

static void nudge(int rank, const char *name, int64_t at, double relative) {
    struct tensor *tensor = fake_tensor(&fake, rank, name);
    tensor_set(tensor, at, tensor_get(tensor, at) * (1 + relative));
}

/* Micro-batch 0: 5 sequences of 7 tokens on 4 ranks: 2, 2, 1, 0. */
Test(judge_planted, one_wrong_element) {
    start(NULL, -1);
    nudge(1, MLP, (1 * 7 + 3) * 20 + 11, 1e-9); /* rank 1, its second sequence = sequence 3 */
    const struct report_finding *finding = verdict("model.layers.0.mlp", "forward", FINDING_VALUE, 1);
    index_is(finding, 3, 3, 3, 11);
    cr_assert_str_eq(finding->axis, "batch 3, token 3, hidden 11");
    cr_assert_eq(finding->ranks, 1);
    cr_assert_str_eq(finding->tenant, "ada");
    cr_assert_eq(finding->step, 0);
    cr_assert_eq(finding->micro, 0);
    cr_assert(fabs(finding->error / (1e-9 * finding->want) - 1) < 1e-3 || finding->want < 0);
    cr_assert(finding->error > finding->bar);
    cr_assert_eq(fake.report.consequences.count, 1, "the layer's output follows from the wrong value");
    cr_assert_str_eq(fake.report.consequences.item[0], "step.0/micro.0/forward/model.layers.0");
    fake_free(&fake);
}

/* Rank 2 holds experts 6..11. */
Test(judge_planted, swapped_experts) {
    start(NULL, -1);
    struct tensor *tensor = fake_tensor(&fake, 2, "step.0/param/" GATE_UP);
    double *x = tensor->data;
    int64_t block = tensor->shape[1] * tensor->shape[2];
    for (int64_t i = 0; i < block; i++) {
        double first = x[block + i];
        x[block + i] = x[2 * block + i];
        x[2 * block + i] = first;
    }
    const struct report_finding *finding = verdict(GATE_UP, "param", FINDING_VALUE, 2);
    cr_assert_eq(finding->expert, 7);
    index_is(finding, 3, 7, 0, 0);
    cr_assert_str_eq(finding->axis, "expert 7, half 0, inter 0, hidden 0");
    cr_assert_eq(finding->slot, -1);
    fake_free(&fake);
}

Test(judge_planted, missing_record) {
    start(MLP, 2);
    const struct report_finding *finding = verdict("model.layers.0.mlp", "forward", FINDING_MISSING, 2);
    cr_assert_eq(finding->ranks, 1);
    cr_assert_lt(fake.report.compared_records, fake.report.owed_records);
    cr_assert_eq(fake.report.consequences.count, 0);
    fake_free(&fake);
}

Test(judge_planted, missing_everywhere) {
    start("step.1/loss/count", -1);
    cr_assert_eq(verdict("count", "loss", FINDING_MISSING, 0)->ranks, 4);
    fake_free(&fake);
}

Test(judge_planted, extra_record) {
    start(NULL, -1);
    double x = 1;
    struct tensor view = tensor_view(DTYPE_F64, 0, NULL, &x);
    cr_assert_eq(trace_add(&fake.trace, 3, "step.1/micro.2/forward/model.layers.7", &view), STATUS_OK);
    const struct report_finding *finding = verdict("model.layers.7", "forward", FINDING_EXTRA, 3);
    cr_assert_eq(finding->step, 1);
    cr_assert_eq(finding->micro, 2);
    fake_free(&fake);
}

Test(judge_planted, not_finite) {
    start(NULL, -1);
    tensor_set(fake_tensor(&fake, 0, "step.0/grad/" GATE_UP ".lora_A"), 5, NAN);
    const struct report_finding *finding = verdict(GATE_UP ".lora_A", "grad", FINDING_NOT_FINITE, 0);
    cr_assert(isnan(finding->got));
    cr_assert_eq(finding->slot, 0);
    fake_free(&fake);
}

/* A partial that is not finite names its rank alone, not the group. */
Test(judge_planted, not_finite_in_one_partial) {
    start(NULL, -1);
    tensor_set(fake_tensor(&fake, 3, "step.0/micro.0/backward/" GATE_UP), 0, INFINITY);
    const struct report_finding *finding = verdict(GATE_UP, "backward", FINDING_NOT_FINITE, 3);
    cr_assert_eq(finding->ranks, 1);
    index_is(finding, 3, 6, 0, 0);
    fake_free(&fake);
}

Test(judge_planted, wrong_shape) {
    start(NULL, -1);
    fake_tensor(&fake, 2, "step.0/micro.0/forward/lm_head")->shape[1] = 6;
    const struct report_finding *finding = verdict("lm_head", "forward", FINDING_SHAPE, 2);
    cr_assert(strstr(finding->text, "[1,6,53] where its piece is [1,7,53]"), "%s", finding->text);
    cr_assert_eq(fake.report.consequences.count, 0, "a wrong shape is not followed");
    fake_free(&fake);
}

Test(judge_planted, wrong_type) {
    start(NULL, -1);
    fake_tensor(&fake, 1, "step.0/loss/count")->dtype = DTYPE_F64;
    verdict("count", "loss", FINDING_DTYPE, 1);
    fake_free(&fake);
}

/* The head is gathered whole on every rank. */
Test(judge_planted, replica_off_by_one_bit) {
    start(NULL, -1);
    struct tensor *tensor = fake_tensor(&fake, 2, "step.0/micro.0/gather/lm_head.weight");
    ((unsigned char *)tensor->data)[8 * (3 * 20 + 4)] ^= 1;
    const struct report_finding *finding = verdict("lm_head.weight", "gather", FINDING_REPLICA, 2);
    index_is(finding, 2, 3, 4, 0);
    cr_assert_eq(finding->ranks, 1);
    fake_free(&fake);
}

/* The lowest holder itself is the one that is wrong. */
Test(judge_planted, replica_of_rank_0) {
    start(NULL, -1);
    struct tensor *tensor = fake_tensor(&fake, 0, "step.0/micro.0/gather/lm_head.weight");
    ((unsigned char *)tensor->data)[0] ^= 1;
    cr_assert_eq(verdict("lm_head.weight", "gather", FINDING_REPLICA, 0)->ranks, 1);
    fake_free(&fake);
}

Test(judge_planted, wrong_router_choice) {
    start(NULL, -1);
    const char *name = "step.0/micro.0/forward/model.layers.1.mlp.router.topk_index";
    struct tensor *choice = fake_tensor(&fake, 1, name);
    const struct tensor *scores = fake_tensor(&fake, 1, "step.0/micro.0/forward/model.layers.1.mlp.router.scores");
    int64_t *of_token = (int64_t *)choice->data + 5 * 3, best = -1, was = of_token[2];
    for (int64_t e = 0; e < 12; e++) /* the next best expert instead of the third */
        if (e != of_token[0] && e != of_token[1] && e != of_token[2] &&
            (best < 0 || tensor_get(scores, 5 * 12 + e) > tensor_get(scores, 5 * 12 + best)))
            best = e;
    of_token[2] = best;
    const struct report_finding *finding =
        verdict("model.layers.1.mlp.router.topk_index", "forward", FINDING_ROUTING, 1);
    index_is(finding, 2, 2 * 7 + 5, 2, 0);
    cr_assert_eq(finding->expert, best);
    cr_assert_eq((int64_t)finding->want, was);
    cr_assert_eq((int64_t)finding->got, best);
    fake_free(&fake);
}

/* Gradients of rank 0 and 1 add up: experts 0..5. Rank 0's follows from its own partial G, rank 1's is twice what does.
 */
Test(judge_planted, scaled_partial) {
    start(NULL, -1);
    struct tensor *tensor = fake_tensor(&fake, 1, "step.0/micro.0/backward/" GATE_UP ".lora_B");
    for (int64_t i = 0; i < tensor_elements(tensor); i++)
        tensor_set(tensor, i, tensor_get(tensor, i) * 2);
    const struct report_finding *finding = verdict(GATE_UP ".lora_B", "backward", FINDING_VALUE, 1);
    cr_assert_eq(finding->ranks, 1);
    cr_assert(fabs(finding->got - 2 * finding->want) <= 2 * finding->bar, "%s", finding->text);
    cr_assert(finding->expert >= 0 && finding->expert < 6);
    fake_free(&fake);
}

Test(judge_planted, wrong_count) {
    start(NULL, -1);
    for (int rank = 0; rank < 4; rank++)
        tensor_set(fake_tensor(&fake, rank, "step.1/loss/count"), 0, 14);
    const struct report_finding *finding = verdict("count", "loss", FINDING_VALUE, 0);
    cr_assert_eq(finding->ranks, 4);
    cr_assert_eq(finding->got, 14);
    cr_assert_eq(finding->want, 15); /* 13 labels of micro-batch 1, 2 of micro-batch 2 */
    fake_free(&fake);
}

/* Exchanged rows: rank 3 holds experts 6..11 of the tokens of column 1 (ranks 1 and 3). */
Test(judge_planted, wrong_exchanged_row) {
    start(NULL, -1);
    const char *name = "step.0/micro.0/forward/model.layers.0.mlp.experts.input";
    struct tensor *tensor = fake_tensor(&fake, 3, name);
    ((unsigned char *)tensor->data)[8 * 4] ^= 1; /* movement: one bit is enough */
    const struct report_finding *finding = verdict("model.layers.0.mlp.experts.input", "forward", FINDING_VALUE, 3);
    cr_assert(finding->expert >= 6);
    cr_assert(strncmp(finding->axis, "expert ", 7) == 0 && strstr(finding->axis, "hidden 4"), "%s", finding->axis);
    cr_assert_eq(finding->bar, 0);
    fake_free(&fake);
}

Test(judge_planted, export_in_another_order) {
    start(NULL, -1);
    const char *key = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight";
    char name[256];
    snprintf(name, sizeof name, "step.3/export/tenant.ada/%s", key);
    double *x = fake_tensor(&fake, 2, name)->data, first = x[1];
    x[1] = x[2];
    x[2] = first;
    const struct report_finding *finding = verdict(key, "export", FINDING_REPLICA, 2);
    index_is(finding, 2, 0, 1, 0);
    cr_assert_str_eq(finding->axis, "half 0, inter 0, lora rank 0, expert 1");
    cr_assert_eq(finding->expert, 1);
    cr_assert_str_eq(finding->tenant, "ada");
    fake_free(&fake);
}

/* The next step's parameters are the last update's, bit for bit. */
Test(judge_planted, parameters_moved_between_steps) {
    start(NULL, -1);
    for (int rank = 0; rank < 4; rank++) {
        struct tensor *tensor = fake_tensor(&fake, rank, "step.1/param/" GATE_UP ".lora_A");
        if (rank == 1 && tensor_elements(tensor) > 0)
            ((unsigned char *)tensor->data)[0] ^= 1;
    }
    verdict(GATE_UP ".lora_A", "param", FINDING_VALUE, 1);
    fake_free(&fake);
}

/* The earliest place in data flow is the finding, whatever was noticed first. */
Test(judge_planted, first_cause_first) {
    start("step.0/micro.0/forward/lm_head", 0);
    nudge(0, "step.0/micro.0/forward/model.layers.1", 0, 1e-6);
    verdict("model.layers.1", "forward", FINDING_VALUE, 0);
    cr_assert_geq(fake.report.consequences.count, 2);
    fake_free(&fake);
}
