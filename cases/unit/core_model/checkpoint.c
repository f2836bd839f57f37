/* Hugging Face folders: values as they lie, in each form; every fault named. */
#include "scratch.h"

#include "core/checkpoint.h"
#include "core/files.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY "fixtures/golden/qwen3_moe_tiny/"
#define UNEVEN "fixtures/golden/qwen3_moe_uneven/"

/* Expected values were decoded from the files' bytes by a Python script. */
struct spot {
    const char *name;
    int64_t index; /* row-major in the in-memory shape */
    double want;
};

static void expect_spots(const char *folder, const struct spot *spots, int count) {
    struct checkpoint *checkpoint;
    DONE(checkpoint_open(&checkpoint, folder));
    cr_expect_str_eq(checkpoint_path(checkpoint), folder);
    for (int i = 0; i < count; i++) {
        struct tensor tensor;
        const struct param *param = inventory_named(checkpoint_inventory(checkpoint), spots[i].name);
        cr_assert_not_null(param, "%s", spots[i].name);
        DONE(checkpoint_read(checkpoint, param, DTYPE_F64, &tensor));
        cr_expect(tensor.ndim == param->ndim && memcmp(tensor.shape, param->shape, sizeof param->shape) == 0);
        cr_expect_eq(tensor_get(&tensor, spots[i].index), spots[i].want, "%s[%ld]", spots[i].name,
                     (long)spots[i].index);
        tensor_free(&tensor);
    }
    checkpoint_close(checkpoint);
}

Test(checkpoint, tiny_one_by_one_and_packed) {
    static const struct spot spots[] = {
        {"model.layers.1.mlp.experts.gate_up_proj", (10 * 28 + 5) * 20 + 7, 0x1.edcb48p-4},      /* gate row 5 */
        {"model.layers.1.mlp.experts.gate_up_proj", (10 * 28 + 14 + 5) * 20 + 7, 0x1.6d9b7ep-3}, /* up row 5 */
        {"model.layers.0.mlp.experts.down_proj", (2 * 20 + 19) * 14 + 13, 0x1.ff6c3cp-4},
        {"lm_head.weight", 53 * 20 - 1, 0x1.5f31ecp-2},
        {"model.layers.1.self_attn.k_norm.weight", 5, 0x1.f3a288p-1},
    };
    expect_spots(TINY "model", spots, 5);
    expect_spots(TINY "model_packed", spots, 5);
}

Test(checkpoint, uneven_bf16_in_four_files) {
    static const struct spot spots[] = {
        {"model.layers.2.mlp.experts.gate_up_proj", (9 * 22 + 10) * 18 + 17, 0x1.c4p-3},
        {"model.layers.2.mlp.experts.gate_up_proj", (9 * 22 + 11) * 18 + 3, 0x1.7ep-3},
        {"model.layers.1.mlp.experts.down_proj", (4 * 18 + 17) * 11, 0x1.5p-1},
        {"model.layers.0.mlp.up_proj.weight", 24 * 18, 0x1.3cp-1},
        {"model.embed_tokens.weight", 47 * 18 - 1, -0x1.48p-1},
        {"lm_head.weight", 47 * 18 - 1, -0x1.48p-1}, /* tied */
    };
    expect_spots(UNEVEN "model", spots, 6);
}

Test(checkpoint, both_forms_hold_the_same_bits_in_every_tensor) {
    struct checkpoint *one, *packed;
    DONE(checkpoint_open(&one, TINY "model"));
    DONE(checkpoint_open(&packed, TINY "model_packed"));
    const struct inventory *inventory = checkpoint_inventory(one);
    for (int i = 0; i < inventory->count; i++) {
        struct tensor a, b;
        DONE(checkpoint_read(one, &inventory->params[i], DTYPE_F32, &a));
        DONE(checkpoint_read(packed, &checkpoint_inventory(packed)->params[i], DTYPE_F32, &b));
        cr_assert_eq(tensor_bytes(&a), tensor_bytes(&b));
        cr_expect_arr_eq(a.data, b.data, tensor_bytes(&a), "%s", inventory->params[i].name);
        tensor_free(&a);
        tensor_free(&b);
    }
    checkpoint_close(one);
    checkpoint_close(packed);
}

