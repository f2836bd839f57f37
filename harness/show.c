#include "harness/show.h"

#include "core/files.h"
#include "core/safetensors.h"
#include "harness/case.h"
#include "sharded/rules.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- trace */

/* What a file says, without its control characters. */
static void print_foreign(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static void print_pair(const struct safetensors_pair *pair) {
    size_t length = strlen(pair->value);
    fputs("# ", stdout);
    print_foreign(pair->key, strlen(pair->key));
    fputs(": ", stdout);
    print_foreign(pair->value, length > 200 ? 200 : length);
    puts(length > 200 ? " ..." : "");
}

enum status show_trace(const char *path) {
    struct safetensors file = {0};
    TRY(safetensors_open(&file, path));
    for (int i = 0; i < file.pairs; i++)
        print_pair(&file.metadata[i]);
    for (int i = 0; i < file.count; i++) {
        const struct safetensors_entry *entry = &file.entries[i];
        char shape[256];
        if (entry->ndim <= TENSOR_MAX_DIMS)
            shape_text(shape, sizeof shape, entry->ndim, entry->tensor.shape);
        else
            snprintf(shape, sizeof shape, "[%d dims]", entry->ndim);
        printf("%-6s %-20s %12llu bytes  ", dtype_name(entry->tensor.dtype), shape,
               (unsigned long long)(entry->end - entry->begin));
        print_foreign(entry->name, entry->name_length);
        putchar('\n');
    }
    printf("%d tensors\n", file.count);
    safetensors_close(&file);
    return STATUS_OK;
}

/* ---- layout */

/* "0-3,8-11": a dim's global indices as ranges. */
static void print_ranges(const int64_t *index, int64_t count) {
    int printed = 0;
    if (count == 0)
        printf("none");
    for (int64_t i = 0; i < count;) {
        int64_t end = i;
        while (end + 1 < count && index[end + 1] == index[end] + 1)
            end++;
        if (printed++ == 8) {
            printf(",...");
            return;
        }
        printf(end > i ? "%s%lld-%lld" : "%s%lld", printed > 1 ? "," : "", (long long)index[i], (long long)index[end]);
        i = end + 1;
    }
}

static enum status print_piece(const struct line *line, const struct mesh *mesh, int rank) {
    struct shard shard = {0};
    char shape[128];
    TRY(shard_make(&shard, line, mesh, rank));
    printf("  rank %-4d (", rank);
    for (int a = 0; a < mesh->axes; a++)
        printf("%s%s %d", a ? ", " : "", mesh->name[a], mesh_coordinate(mesh, a, rank));
    printf(")  %-16s", shape_text(shape, sizeof shape, shard.ndim, shard.shape));
    for (int d = 0; d < shard.ndim; d++) {
        printf("  dim %d: ", d);
        print_ranges(shard.index[d], shard.shape[d]);
    }
    putchar('\n');
    shard_free(&shard);
    return STATUS_OK;
}

static enum status bound_line(struct line *out, const struct layout_file *file, const struct layout_rule *rule) {
    char where[1024];
    snprintf(where, sizeof where, "%s:%d", file->path, rule->at);
    TRY(line_parse(out, rule->line, &file->mesh, where));
    return line_bind(out, out->dims, NULL, file->size, file->sizes, where);
}

static enum status print_rule(const struct layout_file *file, const struct layout_rule *rule, int only) {
    struct line line;
    char text[512], shape[128];
    int64_t global[LINE_MAX_DIMS];
    TRY(bound_line(&line, file, rule));
    line_shape(&line, global);
    printf("%s  \"%s\"  %s\n", rule->glob, line_text(text, sizeof text, &line, &file->mesh),
           shape_text(shape, sizeof shape, line.dims, global));
    int world = mesh_world(&file->mesh);
    for (int rank = 0; rank < world; rank++)
        if (only < 0 || rank == only)
            TRY(print_piece(&line, &file->mesh, rank));
    return STATUS_OK;
}

enum status show_layout(const char *path, int rank) {
    struct layout_file file = {0};
    char mesh[128];
    enum status status;
    TRY(layout_file_open(&file, path));
    int world = mesh_world(&file.mesh);
    if (rank >= world) {
        status = status_fail(STATUS_INPUT, "--rank %d: %s has a world of %d ranks, expected 0 to %d", rank, path, world,
                             world - 1);
        goto done;
    }
    for (int i = 0; i < file.rules; i++) {
        struct line line;
        TRY_DONE(bound_line(&line, &file, &file.rule[i])); /* before anything is printed */
    }
    printf("mesh %s, world %d\n", mesh_text(mesh, sizeof mesh, &file.mesh), world);
    for (int i = 0; i < file.rules; i++)
        TRY_DONE(print_rule(&file, &file.rule[i], rank));
    status = STATUS_OK;
done:
    layout_file_close(&file);
    return status;
}

/* ---- case */

static void print_action(const struct job *job, const struct action *action) {
    static const char *const words[] = {
        [ACTION_ACQUIRE] = "acquire", [ACTION_TRAIN] = "train",     [ACTION_ACCUMULATE] = "accumulate",
        [ACTION_STEP] = "step",       [ACTION_RELEASE] = "release", [ACTION_EVALUATE] = "evaluate",
        [ACTION_ENTER] = "activate",  [ACTION_LEAVE] = "leave",     [ACTION_EXPORT] = "export",
        [ACTION_SAVE] = "save",       [ACTION_LOAD] = "load"};
    printf("    line %-4d %-10s %-12s", action->line, words[action->kind],
           action->tenant >= 0 ? job->tenant[action->tenant].name : "none");
    if (action->micros > 0 || action->kind == ACTION_STEP)
        printf(" step.%d", action->step);
    for (int i = 0; i < action->micros; i++)
        printf("%s %d", i ? "" : " micro", job->micro[action->micro[i]].number);
    printf("%s\n", action->disabled ? " (disabled)" : "");
}

static void print_training(const struct job *job) {
    const struct optimizer *optimizer = &job->optimizer;
    const struct inventory *inventory = checkpoint_inventory(job->model);
    if (optimizer->kind == OPTIMIZER_SGD)
        printf("    sgd lr %g momentum %g%s", optimizer->lr, optimizer->momentum,
               optimizer->nesterov ? " nesterov" : "");
    else
        printf("    adamw lr %g betas %g %g eps %g", optimizer->lr, optimizer->beta1, optimizer->beta2, optimizer->eps);
    printf(" weight decay %g", optimizer->weight_decay);
    if (job->clip.present)
        printf(", clip %s-norm at %g", job->clip.infinity ? "inf" : "2", job->clip.max);
    printf("\n");
    for (int i = 0; i < inventory->count; i++)
        if (job_trains(job, &inventory->params[i]))
            printf("    trains %s\n", inventory->params[i].name);
}

static const char *precision_text(const struct job *job) {
    if (job->gather_bfloat)
        return " gathered in bfloat16";
    return job->dtype != DTYPE_BF16 ? "" : job->no_master ? " without master copies" : " with float32 master copies";
}

/* What differs from the defaults. */
static void print_fsdp(const struct fsdp_options *fsdp) {
    if (!fsdp->experts_apart && !fsdp->recompute && !fsdp->keep_gathered && !fsdp->reshard_group &&
        fsdp->expert_dim == EXPERT_DIM_AUTO)
        return;
    printf("    fsdp");
    if (fsdp->experts_apart)
        printf(", experts are units of their own");
    if (fsdp->keep_gathered)
        printf(", units stay gathered after forward");
    if (fsdp->reshard_group)
        printf(", groups of %d keep units after forward", fsdp->reshard_group);
    if (fsdp->recompute)
        printf(", backward recomputes");
    if (fsdp->expert_dim != EXPERT_DIM_AUTO)
        printf(", experts are cut on dim %d", fsdp->expert_dim == EXPERT_DIM_1);
    printf("\n");
}

static void print_case(const struct test_case *one) {
    const struct job *job = &one->job;
    const struct model_config *config = checkpoint_config(job->model);
    char mesh[128];
    printf("%s  (%s:%d)\n", one->name, one->file, one->line);
    if (one->about)
        printf("    %s\n", one->about);
    printf("    model %s: %s, %lld layers, %lld experts, hidden %lld\n", checkpoint_path(job->model), config->family,
           (long long)config->layers, (long long)config->experts, (long long)config->hidden);
    printf("    mesh %s, world %d, %s%s, layout %s\n", mesh_text(mesh, sizeof mesh, &one->mesh), mesh_world(&one->mesh),
           dtype_word(job->dtype), precision_text(job), one->layout ? one->layout->path : "built in");
    print_fsdp(&job->fsdp);
    printf("    slots %d of rank %lld%s, limit %g s\n", job->slots, (long long)job->max_rank,
           job->beyond_nan ? ", NaN beyond a tenant's rank" : "", one->limit);
    print_training(job);
    for (int t = 0; t < job->tenants; t++)
        printf("    tenant %s: %d targets, slot %d\n", job->tenant[t].name, job->tenant[t].adapter.count,
               job_slot(job, t));
    for (int m = 0; m < job->micros; m++)
        printf("    micro.%d: %lld x %lld, %lld labels count\n", job->micro[m].number,
               (long long)job->micro[m].sequences, (long long)job->micro[m].tokens, (long long)job->micro[m].counted);
    for (int a = 0; a < job->actions; a++)
        print_action(job, &job->action[a]);
    for (int g = 0; g < one->goldens; g++)
        printf("    golden %s: %s, %d tensors\n", job->tenant[one->golden[g].tenant].name, one->golden[g].file.path,
               one->golden[g].file.count);
    if (one->fault)
        printf("    plants %s: %s\n", one->fault->name, one->fault->about);
}

enum status show_case(const char *path) {
    struct case_list list = {0};
    struct case_options options = {0};
    enum status status = cases_load(&list, path, &options);
    if (status == STATUS_OK && list.count == 0)
        status = status_fail(STATUS_INPUT, "%s: holds no case, expected *.yaml files", path);
    for (int i = 0; i < list.count && status == STATUS_OK; i++)
        print_case(list.item[i]);
    cases_free(&list);
    return status;
}

enum status show_model(const char *folder) {
    struct checkpoint *model = NULL;
    char shape[128];
    TRY(checkpoint_open(&model, folder));
    const struct inventory *inventory = checkpoint_inventory(model);
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        printf("%-56s %-16s %-28s unit %d%s\n", param->name, shape_text(shape, sizeof shape, param->ndim, param->shape),
               param->axes, param->unit, param->alias >= 0 ? "  (tied to the embedding)" : "");
    }
    printf("%d parameters, %d units\n", inventory->count, inventory->units);
    checkpoint_close(model);
    return STATUS_OK;
}

