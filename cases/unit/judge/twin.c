/* The real subject on a local world: its twin at world 1 holds the same bits, and the free run's answers. */
#include "fake.h"

#include "harness/world.h"

#include "sharded/subject.h"

#include <criterion/criterion.h>

#include <string.h>

#define LAYER "step.1/micro.1/forward/model.layers.0"

static struct fake fake;
static struct world *world;
static struct trace trace;

struct rank_hooks {
    enum status (*record)(void *sink, const struct point *point, const struct tensor *data);
    void *sink;
};

static enum status hand_on(void *context, const struct point *point, const struct tensor *data) {
    const struct rank_hooks *hooks = context;
    return hooks->record(hooks->sink, point, data);
}

static enum status rank_run(void *context, int index, struct comm *comm,
                            enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                            void *sink) {
    const struct test_case *one = context;
    struct rank_hooks own = {record, sink};
    struct subject_hooks hooks = {.context = &own, .record = hand_on};
    (void)index;
    return subject_run(&one->job, &one->mesh, NULL, &rules_right, comm, &hooks);
}

static void start(int ep, int fsdp, enum dtype dtype) {
    struct outcome outcome = {0};
    fake_make(&fake, ep, fsdp, dtype);
    struct world_spec spec = {.engine = ENGINE_LOCAL, .size = ep * fsdp, .run = rank_run, .context = &fake.one};
    cr_assert_eq(world_launch(&world, &spec), STATUS_OK, "%s", status_note());
    world_run(world, 0, 20, &outcome);
    cr_assert_eq(outcome.kind, OUTCOME_DONE, "%s", outcome.text);
    outcome_free(&outcome);
    cr_assert_eq(world_trace(world, &trace), STATUS_OK, "%s", status_note());
}

static void end(void) {
    trace_free(&trace);
    world_end(world);
    fake_free(&fake);
}

static void twin(void) {
    cr_assert_eq(judge_twin(fake.judge, &trace), STATUS_OK, "%s", status_note());
}

static void flip(int rank, const char *name, size_t byte) {
    const struct trace_record *record = trace_find(&trace, rank, name);
    cr_assert(record, "%s", name);
    ((unsigned char *)record->tensor.data)[byte] ^= 1;
}

static void clean(int ep, int fsdp, enum dtype dtype) {
    start(ep, fsdp, dtype);
    twin();
    cr_assert(!fake.report.finding.present, "%s", fake.report.finding.text);
    cr_assert_eq(judge_relay(fake.judge, &trace), STATUS_OK, "%s", status_note());
    cr_assert_eq(judge_close(fake.judge, &trace), STATUS_OK);
    cr_assert_eq(fake.report.verdict, VERDICT_PASS, "%s", fake.report.finding.text);
    end();
}

Test(twin, three_by_two) {
    clean(3, 2, DTYPE_F64);
}

Test(twin, two_by_three_in_float32) {
    clean(2, 3, DTYPE_F32);
}

/* One bit of one rank, far inside every bar. The relay does not see it; the twin does. */
Test(twin, one_bit) {
    start(2, 2, DTYPE_F64);
    flip(1, LAYER ".mlp", 8 * 13); /* 3 sequences of 11 tokens on ranks 0, 1, 2 */
    twin();
    const struct report_finding *finding = &fake.report.finding;
    cr_assert(finding->present);
    cr_assert_str_eq(finding->tensor, "model.layers.0.mlp");
    cr_assert_eq(finding->kind, FINDING_VALUE);
    cr_assert_eq(finding->rank, 1);
    cr_assert_eq(finding->ranks, 1);
    cr_assert(finding->index[0] == 1 && finding->index[1] == 0 && finding->index[2] == 13, "%s", finding->text);
    cr_assert_eq(fake.report.consequences.count, 0);
    end();
}

/* Exchanged rows are put together by the recorded choices. */
Test(twin, one_bit_of_an_exchanged_row) {
    start(2, 2, DTYPE_F64);
    flip(2, LAYER ".mlp.experts.down", 0);
    twin();
    cr_assert_str_eq(fake.report.finding.tensor, "model.layers.0.mlp.experts.down");
    cr_assert_eq(fake.report.finding.rank, 2);
    cr_assert_geq(fake.report.finding.expert, 6);
    end();
}

/* The twin starts from the recorded parameters: it agrees with a changed record, and world N's gather does not. */
Test(twin, starts_from_the_records) {
    start(2, 2, DTYPE_F64);
    flip(0, "step.1/param/model.norm.weight", 0);
    twin();
    cr_assert(fake.report.finding.present);
    cr_assert_str_eq(fake.report.finding.tensor, "model.norm.weight");
    cr_assert_str_eq(fake.report.finding.phase, "gather", "%s", fake.report.finding.text);
    end();
}

/* A name that fails in two tiers counts once. */
Test(twin, a_failure_counts_once) {
    start(2, 2, DTYPE_F64);
    flip(0, LAYER, 7);
    cr_assert_eq(judge_relay(fake.judge, &trace), STATUS_OK, "%s", status_note());
    int before = fake.report.consequences.count;
    cr_assert(fake.report.finding.present);
    twin();
    cr_assert_eq(fake.report.consequences.count, before);
    end();
}

static void break_import(struct rules *rules) {
    rules->import_b = "no layout line [";
}

Test(twin, that_dies) {
    const struct rule_fault fault = {.name = "broken", .about = "the twin cannot start", .plant = break_import};
    start(1, 2, DTYPE_F64);
    fake.one.fault = &fault;
    twin();
    cr_assert(fake.report.finding.present);
    cr_assert_eq(fake.report.finding.kind, FINDING_CRASH);
    cr_assert_null(fake.report.finding.tensor);
    end();
}

/* ---- tier 4 */

static void answers_find_the(const char *name, double factor, const char *tensor) {
    struct answers *answers = NULL;
    start(2, 2, DTYPE_F64);
    cr_assert_eq(golden_check(&fake.one.job, NULL, 0, &fake.report, &answers), STATUS_OK, "%s", status_note());
    cr_assert(!fake.report.golden);
    cr_assert_eq(judge_answers(fake.judge, &trace, answers), STATUS_OK, "%s", status_note());
    cr_assert(!fake.report.finding.present, "%s", fake.report.finding.text);
    struct tensor whole = trace_find(&trace, 0, name)->tensor;
    tensor_set(&whole, 0, tensor_get(&whole, 0) * factor);
    cr_assert_eq(judge_answers(fake.judge, &trace, answers), STATUS_OK, "%s", status_note());
    cr_assert_eq(fake.report.finding.present, tensor != NULL);
    if (tensor) {
        cr_assert_str_eq(fake.report.finding.tensor, tensor);
        cr_assert_eq(fake.report.finding.rank, 0);
    }
    answers_free(answers);
    end();
}

Test(answers, token_loss) {
    answers_find_the("step.0/micro.0/forward/token_loss", 1 + 3e-10, "token_loss");
}

Test(answers, hidden_state_after_an_update) {
    answers_find_the("step.1/micro.1/forward/model.layers.1", 1 + 3e-9, "model.layers.1");
}

Test(answers, within_the_bound) {
    answers_find_the("step.1/micro.1/forward/model.layers.1", 1 + 1e-10, NULL);
}
