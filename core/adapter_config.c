#include "core/adapter_config.h"

#include "core/files.h"
#include "core/yaml_null.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_RANK ((int64_t)1 << 31)

/* Other values change what the tensors mean or what a step computes. An empty list or map counts as null. */
static const char *const must_be_false[] = {"lora_bias",  "fan_in_fan_out", "use_dora",
                                            "use_qalora", "use_bdlora",     "ensure_weight_tying"};
static const char *const must_be_null[] = {"modules_to_save",     "layer_replication", "trainable_token_indices",
                                           "layers_to_transform", "exclude_modules",   "alora_invocation_tokens"};

static enum status out_of_memory(const struct yaml *yaml) {
    return status_fail(STATUS_MEMORY, "%s: out of memory", yaml->path);
}

static bool is_empty(const struct yaml_node *node) {
    return node->kind == YAML_SCALAR ? yaml_is_null(node) : node->count == 0;
}

static bool ends_with(const char *text, const char *tail) {
    size_t length = strlen(text), size = strlen(tail);
    return length >= size && strcmp(text + length - size, tail) == 0;
}

static enum status check_defaults(const struct yaml *yaml, const struct yaml_node *map) {
    for (size_t i = 0; i < sizeof must_be_false / sizeof *must_be_false; i++) {
        const struct yaml_node *node = yaml_present(map, must_be_false[i]);
        bool off = !node || (node->kind == YAML_SCALAR && !node->quoted && strcmp(node->text, "false") == 0);
        if (!off)
            return yaml_fail(yaml, node, "%s is not supported, expected false", must_be_false[i]);
    }
    for (size_t i = 0; i < sizeof must_be_null / sizeof *must_be_null; i++) {
        const struct yaml_node *node = yaml_present(map, must_be_null[i]);
        if (node && !is_empty(node))
            return yaml_fail(yaml, node, "%s is not supported, expected null", must_be_null[i]);
    }
    for (int i = 0; i < map->count;
         i++) /* a variant each: eva_config, corda_config, ...; megatron's has no influence */
        if (ends_with(map->keys[i], "_config") && strcmp(map->keys[i], "megatron_config") != 0 &&
            !is_empty(map->items[i]))
            return yaml_fail(yaml, map->items[i], "%s is not supported, expected null", map->keys[i]);
    return STATUS_OK;
}

static enum status check_type(const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *node = yaml_present(map, "peft_type");
    if (!node)
        return yaml_fail(yaml, map, "no key 'peft_type', expected LORA");
    const char *text;
    TRY(yaml_string(yaml, node, &text));
    if (strcmp(text, "LORA") != 0)
        return yaml_fail(yaml, node, "peft_type '%s' is not supported, expected LORA", text);
    node = yaml_present(map, "bias");
    if (!node)
        return STATUS_OK;
    TRY(yaml_string(yaml, node, &text));
    if (strcmp(text, "none") != 0)
        return yaml_fail(yaml, node, "bias '%s' is not supported, expected none", text);
    return STATUS_OK;
}

static enum status check_dropout(const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *node = yaml_present(map, "lora_dropout");
    double dropout = 0;
    if (node)
        TRY(yaml_number(yaml, node, &dropout));
    if (dropout != 0)
        return yaml_fail(yaml, node, "lora_dropout %g is not supported, expected 0", dropout);
    return STATUS_OK;
}

static enum status read_scale(struct adapter_settings *out, const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *rank = yaml_present(map, "r");
    const struct yaml_node *alpha = yaml_present(map, "lora_alpha");
    const struct yaml_node *rslora = yaml_present(map, "use_rslora");
    if (!rank)
        return yaml_fail(yaml, map, "no key 'r', expected the adapter's rank");
    if (!alpha)
        return yaml_fail(yaml, map, "no key 'lora_alpha', expected a number");
    TRY(yaml_integer(yaml, rank, 1, MAX_RANK, &out->rank));
    TRY(yaml_number(yaml, alpha, &out->alpha));
    return rslora ? yaml_boolean(yaml, rslora, &out->rslora) : STATUS_OK;
}

