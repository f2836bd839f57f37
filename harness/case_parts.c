/* The lists of a case: tenants, batches, slots, golden files, and what it expects. */
#include "harness/case_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tenants */

struct words { /* a list of strings that borrows from the YAML tree */
    int count;
    const char **item;
};

static enum status read_words(const struct case_reader *reader, const struct yaml_node *node, struct words *out) {
    *out = (struct words){0};
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_LIST, "targets"));
    out->item = calloc((size_t)node->count + 1, sizeof *out->item);
    if (!out->item)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    for (int i = 0; i < node->count; i++)
        TRY(yaml_string(reader->yaml, node->items[i], &out->item[out->count++]));
    return STATUS_OK;
}

static enum status read_spec(const struct case_reader *reader, const struct yaml_node *map, struct adapter_spec *spec) {
    static const char *const keys[] = {
        "adapter", "rank", "alpha", "rslora", "seed", "zero_b", "data", "target_parameters", "target_modules", NULL};
    TRY(yaml_known(reader->yaml, map, "tenant", keys));
    const struct yaml_node *rank = yaml_get(map, "rank");
    if (!rank)
        return yaml_fail(reader->yaml, map, "tenant has neither 'adapter' nor 'rank', expected one of them");
    TRY(yaml_integer(reader->yaml, rank, 1, 1 << 20, &spec->rank));
    spec->alpha = (double)spec->rank;
    if (yaml_get(map, "alpha"))
        TRY(yaml_number(reader->yaml, yaml_get(map, "alpha"), &spec->alpha));
    if (yaml_get(map, "rslora"))
        TRY(yaml_boolean(reader->yaml, yaml_get(map, "rslora"), &spec->rslora));
    if (yaml_get(map, "zero_b"))
        TRY(yaml_boolean(reader->yaml, yaml_get(map, "zero_b"), &spec->zero_b));
    TRY(case_read_seed(reader, map, &spec->seed));
    return case_read_data(reader, map, &spec->data);
}

static enum status tenant_made(struct case_reader *reader, const struct yaml_node *map, struct tenant *tenant) {
    struct adapter_spec spec = {0};
    struct words parameters = {0}, modules = {0};
    enum status status;
    char where[1024];
    TRY_DONE(read_spec(reader, map, &spec));
    TRY_DONE(read_words(reader, yaml_get(map, "target_parameters"), &parameters));
    TRY_DONE(read_words(reader, yaml_get(map, "target_modules"), &modules));
    spec.parameters = parameters.count;
    spec.target_parameters = parameters.item;
    spec.modules = modules.count;
    spec.target_modules = modules.item;
    snprintf(where, sizeof where, "%s:%d", reader->yaml->path, map->line);
    TRY_DONE(adapter_make(&tenant->adapter, &spec, checkpoint_inventory(reader->one->job.model), where));
    for (int i = 0; i < tenant->adapter.count; i++) {
        const struct adapter_target *target = &tenant->adapter.targets[i];
        TRY_DONE(case_check_index(reader, map, spec.data, target->key_a, tensor_elements(&target->a)));
        TRY_DONE(case_check_index(reader, map, spec.zero_b ? DATA_RANDOM : spec.data, target->key_b,
                                  tensor_elements(&target->b)));
    }
done:
    free(parameters.item);
    free(modules.item);
    return status;
}

static enum status tenant_from_folder(struct case_reader *reader, const struct yaml_node *map, struct tenant *tenant) {
    static const char *const keys[] = {"adapter", NULL};
    char *path = NULL;
    TRY(yaml_known(reader->yaml, map, "tenant with an adapter folder", keys));
    TRY(case_path(reader, yaml_get(map, "adapter"), &path));
    enum status status = adapter_open(&tenant->adapter, path, checkpoint_inventory(reader->one->job.model));
    free(path);
    return status;
}

