/* The real subject on a local world, one rank's partial changed: that rank is named, and no other of its group. Mesh
 * 2x2: rank = ep*2 + fsdp; packed experts' sums go over fsdp, all others over all ranks. Every parameter trains. */
#include "fake.h"

#include "harness/world.h"

#include "sharded/subject.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#define UNEVEN "fixtures/golden/qwen3_moe_uneven"
#define BACKWARD "step.0/micro.0/backward/"
#define LAYER "model.layers.0."
#define GATE_UP LAYER "mlp.experts.gate_up_proj"

static struct fake fake;
static struct world *world;
static struct trace trace;
static bool trains[256];

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

static void train_all(struct job *job) {
    for (int i = 0; i < checkpoint_inventory(job->model)->count; i++)
        trains[i] = true;
    job->trains = trains;
}

/* A tied head, a dense layer. */
static void uneven(struct job *job) {
    adapter_free(&job->tenant[0].adapter);
    batches_free(job->micro, job->micros);
    checkpoint_close(job->model);
    cr_assert_eq(checkpoint_open(&job->model, UNEVEN "/model"), STATUS_OK, "%s", status_note());
    cr_assert_eq(
        batches_open(&job->micro, &job->micros, UNEVEN "/batches.safetensors", checkpoint_config(job->model)->vocab),
        STATUS_OK);
    cr_assert_eq(adapter_open(&job->tenant[0].adapter, UNEVEN "/adapters/gus", checkpoint_inventory(job->model)),
                 STATUS_OK);
    job->max_rank = 5;
    train_all(job);
}

/* The tiny model's shapes with biases, made. */
static void biased(struct job *job) {
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
        "\"num_key_value_heads\": 2, \"head_dim\": 6, \"vocab_size\": 53, \"num_experts\": 12,"
        "\"num_experts_per_tok\": 3, \"moe_intermediate_size\": 14, \"intermediate_size\": 24,"
        "\"attention_bias\": true, \"norm_topk_prob\": true}";
    struct yaml yaml = {0};
    adapter_free(&job->tenant[0].adapter);
    checkpoint_close(job->model);
    cr_assert_eq(yaml_parse(&yaml, "config", config, strlen(config)), STATUS_OK, "%s", status_note());
    cr_assert_eq(checkpoint_make(&job->model, &yaml, yaml.root, 3, DATA_RANDOM), STATUS_OK, "%s", status_note());
    yaml_close(&yaml);
    cr_assert_eq(adapter_open(&job->tenant[0].adapter, TINY "/adapters/ada", checkpoint_inventory(job->model)),
                 STATUS_OK, "%s", status_note());
    train_all(job);
}

static void start(enum dtype dtype, void (*change)(struct job *job)) {
    struct outcome outcome = {0};
    fake_make_of(&fake, 2, 2, dtype, change);
    struct world_spec spec = {.engine = ENGINE_LOCAL, .size = 4, .run = rank_run, .context = &fake.one};
    cr_assert_eq(world_launch(&world, &spec), STATUS_OK, "%s", status_note());
    world_run(world, 0, 60, &outcome);
    cr_assert_eq(outcome.kind, OUTCOME_DONE, "%s", outcome.text);
    outcome_free(&outcome);
    cr_assert_eq(world_trace(world, &trace), STATUS_OK, "%s", status_note());
}

static struct tensor record(int rank, const char *name) {
    const struct trace_record *found = trace_find(&trace, rank, name);
    cr_assert(found, "no record %s on rank %d", name, rank);
    return found->tensor;
}

static void scale(int rank, const char *name, double factor) {
    struct tensor tensor = record(rank, name);
    for (int64_t i = 0; i < tensor_elements(&tensor); i++)
        tensor_set(&tensor, i, tensor_get(&tensor, i) * factor);
}

/* Adds to one element; returns what it was. */
static double move(int rank, const char *name, int64_t at, double by) {
    struct tensor tensor = record(rank, name);
    double was = tensor_get(&tensor, at);
    tensor_set(&tensor, at, was + by);
    return was;
}

static const struct report_finding *found(const char *phase, const char *tensor, int ranks, const int *rank) {
    const struct report_finding *finding = &fake.report.finding;
    cr_assert_eq(judge_relay(fake.judge, &trace), STATUS_OK, "%s", status_note());
    cr_assert(finding->present);
    cr_assert_str_eq(finding->phase, phase, "%s", finding->text);
    cr_assert_str_eq(finding->tensor, tensor, "%s", finding->text);
    cr_assert_eq(finding->kind, FINDING_VALUE, "%s", finding->text);
    cr_assert_eq(finding->ranks, ranks, "%s", finding->text);
    cr_assert_eq(finding->rank, rank[0]);
    for (int i = 0; i < ranks; i++)
        cr_assert_eq(finding->rank_list[i], rank[i], "%s", finding->text);
    cr_assert_gt(finding->error, finding->bar);
    return finding;
}

