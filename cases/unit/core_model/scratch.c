#include "scratch.h"

#include "core/files.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char small_config[] = "{\n"
                            "  \"model_type\": \"qwen3_moe\",\n"
                            "  \"vocab_size\": 7,\n"
                            "  \"hidden_size\": 4,\n"
                            "  \"num_hidden_layers\": 2,\n"
                            "  \"num_attention_heads\": 2,\n"
                            "  \"num_key_value_heads\": 1,\n"
                            "  \"head_dim\": 2,\n"
                            "  \"num_experts\": 3,\n"
                            "  \"num_experts_per_tok\": 2,\n"
                            "  \"moe_intermediate_size\": 2,\n"
                            "  \"intermediate_size\": 5,\n"
                            "  \"mlp_only_layers\": [0]\n"
                            "}\n";

char *scratch_folder(void) {
    const char *base = getenv("TMPDIR");
    char *folder = path_join(base ? base : "/tmp", "core_model.XXXXXX");
    cr_assert_not_null(folder);
    cr_assert_not_null(mkdtemp(folder), "%s", folder);
    return folder;
}

void scratch_remove(char *folder) {
    DONE(folder_remove(folder));
    free(folder);
}

void scratch_text(const char *folder, const char *name, const char *text) {
    char *path = path_join(folder, name);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    cr_assert(fputs(text, file) >= 0);
    cr_assert_eq(fclose(file), 0);
    free(path);
}

struct inventory small_inventory(void) {
    struct yaml yaml = {0};
    struct model_config config = {0};
    struct inventory inventory = {0};
    DONE(yaml_parse(&yaml, "small.json", small_config, strlen(small_config)));
    DONE(config_read(&config, &yaml, yaml.root));
    DONE(inventory_make(&inventory, &config));
    config_free(&config);
    yaml_close(&yaml);
    return inventory;
}

/* binary16 of 1000, 2000, ... up to 65504 and small steps: enough of the type for whole numbers below 2048 */
static uint16_t half_of(int value) {
    int exponent = 0;
    while (value >> (exponent + 1))
        exponent++;
    int mantissa = exponent <= 10 ? value << (10 - exponent) : value >> (exponent - 10);
    return (uint16_t)((exponent + 15) << 10 | (mantissa & 0x3ff));
}

static void fill(struct tensor *tensor, int start) {
    for (int64_t i = 0; i < tensor_elements(tensor); i++) {
        if (tensor->dtype == DTYPE_F16)
            ((uint16_t *)tensor->data)[i] = half_of(start + (int)i);
        else
            tensor_set(tensor, i, (double)(start + (int)i));
    }
}

void scratch_tensors(const char *folder, const char *name, const struct scratch_tensor *tensors, int count) {
    struct tensor *made = calloc((size_t)count + 1, sizeof *made);
    struct safetensors_item *items = calloc((size_t)count + 1, sizeof *items);
    struct safetensors_pair format = {"format", "pt"};
    char *path = path_join(folder, name);
    for (int i = 0; i < count; i++) {
        DONE(tensor_make(&made[i], tensors[i].dtype, tensors[i].ndim, tensors[i].shape));
        fill(&made[i], (i + 1) * 1000);
        items[i] = (struct safetensors_item){tensors[i].name, &made[i]};
    }
    DONE(safetensors_write(path, items, count, &format, 1));
    for (int i = 0; i < count; i++)
        tensor_free(&made[i]);
    free(path);
    free(items);
    free(made);
}

void expect_refusal(enum status status, const char *const *texts) {
    cr_expect_eq(status, STATUS_INPUT, "status %d, note: %s", status, status_note());
    for (int i = 0; texts[i]; i++)
        cr_expect(strstr(status_note(), texts[i]), "the note lacks '%s': %s", texts[i], status_note());
    status_clear();
}