/* The small model, its layer 1 experts one by one, in mixed types, tied. */
#define EXPERT(e, leaf, out, in)                                                                                       \
    {                                                                                                                  \
        "model.layers.1.mlp.experts." #e "." leaf ".weight", DTYPE_F32, 2, {                                           \
            out, in                                                                                                    \
        }                                                                                                              \
    }
static const struct scratch_tensor small_tensors[] = {
    {"model.embed_tokens.weight", DTYPE_F16, 2, {7, 4}},
    {"model.layers.0.input_layernorm.weight", DTYPE_F32, 1, {4}},
    {"model.layers.0.self_attn.q_proj.weight", DTYPE_F64, 2, {4, 4}},
    {"model.layers.0.self_attn.k_proj.weight", DTYPE_F32, 2, {2, 4}},
    {"model.layers.0.self_attn.v_proj.weight", DTYPE_F32, 2, {2, 4}},
    {"model.layers.0.self_attn.o_proj.weight", DTYPE_F32, 2, {4, 4}},
    {"model.layers.0.self_attn.q_norm.weight", DTYPE_F32, 1, {2}},
    {"model.layers.0.self_attn.k_norm.weight", DTYPE_F32, 1, {2}},
    {"model.layers.0.post_attention_layernorm.weight", DTYPE_F32, 1, {4}},
    {"model.layers.0.mlp.gate_proj.weight", DTYPE_F32, 2, {5, 4}},
    {"model.layers.0.mlp.up_proj.weight", DTYPE_F32, 2, {5, 4}},
    {"model.layers.0.mlp.down_proj.weight", DTYPE_F32, 2, {4, 5}},
    {"model.layers.1.input_layernorm.weight", DTYPE_F32, 1, {4}},
    {"model.layers.1.self_attn.q_proj.weight", DTYPE_F32, 2, {4, 4}},
    {"model.layers.1.self_attn.k_proj.weight", DTYPE_F32, 2, {2, 4}},
    {"model.layers.1.self_attn.v_proj.weight", DTYPE_F32, 2, {2, 4}},
    {"model.layers.1.self_attn.o_proj.weight", DTYPE_F32, 2, {4, 4}},
    {"model.layers.1.self_attn.q_norm.weight", DTYPE_F32, 1, {2}},
    {"model.layers.1.self_attn.k_norm.weight", DTYPE_F32, 1, {2}},
    {"model.layers.1.post_attention_layernorm.weight", DTYPE_F32, 1, {4}},
    {"model.layers.1.mlp.gate.weight", DTYPE_F32, 2, {3, 4}},
    EXPERT(0, "gate_proj", 2, 4),
    EXPERT(0, "up_proj", 2, 4),
    EXPERT(0, "down_proj", 4, 2),
    EXPERT(1, "gate_proj", 2, 4),
    EXPERT(1, "up_proj", 2, 4),
    EXPERT(1, "down_proj", 4, 2),
    EXPERT(2, "gate_proj", 2, 4),
    EXPERT(2, "up_proj", 2, 4),
    EXPERT(2, "down_proj", 4, 2),
    {"model.norm.weight", DTYPE_F32, 1, {4}},
    {"lm_head.weight", DTYPE_F32, 2, {7, 4}},
    {"model.nobody.needs.this", DTYPE_I64, 1, {3}},
};
#define SMALL_COUNT ((int)(sizeof small_tensors / sizeof *small_tensors))

static int index_of(const char *name) {
    int found = 0;
    while (found < SMALL_COUNT && strcmp(small_tensors[found].name, name) != 0)
        found++;
    cr_assert_lt(found, SMALL_COUNT, "no tensor %s", name);
    return found;
}

static char *small_folder(const char *config) {
    char *folder = scratch_folder();
    scratch_text(folder, "config.json", config);
    return folder;
}

