/* Models, adapters, batches, golden answers and layouts that do not fit are refused, the file named. */
#include "refusal.h"

#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"
#define HEAD "lm_head.weight"

/* ---- batches */

static void token_too_large(struct tensor_list *list) {
    tensor_set(&listed(list, "micro.1/input_ids")->tensor, 2, 53); /* the vocabulary of qwen3_moe_tiny */
}

static void label_too_small(struct tensor_list *list) {
    tensor_set(&listed(list, "micro.1/labels")->tensor, 2, -7);
}

static void no_labels(struct tensor_list *list) {
    list_drop(list, "micro.1/labels");
}

static void nothing_counts(struct tensor_list *list) {
    struct tensor *labels = &listed(list, "micro.0/labels")->tensor;
    for (int64_t i = 0; i < tensor_elements(labels); i++)
        tensor_set(labels, i, -100);
}

static void one_more(struct tensor_list *list) {
    list_add(list, "micro.0/mask", DTYPE_I64, 3);
}

static void refuse_batches(void (*change)(struct tensor_list *list), const char *place, const char *what) {
    struct scratch scratch = scratch_make();
    char *batches = scratch_tensors(&scratch, TINY "/batches.safetensors", "b.safetensors", change);
    char *path = scratch_case(&scratch, "case.yaml", 6, "batches: b.safetensors");
    REFUSED(&scratch, place, what, path);
    free(path);
    free(batches);
    scratch_free(&scratch);
}

Test(cli, refuses_wrong_batches) {
    refuse_batches(token_too_large, "#/b.safetensors", "micro.1/input_ids[0,2] is 53, expected 0 to 52");
    refuse_batches(label_too_small, "#/b.safetensors", "micro.1/labels[0,2] is -7, expected 0 to 52 or -100");
    refuse_batches(no_labels, "#/b.safetensors", "no tensor 'micro.1/labels'");
    refuse_batches(one_more, "#/b.safetensors", "tensor 'micro.0/mask', expected only");
    refuse_batches(nothing_counts, "#/case.yaml:7", "no label of this step counts");
}

/* ---- adapters */

static void drop_key(struct tensor_list *list) {
    list_drop(list, KEY);
}

static void foreign_key(struct tensor_list *list) {
    list_add(list, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", DTYPE_F64, 4);
}

static void doubled_prefix(struct tensor_list *list) {
    for (int i = 0; i < list->count; i++) {
        char name[512];
        snprintf(name, sizeof name, "base_model.model.%s", list->item[i].name);
        list_rename(&list->item[i], name);
    }
}

static void one_row_less(struct tensor_list *list) {
    listed(list, KEY)->tensor.shape[0]--;
}

static void integers(struct tensor_list *list) {
    listed(list, KEY)->tensor.dtype = DTYPE_I32; /* of the same size as F32 */
}

static void refuse_adapter(void (*change)(struct tensor_list *list), const char *config, const char *place,
                           const char *what) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "ada");
    free(scratch_tensors(&scratch, TINY "/adapters/ada/adapter_model.safetensors", "ada/adapter_model.safetensors",
                         change));
    if (config)
        free(scratch_write(&scratch, "ada/adapter_config.json", config));
    else
        scratch_copy(&scratch, TINY "/adapters/ada/adapter_config.json", "ada/adapter_config.json");
    char *path =
        scratch_case(&scratch, "case.yaml", 4, "tenants: {ada: {adapter: ada}, dov: {adapter: @/adapters/dov}}");
    REFUSED(&scratch, place, what, path);
    free(path);
    scratch_free(&scratch);
}

#define ADA "#/ada/adapter_model.safetensors"
#define CONFIG "#/ada/adapter_config.json"
#define TARGETS "\"target_parameters\": [\"mlp.experts.gate_up_proj\", \"mlp.experts.down_proj\"]}"

Test(cli, refuses_adapters_that_do_not_fit) {
    refuse_adapter(drop_key, NULL, ADA, "no tensor '" KEY "', expected by the target");
    refuse_adapter(foreign_key, NULL, ADA, "q_proj.lora_A.weight' belongs to no target");
    refuse_adapter(doubled_prefix, NULL, ADA, "the prefix 'base_model.model.' stands twice");
    refuse_adapter(one_row_less, NULL, ADA, "has shape [23,20], expected [24,20]");
    refuse_adapter(integers, NULL, ADA, "has type I32");
}

Test(cli, refuses_adapter_settings) {
    refuse_adapter(NULL, "{\"peft_type\": \"LORA\",\n", CONFIG ":2", "well-formed");
    refuse_adapter(NULL, "{}", CONFIG ":1", "'peft_type'");
    refuse_adapter(NULL, "{\"peft_type\": \"IA3\", \"r\": 2, \"lora_alpha\": 4, " TARGETS, CONFIG ":1", "LORA");
    refuse_adapter(NULL, "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 4, " TARGETS, ADA, "expected [36,20]");
    refuse_adapter(NULL, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"target_modules\": []}", CONFIG ":1",
                   "match nothing in the model, expected at least one target");
    refuse_adapter(NULL, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"target_modules\": [\"w_proj\"]}",
                   CONFIG ":1", "match nothing");
}