enum status show_faults(void) {
    for (const struct rule_fault *fault = rule_faults; fault->name; fault++)
        printf("%-28s %s\n", fault->name, fault->about);
    return STATUS_OK;
}

/* ---- agreement */

static json_t *load_report(const char *path) {
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    const char *schema = root ? json_string_value(json_object_get(root, "schema")) : NULL;
    if (!root && error.line < 1)
        status_fail(STATUS_INPUT, "%s: cannot be read, expected a report written by --json", path);
    else if (!root)
        status_fail(STATUS_INPUT, "%s:%d: %s, expected a report written by --json", path, error.line, error.text);
    else if (!schema || strcmp(schema, "shardproof.report/1") != 0)
        status_fail(STATUS_INPUT, "%s:1: not a report, expected schema shardproof.report/1", path);
    else if (!json_is_array(json_object_get(root, "cases")))
        status_fail(STATUS_INPUT, "%s:1: a report without cases, expected a list 'cases'", path);
    else
        return root;
    json_decref(root);
    return NULL;
}

static json_t *case_named(json_t *cases, const char *name) {
    size_t i;
    json_t *one;
    json_array_foreach(cases, i, one) {
        const char *other = json_string_value(json_object_get(one, "name"));
        if (other && strcmp(other, name) == 0)
            return one;
    }
    return NULL;
}

