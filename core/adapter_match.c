#include "core/adapter_match.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum target_rule {
    TARGET_NONE,
    TARGET_MODULE,
    TARGET_PARAMETER
};

#define ENTRY_NONE (-1)
#define ENTRY_WHOLE_SETTING (-2) /* a regular expression or all-linear matched, no entry of the list */

static enum status fail_at(const struct adapter_settings *settings, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum status fail_at(const struct adapter_settings *settings, int line, const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (line > 0)
        return status_fail(STATUS_INPUT, "%s:%d: %s", settings->place, line, text);
    return status_fail(STATUS_INPUT, "%s: %s", settings->place, text);
}

void adapter_settings_free(struct adapter_settings *settings) {
    for (int i = 0; i < settings->ranks; i++)
        pattern_free(&settings->rank_pattern[i].pattern);
    for (int i = 0; i < settings->alphas; i++)
        pattern_free(&settings->alpha_pattern[i].pattern);
    pattern_free(&settings->modules_regex);
    free(settings->rank_pattern);
    free(settings->alpha_pattern);
    free(settings->parameter);
    free(settings->module);
    *settings = (struct adapter_settings){0};
}

/* Equal, or ending in "." + entry. */
static bool ends_with_entry(const char *name, const char *entry) {
    size_t length = strlen(name), tail = strlen(entry);
    if (length < tail || strcmp(name + length - tail, entry) != 0)
        return false;
    return length == tail || name[length - tail - 1] == '.';
}

static int find_entry(const struct adapter_entry *entries, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (ends_with_entry(name, entries[i].text))
            return i;
    return ENTRY_NONE;
}

/* Whether the parameter is the weight of a plain linear module (torch.nn.Linear). */
static bool is_linear_weight(const struct param *param) {
    return param->linear && !param->expert && param->kind != PARAM_ROUTER;
}

static int module_entry(const struct adapter_settings *settings, const char *module) {
    if (settings->modules_regex.compiled)
        return pattern_matches(&settings->modules_regex, module) ? ENTRY_WHOLE_SETTING : ENTRY_NONE;
    return find_entry(settings->module, settings->modules, module);
}

static enum target_rule rule_of(const struct adapter_settings *settings, const struct param *param) {
    if (find_entry(settings->parameter, settings->parameters, param->name) != ENTRY_NONE)
        return TARGET_PARAMETER;
    if (!is_linear_weight(param))
        return TARGET_NONE;
    if (settings->all_linear)
        return param->kind == PARAM_HEAD ? TARGET_NONE : TARGET_MODULE;
    return module_entry(settings, param->module) == ENTRY_NONE ? TARGET_NONE : TARGET_MODULE;
}

static bool has_experts(const struct inventory *inventory) {
    for (int i = 0; i < inventory->count; i++)
        if (inventory->params[i].expert)
            return true;
    return false;
}

char *adapter_rewrite_hint(char out[ADAPTER_HINT_MAX], const struct adapter_settings *settings,
                           const struct inventory *inventory) {
    static const char *const rewritten[] = {"gate_proj", "up_proj", "down_proj", "gate"};
    const char *entry = settings->all_linear ? "all-linear" : NULL;
    for (int i = 0; i < settings->modules && !entry; i++)
        for (int k = 0; k < 4 && !entry; k++)
            if (ends_with_entry(settings->module[i].text, rewritten[k]))
                entry = settings->module[i].text;
    out[0] = '\0';
    if (entry && has_experts(inventory))
        snprintf(out, ADAPTER_HINT_MAX,
                 " (PEFT 0.21 may have moved '%.64s' of target_modules to experts or router; it is read plainly here, "
                 "expected such targets in target_parameters)",
                 entry);
    return out;
}

static enum status refuse_module(const struct adapter_settings *settings, const struct inventory *inventory, int entry,
                                 const char *module) {
    char hint[ADAPTER_HINT_MAX];
    adapter_rewrite_hint(hint, settings, inventory);
    if (entry == ENTRY_WHOLE_SETTING)
        return fail_at(settings, settings->modules_line, "target_modules matches '%s', expected only linear modules%s",
                       module, hint);
    return fail_at(settings, settings->module[entry].line,
                   "target_modules entry '%s' matches '%s', expected only linear modules%s",
                   settings->module[entry].text, module, hint);
}

static bool is_linear_module(const struct inventory *inventory, const char *module) {
    for (int i = 0; i < inventory->count; i++)
        if (is_linear_weight(&inventory->params[i]) && strcmp(inventory->params[i].module, module) == 0)
            return true;
    return false;
}

/* No entry may match a module that is not linear: neither a parameter's own module nor one around it. */
static enum status check_modules(const struct adapter_settings *settings, const struct inventory *inventory) {
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        size_t length = strlen(param->module);
        for (size_t end = 1; end <= length; end++) {
            if (param->module[end] != '.' && end != length)
                continue;
            char module[PARAM_NAME_MAX];
            snprintf(module, sizeof module, "%.*s", (int)end, param->module);
            int entry = module_entry(settings, module);
            if (entry != ENTRY_NONE && !is_linear_module(inventory, module))
                return refuse_module(settings, inventory, entry, module);
        }
    }
    return STATUS_OK;
}

