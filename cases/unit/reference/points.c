/* Which points are emitted, in which order, under which shapes. */
#include "study.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void script(struct study *study) {
    static const int both[] = {2, 3};
    study_acquire(study, 0);
    study_evaluate(study, -1, false, 1);
    study_train(study, 0, 2, both);
    study_export(study, 0);
    study_accumulate(study, 0, 1, both);
    study_evaluate(study, 0, false, 2);
    study_accumulate(study, 0, 1, both + 1);
    study_step(study, 0);
    study_release(study, 0);
    study_evaluate(study, -1, false, 1);
}

struct names {
    struct kept kept;
    int nan_x, nan_e, with_x;
};

static enum status names_hook(void *context, const struct point *point, struct value *value) {
    struct names *names = context;
    for (int64_t i = 0; value->x && i < elements_of(value); i++) {
        names->nan_x += !isfinite(value->x[i]);
        names->nan_e += value->e && !(value->e[i] >= 0);
    }
    names->with_x += value->x != NULL;
    return kept_hook(&names->kept, point, value);
}

static void assert_dry_is_wet(const char *fixture, const char *tenant, const char *recipe) {
    struct study study;
    struct names wet = {0}, dry = {0};
    study_open(&study, fixture, tenant, DTYPE_F32);
    if (recipe)
        study_recipe(&study, fixture, recipe);
    script(&study);
    study_run(&study, (struct reference_options){.norm = true}, names_hook, &wet);
    study_run(&study, (struct reference_options){.norm = true, .dry = true, .bounds = true}, names_hook, &dry);
    cr_assert_gt(wet.kept.count, 300);
    cr_assert_eq(wet.kept.count, dry.kept.count);
    cr_assert_eq(dry.with_x, 0);
    cr_assert_eq(wet.with_x, wet.kept.count);
    cr_assert_eq(wet.nan_x, 0);
    for (int i = 0; i < wet.kept.count; i++) {
        const struct value *a = &wet.kept.value[i], *b = &dry.kept.value[i];
        cr_assert_str_eq(wet.kept.name[i], dry.kept.name[i]);
        cr_assert_eq(a->ndim, b->ndim);
        for (int dim = 0; dim < a->ndim; dim++)
            cr_assert_eq(a->shape[dim], b->shape[dim], "%s", wet.kept.name[i]);
    }
    kept_free(&wet.kept);
    kept_free(&dry.kept);
    study_close(&study);
}

