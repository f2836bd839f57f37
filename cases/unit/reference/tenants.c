/* Slots, windows and states belong to one tenant: what others do, did or will do leaves no trace. */
#include "study.h"

#include "core/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int first[] = {0, 2}, second[] = {3, 1}, third[] = {4};

static void run_kept(const struct study *study, struct kept *kept) {
    study_run(study, (struct reference_options){.norm = true}, kept_hook, kept);
}

/* The records of step `a` of one run whose names hold `part` equal those of step `b` of another to the last bit. */
static int assert_step_equal(const struct kept *one, int a, const struct kept *other, int b, const char *part) {
    char prefix[32], name[POINT_NAME_MAX];
    int compared = 0;
    snprintf(prefix, sizeof prefix, "step.%d/", a);
    for (int i = 0; i < one->count; i++) {
        if (strncmp(one->name[i], prefix, strlen(prefix)) != 0 || !strstr(one->name[i], part))
            continue;
        snprintf(name, sizeof name, "step.%d/%.480s", b, one->name[i] + strlen(prefix));
        const struct value *x = &one->value[i], *y = kept_find(other, name);
        cr_assert_eq(elements_of(x), elements_of(y));
        cr_assert_eq(memcmp(x->x, y->x, (size_t)elements_of(x) * sizeof(double)), 0, "%s is not %s", one->name[i],
                     name);
        compared++;
    }
    return compared;
}

static void open_two(struct study *study, const char *recipe) {
    study_open(study, "qwen3_moe_tiny", "ada", DTYPE_F64);
    study_tenant(study, "qwen3_moe_tiny", "bob");
    study_recipe(study, "qwen3_moe_tiny", recipe);
}

/* A tenant that is trained alone by two plain TRAINs, then exported. */
static void run_alone(int tenant, struct kept *kept) {
    struct study study;
    open_two(&study, "adamw");
    study_acquire(&study, tenant);
    study_train(&study, tenant, 2, first);
    study_train(&study, tenant, 2, second);
    study_export(&study, tenant);
    run_kept(&study, kept);
    study_close(&study);
}

static void assert_alone(int tenant, const struct kept *together, int step0, int step1, int targets) {
    static const char *const parts[] = {"/grad/", "/loss/", "/clip/", "/optimizer/", "/update/", "/forward/"};
    struct kept alone = {0};
    run_alone(tenant, &alone);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        cr_assert_gt(assert_step_equal(&alone, 0, together, step0, parts[i]), 0, "%s", parts[i]);
        cr_assert_gt(assert_step_equal(&alone, 1, together, step1, parts[i]), 0, "%s", parts[i]);
    }
    cr_assert_eq(assert_step_equal(&alone, 2, together, 5, "/export/"), 2 * targets);
    kept_free(&alone);
}

/* Both windows are open at once, evaluations of all kinds stand between. */
Test(tenants, interleaved_windows_equal_each_tenant_alone) {
    struct study study;
    struct kept together = {0};
    open_two(&study, "adamw");
    study_acquire(&study, 0);
    study_acquire(&study, 1);
    study_accumulate(&study, 0, 1, first);
    study_accumulate(&study, 1, 1, first);
    study_accumulate(&study, 0, 1, first + 1);
    study_evaluate(&study, 1, false, 3); /* S 0 */
    study_step(&study, 0);               /* S 1 */
    study_accumulate(&study, 0, 2, second);
    study_accumulate(&study, 1, 1, first + 1);
    study_step(&study, 1);             /* S 2 */
    study_train(&study, 1, 2, second); /* S 3 */
    study_step(&study, 0);             /* S 4 */
    study_export(&study, 0);
    study_export(&study, 1);
    run_kept(&study, &together);
    assert_alone(0, &together, 1, 4, 4);
    assert_alone(1, &together, 2, 3, 12);
    kept_free(&together);
    study_close(&study);
}