static enum status read_entries(struct adapter_entry **out, int *count, const struct yaml *yaml,
                                const struct yaml_node *list, const char *what) {
    TRY(yaml_expect(yaml, list, YAML_LIST, what));
    *out = calloc((size_t)list->count + 1, sizeof **out);
    if (!*out)
        return out_of_memory(yaml);
    for (int i = 0; i < list->count; i++) {
        TRY(yaml_string(yaml, list->items[i], &(*out)[i].text));
        if ((*out)[i].text[0] == '\0')
            return yaml_fail(yaml, list->items[i], "%s has an empty entry, expected a name", what);
        (*out)[i].line = list->items[i]->line;
        *count = i + 1;
    }
    return STATUS_OK;
}

static enum status read_modules(struct adapter_settings *out, const struct yaml *yaml, const struct yaml_node *map) {
    const struct yaml_node *node = yaml_present(map, "target_modules");
    out->modules_line = node ? node->line : 0;
    if (!node)
        return STATUS_OK;
    if (node->kind != YAML_SCALAR)
        return read_entries(&out->module, &out->modules, yaml, node, "target_modules");
    const char *text;
    TRY(yaml_string(yaml, node, &text));
    if (strcasecmp(text, "all-linear") == 0) {
        out->all_linear = true;
        return STATUS_OK;
    }
    char why[PATTERN_WHY_MAX];
    if (!pattern_compile(&out->modules_regex, text, PATTERN_WHOLE, why))
        return yaml_fail(yaml, node, "target_modules '%s' is no regular expression that can be read here: %s", text,
                         why);
    return STATUS_OK;
}

/* rank_pattern or alpha_pattern, in file order. */
static enum status read_patterns(struct adapter_pattern **out, int *count, const struct yaml *yaml,
                                 const struct yaml_node *map, const char *key, bool whole) {
    const struct yaml_node *patterns = yaml_present(map, key);
    if (!patterns)
        return STATUS_OK;
    TRY(yaml_expect(yaml, patterns, YAML_MAP, key));
    *out = calloc((size_t)patterns->count + 1, sizeof **out);
    if (!*out)
        return out_of_memory(yaml);
    for (int i = 0; i < patterns->count; i++) {
        struct adapter_pattern *pattern = &(*out)[i];
        char why[PATTERN_WHY_MAX];
        int64_t rank = 0;
        if (whole)
            TRY(yaml_integer(yaml, patterns->items[i], 1, MAX_RANK, &rank));
        else
            TRY(yaml_number(yaml, patterns->items[i], &pattern->value));
        if (whole)
            pattern->value = (double)rank;
        if (!pattern_compile(&pattern->pattern, patterns->keys[i], PATTERN_END, why))
            return yaml_fail(yaml, patterns->items[i], "%s '%s' is no regular expression that can be read here: %s",
                             key, patterns->keys[i], why);
        *count = i + 1;
    }
    return STATUS_OK;
}

static enum status read_settings(struct adapter_settings *out, const struct yaml *yaml) {
    const struct yaml_node *map = yaml->root;
    TRY(yaml_expect(yaml, map, YAML_MAP, "an adapter's configuration"));
    out->place = yaml->path;
    TRY(check_type(yaml, map));
    TRY(check_defaults(yaml, map));
    TRY(check_dropout(yaml, map));
    TRY(read_scale(out, yaml, map));
    TRY(read_patterns(&out->rank_pattern, &out->ranks, yaml, map, "rank_pattern", true));
    TRY(read_patterns(&out->alpha_pattern, &out->alphas, yaml, map, "alpha_pattern", false));
    const struct yaml_node *parameters = yaml_present(map, "target_parameters");
    if (parameters)
        TRY(read_entries(&out->parameter, &out->parameters, yaml, parameters, "target_parameters"));
    return read_modules(out, yaml, map);
}

static enum status open_config(struct adapter_config *out, const char *path) {
    size_t length;
    TRY(file_read(path, &out->text, &length));
    TRY(yaml_parse(&out->yaml, path, out->text, length));
    return read_settings(&out->settings, &out->yaml);
}

enum status adapter_config_open(struct adapter_config *out, const char *path) {
    *out = (struct adapter_config){0};
    enum status status = open_config(out, path);
    if (status != STATUS_OK)
        adapter_config_free(out);
    return status;
}

void adapter_config_free(struct adapter_config *config) {
    adapter_settings_free(&config->settings);
    yaml_close(&config->yaml);
    free(config->text);
    *config = (struct adapter_config){0};
}