static enum status check_parameters(const struct adapter_settings *settings, const struct inventory *inventory) {
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        int entry = find_entry(settings->parameter, settings->parameters, param->name);
        if (entry == ENTRY_NONE)
            continue;
        const struct adapter_entry *found = &settings->parameter[entry];
        if (!param->linear)
            return fail_at(settings, found->line,
                           "target_parameters entry '%s' matches '%s', expected only weights of linear maps",
                           found->text, param->name);
        bool module = settings->all_linear ? is_linear_weight(param) && param->kind != PARAM_HEAD
                                           : module_entry(settings, param->module) != ENTRY_NONE;
        if (module)
            return fail_at(settings, found->line,
                           "target_parameters entry '%s' matches '%s', but target_modules has its module, expected one "
                           "of them",
                           found->text, param->name);
    }
    return STATUS_OK;
}

static enum status check_entries_used(const struct adapter_settings *settings, const struct inventory *inventory) {
    for (int i = 0; i < settings->parameters + settings->modules; i++) {
        bool parameter = i < settings->parameters, used = false;
        const struct adapter_entry *entry =
            parameter ? &settings->parameter[i] : &settings->module[i - settings->parameters];
        for (int k = 0; k < inventory->count && !used; k++) {
            const struct param *param = &inventory->params[k];
            used = ends_with_entry(parameter ? param->name : param->module, entry->text);
        }
        if (!used)
            return fail_at(settings, entry->line, "%s entry '%s' matches nothing in the model, expected a %s's name",
                           parameter ? "target_parameters" : "target_modules", entry->text,
                           parameter ? "parameter" : "module");
    }
    return STATUS_OK;
}

static double pattern_value(const struct adapter_pattern *patterns, int count, const char *name, double otherwise) {
    for (int i = 0; i < count; i++)
        if (pattern_matches(&patterns[i].pattern, name))
            return patterns[i].value;
    return otherwise;
}

/* Wrappers of one module nest in registration order, the last outermost: one `.base_layer` for each later target. */
static void write_keys(struct adapter_target *target, const struct adapter_settings *settings,
                       const struct inventory *inventory, enum target_rule rule) {
    char nest[64] = "";
    const struct param *end = inventory->params + inventory->count;
    for (const struct param *later = target->param + 1; rule == TARGET_PARAMETER && later < end; later++)
        if (strcmp(later->module, target->param->module) == 0 && rule_of(settings, later) == TARGET_PARAMETER)
            strcat(nest, ".base_layer");
    snprintf(target->key_a, sizeof target->key_a, "base_model.model.%s%s.lora_A.weight", target->param->module, nest);
    snprintf(target->key_b, sizeof target->key_b, "base_model.model.%s%s.lora_B.weight", target->param->module, nest);
}

static void fill_target(struct adapter_target *target, const struct adapter_settings *settings,
                        const struct inventory *inventory, const struct param *param, enum target_rule rule) {
    const char *name = rule == TARGET_MODULE ? param->module : param->name;
    target->param = param;
    target->experts = param->expert ? param->shape[0] : 1;
    target->out = param->shape[param->ndim - 2];
    target->in = param->shape[param->ndim - 1];
    target->lora_rank = (int64_t)pattern_value(settings->rank_pattern, settings->ranks, name, (double)settings->rank);
    target->alpha = pattern_value(settings->alpha_pattern, settings->alphas, name, settings->alpha);
    double rank = (double)target->lora_rank;
    target->scale = target->alpha / (settings->rslora ? sqrt(rank) : rank);
    write_keys(target, settings, inventory, rule);
}

enum status adapter_match(struct adapter *out, const struct adapter_settings *settings,
                          const struct inventory *inventory) {
    TRY(check_modules(settings, inventory));
    TRY(check_parameters(settings, inventory));
    if (settings->every_entry)
        TRY(check_entries_used(settings, inventory));
    out->targets = calloc((size_t)inventory->linear + 1, sizeof *out->targets);
    if (!out->targets)
        return status_fail(STATUS_MEMORY, "%s: out of memory", settings->place);
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        enum target_rule rule = rule_of(settings, param);
        if (rule != TARGET_NONE)
            fill_target(&out->targets[out->count++], settings, inventory, param, rule);
    }
    char hint[ADAPTER_HINT_MAX];
    if (out->count == 0)
        return fail_at(
            settings, settings->modules_line,
            "target_modules and target_parameters match nothing in the model, expected at least one target%s",
            adapter_rewrite_hint(hint, settings, inventory));
    return STATUS_OK;
}
