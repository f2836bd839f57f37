#include "harness/verdict.h"

#include "core/files.h"
#include "harness/judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status copy(const char *text, char **out) {
    free(*out);
    *out = strdup(text);
    return *out ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory while a report was filled");
}

static enum status header(const struct test_case *one, const char *engine, struct report_case *out) {
    char mesh[128];
    out->world = mesh_world(&one->mesh);
    TRY(copy(one->name, &out->name));
    TRY(copy(one->file, &out->file));
    TRY(copy(mesh_text(mesh, sizeof mesh, &one->mesh), &out->mesh));
    TRY(copy(dtype_word(one->job.dtype), &out->dtype));
    return copy(engine, &out->engine);
}

enum status verdict_skip(const struct test_case *one, const char *engine, const char *reason, struct report_case *out) {
    TRY(header(one, engine, out));
    out->verdict = VERDICT_SKIP;
    return copy(reason, &out->reason);
}

/* ---- a world that did not finish the case */

static enum status collective_of(const struct ledger_entry *entry, struct report_collective *out) {
    out->present = entry->operation != COLLECTIVE_NONE;
    out->sequence = entry->sequence;
    TRY(copy(collective_name(entry->operation), &out->operation));
    TRY(copy(entry->group, &out->group));
    return copy(entry->site, &out->site);
}

static enum status ranks_of(const struct board_fault *fault, struct report_finding *out) {
    int count = fault->ranks > 0 ? fault->ranks : 0;
    out->rank_list = calloc((size_t)count + 1, sizeof *out->rank_list);
    if (!out->rank_list)
        return status_fail(STATUS_MEMORY, "out of memory while a report was filled");
    for (int i = 0; i < count; i++)
        out->rank_list[i] = fault->deviating[i];
    out->ranks = count;
    return STATUS_OK;
}

static enum status blank_finding(struct report_finding *out, enum finding_kind kind, int rank, const char *text) {
    *out = (struct report_finding){.present = true, .kind = kind, .step = -1, .micro = -1, .slot = -1, .expert = -1};
    out->rank = rank;
    return copy(text, &out->text);
}

enum status verdict_unusable(struct report_case *out) {
    char text[1200];
    snprintf(text, sizeof text, "the judge could not go on: %s", status_note());
    status_clear();
    out->verdict = VERDICT_FAIL;
    return out->finding.present ? STATUS_OK : blank_finding(&out->finding, FINDING_VALUE, -1, text);
}

static enum status order_finding(const struct outcome *outcome, struct report_case *out) {
    const struct board_fault *fault = &outcome->fault;
    TRY(blank_finding(&out->finding, FINDING_ORDER, fault->rank, fault->text));
    TRY(copy(fault->expected.what, &out->finding.tensor));
    TRY(ranks_of(fault, &out->finding));
    out->verdict = VERDICT_FAIL;
    return collective_of(&fault->expected, &out->finding.collective);
}

static enum status broken_world(const struct outcome *outcome, struct report_case *out) {
    static const struct {
        const char *reason;
        enum finding_kind kind;
    } rows[] = {[OUTCOME_CRASH] = {"crash", FINDING_CRASH},
                [OUTCOME_HANG] = {"hang", FINDING_HANG},
                [OUTCOME_LAUNCH] = {"launch", FINDING_CRASH},
                [OUTCOME_STOPPED] = {"stopped", FINDING_CRASH}};
    if (outcome->kind == OUTCOME_ORDER)
        return order_finding(outcome, out);
    out->verdict = VERDICT_ERROR;
    TRY(copy(rows[outcome->kind].reason, &out->reason));
    TRY(blank_finding(&out->finding, rows[outcome->kind].kind, outcome->rank, outcome->text));
    if (outcome->rank < 0)
        return STATUS_OK;
    struct board_fault at_fault = {.ranks = 1, .deviating = {outcome->rank}};
    TRY(ranks_of(&at_fault, &out->finding));
    return collective_of(outcome->rank < outcome->ranks ? &outcome->stands[outcome->rank] : &outcome->fault.entry,
                         &out->finding.collective);
}

/* ---- a world that did */

static enum status dump_path(const struct verdict_input *input, const char *name, char **path) {
    free(*path);
    *path = path_join(input->keep, name);
    return *path ? STATUS_OK : status_fail(STATUS_MEMORY, "%s: out of memory", input->keep);
}

