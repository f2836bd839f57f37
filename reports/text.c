/* The report on a terminal or in a log: a line per case, the finding behind a failing one. */
#include "reports/report.h"

#define SHOWN_CONSEQUENCES 6

static const char *colour_of(enum verdict verdict) {
    switch (verdict) {
    case VERDICT_PASS:
        return "\033[32m";
    case VERDICT_SKIP:
        return "\033[33m";
    default:
        return "\033[31m";
    }
}

/* How near the bars came; not where a finding says more. */
static void print_worst(FILE *out, const struct report_case *one) {
    if (!one->worst_tensor || one->finding.present)
        return;
    fprintf(out, ", worst %.5f of its bar", one->worst_error_over_bar);
}

/* A planted fault that was found: where. */
static void print_planted(FILE *out, const struct report_case *one) {
    const struct report_finding *finding = &one->finding;
    if (one->verdict == VERDICT_PASS && finding->present)
        fprintf(out, ", found as planted: %s %s%s%s", finding_kind_name(finding->kind),
                finding->phase ? finding->phase : "", finding->phase ? "/" : "",
                finding->tensor ? finding->tensor : "");
}

static void print_counts(FILE *out, const struct report_case *one) {
    fprintf(out, "  %lld of %lld records", (long long)one->compared_records, (long long)one->owed_records);
    if (one->golden)
        fprintf(out, ", %lld golden", (long long)one->golden_compared);
    print_worst(out, one);
    print_planted(out, one);
    fprintf(out, ", %.2f s", one->seconds);
}

static void print_finding(FILE *out, const struct report_case *one) {
    if (one->finding.present)
        fprintf(out, "%s\n", one->finding.text);
    if (one->consequences.count > 0) {
        fprintf(out, "  also differ (%d):", one->consequences.count);
        for (int i = 0; i < one->consequences.count && i < SHOWN_CONSEQUENCES; i++)
            fprintf(out, "\n    %s", one->consequences.item[i]);
        if (one->consequences.count > SHOWN_CONSEQUENCES)
            fprintf(out, "\n    ... and %d more, in the JSON report", one->consequences.count - SHOWN_CONSEQUENCES);
        fputc('\n', out);
    }
    if (one->repeat)
        fprintf(out, "  see it again: %s\n", one->repeat);
}

void report_print_case(FILE *out, const struct report_case *one, bool colour) {
    static const char *const words[] = {
        [VERDICT_PASS] = "pass", [VERDICT_FAIL] = "FAIL", [VERDICT_SKIP] = "skip", [VERDICT_ERROR] = "ERROR"};
    fprintf(out, "%s%-5s%s %s  %s %s %s", colour ? colour_of(one->verdict) : "", words[one->verdict],
            colour ? "\033[0m" : "", one->name, one->mesh, one->dtype, one->engine);
    if (one->reason)
        fprintf(out, "  (%s)", one->reason);
    print_counts(out, one);
    fputc('\n', out);
    if (one->verdict == VERDICT_FAIL || one->verdict == VERDICT_ERROR)
        print_finding(out, one);
}

void report_print_summary(FILE *out, const struct report *report) {
    int passed, failed, skipped;
    report_summary(report, &passed, &failed, &skipped);
    fprintf(out, "%d passed, %d failed, %d skipped\n", passed, failed, skipped);
}
