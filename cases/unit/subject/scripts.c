/* Jobs put together action by action. */
#include "job_of.h"

#include "core/checkpoint.h"

#include <criterion/criterion.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#define OK(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())

void job_tenant(struct made_job *made, const char *fixture, const char *name) {
    cr_assert_lt(made->job.tenants, MOST_TENANTS);
    struct tenant *tenant = &made->tenants[made->job.tenants++];
    char path[256];
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    snprintf(path, sizeof path, "fixtures/golden/%s/adapters/%s", fixture, name);
    OK(adapter_open(&tenant->adapter, path, checkpoint_inventory(made->job.model)));
}

void empty_job_of(struct made_job *out, const char *fixture, const char *tenant, int slots, int64_t max_rank) {
    job_of(out, fixture, tenant, NULL, DTYPE_F64, slots, max_rank);
    out->job.actions = 0;
    out->job.steps = 0;
}

void biased_job_of(struct made_job *out, bool tied) {
    static const char *const modules[] = {"q_proj", "o_proj", "up_proj"};
    static const char *const parameters[] = {"experts.down_proj"};
    static const int64_t sequences[] = {3, 2}, tokens[] = {5, 4};
    const struct adapter_spec spec = {.rank = 2,
                                      .alpha = 3,
                                      .seed = 4,
                                      .parameters = 1,
                                      .target_parameters = parameters,
                                      .modules = 3,
                                      .target_modules = modules};
    char text[768];
    struct yaml yaml = {0};
    *out = (struct made_job){.job = {.dtype = DTYPE_F64, .slots = 2, .max_rank = 3, .micros = 2, .tenants = 1}};
    snprintf(text, sizeof text,
             "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 17, \"hidden_size\": 6, \"num_hidden_layers\": 2, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 2, \"num_experts\": 4, "
             "\"num_experts_per_tok\": 2, \"mlp_only_layers\": [0], \"moe_intermediate_size\": 3, "
             "\"intermediate_size\": 7, \"attention_bias\": true, \"norm_topk_prob\": true, "
             "\"tie_word_embeddings\": %s}",
             tied ? "true" : "false");
    OK(yaml_parse(&yaml, "made", text, strlen(text)));
    OK(checkpoint_make(&out->job.model, &yaml, yaml.root, 11, DATA_RANDOM));
    yaml_close(&yaml);
    OK(batches_make(&out->job.micro, 2, sequences, tokens, 5, DATA_RANDOM, 17));
    out->job.optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.8};
    out->job.tenant = out->tenants;
    out->job.action = out->actions;
    strcpy(out->tenants[0].name, "mel");
    OK(adapter_make(&out->tenants[0].adapter, &spec, checkpoint_inventory(out->job.model), "test:1"));
}

void job_trains_base(struct made_job *made, const char *glob) {
    const struct inventory *inventory = checkpoint_inventory(made->job.model);
    int matched = 0;
    cr_assert_leq((size_t)inventory->count, sizeof made->trains);
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].alias < 0 && fnmatch(glob, inventory->params[i].name, 0) == 0) {
            made->trains[i] = true;
            matched++;
        }
    cr_assert_gt(matched, 0, "%s", glob);
    made->job.trains = made->trains;
}

/* ---- the script */

static void then(struct made_job *made, enum action_kind kind, int tenant, int step) {
    add_action(made, (struct action){.kind = kind, .tenant = tenant, .step = step});
}

static void then_over(struct made_job *made, enum action_kind kind, int tenant, int step, int micros,
                      const int *micro) {
    add_action(made, (struct action){.kind = kind, .tenant = tenant, .step = step, .micros = micros, .micro = micro});
}

void then_acquire(struct made_job *made, int tenant) {
    then(made, ACTION_ACQUIRE, tenant, made->job.steps);
}

void then_release(struct made_job *made, int tenant) {
    made->window[tenant] = 0;
    then(made, ACTION_RELEASE, tenant, made->job.steps);
}

void then_export(struct made_job *made, int tenant) {
    then(made, ACTION_EXPORT, tenant, made->job.steps);
}

void then_train(struct made_job *made, int tenant, int micros, const int *micro) {
    then_over(made, ACTION_TRAIN, tenant, made->job.steps++, micros, micro);
}

void then_evaluate(struct made_job *made, int tenant, int micros, const int *micro) {
    then_over(made, ACTION_EVALUATE, tenant, made->job.steps++, micros, micro);
}

void then_accumulate(struct made_job *made, int tenant, int micros, const int *micro) {
    bool opens = made->window[tenant] == 0;
    if (opens)
        made->window[tenant] = ++made->job.steps;
    then_over(made, ACTION_ACCUMULATE, tenant, made->window[tenant] - 1, micros, micro);
    made->actions[made->job.actions - 1].opens = opens;
}

void then_step(struct made_job *made, int tenant) {
    then(made, ACTION_STEP, tenant, made->window[tenant] - 1);
    made->window[tenant] = 0;
}