/* A case agrees if both reports hold it with the same verdict and digest; one without records (a broken world) has
 * none. */
static bool case_agrees(json_t *one, json_t *other, const char *name) {
    if (!other) {
        printf("%s stands in one report only\n", name);
        return false;
    }
    if (!json_equal(json_object_get(one, "verdict"), json_object_get(other, "verdict"))) {
        printf("%s: the verdicts differ\n", name);
        return false;
    }
    if (!json_equal(json_object_get(one, "digest"), json_object_get(other, "digest"))) {
        printf("%s: the recorded bits differ\n", name);
        return false;
    }
    return true;
}

/* How many of `cases` stand in `others` as well, with the same verdict and the same bits. */
static size_t count_agreeing(json_t *cases, json_t *others, int *digests) {
    size_t i, agreeing = 0;
    json_t *one;
    json_array_foreach(cases, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        agreeing += name && case_agrees(one, case_named(others, name), name);
        *digests += json_is_string(json_object_get(one, "digest"));
    }
    return agreeing;
}

enum status show_agreement(const char *a, const char *b, bool *same) {
    json_t *first = load_report(a);
    json_t *second = first ? load_report(b) : NULL;
    json_t *cases = json_object_get(first, "cases");
    json_t *others = json_object_get(second, "cases");
    size_t count = json_array_size(cases);
    int digests = 0;
    if (!second) {
        json_decref(first);
        return STATUS_INPUT;
    }
    bool as_many = count == json_array_size(others);
    if (!as_many)
        printf("%s has %zu cases, %s has %zu\n", a, count, b, json_array_size(others));
    *same = count_agreeing(cases, others, &digests) == count && as_many && digests > 0;
    printf("%zu cases, %d with records: %s\n", count, digests,
           *same          ? "the same bits in both reports"
           : digests == 0 ? "nothing to compare"
                          : "the reports differ");
    json_decref(first);
    json_decref(second);
    return STATUS_OK;
}