Test(checkpoint, small_model_in_mixed_types) {
    char *folder = small_folder(small_config);
    scratch_tensors(folder, "model.safetensors", small_tensors, SMALL_COUNT);
    /* element i of tensor t is (t + 1) * 1000 + i; half precision below 2048 is exact */
    const struct spot spots[] = {
        {"model.embed_tokens.weight", 27, 1027},
        {"model.layers.0.self_attn.q_proj.weight", 15, 3015},
        {"model.layers.1.mlp.experts.gate_up_proj", 2 * 16 + 7,
         (index_of("model.layers.1.mlp.experts.2.gate_proj.weight") + 1) * 1000 + 7},
        {"model.layers.1.mlp.experts.gate_up_proj", 1 * 16 + 8,
         (index_of("model.layers.1.mlp.experts.1.up_proj.weight") + 1) * 1000},
        {"model.layers.1.mlp.experts.down_proj", 1 * 8 + 3,
         (index_of("model.layers.1.mlp.experts.1.down_proj.weight") + 1) * 1000 + 3},
        {"lm_head.weight", 0, (index_of("lm_head.weight") + 1) * 1000},
    };
    expect_spots(folder, spots, 6);
    scratch_remove(folder);
}

Test(checkpoint, a_tied_head_on_disk_is_ignored) {
    char text[1024] = "{\"tie_word_embeddings\": true,";
    char *folder = small_folder(strcat(text, small_config + 1));
    scratch_tensors(folder, "model.safetensors", small_tensors, SMALL_COUNT);
    const struct spot spot = {"lm_head.weight", 2, 1002};
    expect_spots(folder, &spot, 1);
    scratch_remove(folder);
}

Test(checkpoint, each_missing_tensor_is_named) {
    for (int left_out = 0; left_out < SMALL_COUNT - 1; left_out++) {
        struct scratch_tensor tensors[SMALL_COUNT];
        int count = 0;
        for (int i = 0; i < SMALL_COUNT; i++)
            if (i != left_out)
                tensors[count++] = small_tensors[i];
        char *folder = small_folder(small_config);
        struct checkpoint *checkpoint;
        scratch_tensors(folder, "model.safetensors", tensors, count);
        REFUSED(checkpoint_open(&checkpoint, folder), folder, "/model.safetensors: no tensor",
                small_tensors[left_out].name);
        cr_expect_null(checkpoint);
        scratch_remove(folder);
    }
}

static void expect_changed(int index, struct scratch_tensor changed, const char *a, const char *b) {
    struct scratch_tensor tensors[SMALL_COUNT];
    struct checkpoint *checkpoint;
    memcpy(tensors, small_tensors, sizeof tensors);
    tensors[index] = changed;
    char *folder = small_folder(small_config);
    scratch_tensors(folder, "model.safetensors", tensors, SMALL_COUNT);
    REFUSED(checkpoint_open(&checkpoint, folder), "/model.safetensors: tensor", small_tensors[index].name, a, b);
    scratch_remove(folder);
}

Test(checkpoint, wrong_shapes_and_types) {
    const char *norm = "model.norm.weight", *expert = "model.layers.1.mlp.experts.2.up_proj.weight";
    expect_changed(index_of(norm), (struct scratch_tensor){norm, DTYPE_F32, 1, {5}}, "shape [5]", "expected [4]");
    expect_changed(index_of(norm), (struct scratch_tensor){norm, DTYPE_F32, 2, {4, 1}}, "shape [4,1]", "expected [4]");
    expect_changed(index_of(norm), (struct scratch_tensor){norm, DTYPE_I64, 1, {4}}, "type I64",
                   "expected F64, F32, BF16 or F16");
    expect_changed(index_of(expert), (struct scratch_tensor){expert, DTYPE_F32, 2, {4, 2}}, "shape [4,2]",
                   "expected [2,4]");
}