/* A window's `param` records are made once, where it opens. */
Test(tenants, a_window_opens_once) {
    struct study study;
    struct kept kept = {0};
    int embeddings[3] = {0};
    open_two(&study, "sgd");
    study_acquire(&study, 0);
    study_accumulate(&study, 0, 1, first);
    study_accumulate(&study, 0, 1, first + 1);
    study_step(&study, 0);
    study_evaluate(&study, 0, false, 3);
    run_kept(&study, &kept);
    for (int i = 0; i < kept.count; i++)
        for (int step = 0; step < 3; step++) {
            char name[64];
            snprintf(name, sizeof name, "step.%d/param/model.embed_tokens.weight", step);
            embeddings[step] += strcmp(kept.name[i], name) == 0;
        }
    cr_assert(embeddings[0] == 1 && embeddings[1] == 1 && embeddings[2] == 1);
    /* count: labels of both micro-batches, 14 + 2 by fixture.json */
    cr_assert_eq(kept_find(&kept, "step.0/loss/count")->x[0], 16);
    kept_free(&kept);
    study_close(&study);
}

static void train_and_watch(struct study *study, bool evaluations, struct kept *kept) {
    study_open(study, "qwen3_moe_tiny", "dov", DTYPE_F64);
    study_recipe(study, "qwen3_moe_tiny", "router");
    study_acquire(study, 0);
    for (int step = 0; step < 2; step++) {
        study_accumulate(study, 0, 1, first + step);
        for (int kind = 0; evaluations && kind < 3; kind++)
            study_evaluate(study, kind ? 0 : -1, kind == 1, 3 + kind);
        study_accumulate(study, 0, 1, third);
        study_step(study, 0);
    }
    run_kept(study, kept);
    study_close(study);
}

Test(tenants, evaluations_change_nothing) {
    struct study study;
    struct kept with = {0}, without = {0};
    train_and_watch(&study, false, &without);
    train_and_watch(&study, true, &with);
    cr_assert_gt(assert_step_equal(&without, 0, &with, 3, ""), 500);
    cr_assert_gt(assert_step_equal(&without, 1, &with, 7, ""), 500);
    cr_assert_gt(assert_step_equal(&without, 2, &with, 8, "/param/"), 40);
    kept_free(&with);
    kept_free(&without);
}

/* What a float64 run has trained is exported as it is, not in the file's float32. */
Test(tenants, a_trained_export_is_not_rounded) {
    struct study study;
    struct kept kept = {0};
    int finer = 0;
    open_two(&study, "sgd");
    study_acquire(&study, 0);
    study_train(&study, 0, 2, first);
    study_export(&study, 0);
    run_kept(&study, &kept);
    const struct adapter_target *target = &study.tenant[0].adapter.targets[0];
    char name[POINT_NAME_MAX];
    snprintf(name, sizeof name, "step.0/update/%s.lora_B", target->param->name);
    const struct value *slot = kept_find(&kept, name);
    snprintf(name, sizeof name, "step.1/export/tenant.ada/%.256s", target->key_b);
    const struct value *flat = kept_find(&kept, name);
    double *want = malloc((size_t)elements_of(flat) * sizeof *want);
    reference_flatten_b(target, STUDY_RANK, slot->x, want);
    for (int64_t i = 0; i < elements_of(flat); i++) {
        cr_assert_eq(flat->x[i], want[i]);
        finer += want[i] != (double)(float)want[i];
    }
    cr_assert_gt(finer, 100);
    free(want);
    kept_free(&kept);
    study_close(&study);
}

/* ---- release */

static void fresh_run(struct study *study, struct kept *kept) {
    study_acquire(study, 0);
    study_train(study, 0, 2, first);
    study_train(study, 0, 2, second);
    run_kept(study, kept);
}

static void assert_fresh(const char *recipe) {
    struct study study;
    struct kept fresh = {0}, again = {0};
    open_two(&study, recipe);
    fresh_run(&study, &fresh);
    study_close(&study);
    open_two(&study, recipe);
    study_acquire(&study, 0);
    study_train(&study, 0, 1, third);       /* S 0: states and counters are no longer new */
    study_accumulate(&study, 0, 2, second); /* an open window, never closed: it belongs to no step of the others */
    study.action[study.job.actions - 1].step = 99;
    study_release(&study, 0);
    fresh_run(&study, &again); /* S 1, S 2 */
    cr_assert_gt(assert_step_equal(&fresh, 0, &again, 1, ""), 500);
    cr_assert_gt(assert_step_equal(&fresh, 1, &again, 2, ""), 500);
    cr_assert_gt(assert_step_equal(&fresh, 2, &again, 3, "/param/"), 40);
    kept_free(&fresh);
    kept_free(&again);
    study_close(&study);
}