static enum status tenant_name(const struct case_reader *reader, const struct yaml_node *map, int i,
                               struct tenant *tenant) {
    const char *name = map->keys[i];
    bool plain = *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")];
    if (!plain || strlen(name) >= sizeof tenant->name || strcmp(name, "none") == 0)
        return yaml_fail(reader->yaml, map->items[i], "tenant '%s' is no name, expected [a-z0-9_]+ other than none",
                         name);
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    return STATUS_OK;
}

enum status case_read_tenants(struct case_reader *reader) {
    struct job *job = &reader->one->job;
    const struct yaml_node *map = case_field(reader, "tenants");
    if (!map)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, map, YAML_MAP, "tenants"));
    job->tenant = calloc((size_t)map->count + 1, sizeof *job->tenant);
    if (!job->tenant)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    for (int i = 0; i < map->count; i++) {
        struct tenant *tenant =
            &job->tenant[job->tenants++]; /* counted before it is filled: case_free has it on failure */
        TRY(yaml_expect(reader->yaml, map->items[i], YAML_MAP, "a tenant"));
        TRY(tenant_name(reader, map, i, tenant));
        if (yaml_get(map->items[i], "adapter"))
            TRY(tenant_from_folder(reader, map->items[i], tenant));
        else
            TRY(tenant_made(reader, map->items[i], tenant));
    }
    return STATUS_OK;
}

#define MICRO_TOKENS_MAX (1 << 24)

/* ---- batches */

static enum status read_sizes(const struct case_reader *reader, const struct yaml_node *list, int64_t *sequences,
                              int64_t *tokens) {
    static const char *const keys[] = {"batch", "tokens", NULL};
    for (int i = 0; i < list->count; i++) {
        const struct yaml_node *map = list->items[i];
        TRY(yaml_expect(reader->yaml, map, YAML_MAP, "a micro-batch"));
        TRY(yaml_known(reader->yaml, map, "micro-batch", keys));
        if (!yaml_get(map, "batch") || !yaml_get(map, "tokens"))
            return yaml_fail(reader->yaml, map, "micro-batch lacks a size, expected {batch: B, tokens: T}");
        TRY(yaml_integer(reader->yaml, yaml_get(map, "batch"), 1, 1 << 20, &sequences[i]));
        TRY(yaml_integer(reader->yaml, yaml_get(map, "tokens"), 2, 1 << 20, &tokens[i]));
        if (sequences[i] * tokens[i] > MICRO_TOKENS_MAX)
            return yaml_fail(reader->yaml, map, "micro-batch of %lld x %lld tokens, expected at most %d tokens",
                             (long long)sequences[i], (long long)tokens[i], MICRO_TOKENS_MAX);
    }
    return STATUS_OK;
}

static enum status batches_from_seed(struct case_reader *reader, const struct yaml_node *map) {
    static const char *const keys[] = {"seed", "micro", "data", NULL};
    struct job *job = &reader->one->job;
    const struct yaml_node *list = yaml_get(map, "micro");
    uint64_t seed;
    enum data_kind data;
    TRY(yaml_known(reader->yaml, map, "batches", keys));
    if (!list)
        return yaml_fail(reader->yaml, map, "batches has no 'micro', expected a list of {batch: B, tokens: T}");
    TRY(yaml_expect(reader->yaml, list, YAML_LIST, "micro"));
    TRY(case_read_seed(reader, map, &seed));
    TRY(case_read_data(reader, map, &data));
    int64_t *sizes = calloc(2 * (size_t)list->count + 1, sizeof *sizes);
    if (!sizes)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    enum status status = read_sizes(reader, list, sizes, sizes + list->count);
    if (status == STATUS_OK)
        status = batches_make(&job->micro, list->count, sizes, sizes + list->count, seed, data,
                              checkpoint_config(job->model)->vocab);
    if (status == STATUS_OK)
        job->micros = list->count;
    free(sizes);
    return status;
}