Test(cli, refuses_a_folder_that_is_no_adapter) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "ada");
    char *path = scratch_case(&scratch, "case.yaml", 4, "tenants: {ada: {adapter: ada}}");
    REFUSED(&scratch, "#/ada", "no adapter_config.json", path);
    scratch_copy(&scratch, TINY "/adapters/ada/adapter_config.json", "ada/adapter_config.json");
    REFUSED(&scratch, "#/ada", "no adapter_model.safetensors", path);
    free(path);
    scratch_free(&scratch);
}

/* ---- models */

static void drop_head(struct tensor_list *list) {
    list_drop(list, HEAD);
}

static void narrow_head(struct tensor_list *list) {
    listed(list, HEAD)->tensor.shape[0]--;
}

static void refuse_model(void (*change)(struct tensor_list *list), const char *config, const char *place,
                         const char *what) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "model");
    free(scratch_tensors(&scratch, TINY "/model/model.safetensors", "model/model.safetensors", change));
    if (config)
        free(scratch_write(&scratch, "model/config.json", config));
    else
        scratch_copy(&scratch, TINY "/model/config.json", "model/config.json");
    char *path = scratch_case(&scratch, "case.yaml", 2, "model: model");
    REFUSED(&scratch, place, what, path);
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_models_that_do_not_fit) {
    refuse_model(drop_head, NULL, "#/model/model.safetensors", "no tensor '" HEAD "'");
    refuse_model(narrow_head, NULL, "#/model/model.safetensors", "[52,20], expected [53,20]");
    refuse_model(NULL, "{\"model_type\": \"qwen3_moe\",\n\n", "#/model/config.json:3", "well-formed");
    refuse_model(NULL, "{\"model_type\": \"qwen3_moe\"}", "#/model/config.json:1", "expected");
    refuse_model(NULL, "{\n\"model_type\": \"llama\"}", "#/model/config.json:2", "'llama' is not supported");
}

Test(cli, refuses_other_families) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 2, "model: @/../glm4_moe_groups/model");
    REFUSED(&scratch, "@/../glm4_moe_groups/model/config.json:17", "'glm4_moe' is not supported", path);
    free(path);
    path = scratch_case(&scratch, "case.yaml", 2, "model: #");
    REFUSED(&scratch, "#", "no config.json", path);
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_shards_that_are_missing) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "model");
    scratch_copy(&scratch, UNEVEN "/model/config.json", "model/config.json");
    scratch_copy(&scratch, UNEVEN "/model/model.safetensors.index.json", "model/model.safetensors.index.json");
    char *path = scratch_case(&scratch, "case.yaml", 2, "model: model");
    REFUSED(&scratch, "#/model/model.safetensors.index.json:7", "expected a file of the folder", path);
    free(scratch_write(&scratch, "model/model.safetensors.index.json",
                       "{\"weight_map\": {\"a\": \"../x.safetensors\"}}"));
    REFUSED(&scratch, "#/model/model.safetensors.index.json:1", "inside the folder", path);
    free(path);
    scratch_free(&scratch);
}

/* ---- golden answers */

static void foreign_name(struct tensor_list *list) {
    list_rename(listed(list, "step.0/loss"), "step.0/lost");
}

static void wrong_step(struct tensor_list *list) {
    list_rename(listed(list, "step.0/loss"), "step.00/loss");
}

static void single(struct tensor_list *list) {
    struct tensor *loss = &listed(list, "step.0/loss")->tensor, narrow;
    DONE(tensor_convert(&narrow, DTYPE_F32, loss));
    tensor_free(loss);
    *loss = narrow;
}

static void refuse_golden(void (*change)(struct tensor_list *list), const char *what) {
    struct scratch scratch = scratch_make();
    free(scratch_tensors(&scratch, TINY "/golden/sgd/ada.safetensors", "g.safetensors", change));
    char *path = scratch_case(&scratch, "case.yaml", 3, "golden: {ada: g.safetensors}");
    REFUSED(&scratch, "#/g.safetensors", what, path);
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_tensors_that_are_no_golden_answers) {
    refuse_golden(foreign_name, "'step.0/lost' is not a golden name, expected");
    refuse_golden(wrong_step, "'step.00/loss' is not a golden name");
    refuse_golden(single, "'step.0/loss' is F32, expected F64");
}

Test(cli, refuses_golden_answers_in_float32) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3, "dtype: float32\ngolden: {ada: @/golden/sgd/ada.safetensors}");
    REFUSED(&scratch, "#/case.yaml:4", "expected", path);
    free(path);
    scratch_free(&scratch);
}

/* ---- layouts */

struct layout_row {
    const char *text;
    int at;
    const char *what;
};

