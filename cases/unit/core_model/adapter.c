/* PEFT folders of the fixtures: targets, ranks, scales, keys and shapes by hand from fixture.json. */
#include "scratch.h"

#include "core/adapter.h"
#include "core/files.h"
#include "core/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct family { /* what a tenant adapts in each layer of a range */
    enum param_kind kind;
    int first_layer, last_layer;
    int64_t experts, rank, in, out;
    double scale;
    const char *module; /* with the nesting: "mlp.experts.base_layer" */
};

struct tenant_row {
    const char *fixture, *name;
    int targets;
    struct family family[8];
};

#define TINY_LAYERS 0, 1
static const struct tenant_row tenants[] = {
    {"qwen3_moe_tiny",
     "ada",
     4,
     {{PARAM_GATE_UP, TINY_LAYERS, 12, 2, 20, 28, 4, "mlp.experts.base_layer"},
      {PARAM_DOWN, TINY_LAYERS, 12, 2, 14, 20, 4, "mlp.experts"}}},
    {"qwen3_moe_tiny",
     "bob",
     12,
     {{PARAM_GATE_UP, TINY_LAYERS, 12, 5, 20, 28, 4.47213595499958 /* 10/sqrt 5 */, "mlp.experts.base_layer"},
      {PARAM_DOWN, TINY_LAYERS, 12, 5, 14, 20, 4.47213595499958, "mlp.experts"},
      {PARAM_Q, TINY_LAYERS, 1, 5, 20, 24, 4.47213595499958, "self_attn.q_proj"},
      {PARAM_K, TINY_LAYERS, 1, 5, 20, 12, 4.47213595499958, "self_attn.k_proj"},
      {PARAM_V, TINY_LAYERS, 1, 5, 20, 12, 4.47213595499958, "self_attn.v_proj"},
      {PARAM_O, TINY_LAYERS, 1, 5, 24, 20, 4.47213595499958, "self_attn.o_proj"}}},
    {"qwen3_moe_tiny", "cyd", 2, {{PARAM_DOWN, TINY_LAYERS, 12, 3, 14, 20, 1, "mlp.experts"}}},
    {"qwen3_moe_tiny",
     "dov",
     4,
     {{PARAM_Q, TINY_LAYERS, 1, 4, 20, 24, 1.5, "self_attn.q_proj"},
      {PARAM_V, TINY_LAYERS, 1, 4, 20, 12, 1.5, "self_attn.v_proj"}}},
    {"qwen3_moe_tiny",
     "eve",
     12,
     {{PARAM_GATE_UP, TINY_LAYERS, 12, 1, 20, 28, 2, "mlp.experts.base_layer"},
      {PARAM_DOWN, TINY_LAYERS, 12, 2, 14, 20, 2.5, "mlp.experts"},
      {PARAM_Q, TINY_LAYERS, 1, 6, 20, 24, 1.5, "self_attn.q_proj"},
      {PARAM_K, TINY_LAYERS, 1, 6, 20, 12, 1.5, "self_attn.k_proj"},
      {PARAM_V, TINY_LAYERS, 1, 6, 20, 12, 1.5, "self_attn.v_proj"},
      {PARAM_O, TINY_LAYERS, 1, 6, 24, 20, 1.5, "self_attn.o_proj"}}},
    {"qwen3_moe_uneven",
     "fay",
     4,
     {{PARAM_GATE_UP, 1, 2, 10, 3, 18, 22, 4.041451884327381 /* 7/sqrt 3 */, "mlp.experts.base_layer"},
      {PARAM_DOWN, 1, 2, 10, 3, 11, 18, 4.041451884327381, "mlp.experts"}}},
    {"qwen3_moe_uneven",
     "gus",
     8,
     {{PARAM_GATE_UP, 1, 2, 10, 4, 18, 22, 0.75, "mlp.experts"},
      {PARAM_K, 0, 2, 1, 4, 18, 14, 0.75, "self_attn.k_proj"},
      {PARAM_O, 0, 2, 1, 4, 42, 18, 0.75, "self_attn.o_proj"}}},
};
#define TENANTS ((int)(sizeof tenants / sizeof *tenants))

static char *format(const char *pattern, const char *a, const char *b) {
    char *text;
    cr_assert(asprintf(&text, pattern, a, b) >= 0);
    return text;
}