Test(points, a_dry_run_names_what_a_run_emits) {
    assert_dry_is_wet("qwen3_moe_tiny", "eve", NULL);
    assert_dry_is_wet("qwen3_moe_uneven", "gus", NULL);
    assert_dry_is_wet("qwen3_moe_uneven", "gus", "router");
    assert_dry_is_wet("qwen3_moe_tiny", "dov", "adamw");
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

static void assert_once(const char *fixture, const char *tenant, const char *recipe) {
    struct study study;
    struct kept kept = {0};
    study_open(&study, fixture, tenant, DTYPE_F64);
    study_recipe(&study, fixture, recipe);
    script(&study);
    study_run(&study, (struct reference_options){.dry = true}, kept_hook, &kept);
    qsort(kept.name, (size_t)kept.count, POINT_NAME_MAX, by_name);
    for (int i = 1; i < kept.count; i++)
        cr_assert_str_neq(kept.name[i - 1], kept.name[i]);
    kept_free(&kept);
    study_close(&study);
}

Test(points, a_name_stands_once) {
    assert_once("qwen3_moe_tiny", "bob", "sgd");
    assert_once("qwen3_moe_tiny", "bob", "adamw");
    assert_once("qwen3_moe_uneven", "gus", "router");
}

/* The tensors of one training step from its first backward point on, cyd (down_proj only) on two sparse layers, as the
 * list of storage points has them. */
static const char *const order[] = {
    "regather/model.embed_tokens.weight",
    "regather/model.norm.weight",
    "regather/lm_head.weight",
    "backward/lm_head",
    "backward/model.norm",
    "backward/model.layers.1",
    "regather/model.layers.1.input_layernorm.weight",
    "regather/model.layers.1.self_attn.q_proj.weight",
    "regather/model.layers.1.self_attn.k_proj.weight",
    "regather/model.layers.1.self_attn.v_proj.weight",
    "regather/model.layers.1.self_attn.o_proj.weight",
    "regather/model.layers.1.self_attn.q_norm.weight",
    "regather/model.layers.1.self_attn.k_norm.weight",
    "regather/model.layers.1.post_attention_layernorm.weight",
    "regather/model.layers.1.mlp.gate.weight",
    "regather/model.layers.1.mlp.experts.gate_up_proj",
    "regather/model.layers.1.mlp.experts.down_proj",
    "regather/model.layers.1.mlp.experts.down_proj.lora_A",
    "regather/model.layers.1.mlp.experts.down_proj.lora_B",
    "delta/model.layers.1.mlp.experts.down_proj.remerged",
    "backward/model.layers.1.mlp.experts.output",
    "backward/model.layers.1.mlp.router.topk_weight",
    "backward/model.layers.1.mlp.experts.down",
    "backward/model.layers.1.mlp.experts.hidden",
    "backward/model.layers.1.mlp.experts.down_proj",
    "backward/model.layers.1.mlp.experts.down_proj.lora_A",
    "backward/model.layers.1.mlp.experts.down_proj.lora_B",
    "backward/model.layers.1.mlp.experts.gate_up",
    "backward/model.layers.1.mlp.experts.input",
    "backward/model.layers.1.mlp.experts.dispatch",
    "backward/model.layers.1.mlp.router.scores",
    "backward/model.layers.1.mlp.router.logits",
    "backward/model.layers.1.mlp.router.input",
    "backward/model.layers.1.post_attention_layernorm",
    "backward/model.layers.1.self_attn.residual",
    "backward/model.layers.1.self_attn.context",
    "backward/model.layers.1.self_attn.probabilities",
    "backward/model.layers.1.self_attn.scores",
    "backward/model.layers.1.self_attn.q_rotary",
    "backward/model.layers.1.self_attn.k_rotary",
    "backward/model.layers.1.self_attn.v_proj",
    "backward/model.layers.1.self_attn.q_norm",
    "backward/model.layers.1.self_attn.k_norm",
    "backward/model.layers.1.self_attn.q_proj",
    "backward/model.layers.1.self_attn.k_proj",
    "backward/model.layers.1.input_layernorm",
    "backward/model.layers.0",
    "grad/model.layers.1.mlp.experts.down_proj.lora_A",
    "grad/model.layers.1.mlp.experts.down_proj.lora_B",
};

static const char *const after[] = {
    "grad/model.layers.0.mlp.experts.down_proj.lora_A",
    "grad/model.layers.0.mlp.experts.down_proj.lora_B",
    "loss/count",
    "loss/loss",
    "grad/model.layers.0.mlp.experts.down_proj.lora_A",
    "grad/model.layers.0.mlp.experts.down_proj.lora_B",
    "grad/model.layers.1.mlp.experts.down_proj.lora_A",
    "grad/model.layers.1.mlp.experts.down_proj.lora_B",
    "optimizer/momentum_buffer/model.layers.0.mlp.experts.down_proj.lora_A",
    "optimizer/momentum_buffer/model.layers.0.mlp.experts.down_proj.lora_B",
    "optimizer/momentum_buffer/model.layers.1.mlp.experts.down_proj.lora_A",
    "optimizer/momentum_buffer/model.layers.1.mlp.experts.down_proj.lora_B",
    "update/model.layers.0.mlp.experts.down_proj.lora_A",
    "update/model.layers.0.mlp.experts.down_proj.lora_B",
    "update/model.layers.1.mlp.experts.down_proj.lora_A",
    "update/model.layers.1.mlp.experts.down_proj.lora_B",
};

static const char *without_step(const char *name, const char *prefix) {
    cr_assert_eq(strncmp(name, prefix, strlen(prefix)), 0, "%s does not start with %s", name, prefix);
    return name + strlen(prefix);
}

Test(points, backward_and_update_come_in_the_listed_order) {
    static const int two = 2;
    struct study study;
    struct kept kept = {0};
    int at = 0, expected = (int)(sizeof after / sizeof *after), end;
    study_open(&study, "qwen3_moe_tiny", "cyd", DTYPE_F64);
    study_acquire(&study, 0);
    study_train(&study, 0, 1, &two);
    study_run(&study, (struct reference_options){.dry = true}, kept_hook, &kept);
    while (strcmp(kept.name[at], "step.0/micro.2/loss_sum/loss") != 0)
        at++;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        cr_assert_str_eq(without_step(kept.name[++at], "step.0/micro.2/"), order[i]);
    for (end = at; strncmp(kept.name[end + 1], "step.1/param/", 13) != 0; end++)
        ;
    for (int i = 0; i < expected; i++)
        cr_assert_str_eq(without_step(kept.name[end + 1 - expected + i], i < 2 ? "step.0/micro.2/" : "step.0/"),
                         after[i]);
    kept_free(&kept);
    study_close(&study);
}

/* One of two slots acts: its tensors stand under the bare name, the free one under its slot; afterwards none acts. */
Test(points, the_acting_slot_has_the_bare_name) {
    static const char *const names[] = {
        "step.0/param/model.layers.0.mlp.experts.down_proj.lora_A",
        "step.0/param/momentum_buffer/model.layers.0.mlp.experts.down_proj.lora_B",
        "step.0/param/slot.1/model.layers.0.mlp.experts.down_proj.lora_A",
        "step.1/param/slot.0/model.layers.0.mlp.experts.down_proj.lora_A",
        "step.1/param/slot.0/momentum_buffer/model.layers.0.mlp.experts.down_proj.lora_A",
        "step.1/param/slot.1/model.layers.0.mlp.experts.down_proj.lora_B",
    };
    struct study study;
    struct kept kept = {0};
    study_open(&study, "qwen3_moe_tiny", "cyd", DTYPE_F64);
    study_acquire(&study, 0);
    study_evaluate(&study, 0, false, 2);
    study_run(&study, (struct reference_options){0}, kept_hook, &kept);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_not_null(kept_find(&kept, names[i]));
    for (int i = 0; i < kept.count; i++)
        cr_assert_null(strstr(kept.name[i], "slot.1/momentum_buffer"), "%s: nobody holds that slot", kept.name[i]);
    kept_free(&kept);
    study_close(&study);
}

/* An adapter that nobody trained comes out as it went in. */
Test(points, an_untrained_export_is_the_file) {
    struct study study;
    struct kept kept = {0};
    study_open(&study, "qwen3_moe_tiny", "bob", DTYPE_F32);
    study_acquire(&study, 0);
    study_export(&study, 0);
    study_run(&study, (struct reference_options){0}, kept_hook, &kept);
    const struct adapter *adapter = &study.tenant[0].adapter;
    for (int i = 0; i < adapter->count; i++) {
        const struct tensor *file[] = {&adapter->targets[i].a, &adapter->targets[i].b};
        const char *key[] = {adapter->targets[i].key_a, adapter->targets[i].key_b};
        for (int side = 0; side < 2; side++) {
            char name[POINT_NAME_MAX];
            snprintf(name, sizeof name, "step.0/export/tenant.bob/%s", key[side]);
            const struct value *got = kept_find(&kept, name);
            cr_assert_eq(got->ndim, 2);
            cr_assert_eq(got->shape[0], file[side]->shape[0]);
            cr_assert_eq(got->shape[1], file[side]->shape[1]);
            for (int64_t j = 0; j < elements_of(got); j++)
                cr_assert_eq(got->x[j], tensor_get(file[side], j));
        }
    }
    kept_free(&kept);
    study_close(&study);
}