Test(checkpoint, packed_and_one_by_one_at_once) {
    struct scratch_tensor tensors[SMALL_COUNT + 1];
    struct checkpoint *checkpoint;
    memcpy(tensors, small_tensors, sizeof small_tensors);
    tensors[SMALL_COUNT] = (struct scratch_tensor){"model.layers.1.mlp.experts.down_proj", DTYPE_F32, 3, {3, 4, 2}};
    char *folder = small_folder(small_config);
    scratch_tensors(folder, "model.safetensors", tensors, SMALL_COUNT + 1);
    REFUSED(checkpoint_open(&checkpoint, folder), "holds both", "model.layers.1.mlp.experts.down_proj",
            "model.layers.1.mlp.experts.0.down_proj.weight");
    scratch_remove(folder);
}

Test(checkpoint, folders_that_are_none) {
    struct checkpoint *checkpoint;
    char *folder = scratch_folder();
    REFUSED(checkpoint_open(&checkpoint, "fixtures/golden/nowhere"), "fixtures/golden/nowhere: no such folder");
    REFUSED(checkpoint_open(&checkpoint, folder), folder, "no config.json");
    scratch_text(folder, "config.json", small_config);
    REFUSED(checkpoint_open(&checkpoint, folder), folder, "no weights");
    scratch_remove(folder);
    REFUSED(checkpoint_open(&checkpoint, "fixtures/golden/gpt_oss_transposed/model"),
            "fixtures/golden/gpt_oss_transposed/model/config.json:", "'gpt_oss' is not supported", "qwen3_moe");
}

Test(checkpoint, truncated_weights) {
    struct checkpoint *checkpoint;
    char *folder = small_folder(small_config), *bytes;
    char *path = path_join(folder, "model.safetensors");
    size_t length;
    scratch_tensors(folder, "model.safetensors", small_tensors, SMALL_COUNT);
    DONE(file_read(path, &bytes, &length));
    DONE(file_write(path, bytes, length - 1));
    REFUSED(checkpoint_open(&checkpoint, folder), path);
    free(bytes);
    free(path);
    scratch_remove(folder);
}

/* An index that places everything in part.safetensors but for `name`, which it places in `file`. */
static void write_index(const char *folder, const char *name, const char *file) {
    char text[8192] = "{\"metadata\": {},\n\"weight_map\": {";
    for (int i = 0; i < SMALL_COUNT; i++) {
        bool special = strcmp(small_tensors[i].name, name) == 0;
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s\n\"%s\": \"%s\"", i ? "," : "", small_tensors[i].name,
                 special ? file : "part.safetensors");
    }
    scratch_text(folder, "model.safetensors.index.json", strcat(text, "}}\n"));
}

Test(checkpoint, index_faults_have_their_line) {
    struct checkpoint *checkpoint;
    char *folder = small_folder(small_config);
    scratch_tensors(folder, "part.safetensors", small_tensors, SMALL_COUNT);
    scratch_tensors(folder, "empty.safetensors", small_tensors, 1);
    write_index(folder, "", "");
    DONE(checkpoint_open(&checkpoint, folder));
    checkpoint_close(checkpoint);
    const char *norm = "model.layers.0.input_layernorm.weight"; /* line 4 of the index */
    static const char *const outside[] = {"../part.safetensors", "/etc/passwd", "..", "sub/part.safetensors"};
    for (int i = 0; i < 4; i++) {
        write_index(folder, norm, outside[i]);
        REFUSED(checkpoint_open(&checkpoint, folder), "index.json:4:", outside[i], "a file inside the folder");
    }
    write_index(folder, norm, "gone.safetensors");
    REFUSED(checkpoint_open(&checkpoint, folder), "index.json:4:", "gone.safetensors");
    write_index(folder, norm, "empty.safetensors");
    REFUSED(checkpoint_open(&checkpoint, folder), "empty.safetensors: no tensor", norm, "index.json:4");
    scratch_text(folder, "model.safetensors.index.json", "{\"metadata\": {}}\n");
    REFUSED(checkpoint_open(&checkpoint, folder), "index.json:1:", "no key 'weight_map'");
    scratch_remove(folder);
}