/* Rank files of an earlier, larger world would be read as this dump's. */
static enum status remove_old_ranks(const struct verdict_input *input, const char *below, int world) {
    char name[96];
    bool found = true;
    for (int rank = world; found; rank++) {
        char *path = NULL;
        snprintf(name, sizeof name, "%srank%05d.safetensors", below, rank);
        TRY(dump_path(input, name, &path));
        found = unlink(path) == 0;
        free(path);
    }
    return STATUS_OK;
}

/* The rank files of one segment: beside the reference's, or, of a later segment, in a folder of their own. */
static enum status write_segment(struct judge *judge, const struct verdict_input *input, int segment) {
    const struct case_segment part = case_segment(input->one, segment);
    int world = mesh_world(&part.mesh);
    char name[96], below[48] = "", world_text[16], rank_text[16], mesh[128];
    char *path = NULL, *layout = NULL;
    enum status status = STATUS_OK;
    if (segment > 0) {
        snprintf(below, sizeof below, "segment.%d/", segment);
        TRY_DONE(dump_path(input, below, &path));
        TRY_DONE(folder_make(path));
    }
    TRY_DONE(remove_old_ranks(input, below, world));
    TRY_DONE(judge_segment_layout_json(judge, segment, &layout));
    snprintf(world_text, sizeof world_text, "%d", world);
    judge_mesh_json(mesh, sizeof mesh, &part.mesh);
    for (int rank = 0; rank < world; rank++) {
        snprintf(rank_text, sizeof rank_text, "%d", rank);
        struct safetensors_pair metadata[] = {{"schema", "shardproof.trace/1"},
                                              {"rank", rank_text},
                                              {"world", world_text},
                                              {"mesh", mesh},
                                              {"layout", layout}};
        snprintf(name, sizeof name, "%srank%05d.safetensors", below, rank);
        TRY_DONE(dump_path(input, name, &path));
        TRY_DONE(trace_write_rank(path, &input->trace[segment].rank[rank], metadata, 5));
    }
done:
    free(path);
    free(layout);
    return status;
}

static enum status write_dump(struct judge *judge, const struct verdict_input *input) {
    char *path = NULL;
    enum status status;
    TRY(folder_make(input->keep));
    TRY_DONE(dump_path(input, "reference.safetensors", &path));
    TRY_DONE(judge_write_reference(judge, path));
    for (int segment = 0; segment < case_segments(input->one); segment++)
        TRY_DONE(write_segment(judge, input, segment));
done:
    free(path);
    return status;
}

/* ---- exported files: what lies on the disk is what rank 0 recorded */

static bool same_record(const struct verdict_input *input, const char *name, const struct tensor *stored) {
    for (int segment = 0; segment < case_segments(input->one); segment++) {
        const struct trace_record *record = trace_find(&input->trace[segment], 0, name);
        if (record)
            return record->tensor.dtype == stored->dtype && tensor_same_shape(&record->tensor, stored) &&
                   memcmp(record->tensor.data, stored->data, tensor_bytes(stored)) == 0;
    }
    return false;
}

static enum status wrong_file(struct report_case *out, const char *path, const char *key) {
    char text[4600];
    snprintf(text, sizeof text, "%.4000s: %.300s is not what rank 0 recorded for the export", path, key);
    out->verdict = VERDICT_FAIL;
    if (out->finding.present)
        return report_strings_add(&out->consequences, text);
    TRY(blank_finding(&out->finding, FINDING_VALUE, 0, text));
    TRY(copy("export", &out->finding.phase));
    return copy(key, &out->finding.tensor);
}

static enum status check_export(const struct verdict_input *input, const struct action *action,
                                struct report_case *out) {
    const struct tenant *tenant = &input->one->job.tenant[action->tenant];
    struct safetensors file = {0};
    char name[POINT_NAME_MAX], below[160];
    char *path = NULL;
    enum status status;
    snprintf(below, sizeof below, "export/step.%d/%s/adapter_model.safetensors", action->step, tenant->name);
    TRY(dump_path(input, below, &path));
    TRY_DONE(safetensors_open(&file, path));
    if (file.count != 2 * tenant->adapter.count)
        TRY_DONE(wrong_file(out, path, "the number of tensors"));
    for (int i = 0; i < file.count; i++) {
        struct point point = POINT_NONE;
        point.phase = PHASE_EXPORT;
        point.step = action->step;
        point.tenant = tenant->name;
        point.scalar = file.entries[i].name;
        if (!same_record(input, point_name(name, &point), &file.entries[i].tensor))
            TRY_DONE(wrong_file(out, path, file.entries[i].name));
    }
done:
    safetensors_close(&file);
    free(path);
    return status;
}