static void end(void) {
    trace_free(&trace);
    world_end(world);
    fake_free(&fake);
}

/* One element of one rank's partial moves by `by`; the finding tells this element of this rank. */
static void one_rank(enum dtype dtype, void (*change)(struct job *job), int rank, const char *name, int64_t at,
                     double by) {
    start(dtype, change);
    double was = move(rank, name, at, by);
    const char *phase = strstr(name, BACKWARD) ? "backward" : "loss_sum";
    const struct report_finding *finding = found(phase, strrchr(name, '/') + 1, 1, &rank);
    cr_assert(fabs(finding->want - was) <= finding->bar, "%s", finding->text);
    cr_assert_gt(fabs(finding->got - was), fabs(by) / 2, "%s", finding->text);
    cr_assert(strstr(finding->text, "repeated with each rank's rows alone it differs on rank "), "%s", finding->text);
    end();
}

#define ONE_RANK(label, change, rank, name, at)                                                                        \
    Test(partials, label) {                                                                                            \
        one_rank(DTYPE_F64, change, rank, name, at, 1e-3);                                                             \
    }

/* Micro-batch 0: 5 sequences on 4 ranks: 2, 2, 1, 0. The last rank has no row and must hold zeros. */
ONE_RANK(head, train_all, 2, BACKWARD "lm_head.weight", 20)
ONE_RANK(query, train_all, 1, BACKWARD LAYER "self_attn.q_proj.weight", 3)
ONE_RANK(router, train_all, 0, BACKWARD LAYER "mlp.gate.weight", 25)
ONE_RANK(embedding, train_all, 1, BACKWARD "model.embed_tokens.weight", 7)
ONE_RANK(norm, train_all, 2, BACKWARD LAYER "post_attention_layernorm.weight", 19)
ONE_RANK(head_norm, train_all, 1, BACKWARD LAYER "self_attn.q_norm.weight", 1)
ONE_RANK(rank_without_rows, train_all, 3, BACKWARD "model.norm.weight", 0)
ONE_RANK(experts, train_all, 3, BACKWARD GATE_UP, 100)
ONE_RANK(experts_down, NULL, 0, BACKWARD LAYER "mlp.experts.down_proj", 11)
ONE_RANK(lora_a, NULL, 1, BACKWARD GATE_UP ".lora_A", 5)
ONE_RANK(lora_b, NULL, 2, BACKWARD GATE_UP ".lora_B", 4)
ONE_RANK(loss, NULL, 2, "step.0/micro.0/loss_sum/loss", 0)
ONE_RANK(bias, biased, 1, BACKWARD LAYER "self_attn.k_proj.bias", 2)
ONE_RANK(tied_head, uneven, 0, BACKWARD "lm_head.weight", 9)
ONE_RANK(tied_embedding, uneven, 2, BACKWARD "model.embed_tokens.weight", 6)
ONE_RANK(tied_embedding_of_no_row, uneven, 3, BACKWARD "model.embed_tokens.weight", 0)

Test(partials, in_float32) {
    one_rank(DTYPE_F32, NULL, 1, BACKWARD GATE_UP ".lora_B", 4, 0.1);
}

Test(partials, scaled) {
    start(DTYPE_F64, NULL);
    scale(2, BACKWARD GATE_UP, 1.5);
    const struct report_finding *finding = found("backward", GATE_UP, 1, (const int[]){2});
    cr_assert(fabs(finding->got - 1.5 * finding->want) <= 1.5 * finding->bar, "%s", finding->text);
    cr_assert_geq(finding->expert, 6);
    end();
}

Test(partials, two_ranks) {
    start(DTYPE_F64, train_all);
    scale(0, BACKWARD LAYER "self_attn.o_proj.weight", 2);
    scale(2, BACKWARD LAYER "self_attn.o_proj.weight", 3);
    const struct report_finding *finding = found("backward", LAYER "self_attn.o_proj.weight", 2, (const int[]){0, 2});
    cr_assert(fabs(finding->got - 2 * finding->want) <= 2 * finding->bar, "%s", finding->text);
    end();
}

/* One of each column's group of experts. */
Test(partials, two_groups) {
    start(DTYPE_F64, NULL);
    scale(1, BACKWARD GATE_UP ".lora_A", 0.5);
    scale(2, BACKWARD GATE_UP ".lora_A", 0.5);
    found("backward", GATE_UP ".lora_A", 2, (const int[]){1, 2});
    end();
}

Test(partials, right) {
    start(DTYPE_F64, uneven);
    cr_assert_eq(judge_relay(fake.judge, &trace), STATUS_OK, "%s", status_note());
    cr_assert_eq(judge_close(fake.judge, &trace), STATUS_OK, "%s", status_note());
    cr_assert_eq(fake.report.verdict, VERDICT_PASS, "%s", fake.report.finding.text);
    end();
}
