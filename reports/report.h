/* What is told: the data of a report and its writers (terminal, JSON, JUnit). docs/formats.md has the fields.
 *
 * The harness fills it; writers only read. Strings are owned by the report (report_free). NULL or an empty list is
 * written as null or []. */
#ifndef REPORTS_REPORT_H
#define REPORTS_REPORT_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum verdict {
    VERDICT_PASS,
    VERDICT_FAIL,
    VERDICT_SKIP,
    VERDICT_ERROR
};
enum finding_kind {
    FINDING_SHAPE,
    FINDING_DTYPE,
    FINDING_VALUE,
    FINDING_ROUTING,
    FINDING_MISSING,
    FINDING_EXTRA,
    FINDING_NOT_FINITE,
    FINDING_REPLICA,
    FINDING_ORDER,
    FINDING_HANG,
    FINDING_CRASH,
    FINDING_GOLDEN
};
const char *finding_kind_name(enum finding_kind kind);

struct report_strings {
    int count, room;
    char **item;
};

struct report_collective {
    bool present;
    char *operation, *group;
    int64_t sequence;
    char *site;
};

struct report_finding {
    bool present;
    char *tensor; /* TENSOR part of the trace name; golden: the name in the golden file */
    char *phase;
    int64_t step, micro; /* -1: null */
    char *tenant;        /* NULL: null */
    int64_t slot;        /* -1: null */
    int64_t rank;        /* the first that differs; -1: null */
    int ranks;
    int *rank_list; /* all that differ */
    enum finding_kind kind;
    int dims;         /* of `index`; 0: null */
    int64_t index[8]; /* global */
    char *axis;       /* "expert 3, out 5, rank 1": the coordinates by axis name */
    int64_t expert;   /* -1: null */
    double want, got, error, bar;
    bool numbers; /* want.. bar are meant */
    struct report_collective collective;
    char *text; /* one paragraph: what, where, want against got */
};

struct report_case {
    char *name, *file;
    enum verdict verdict;
    char *reason; /* skip, error: launch, hang, crash, blind */
    char *mesh;   /* "{ep: 2, fsdp: 2}" */
    int world;
    char *dtype, *engine;
    double seconds;
    int64_t compared_records, compared_elements, owed_records, owed_elements;
    int64_t golden_compared;
    double golden_worst; /* relative */
    struct report_strings golden_unreached;
    bool golden;
    char *worst_tensor;
    double worst_error_over_bar;
    int64_t routing_tokens, routing_ties;
    struct report_finding finding;
    struct report_strings consequences;
    char *repeat;    /* a command */
    char digest[33]; /* of all records' bits: equal on every engine */
};

struct report {
    const char *command, *engine, *device;
    double seconds;
    int count, room;
    struct report_case *cases;
};

enum status report_strings_add(struct report_strings *strings, const char *text); /* copies */
enum status report_add(struct report *report,
                       struct report_case **out); /* a new zeroed case; earlier pointers go stale */
void report_case_free(struct report_case *one);
void report_free(struct report *report);
void report_summary(const struct report *report, int *passed, int *failed,
                    int *skipped); /* an error counts as failed */
int report_exit_code(
    const struct report *report); /* 3 if any error, else 1 if any failed, else 77 if nothing ran, else 0 */

enum status report_write_json(const struct report *report, const char *path);
enum status report_write_junit(const struct report *report, const char *path);
/* One line for a case; behind it, for a failing one, finding, consequences and the command that repeats it. */
void report_print_case(FILE *out, const struct report_case *one, bool colour);
void report_print_summary(FILE *out, const struct report *report); /* "N passed, N failed, N skipped" */

#define REPORT_VERSION "0.1.0"

#endif