Test(tenants, release_then_acquire_is_a_fresh_acquire) {
    assert_fresh("sgd");
    assert_fresh("adamw");
}

/* Slots by lowest number: ada 0, bob 1; ada leaves, cyd gets 0; bob leaves and comes back to 1. */
Test(tenants, the_lowest_free_slot_is_taken) {
    struct study study;
    struct kept kept = {0};
    open_two(&study, "sgd");
    study_tenant(&study, "qwen3_moe_tiny", "cyd");
    study_acquire(&study, 0);
    study_acquire(&study, 1);
    study_release(&study, 0);
    study_acquire(&study, 2);
    study_release(&study, 1);
    study_acquire(&study, 1);
    study_evaluate(&study, -1, false, 0);
    run_kept(&study, &kept);
    const char *down = "model.layers.0.mlp.experts.down_proj", *q = "model.layers.0.self_attn.q_proj.weight";
    for (int slot = 0; slot < 2; slot++) { /* cyd adapts down_proj only, bob q, too */
        char name[POINT_NAME_MAX];
        int tenant = slot ? 1 : 2;
        const struct adapter *adapter = &study.tenant[tenant].adapter;
        const struct inventory *inventory = checkpoint_inventory(study.job.model);
        const struct adapter_target *target = adapter_find(adapter, inventory_named(inventory, down));
        snprintf(name, sizeof name, "step.0/param/slot.%d/%s.lora_A", slot, down);
        cr_assert_eq(kept_find(&kept, name)->x[0], tensor_get(&target->a, 0));
        snprintf(name, sizeof name, "step.0/param/slot.%d/%s.lora_A", slot, q);
        cr_assert_eq(kept_find(&kept, name)->x[0] != 0, tenant == 1);
    }
    kept_free(&kept);
    study_close(&study);
}

/* A = uniform/sqrt(in) by global index, rounded to float32; B = 0; before anybody came, in a slot that nobody took, and
 * after a release. */
static void assert_initial(const struct kept *kept, int step, int slot, const char *param, int64_t in) {
    char name[POINT_NAME_MAX];
    snprintf(name, sizeof name, "step.%d/param/slot.%d/%s.lora_A", step, slot, param);
    const struct value *a = kept_find(kept, name);
    for (int64_t i = 0; i < elements_of(a); i++) {
        double uniform = random_uniform(0x51075 + (uint64_t)slot, random_stream(param), (uint64_t)i);
        cr_assert_eq(a->x[i], (double)(float)(uniform / sqrt((double)in)), "%s[%lld]", name, (long long)i);
    }
    snprintf(name, sizeof name, "step.%d/param/slot.%d/%s.lora_B", step, slot, param);
    const struct value *b = kept_find(kept, name);
    for (int64_t i = 0; i < elements_of(b); i++)
        cr_assert_eq(b->x[i], 0);
}

Test(tenants, free_slots_hold_their_initial_values) {
    static const char *const params[] = {"model.layers.1.mlp.experts.down_proj",
                                         "model.layers.0.self_attn.q_proj.weight"};
    struct study study;
    struct kept kept = {0};
    open_two(&study, "adamw");
    study_evaluate(&study, -1, false, 0);
    study_acquire(&study, 1);
    study_train(&study, 1, 2, first);
    study_release(&study, 1);
    study_evaluate(&study, -1, false, 0);
    run_kept(&study, &kept);
    for (int i = 0; i < 2; i++) {
        int64_t in = i ? 20 : 14;
        assert_initial(&kept, 0, 0, params[i], in);
        assert_initial(&kept, 0, 1, params[i], in);
        assert_initial(&kept, 1, 1, params[i], in);
        assert_initial(&kept, 2, 0, params[i], in);
        assert_initial(&kept, 3, 0, params[i], in);
    }
    for (int i = 0; i < kept.count; i++)
        cr_assert(strncmp(kept.name[i], "step.2/", 7) != 0 || !strstr(kept.name[i], "exp_avg"), "%s", kept.name[i]);
    kept_free(&kept);
    study_close(&study);
}