Test(cli, refuses_layouts_at_their_line) {
    static const struct layout_row rows[] = {
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*\": \"out[tp] in\"\n", 3, "unknown mesh axis 'tp'"},
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*\": \"out[ep] in[ep]\"\n", 3, "stands twice"},
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*\": \"out[ep in\"\n", 3, "column 8"},
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*\": \"((out) in)\"\n", 3, "do not nest"},
        {"mesh: {ep: 2, fsdp: 2}\naxes: {out: 1}\ntensors:\n  \"*\": \"out in\"\n", 4, "model.embed_tokens.weight"},
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*.experts.*\": \"expert[ep] out in\"\n  \"*\": \"out in\"\n", 4, "1 "},
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*.experts.*.lora_?\": \"expert out[fsdp] in\"\n"
         "  \"*.experts.*\": \"expert[ep] out in\"\n  \"*norm*\": \"hidden\"\n  \"*\": \"out in\"\n",
         3, "experts are not cut by ep first"},
        {"mesh: {ep: 2, fsdp: 2}\naxes: {rank: 3}\ntensors:\n  \"*.experts.*.lora_A\": \"expert[ep] rank in\"\n"
         "  \"*.experts.*\": \"expert[ep] out in\"\n  \"*norm*\": \"hidden\"\n  \"*\": \"out in\"\n",
         4, "gate_up_proj.lora_A: axis 'rank' has size 3 in 'axes', expected 4"},
        {"mesh: {ep: 2, fsdp: 2}\ntensors: {}\n", 2, "empty"},
        {"mesh: {ep: 2, fsdp: 2}\n", 1, "'tensors' is missing"},
        {"mesh: {ep: 2, fsdp: 2}\ntensor: {}\n", 2, "did you mean 'tensors'?"},
        {"mesh: {ep: 2, fsdp: 2}\ntensors:\n  \"*norm.weight\": \"hidden\"\n", 0, "model.embed_tokens.weight"},
    };
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3, "mesh: {ep: 2, fsdp: 2}\nlayout: layout.yaml");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char place[64] = "#/layout.yaml";
        if (rows[i].at)
            snprintf(place, sizeof place, "#/layout.yaml:%d", rows[i].at);
        free(scratch_write(&scratch, "layout.yaml", rows[i].text));
        REFUSED(&scratch, place, rows[i].what, path);
    }
    free(path);
    scratch_free(&scratch);
}

/* ---- hostile safetensors wherever one is read */

static const struct {
    const char *vector, *what;
} vectors[] = {{"tiny7", "7 bytes"},
               {"empty", "0 bytes"},
               {"n_max", "18446744073709551615 bytes"},
               {"overlap", "begins at 0"},
               {"hole", "begins at 4"},
               {"bits_overflow", "overflows"},
               {"deep", "nesting"},
               {"dup_diff", "stands twice"},
               {"extra_trailing_byte", "bytes of data"},
               {"neg_shape", "expected"},
               {"hdr_array", "expected"},
               {"size_mismatch", "expected"},
               {"bad_utf8", "UTF-8"},
               {"dtype_unknown", "an unknown dtype"},
               {"ok", "'a'"},
               {"escaped_name", "'a"},
               {"zero_elem_mid", "'"},
               {"overflow_then_zero", "overflows"},
               {"offsets_desc", "expected"},
               {"two_objs", "expected"}};

static void put_vector(const struct scratch *scratch, const char *vector, const char *name) {
    char from[256];
    snprintf(from, sizeof from, "fixtures/safetensors_vectors/%s.st", vector);
    scratch_copy(scratch, from, name);
}

static void refuse_vectors(const char *file, int line, const char *text) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "ada");
    scratch_mkdir(&scratch, "model");
    scratch_copy(&scratch, TINY "/adapters/ada/adapter_config.json", "ada/adapter_config.json");
    scratch_copy(&scratch, TINY "/model/config.json", "model/config.json");
    char *path = scratch_case(&scratch, "case.yaml", line, text);
    char place[128];
    snprintf(place, sizeof place, "#/%s", file);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        bool sound = strcmp(vectors[i].what, "'a'") == 0 || vectors[i].what[0] == '\'';
        put_vector(&scratch, vectors[i].vector, file);
        REFUSED(&scratch, place, sound ? "expected" : vectors[i].what, path);
    }
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_hostile_batches) {
    refuse_vectors("b.safetensors", 6, "batches: b.safetensors");
}

Test(cli, refuses_hostile_adapters) {
    refuse_vectors("ada/adapter_model.safetensors", 4, "tenants: {ada: {adapter: ada}}");
}

Test(cli, refuses_hostile_models) {
    refuse_vectors("model/model.safetensors", 2, "model: model");
}

Test(cli, refuses_hostile_golden_answers) {
    refuse_vectors("g.safetensors", 3, "golden: {ada: g.safetensors}");
}

Test(cli, refuses_truncated_files) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 2, "model: model"), *file;
    scratch_mkdir(&scratch, "model");
    scratch_copy(&scratch, TINY "/model/config.json", "model/config.json");
    file = scratch_path(&scratch, "model/model.safetensors");
    static const off_t lengths[] = {0, 1, 8, 100, 5000, 112959}; /* of 112960 */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        scratch_copy(&scratch, TINY "/model/model.safetensors", "model/model.safetensors");
        cr_assert_eq(truncate(file, lengths[i]), 0);
        REFUSED(&scratch, "#/model/model.safetensors", "expected", path);
    }
    free(file);
    free(path);
    scratch_free(&scratch);
}
