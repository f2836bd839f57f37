#include "reports/report.h"

#include <stdlib.h>
#include <string.h>

const char *finding_kind_name(enum finding_kind kind) {
    static const char *const names[] = {
        [FINDING_SHAPE] = "shape",           [FINDING_DTYPE] = "dtype",
        [FINDING_VALUE] = "value",           [FINDING_ROUTING] = "routing",
        [FINDING_MISSING] = "missing",       [FINDING_EXTRA] = "extra",
        [FINDING_NOT_FINITE] = "not_finite", [FINDING_REPLICA] = "replica",
        [FINDING_ORDER] = "order",           [FINDING_HANG] = "hang",
        [FINDING_CRASH] = "crash",           [FINDING_GOLDEN] = "golden",
    };
    return names[kind];
}

enum status report_strings_add(struct report_strings *strings, const char *text) {
    if (strings->count == strings->room) {
        int room = strings->room ? 2 * strings->room : 16;
        char **item = realloc(strings->item, (size_t)room * sizeof *item);
        if (!item)
            return status_fail(STATUS_MEMORY, "out of memory while a report was filled");
        strings->item = item;
        strings->room = room;
    }
    char *copy = strdup(text);
    if (!copy)
        return status_fail(STATUS_MEMORY, "out of memory while a report was filled");
    strings->item[strings->count++] = copy;
    return STATUS_OK;
}

static void strings_free(struct report_strings *strings) {
    for (int i = 0; i < strings->count; i++)
        free(strings->item[i]);
    free(strings->item);
    *strings = (struct report_strings){0};
}

enum status report_add(struct report *report, struct report_case **out) {
    if (report->count == report->room) {
        int room = report->room ? 2 * report->room : 64;
        struct report_case *cases = realloc(report->cases, (size_t)room * sizeof *cases);
        if (!cases)
            return status_fail(STATUS_MEMORY, "out of memory while a report was filled");
        report->cases = cases;
        report->room = room;
    }
    *out = &report->cases[report->count++];
    **out = (struct report_case){0};
    return STATUS_OK;
}

static void finding_free(struct report_finding *finding) {
    free(finding->tensor);
    free(finding->phase);
    free(finding->tenant);
    free(finding->rank_list);
    free(finding->axis);
    free(finding->text);
    free(finding->collective.operation);
    free(finding->collective.group);
    free(finding->collective.site);
    *finding = (struct report_finding){0};
}

void report_case_free(struct report_case *one) {
    free(one->name);
    free(one->file);
    free(one->reason);
    free(one->mesh);
    free(one->dtype);
    free(one->engine);
    free(one->worst_tensor);
    free(one->repeat);
    strings_free(&one->golden_unreached);
    strings_free(&one->consequences);
    finding_free(&one->finding);
    *one = (struct report_case){0};
}

void report_free(struct report *report) {
    for (int i = 0; i < report->count; i++)
        report_case_free(&report->cases[i]);
    free(report->cases);
    *report = (struct report){0};
}

void report_summary(const struct report *report, int *passed, int *failed, int *skipped) {
    *passed = *failed = *skipped = 0;
    for (int i = 0; i < report->count; i++) {
        switch (report->cases[i].verdict) {
        case VERDICT_PASS:
            ++*passed;
            break;
        case VERDICT_SKIP:
            ++*skipped;
            break;
        case VERDICT_FAIL:
        case VERDICT_ERROR:
            ++*failed;
            break;
        }
    }
}

int report_exit_code(const struct report *report) {
    int passed, failed, skipped;
    report_summary(report, &passed, &failed, &skipped);
    for (int i = 0; i < report->count; i++)
        if (report->cases[i].verdict == VERDICT_ERROR)
            return 3;
    if (failed > 0)
        return 1;
    return passed > 0 ? 0 : 77;
}
