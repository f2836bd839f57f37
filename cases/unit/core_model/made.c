/* Models, adapters and batches made from a seed: the same values on every call, in the range promised. */
#include "scratch.h"

#include "core/adapter.h"
#include "core/files.h"
#include "core/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct checkpoint *make_model(const char *text, uint64_t seed, enum data_kind data) {
    struct yaml yaml = {0};
    struct checkpoint *checkpoint;
    DONE(yaml_parse(&yaml, "case.yaml", text, strlen(text)));
    DONE(checkpoint_make(&checkpoint, &yaml, yaml.root, seed, data));
    yaml_close(&yaml);
    return checkpoint;
}

static struct tensor read_param(const struct checkpoint *checkpoint, int index, enum dtype dtype) {
    struct tensor tensor;
    DONE(checkpoint_read(checkpoint, &checkpoint_inventory(checkpoint)->params[index], dtype, &tensor));
    return tensor;
}

static bool equal(const struct tensor *a, const struct tensor *b) {
    return tensor_same_shape(a, b) && memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

/* Half the width of each distribution, by hand: H 4, q width 4, I 2, F 5. */
static double width_of(const struct param *param, double *centre) {
    *centre = 0;
    switch (param->kind) {
    case PARAM_EMBED:
        return 1;
    case PARAM_DOWN:
        return sqrt(0.5);
    case PARAM_MLP_DOWN:
        return sqrt(0.2);
    default:
        if (param->ndim > 1)
            return 0.5;
        *centre = 1;
        return 0.2;
    }
}

Test(made, model_is_a_function_of_name_index_and_seed) {
    struct checkpoint *a = make_model(small_config, 7, DATA_RANDOM), *b = make_model(small_config, 7, DATA_RANDOM);
    struct checkpoint *other = make_model(small_config, 8, DATA_RANDOM);
    const struct inventory *inventory = checkpoint_inventory(a);
    cr_expect_str_eq(checkpoint_path(a), "");
    for (int i = 0; i < inventory->count; i++) {
        struct tensor x = read_param(a, i, DTYPE_F64), y = read_param(b, i, DTYPE_F64),
                      z = read_param(other, i, DTYPE_F64);
        struct tensor low = read_param(a, i, DTYPE_F32);
        double centre, width = width_of(&inventory->params[i], &centre);
        cr_expect(equal(&x, &y) && !equal(&x, &z), "%s", inventory->params[i].name);
        for (int64_t k = 0; k < tensor_elements(&x); k++) {
            double value = tensor_get(&x, k);
            cr_expect(fabs(value - centre) <= width * 1.0000001 && value != centre, "%s", inventory->params[i].name);
            cr_expect_eq(value, (double)(float)value); /* rounded to float32: both precisions start alike */
            cr_expect_eq(tensor_get(&low, k), value);
        }
        tensor_free(&x);
        tensor_free(&y);
        tensor_free(&z);
        tensor_free(&low);
    }
    struct tensor q0 = read_param(a, 2, DTYPE_F64), v0 = read_param(a, 5, DTYPE_F64);
    cr_expect(!equal(&q0, &v0)); /* q and o: same shape, another stream */
    tensor_free(&q0);
    tensor_free(&v0);
    checkpoint_close(a);
    checkpoint_close(b);
    checkpoint_close(other);
}

Test(made, tied_head_is_the_embedding) {
    char text[1024] = "{\"tie_word_embeddings\": true,";
    struct checkpoint *checkpoint = make_model(strcat(text, small_config + 1), 3, DATA_RANDOM);
    int last = checkpoint_inventory(checkpoint)->count - 1;
    struct tensor embedding = read_param(checkpoint, 0, DTYPE_F64), head = read_param(checkpoint, last, DTYPE_F64);
    cr_expect(equal(&embedding, &head));
    tensor_free(&embedding);
    tensor_free(&head);
    checkpoint_close(checkpoint);
}

Test(made, index_model_says_where_an_element_came_from) {
    struct checkpoint *checkpoint = make_model(small_config, 0, DATA_INDEX);
    const struct inventory *inventory = checkpoint_inventory(checkpoint);
    for (int i = 0; i < inventory->count; i++) {
        struct tensor tensor = read_param(checkpoint, i, DTYPE_F32);
        int64_t elements = tensor_elements(&tensor);
        double step = ldexp(1, -ilogb((double)elements) - 1); /* the power of two that brings elements * step below 1 */
        for (int64_t k = 0; k < elements; k++)
            cr_expect_eq(tensor_get(&tensor, k), (double)(k + 1) * step, "%s", inventory->params[i].name);
        tensor_free(&tensor);
    }
    checkpoint_close(checkpoint);
}

/* 8192 * 2048 = 2^24 elements: element 2^24 - 1 has code 2^24, one more than float32 counts. */
Test(made, index_model_must_be_exact_in_the_dtype) {
    const char *text =
        "\n{model_type: qwen3_moe, vocab_size: 4096, hidden_size: 4096, num_hidden_layers: 1, num_attention_heads: 1,"
        " num_key_value_heads: 1, head_dim: 2, num_experts: 1, num_experts_per_tok: 1, moe_intermediate_size: 1}";
    struct checkpoint *checkpoint = make_model(text, 0, DATA_INDEX);
    struct tensor tensor;
    REFUSED(checkpoint_read(checkpoint, &checkpoint_inventory(checkpoint)->params[0], DTYPE_F32, &tensor),
            "case.yaml:2:", "'model.embed_tokens.weight'", "float32");
    checkpoint_close(checkpoint);
}

Test(made, a_config_that_is_refused) {
    struct yaml yaml = {0};
    struct checkpoint *checkpoint;
    const char *text = "case: x\nmodel: {config: {\n  model_type: llama}}\n";
    DONE(yaml_parse(&yaml, "case.yaml", text, strlen(text)));
    REFUSED(checkpoint_make(&checkpoint, &yaml, yaml_get(yaml_get(yaml.root, "model"), "config"), 1, DATA_RANDOM),
            "case.yaml:3:", "'llama' is not supported");
    cr_expect_null(checkpoint);
    yaml_close(&yaml);
}

static const char *const parameters[] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
static const char *const modules[] = {"q_proj", "lm_head"};
static const struct adapter_spec full_spec = {.rank = 3,
                                              .alpha = 4.5,
                                              .rslora = true,
                                              .seed = 5,
                                              .parameters = 2,
                                              .target_parameters = parameters,
                                              .modules = 2,
                                              .target_modules = modules};

Test(made, adapter) {
    struct inventory inventory = small_inventory();
    struct adapter a, b;
    DONE(adapter_make(&a, &full_spec, &inventory, "case.yaml:9"));
    DONE(adapter_make(&b, &full_spec, &inventory, "case.yaml:9"));
    cr_assert_eq(a.count, 5); /* q twice, experts twice, head */
    cr_expect_str_eq(a.targets[1].key_b, "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight");
    cr_expect_str_eq(a.targets[2].key_a, "base_model.model.model.layers.1.mlp.experts.base_layer.lora_A.weight");
    cr_expect(a.targets[2].a.shape[0] == 9 && a.targets[2].a.shape[1] == 4);
    cr_expect(a.targets[2].b.shape[0] == 4 && a.targets[2].b.shape[1] == 9);
    cr_expect(a.targets[3].a.shape[1] == 2 && a.targets[4].b.shape[0] == 7);
    cr_expect_float_eq(a.targets[0].scale, 2.598076211353316, 1e-15); /* 4.5 / sqrt 3, 2 roundings below 4.5e-16 each */
    for (int i = 0; i < a.count; i++) {
        const struct adapter_target *target = &a.targets[i];
        cr_expect(equal(&target->a, &b.targets[i].a) && equal(&target->b, &b.targets[i].b));
        cr_expect_eq(target->a.dtype, DTYPE_F32);
        for (int64_t k = 0; k < tensor_elements(&target->a); k++)
            cr_expect(fabs(tensor_get(&target->a, k)) <= 1.0000001 / sqrt((double)target->in));
        for (int64_t k = 0; k < tensor_elements(&target->b); k++) {
            double value = fabs(tensor_get(&target->b, k));
            cr_expect(value <= 1.0000001 / sqrt(3) && value > 0);
        }
    }
    adapter_free(&a);
    adapter_free(&b);
    inventory_free(&inventory);
}

Test(made, adapter_with_zero_b_and_index_data) {
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    struct adapter_spec spec = full_spec;
    spec.zero_b = true;
    spec.data = DATA_INDEX;
    DONE(adapter_make(&adapter, &spec, &inventory, "case.yaml:9"));
    const struct adapter_target *q = &adapter.targets[0];
    for (int64_t k = 0; k < 12; k++) {
        cr_expect_eq(tensor_get(&q->a, k), (double)(k + 1) / 16); /* A is [3,4] */
        cr_expect_eq(tensor_get(&q->b, k), 0);
    }
    adapter_free(&adapter);
    inventory_free(&inventory);
}

/* What is written can be opened, with the same targets, scales and bits: config text and keys are PEFT's. */
Test(made, adapter_written_and_opened) {
    struct inventory inventory = small_inventory();
    struct adapter made, opened;
    struct tensor a[5], b[5];
    char *folder = scratch_folder();
    DONE(adapter_make(&made, &full_spec, &inventory, "case.yaml:9"));
    for (int i = 0; i < made.count; i++) {
        a[i] = made.targets[i].a;
        b[i] = made.targets[i].b;
    }
    DONE(adapter_write(&made, folder, a, b));
    DONE(adapter_open(&opened, folder, &inventory));
    cr_assert_eq(opened.count, 5);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(opened.targets[i].param, made.targets[i].param);
        cr_expect_eq(opened.targets[i].scale, made.targets[i].scale);
        cr_expect(equal(&opened.targets[i].a, &a[i]) && equal(&opened.targets[i].b, &b[i]));
    }
    cr_expect(strstr(made.config_text, "  \"lora_alpha\": 4.5,\n"));
    cr_expect(strstr(made.config_text, "  \"r\": 3,\n"));
    cr_expect(strstr(made.config_text, "  \"use_rslora\": true,\n"));
    adapter_free(&opened);
    adapter_free(&made);
    scratch_remove(folder);
    inventory_free(&inventory);
}