static void expect_target(const struct adapter *adapter, const struct inventory *inventory, const struct family *want,
                          int layer) {
    const struct param *param = inventory_find(inventory, want->kind, layer);
    const struct adapter_target *target = adapter_find(adapter, param);
    char key[256];
    cr_assert_not_null(target, "%s", param->name);
    cr_expect(target->experts == want->experts && target->lora_rank == want->rank, "%s", param->name);
    cr_expect(target->in == want->in && target->out == want->out, "%s", param->name);
    cr_expect(fabs(target->scale - want->scale) <= 4e-16 * want->scale, "%s: %.17g", param->name,
              target->scale); /* 2 roundings */
    snprintf(key, sizeof key, "base_model.model.model.layers.%d.%s.lora_A.weight", layer, want->module);
    cr_expect_str_eq(target->key_a, key);
    *strstr(key, "lora_A") = '\0';
    cr_expect_str_eq(target->key_b, strcat(key, "lora_B.weight"));
    cr_expect_eq(target->a.dtype, DTYPE_F32);
    cr_expect(target->a.ndim == 2 && target->a.shape[0] == want->experts * want->rank &&
              target->a.shape[1] == want->in);
    cr_expect(target->b.ndim == 2 && target->b.shape[0] == want->out &&
              target->b.shape[1] == want->experts * want->rank);
}

Test(adapter, every_tenant_of_both_fixtures) {
    for (int i = 0; i < TENANTS; i++) {
        const struct tenant_row *row = &tenants[i];
        char *model = format("fixtures/golden/%s/model%s", row->fixture, "");
        char *folder = format("fixtures/golden/%s/adapters/%s", row->fixture, row->name);
        struct checkpoint *checkpoint;
        struct adapter adapter;
        DONE(checkpoint_open(&checkpoint, model));
        DONE(adapter_open(&adapter, folder, checkpoint_inventory(checkpoint)));
        cr_expect_str_eq(adapter.path, folder);
        cr_expect_eq(adapter.count, row->targets, "%s: %d", row->name, adapter.count);
        for (const struct family *family = row->family; family->module; family++)
            for (int layer = family->first_layer; layer <= family->last_layer; layer++)
                expect_target(&adapter, checkpoint_inventory(checkpoint), family, layer);
        for (int k = 1; k < adapter.count; k++)
            cr_expect_lt(adapter.targets[k - 1].param, adapter.targets[k].param);
        adapter_free(&adapter);
        checkpoint_close(checkpoint);
        free(folder);
        free(model);
    }
}

/* Values decoded from eve's file by a Python script. */
Test(adapter, values_as_they_lie) {
    struct checkpoint *checkpoint;
    struct adapter adapter;
    DONE(checkpoint_open(&checkpoint, "fixtures/golden/qwen3_moe_tiny/model"));
    const struct inventory *inventory = checkpoint_inventory(checkpoint);
    DONE(adapter_open(&adapter, "fixtures/golden/qwen3_moe_tiny/adapters/eve", inventory));
    const struct adapter_target *gate_up = adapter_find(&adapter, inventory_find(inventory, PARAM_GATE_UP, 1));
    cr_expect_eq(tensor_get(&gate_up->b, 27 * 12 + 11), -0x1.72ae0ep-2);
    const struct adapter_target *o = adapter_find(&adapter, inventory_find(inventory, PARAM_O, 0));
    cr_expect_eq(tensor_get(&o->a, 5 * 24 + 23), 0x1.d921e8p-4);
    cr_expect_null(adapter_find(&adapter, inventory_find(inventory, PARAM_ROUTER, 0)));
    adapter_free(&adapter);
    checkpoint_close(checkpoint);
}

static void expect_same_file(const char *a_folder, const char *b_folder, const char *name) {
    char *a_path = path_join(a_folder, name), *b_path = path_join(b_folder, name), *a, *b;
    size_t a_length, b_length;
    DONE(file_read(a_path, &a, &a_length));
    DONE(file_read(b_path, &b, &b_length));
    cr_assert_eq(a_length, b_length, "%s", name);
    cr_expect_arr_eq(a, b, a_length, "%s", name);
    free(a);
    free(b);
    free(a_path);
    free(b_path);
}

Test(adapter, untrained_export_is_byte_for_byte) {
    for (int i = 0; i < TENANTS; i++) {
        char *model = format("fixtures/golden/%s/model%s", tenants[i].fixture, "");
        char *from = format("fixtures/golden/%s/adapters/%s", tenants[i].fixture, tenants[i].name);
        char *scratch = scratch_folder(), *to = path_join(scratch, "export/deep");
        struct tensor a[16], b[16];
        struct checkpoint *checkpoint;
        struct adapter adapter;
        DONE(checkpoint_open(&checkpoint, model));
        DONE(adapter_open(&adapter, from, checkpoint_inventory(checkpoint)));
        for (int k = 0; k < adapter.count; k++) {
            a[k] = adapter.targets[k].a;
            b[k] = adapter.targets[k].b;
        }
        DONE(adapter_write(&adapter, to, a, b));
        expect_same_file(from, to, "adapter_config.json");
        expect_same_file(from, to, "adapter_model.safetensors");
        b[0].shape[0]--;
        cr_expect_eq(adapter_write(&adapter, to, a, b), STATUS_INTERNAL);
        status_clear();
        adapter_free(&adapter);
        checkpoint_close(checkpoint);
        scratch_remove(scratch);
        free(to);
        free(from);
        free(model);
    }
}
