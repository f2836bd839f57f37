/* Names and order where everything trains: base parameters, adapters, clipping, AdamW. */
#include "study.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* A tied model of one sparse layer with biases, q and head adapted, AdamW, clipped */

static const char *const trained_backward[] = {
    "backward/lm_head",
    "backward/model.norm",
    "backward/lm_head.weight",
    "backward/lm_head.weight.lora_A",
    "backward/lm_head.weight.lora_B",
    "backward/model.layers.0",
    "backward/model.norm.weight",
    "backward/L.mlp.experts.output",
    "backward/L.mlp.router.topk_weight",
    "backward/L.mlp.experts.down",
    "backward/L.mlp.experts.hidden",
    "backward/L.mlp.experts.down_proj",
    "backward/L.mlp.experts.gate_up",
    "backward/L.mlp.experts.input",
    "backward/L.mlp.experts.gate_up_proj",
    "backward/L.mlp.experts.dispatch",
    "backward/L.mlp.router.scores",
    "backward/L.mlp.router.logits",
    "backward/L.mlp.gate.weight",
    "backward/L.mlp.gate.weight.lora_A",
    "backward/L.mlp.gate.weight.lora_B",
    "backward/L.mlp.router.input",
    "backward/L.post_attention_layernorm",
    "backward/L.self_attn.residual",
    "backward/L.post_attention_layernorm.weight",
    "backward/L.self_attn.context",
    "backward/L.self_attn.o_proj.weight",
    "backward/L.self_attn.o_proj.bias",
    "backward/L.self_attn.probabilities",
    "backward/L.self_attn.scores",
    "backward/L.self_attn.q_rotary",
    "backward/L.self_attn.k_rotary",
    "backward/L.self_attn.v_proj",
    "backward/L.self_attn.q_norm",
    "backward/L.self_attn.k_norm",
    "backward/L.self_attn.q_proj",
    "backward/L.self_attn.k_proj",
    "backward/L.self_attn.q_norm.weight",
    "backward/L.self_attn.k_norm.weight",
    "backward/L.self_attn.q_proj.weight",
    "backward/L.self_attn.q_proj.weight.lora_A",
    "backward/L.self_attn.q_proj.weight.lora_B",
    "backward/L.self_attn.q_proj.bias",
    "backward/L.self_attn.k_proj.weight",
    "backward/L.self_attn.k_proj.bias",
    "backward/L.self_attn.v_proj.weight",
    "backward/L.self_attn.v_proj.bias",
    "backward/L.input_layernorm",
    "backward/model.embed_tokens",
    "backward/L.input_layernorm.weight",
    "grad/L.input_layernorm.weight",
    "grad/L.self_attn.q_proj.weight",
    "grad/L.self_attn.q_proj.weight.lora_A",
    "grad/L.self_attn.q_proj.weight.lora_B",
    "grad/L.self_attn.k_proj.weight",
    "grad/L.self_attn.v_proj.weight",
    "grad/L.self_attn.o_proj.weight",
    "grad/L.self_attn.q_proj.bias",
    "grad/L.self_attn.k_proj.bias",
    "grad/L.self_attn.v_proj.bias",
    "grad/L.self_attn.o_proj.bias",
    "grad/L.self_attn.q_norm.weight",
    "grad/L.self_attn.k_norm.weight",
    "grad/L.post_attention_layernorm.weight",
    "grad/L.mlp.gate.weight",
    "grad/L.mlp.gate.weight.lora_A",
    "grad/L.mlp.gate.weight.lora_B",
    "grad/L.mlp.experts.gate_up_proj",
    "grad/L.mlp.experts.down_proj",
    "backward/model.embed_tokens.weight",
    "grad/model.embed_tokens.weight",
    "grad/model.norm.weight",
    "grad/lm_head.weight.lora_A",
    "grad/lm_head.weight.lora_B",
};

static void assert_named(const char *name, const char *prefix, const char *expected) {
    char want[POINT_NAME_MAX];
    const char *layer = strstr(expected, "/L.");
    if (layer)
        snprintf(want, sizeof want, "%s%.*s/model.layers.0.%s", prefix, (int)(layer - expected), expected, layer + 3);
    else
        snprintf(want, sizeof want, "%s%s", prefix, expected);
    cr_assert_str_eq(name, want);
}

static void open_trained(struct study *study) {
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 10, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
        "\"num_key_value_heads\": 1, \"head_dim\": 4, \"vocab_size\": 17, \"num_experts\": 5, \"num_experts_per_tok\": "
        "2,"
        "\"moe_intermediate_size\": 3, \"intermediate_size\": 7, \"attention_bias\": true, \"norm_topk_prob\": true,"
        "\"tie_word_embeddings\": true}";
    study_config(study, config, DTYPE_F64);
    study_made_tenant(study, (const char *const[]){"q_proj", "lm_head", NULL});
    study_trains(study, "*");
    study->job.optimizer = (struct optimizer){.kind = OPTIMIZER_ADAMW, .lr = 0.1, .beta1 = 0.5, .beta2 = 0.5};
    study->job.clip = (struct clip){.present = true, .max = 1};
}