Test(made, adapters_that_are_refused) {
    struct inventory inventory = small_inventory();
    struct adapter adapter;
    struct adapter_spec spec = full_spec;
    spec.rank = 0;
    REFUSED(adapter_make(&adapter, &spec, &inventory, "case.yaml:9"), "case.yaml:9: rank 0");
    spec = full_spec;
    spec.alpha = NAN;
    REFUSED(adapter_make(&adapter, &spec, &inventory, "case.yaml:9"), "case.yaml:9: alpha");
    spec = full_spec;
    spec.rank = 65537;
    REFUSED(adapter_make(&adapter, &spec, &inventory, "case.yaml:9"), "case.yaml:9: rank 65537, expected 1 to 65536");
    spec = full_spec;
    spec.target_modules = (const char *const[]){"q_proj", "q_prj"};
    REFUSED(adapter_make(&adapter, &spec, &inventory, "case.yaml:9"), "case.yaml:9: ", "'q_prj' matches nothing");
    spec.target_modules = (const char *const[]){"q_proj", "self_attn"};
    REFUSED(adapter_make(&adapter, &spec, &inventory, "case.yaml:9"), "case.yaml:9: ", "expected only linear modules");
    inventory_free(&inventory);
}

/* Rank 65536 on 3 experts of in 128: A of gate_up has 3 * 2^23 elements, more than float32 counts. */
Test(made, index_adapter_must_be_exact) {
    const char *text =
        "{model_type: qwen3_moe, vocab_size: 7, hidden_size: 128, num_hidden_layers: 1, num_attention_heads: 1,"
        " num_key_value_heads: 1, head_dim: 2, num_experts: 3, num_experts_per_tok: 1, moe_intermediate_size: 1}";
    struct checkpoint *checkpoint = make_model(text, 0, DATA_RANDOM);
    struct adapter adapter;
    struct adapter_spec spec = full_spec;
    spec.rank = 65536;
    spec.modules = 0;
    spec.data = DATA_INDEX;
    REFUSED(adapter_make(&adapter, &spec, checkpoint_inventory(checkpoint), "case.yaml:9"), "case.yaml:9: index data",
            "base_layer.lora_A.weight", "float32");
    checkpoint_close(checkpoint);
}