enum status case_read_batches(struct case_reader *reader) {
    struct job *job = &reader->one->job;
    const struct yaml_node *node = case_field(reader, "batches");
    if (!node)
        return yaml_fail(reader->yaml, reader->root, "the key 'batches' is missing, expected a file or {seed, micro}");
    if (node->kind == YAML_MAP)
        return batches_from_seed(reader, node);
    char *path = NULL;
    TRY(case_path(reader, node, &path));
    enum status status = batches_open(&job->micro, &job->micros, path, checkpoint_config(job->model)->vocab);
    free(path);
    return status;
}

/* ---- slots */

static int64_t largest_rank(const struct job *job, int tenant) {
    int64_t largest = 0;
    for (int i = 0; i < job->tenant[tenant].adapter.count; i++)
        if (job->tenant[tenant].adapter.targets[i].lora_rank > largest)
            largest = job->tenant[tenant].adapter.targets[i].lora_rank;
    return largest;
}

static enum status slot_sizes(struct case_reader *reader, const struct yaml_node *node) {
    static const char *const keys[] = {"count", "max_rank", "beyond", NULL};
    struct job *job = &reader->one->job;
    const struct yaml_node *beyond = yaml_get(node, "beyond");
    const char *text = "zero";
    int64_t count = 0;
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "slots"));
    TRY(yaml_known(reader->yaml, node, "slots", keys));
    if (yaml_get(node, "count"))
        TRY(yaml_integer(reader->yaml, yaml_get(node, "count"), 1, 4096, &count));
    if (yaml_get(node, "max_rank"))
        TRY(yaml_integer(reader->yaml, yaml_get(node, "max_rank"), 1, 1 << 20, &job->max_rank));
    if (beyond)
        TRY(yaml_string(reader->yaml, beyond, &text));
    job->beyond_nan = strcmp(text, "nan") == 0;
    if (!job->beyond_nan && strcmp(text, "zero") != 0)
        return yaml_fail(reader->yaml, beyond, "beyond '%s' is unknown, expected zero or nan", text);
    job->slots = (int)count;
    return STATUS_OK;
}

enum status case_read_slots(struct case_reader *reader) {
    struct job *job = &reader->one->job;
    const struct yaml_node *node = case_field(reader, "slots");
    for (int i = 0; i < job->tenants; i++)
        if (largest_rank(job, i) > job->max_rank)
            job->max_rank = largest_rank(job, i);
    if (job->max_rank == 0)
        job->max_rank = 1;
    if (node)
        TRY(slot_sizes(reader, node));
    for (int i = 0; i < job->tenants; i++)
        if (largest_rank(job, i) > job->max_rank)
            return yaml_fail(reader->yaml, node, "tenant %s has rank %lld, expected at most max_rank %lld",
                             job->tenant[i].name, (long long)largest_rank(job, i), (long long)job->max_rank);
    return STATUS_OK;
}

/* ---- golden */

static int tenant_named(const struct job *job, const char *name) {
    for (int i = 0; i < job->tenants; i++)
        if (strcmp(job->tenant[i].name, name) == 0)
            return i;
    return -1;
}

/* Another variant of a matrix than float64, or --dtype, has no use for golden files; a case that says another type
 * itself errs.
 */
static enum status golden_applies(const struct case_reader *reader, const struct yaml_node *node, bool *out) {
    *out = reader->one->job.dtype == DTYPE_F64;
    bool own = yaml_get(reader->root, "dtype") && !reader->options->replace_dtype;
    if (!*out && own && case_field(reader, "dtype") == yaml_get(reader->root, "dtype"))
        return yaml_fail(reader->yaml, node, "golden files beside dtype %s, expected float64",
                         dtype_word(reader->one->job.dtype));
    return STATUS_OK;
}

