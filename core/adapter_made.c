#include "core/adapter.h"

#include "core/adapter_match.h"
#include "core/random.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANK 65536 /* no adapter comes near, and its factors would dwarf any model */
#define MAX_ELEMENTS ((int64_t)1 << 48)
#define F32_BITS 24 /* of the significand: index-coded data needs elements + 1 <= 2^24 */

static const char *const null_keys[] = {"alora_invocation_tokens",
                                        "arrow_config",
                                        "auto_mapping",
                                        "base_model_name_or_path",
                                        "corda_config",
                                        "eva_config",
                                        "exclude_modules",
                                        "kasa_config",
                                        "layer_replication",
                                        "layers_pattern",
                                        "layers_to_transform",
                                        "lora_ga_config",
                                        "megatron_config",
                                        "modules_to_save",
                                        "monteclora_config",
                                        "revision",
                                        "trainable_token_indices",
                                        "use_bdlora",
                                        "velora_config"};
static const char *const false_keys[] = {"ensure_weight_tying", "fan_in_fan_out", "lora_bias", "use_dora",
                                         "use_qalora"};
static const char *const true_keys[] = {"inference_mode", "init_lora_weights"};
static const char *const map_keys[] = {"alpha_pattern", "loftq_config", "rank_pattern"};
static const char *const text_keys[][2] = {{"bias", "none"},
                                           {"megatron_core", "megatron.core"},
                                           {"peft_type", "LORA"},
                                           {"peft_version", "0.21.2"},
                                           {"task_type", "CAUSAL_LM"}};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static json_t *list_of(const char *const *texts, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_string(texts[i]));
    return list;
}

/* A whole number stands as one, as Python writes it. */
static json_t *number_of(double value) {
    bool whole = fabs(value) < 1e15 && value == floor(value);
    return whole ? json_integer((json_int_t)value) : json_real(value);
}

/* adapter_config.json as PEFT writes it: every key, sorted, indent 2. NULL: out of memory or no UTF-8. */
static char *config_text(const struct adapter_spec *spec) {
    json_t *map = json_object();
    int failed = 0;
    for (size_t i = 0; i < COUNT(null_keys); i++)
        failed |= json_object_set_new(map, null_keys[i], json_null());
    for (size_t i = 0; i < COUNT(false_keys); i++)
        failed |= json_object_set_new(map, false_keys[i], json_false());
    for (size_t i = 0; i < COUNT(true_keys); i++)
        failed |= json_object_set_new(map, true_keys[i], json_true());
    for (size_t i = 0; i < COUNT(map_keys); i++)
        failed |= json_object_set_new(map, map_keys[i], json_object());
    for (size_t i = 0; i < COUNT(text_keys); i++)
        failed |= json_object_set_new(map, text_keys[i][0], json_string(text_keys[i][1]));
    failed |= json_object_set_new(map, "lora_dropout", json_real(0));
    failed |= json_object_set_new(map, "qalora_group_size", json_integer(16));
    failed |= json_object_set_new(map, "r", json_integer(spec->rank));
    failed |= json_object_set_new(map, "lora_alpha", number_of(spec->alpha));
    failed |= json_object_set_new(map, "use_rslora", json_boolean(spec->rslora));
    failed |= json_object_set_new(map, "target_modules", list_of(spec->target_modules, spec->modules));
    failed |= json_object_set_new(map, "target_parameters", list_of(spec->target_parameters, spec->parameters));
    char *text = failed ? NULL : json_dumps(map, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(map);
    return text;
}

static enum status list_entries(struct adapter_entry **out, int *count, const char *const *texts, int number,
                                const char *where) {
    *out = calloc((size_t)number + 1, sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "%s: out of memory", where);
    for (int i = 0; i < number; i++)
        (*out)[i].text = texts[i];
    *count = number;
    return STATUS_OK;
}

static enum status match_spec(struct adapter *out, const struct adapter_spec *spec, const struct inventory *inventory,
                              const char *where) {
    struct adapter_settings settings = {
        .place = where, .rank = spec->rank, .alpha = spec->alpha, .rslora = spec->rslora, .every_entry = true};
    enum status status;
    TRY_DONE(list_entries(&settings.parameter, &settings.parameters, spec->target_parameters, spec->parameters, where));
    TRY_DONE(list_entries(&settings.module, &settings.modules, spec->target_modules, spec->modules, where));
    TRY_DONE(adapter_match(out, &settings, inventory));
done:
    adapter_settings_free(&settings);
    return status;
}

/* One factor, float32: zero, index-coded, or scale * uniform from (key, flat index, seed). */
static enum status make_factor(struct tensor *out, const struct adapter_spec *spec, const char *key, int64_t rows,
                               int64_t columns, double scale, const char *where) {
    int64_t elements;
    if (__builtin_mul_overflow(rows, columns, &elements) || elements > MAX_ELEMENTS)
        return status_fail(STATUS_INPUT, "%s: '%s' of %" PRId64 " x %" PRId64 " elements, expected at most 2^48", where,
                           key, rows, columns);
    if (scale != 0 && spec->data == DATA_INDEX && elements + 1 > (int64_t)1 << F32_BITS)
        return status_fail(STATUS_INPUT,
                           "%s: index data for '%s' is not exact in float32: %" PRId64
                           " elements, expected less than 2^%d",
                           where, key, elements, F32_BITS);
    TRY(tensor_make(out, DTYPE_F32, 2, (const int64_t[]){rows, columns}));
    uint64_t stream = random_stream(key);
    for (int64_t i = 0; i < elements; i++) {
        double value = 0;
        if (scale != 0)
            value = spec->data == DATA_INDEX ? index_coded(i, elements)
                                             : scale * random_uniform(spec->seed, stream, (uint64_t)i);
        tensor_set(out, i, value);
    }
    return STATUS_OK;
}

static enum status make_target(struct adapter_target *target, const struct adapter_spec *spec, const char *where) {
    int64_t wide = target->experts * target->lora_rank;
    double scale_b = spec->zero_b ? 0 : 1 / sqrt((double)target->lora_rank);
    TRY(make_factor(&target->a, spec, target->key_a, wide, target->in, 1 / sqrt((double)target->in), where));
    return make_factor(&target->b, spec, target->key_b, target->out, wide, scale_b, where);
}

static enum status make_adapter(struct adapter *out, const struct adapter_spec *spec, const struct inventory *inventory,
                                const char *where) {
    if (spec->rank < 1 || spec->rank > MAX_RANK)
        return status_fail(STATUS_INPUT, "%s: rank %" PRId64 ", expected 1 to %d", where, spec->rank, MAX_RANK);
    if (!isfinite(spec->alpha))
        return status_fail(STATUS_INPUT, "%s: alpha %g, expected a finite number", where, spec->alpha);
    TRY(match_spec(out, spec, inventory, where));
    out->path = strdup("");
    out->config_text = config_text(spec);
    if (!out->path || !out->config_text)
        return status_fail(STATUS_MEMORY, "%s: out of memory, or a target that is not UTF-8", where);
    for (int i = 0; i < out->count; i++)
        TRY(make_target(&out->targets[i], spec, where));
    return STATUS_OK;
}

enum status adapter_make(struct adapter *out, const struct adapter_spec *spec, const struct inventory *inventory,
                         const char *where) {
    *out = (struct adapter){0};
    enum status status = make_adapter(out, spec, inventory, where);
    if (status != STATUS_OK)
        adapter_free(out);
    return status;
}
