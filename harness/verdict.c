#include "harness/verdict.h"

#include "core/files.h"
#include "harness/judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (input->keep)
        TRY_DONE(write_dump(judge, input));
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