enum status case_read_golden(struct case_reader *reader) {
    struct test_case *one = reader->one;
    const struct yaml_node *map = case_field(reader, "golden");
    bool applies;
    if (!map)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, map, YAML_MAP, "golden"));
    TRY(golden_applies(reader, map, &applies));
    if (!applies)
        return STATUS_OK;
    one->golden = calloc((size_t)map->count + 1, sizeof *one->golden);
    if (!one->golden)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    for (int i = 0; i < map->count; i++) {
        char *path = NULL;
        int tenant = tenant_named(&one->job, map->keys[i]);
        if (tenant < 0)
            return yaml_fail(reader->yaml, map->items[i], "golden: there is no tenant '%s', expected one of `tenants`",
                             map->keys[i]);
        TRY(case_path(reader, map->items[i], &path));
        enum status status = golden_open(&one->golden[one->goldens], path, tenant, &one->job);
        free(path);
        TRY(status);
        one->goldens++;
    }
    return STATUS_OK;
}

/* ---- expect */

static enum status add_field(struct case_reader *reader, const char *prefix, const char *key,
                             const struct yaml_node *node) {
    struct test_case *one = reader->one;
    const char *text;
    char joined[128];
    TRY(yaml_expect(reader->yaml, node, YAML_SCALAR, key));
    text = node->text;
    struct expected_field *field = realloc(one->field, (size_t)(one->fields + 1) * sizeof *field);
    if (!field)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    one->field = field;
    field[one->fields] = (struct expected_field){0};
    one->fields++;
    snprintf(joined, sizeof joined, "%s%s", prefix, key);
    TRY(case_copy(joined, &field[one->fields - 1].key));
    return case_copy(text, &field[one->fields - 1].value);
}

static enum status read_finding(struct case_reader *reader, const struct yaml_node *map) {
    static const char *const keys[] = {"tensor", "phase", "step", "micro",  "tenant",     "slot",
                                       "rank",   "kind",  "axis", "expert", "collective", NULL};
    static const char *const inner[] = {"operation", "group", "sequence", "site", NULL};
    TRY(yaml_expect(reader->yaml, map, YAML_MAP, "finding"));
    TRY(yaml_known(reader->yaml, map, "finding", keys));
    for (int i = 0; i < map->count; i++) {
        const struct yaml_node *node = map->items[i];
        if (strcmp(map->keys[i], "collective") != 0) {
            TRY(add_field(reader, "", map->keys[i], node));
            continue;
        }
        TRY(yaml_expect(reader->yaml, node, YAML_MAP, "collective"));
        TRY(yaml_known(reader->yaml, node, "collective", inner));
        for (int j = 0; j < node->count; j++)
            TRY(add_field(reader, "collective.", node->keys[j], node->items[j]));
    }
    return STATUS_OK;
}

static enum status unknown_fault(const struct case_reader *reader, const struct yaml_node *node, const char *text) {
    const char *known[64] = {NULL};
    for (int i = 0; rule_faults[i].name && i + 1 < (int)(sizeof known / sizeof *known); i++)
        known[i] = rule_faults[i].name;
    const char *near = nearest_word(text, known);
    return yaml_fail(reader->yaml, node, "fault '%s' is unknown, expected one of `shardproof show faults`%s%s%s", text,
                     near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}

enum status case_read_expect(struct case_reader *reader) {
    static const char *const keys[] = {"fault", "finding", NULL};
    const struct yaml_node *node = case_field(reader, "expect");
    const char *text;
    if (!node)
        return STATUS_OK;
    if (node->kind == YAML_SCALAR) {
        TRY(yaml_string(reader->yaml, node, &text));
        if (strcmp(text, "pass") != 0)
            return yaml_fail(reader->yaml, node, "expect '%s' is unknown, expected pass or {fault: RULE}", text);
        return STATUS_OK;
    }
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "expect"));
    TRY(yaml_known(reader->yaml, node, "expect", keys));
    const struct yaml_node *fault = yaml_get(node, "fault");
    if (!fault)
        return yaml_fail(reader->yaml, node, "expect has no 'fault', expected the name of a rule");
    TRY(yaml_string(reader->yaml, fault, &text));
    reader->one->fault = rule_fault_named(text);
    if (!reader->one->fault)
        return unknown_fault(reader, fault, text);
    const struct yaml_node *finding = yaml_get(node, "finding");
    return finding ? read_finding(reader, finding) : STATUS_OK;
}
