#include "harness/judge.h"

#include "harness/judge_finding.h"
#include "harness/judge_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status judge_make(struct judge **out, const struct test_case *one, struct report_case *report) {
    *out = NULL;
    struct judge *judge = calloc(1, sizeof *judge);
    if (!judge)
        return status_fail(STATUS_MEMORY, "out of memory");
    judge->one = one;
    judge->job = &one->job;
    judge->report = report;
    judge->layers = (int)checkpoint_config(one->job.model)->layers;
    judge->route = calloc((size_t)judge->layers + 1, sizeof *judge->route);
    enum status status = judge_segments_make(judge);
    if (status == STATUS_OK && !judge->route)
        status = status_fail(STATUS_MEMORY, "out of memory");
    if (status != STATUS_OK) {
        judge_free(judge);
        return status;
    }
    *out = judge;
    return STATUS_OK;
}

void judge_free(struct judge *judge) {
    if (!judge)
        return;
    for (int i = 0; i < judge->owed_count; i++) {
        free(judge->owed[i].name);
        free(judge->owed[i].kept);
    }
    for (int i = 0; i < judge->failed_count; i++)
        free(judge->failed[i]);
    for (int layer = 0; judge->route && layer < judge->layers; layer++)
        judge_route_free(&judge->route[layer]);
    judge_segments_free(judge);
    name_set_free(&judge->names);
    name_set_free(&judge->failures);
    free(judge->owed);
    free(judge->failed);
    free(judge->route);
    free(judge->x);
    free(judge->raw);
    free(judge);
}

enum status judge_line(struct judge *judge, const struct point *point, char *out, size_t size) {
    return place_line(&judge->places, point, out, size);
}

void judge_saves(struct judge *judge, const char *folder) {
    judge->saves = folder;
}

/* ---- failures */

bool judge_first(const struct judge *judge) {
    return !judge->report->finding.present;
}

/* Keeps the name; *fresh whether it is the first failure under it. */
static enum status failure_noted(struct judge *judge, const char *name, bool *fresh) {
    *fresh = !name_set_has(&judge->failures, name);
    if (!*fresh)
        return STATUS_OK;
    if (judge->failed_count == judge->failed_room) {
        int room = judge->failed_room ? 2 * judge->failed_room : 64;
        char **larger = realloc(judge->failed, (size_t)room * sizeof *larger);
        if (!larger)
            return status_fail(STATUS_MEMORY, "out of memory");
        judge->failed = larger;
        judge->failed_room = room;
    }
    char *kept = strdup(name);
    if (!kept)
        return status_fail(STATUS_MEMORY, "out of memory");
    judge->failed[judge->failed_count++] = kept;
    bool unused;
    return name_set_add(&judge->failures, kept, &unused);
}

enum status judge_fail(struct judge *judge, const struct failure *failure) {
    bool fresh;
    TRY(failure_noted(judge, failure->name, &fresh));
    if (!fresh)
        return STATUS_OK;
    if (judge_first(judge))
        return finding_fill(&judge->report->finding, judge, failure);
    return report_strings_add(&judge->report->consequences, failure->name);
}

/* ---- types */

const struct micro_batch *micro_numbered(const struct job *job, int number) {
    for (int m = 0; m < job->micros; m++)
        if (job->micro[m].number == number)
            return &job->micro[m];
    return NULL;
}

/* Whether the tenant of an export has made a step since its acquire. */
static bool export_trained(const struct job *job, const struct point *point) {
    for (int i = 0; i < job->actions; i++) {
        const struct action *action = &job->action[i];
        if (action->kind == ACTION_EXPORT && action->step == point->step &&
            strcmp(job->tenant[action->tenant].name, point->tenant) == 0)
            return action->own_step > 0;
    }
    return false;
}

/* An export is in the type of the file it came from, or float64 if a float64 run has trained it. */
static enum dtype export_dtype(const struct job *job, const struct point *point) {
    bool b;
    const struct adapter_target *target = export_target(job, point, &b);
    if (job->dtype == DTYPE_F64 && export_trained(job, point))
        return DTYPE_F64;
    return !target ? job->dtype : b ? target->b.dtype : target->a.dtype;
}

enum dtype owed_dtype(const struct job *job, const struct point *point) {
    if (point->phase == PHASE_EXPORT)
        return export_dtype(job, point);
    const struct precision precision = job_precision(job);
    return point_dtype(point, &precision);
}

/* ---- the end */

static enum status report_extra(struct judge *judge, const struct trace *trace, const char *name) {
    struct failure failure = FAILURE_NONE;
    int ranks = 0;
    for (int rank = 0; rank < trace->ranks && rank < judge->world; rank++)
        if (trace_find(trace, rank, name))
            judge->rank_scratch[ranks++] = rank;
    failure.name = name;
    failure.kind = FINDING_EXTRA;
    failure.ranks = ranks;
    failure.rank = judge->rank_scratch;
    failure.what = "was recorded, but nobody owes it,";
    return judge_fail(judge, &failure);
}

/* Of the segment at hand. */
static enum status report_extras(struct judge *judge, const struct trace *trace) {
    const struct name_set *names = &judge->part[judge->segment].names;
    for (int rank = 0; rank < trace->ranks; rank++)
        for (int i = 0; i < trace->rank[rank].count; i++)
            if (rank >= judge->world || !name_set_has(names, trace->rank[rank].record[i].name))
                TRY(report_extra(judge, trace, trace->rank[rank].record[i].name));
    return STATUS_OK;
}

static enum status report_uncompared(struct judge *judge) {
    const struct report_case *report = judge->report;
    struct failure failure = FAILURE_NONE;
    char text[256];
    snprintf(text, sizeof text, "%lld records and %lld elements were owed, %lld and %lld compared",
             (long long)report->owed_records, (long long)report->owed_elements, (long long)report->compared_records,
             (long long)report->compared_elements);
    failure.name = judge->one->name;
    failure.no_tensor = true;
    failure.kind = FINDING_MISSING;
    failure.what = text;
    return judge_fail(judge, &failure);
}

enum status judge_close(struct judge *judge, const struct trace *trace) {
    struct report_case *report = judge->report;
    TRY(judge_count_once(judge));
    for (int segment = 0; segment < judge->segments; segment++) {
        judge_enter(judge, segment);
        TRY(report_extras(judge, &trace[segment]));
    }
    bool all = report->compared_records == report->owed_records && report->compared_elements == report->owed_elements &&
               report->owed_records > 0 && report->owed_elements > 0;
    if (!all && judge_first(judge))
        TRY(report_uncompared(judge));
    report->verdict = all && !report->finding.present ? VERDICT_PASS : VERDICT_FAIL;
    return STATUS_OK;
}