Test(points, gradients_of_everything_come_in_the_listed_order) {
    static const int zero = 0;
    struct study study;
    struct kept kept = {0};
    size_t listed = sizeof trained_backward / sizeof *trained_backward, found = 0;
    open_trained(&study);
    study_acquire(&study, 0);
    study_train(&study, 0, 1, &zero);
    study_run(&study, (struct reference_options){.dry = true}, kept_hook, &kept);
    for (int i = 0; i < kept.count; i++) {
        bool micro = strncmp(kept.name[i], "step.0/micro.0/", 15) == 0;
        if (!micro || (!strstr(kept.name[i], "/backward/") && !strstr(kept.name[i], "/grad/")))
            continue;
        cr_assert_lt(found, listed);
        assert_named(kept.name[i], "step.0/micro.0/", trained_backward[found++]);
    }
    cr_assert_eq(found, listed);
    kept_free(&kept);
    study_close(&study);
}

/* Trained tensors in inventory order, weight before A before B. */
static const char *const trained_tensors[] = {
    "/model.embed_tokens.weight",
    "/L.input_layernorm.weight",
    "/L.self_attn.q_proj.weight",
    "/L.self_attn.q_proj.weight.lora_A",
    "/L.self_attn.q_proj.weight.lora_B",
    "/L.self_attn.k_proj.weight",
    "/L.self_attn.v_proj.weight",
    "/L.self_attn.o_proj.weight",
    "/L.self_attn.q_proj.bias",
    "/L.self_attn.k_proj.bias",
    "/L.self_attn.v_proj.bias",
    "/L.self_attn.o_proj.bias",
    "/L.self_attn.q_norm.weight",
    "/L.self_attn.k_norm.weight",
    "/L.post_attention_layernorm.weight",
    "/L.mlp.gate.weight",
    "/L.mlp.gate.weight.lora_A",
    "/L.mlp.gate.weight.lora_B",
    "/L.mlp.experts.gate_up_proj",
    "/L.mlp.experts.down_proj",
    "/model.norm.weight",
    "/lm_head.weight.lora_A",
    "/lm_head.weight.lora_B",
};
#define TRAINED (sizeof trained_tensors / sizeof *trained_tensors)

static int assert_each(const struct kept *kept, int at, const char *phase, const char *second) {
    for (size_t i = 0; i < TRAINED; i++) {
        assert_named(kept->name[at++], phase, trained_tensors[i]);
        if (second)
            assert_named(kept->name[at++], second, trained_tensors[i]);
    }
    return at;
}

Test(points, a_step_of_everything_comes_in_the_listed_order) {
    static const int zero = 0;
    struct study study;
    struct kept kept = {0};
    int at = 0;
    open_trained(&study);
    study_acquire(&study, 0);
    study_train(&study, 0, 1, &zero);
    study_run(&study, (struct reference_options){.dry = true}, kept_hook, &kept);
    while (strcmp(kept.name[at], "step.0/loss/count") != 0)
        at++;
    cr_assert_str_eq(kept.name[at + 1], "step.0/loss/loss");
    at = assert_each(&kept, at + 2, "step.0/grad", NULL);
    cr_assert_str_eq(kept.name[at++], "step.0/clip/norm");
    at = assert_each(&kept, at, "step.0/clip", NULL);
    at = assert_each(&kept, at, "step.0/optimizer/exp_avg", "step.0/optimizer/exp_avg_sq");
    at = assert_each(&kept, at, "step.0/update", NULL);
    cr_assert_str_eq(kept.name[at], "step.1/param/model.embed_tokens.weight");
    kept_free(&kept);
    study_close(&study);
}

/* Of one parameter: the weight, its states of each holder, then slot by slot A, B, states of A, states of B; nothing of
 * states for a free slot, and none at all without momentum. */
static void assert_q_states(bool adamw, const char *const *want, int count) {
    struct study study;
    struct kept kept = {0};
    int found = 0;
    open_trained(&study);
    if (!adamw)
        study.job.optimizer = (struct optimizer){.lr = 0.1};
    study_acquire(&study, 0);
    study_evaluate(&study, 0, false, 0);
    study_run(&study, (struct reference_options){.dry = true}, kept_hook, &kept);
    for (int i = 0; i < kept.count; i++) {
        if (strncmp(kept.name[i], "step.0/param/", 13) != 0 || !strstr(kept.name[i], "q_proj.weight"))
            continue;
        cr_assert_lt(found, count, "%s", kept.name[i]);
        cr_assert_str_eq(kept.name[i] + 13, want[found++]);
    }
    cr_assert_eq(found, count);
    kept_free(&kept);
    study_close(&study);
}

Test(points, states_follow_their_tensors) {
#define Q "model.layers.0.self_attn.q_proj.weight"
    static const char *const with[] = {
        Q,
        "exp_avg/" Q,
        "exp_avg_sq/" Q,
        Q ".lora_A",
        Q ".lora_B",
        "exp_avg/" Q ".lora_A",
        "exp_avg_sq/" Q ".lora_A",
        "exp_avg/" Q ".lora_B",
        "exp_avg_sq/" Q ".lora_B",
        "slot.1/" Q ".lora_A",
        "slot.1/" Q ".lora_B",
    };
    static const char *const without[] = {Q, Q ".lora_A", Q ".lora_B", "slot.1/" Q ".lora_A", "slot.1/" Q ".lora_B"};
    assert_q_states(true, with, 11);
    assert_q_states(false, without, 5);
}