/* ---- states of base parameters are the tenant's own */

static void assert_same_values(const struct kept *kept, const char *one, const char *other) {
    const struct value *a = kept_find(kept, one), *b = kept_find(kept, other);
    cr_assert_eq(memcmp(a->x, b->x, (size_t)elements_of(a) * sizeof(double)), 0, "%s is not %s", one, other);
}

Test(tenants, base_parameters_have_states_per_tenant) {
    struct study study;
    struct kept kept = {0};
    open_two(&study, "router");
    study_acquire(&study, 0);
    study_acquire(&study, 1);
    study_train(&study, 0, 1, first);
    study_train(&study, 1, 1, first);
    study_train(&study, 0, 1, third);
    run_kept(&study, &kept);
    /* bob's momentum starts at zero, though ada has moved the same weight */
    assert_same_values(&kept, "step.1/optimizer/momentum_buffer/model.norm.weight", "step.1/clip/model.norm.weight");
    assert_same_values(&kept, "step.1/param/slot.0/momentum_buffer/model.norm.weight",
                       "step.0/optimizer/momentum_buffer/model.norm.weight");
    assert_same_values(&kept, "step.2/param/momentum_buffer/model.norm.weight",
                       "step.0/optimizer/momentum_buffer/model.norm.weight");
    assert_same_values(&kept, "step.2/param/slot.1/momentum_buffer/model.norm.weight",
                       "step.1/optimizer/momentum_buffer/model.norm.weight");
    /* and the weight itself is everybody's */
    assert_same_values(&kept, "step.1/param/model.norm.weight", "step.0/update/model.norm.weight");
    assert_same_values(&kept, "step.2/micro.4/gather/model.norm.weight", "step.1/update/model.norm.weight");
    kept_free(&kept);
    study_close(&study);
}

/* A target of another tenant: zeros, with NaN beyond, too. */
Test(tenants, targets_of_others_are_zero) {
    struct study study;
    struct kept kept = {0};
    open_two(&study, "sgd");
    study.job.beyond_nan = true;
    study_acquire(&study, 0); /* ada adapts the experts only */
    study_evaluate(&study, 0, false, 0);
    run_kept(&study, &kept);
    const struct value *a = kept_find(&kept, "step.0/param/model.layers.0.self_attn.q_proj.weight.lora_A");
    for (int64_t i = 0; i < elements_of(a); i++)
        cr_assert_eq(a->x[i], 0);
    kept_free(&kept);
    study_close(&study);
}

/* ---- scripts that no harness makes */

static void assert_refused(struct study *study) {
    struct kept kept = {0};
    struct reference_hooks hooks = {.context = &kept, .emit = kept_hook};
    struct reference_options options = {0};
    cr_assert_eq(reference_run(&study->job, &options, &hooks), STATUS_INTERNAL);
    status_clear();
    kept_free(&kept);
    study_close(study);
}

Test(tenants, impossible_scripts_are_refused) {
    struct study study;
    open_two(&study, "sgd"); /* a window that nobody opened */
    study_acquire(&study, 0);
    study_train(&study, 0, 1, first);
    study.action[study.job.actions++] = (struct action){.kind = ACTION_STEP};
    assert_refused(&study);
    open_two(&study, "sgd"); /* released before */
    study_acquire(&study, 0);
    study_release(&study, 0);
    study_train(&study, 0, 1, first);
    assert_refused(&study);
    open_two(&study, "sgd"); /* twice */
    study_acquire(&study, 0);
    study_acquire(&study, 0);
    assert_refused(&study);
    open_two(&study, "sgd"); /* more tenants than slots */
    study.job.slots = 1;
    study_acquire(&study, 0);
    study_acquire(&study, 1);
    assert_refused(&study);
    open_two(&study, "sgd");
    study_release(&study, 0);
    assert_refused(&study);
}