static enum status check_exports(const struct verdict_input *input, struct report_case *out) {
    for (int i = 0; i < input->one->job.actions; i++)
        if (input->one->job.action[i].kind == ACTION_EXPORT)
            TRY(check_export(input, &input->one->job.action[i], out));
    return STATUS_OK;
}

static enum status judge_trace(const struct verdict_input *input, struct report_case *out) {
    const struct test_case *one = input->one;
    struct judge *judge = NULL;
    struct answers *answers = NULL;
    enum status status;
    if (one->goldens > 0)
        TRY_DONE(golden_check(&one->job, one->golden, one->goldens, out, &answers));
    TRY_DONE(judge_make(&judge, one, out));
    TRY_DONE(judge_owed(judge));
    judge_keep(judge, input->keep != NULL);
    judge_saves(judge, input->saves);
    TRY_DONE(judge_relay(judge, input->trace));
    TRY_DONE(judge_twin(judge, input->trace));
    if (answers)
        TRY_DONE(judge_answers(judge, input->trace, answers));
    TRY_DONE(judge_close(judge, input->trace));
    if (input->keep) {
        TRY_DONE(write_dump(judge, input));
        TRY_DONE(check_exports(input, out));
    }
    traces_digest(input->trace, case_segments(one), out->digest);
done:
    judge_free(judge);
    answers_free(answers);
    return status;
}

/* ---- what was expected */

static bool number_matches(const char *want, int64_t got) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)got);
    return strcmp(want, text) == 0;
}

static bool text_matches(const char *want, const char *got) {
    return got && glob_match(want, got);
}

static bool field_matches(const struct expected_field *field, const struct report_finding *finding) {
    const struct {
        const char *key, *text;
    } texts[] = {{"tensor", finding->tensor},
                 {"phase", finding->phase},
                 {"tenant", finding->tenant},
                 {"kind", finding_kind_name(finding->kind)},
                 {"axis", finding->axis},
                 {"collective.operation", finding->collective.operation},
                 {"collective.group", finding->collective.group},
                 {"collective.site", finding->collective.site}};
    const struct {
        const char *key;
        int64_t number;
    } numbers[] = {{"step", finding->step},     {"micro", finding->micro},
                   {"slot", finding->slot},     {"rank", finding->rank},
                   {"expert", finding->expert}, {"collective.sequence", finding->collective.sequence}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(field->key, texts[i].key) == 0)
            return text_matches(field->value, texts[i].text);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(field->key, numbers[i].key) == 0)
            return number_matches(field->value, numbers[i].number);
    return false;
}

/* A case that plants a fault passes if the finding has every field given; it fails if nothing was found. */
static enum status hold_against_expectation(const struct test_case *one, struct report_case *out) {
    char text[8192];
    if (!one->fault || out->verdict == VERDICT_ERROR)
        return STATUS_OK;
    if (!out->finding.present) {
        out->verdict = VERDICT_FAIL;
        snprintf(text, sizeof text, "the planted fault %s was not found: %s", one->fault->name, one->fault->about);
        return blank_finding(&out->finding, FINDING_MISSING, -1, text);
    }
    for (int i = 0; i < one->fields; i++) {
        if (field_matches(&one->field[i], &out->finding))
            continue;
        out->verdict = VERDICT_FAIL;
        snprintf(text, sizeof text, "the planted fault %s was found, but not as expected: %s is not %s\n%s",
                 one->fault->name, one->field[i].key, one->field[i].value, out->finding.text ? out->finding.text : "");
        return copy(text, &out->finding.text);
    }
    out->verdict = VERDICT_PASS;
    return STATUS_OK;
}

enum status verdict_make(const struct verdict_input *input, const char *engine, struct report_case *out) {
    TRY(header(input->one, engine, out));
    if (input->outcome->kind == OUTCOME_DONE)
        TRY(judge_trace(input, out));
    else
        TRY(broken_world(input->outcome, out));
    return hold_against_expectation(input->one, out);
}
