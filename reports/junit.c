/* JUnit XML as GitLab, Jenkins and GitHub's actions read it: a testsuite per case file, a testcase per case. */
#include "core/files.h"
#include "reports/report.h"
#include "reports/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Length of the character of XML 1.0 at `s`, 0 if there is none (illegal bytes, control characters, U+FFFE, U+FFFF). */
static int legal(const unsigned char *s) {
    if (s[0] < 0x20)
        return s[0] == '\t' || s[0] == '\n' || s[0] == '\r';
    if (s[0] == 0x7f || (s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe))
        return 0;
    return utf8_length(s);
}

static void escape(FILE *out, const char *text) {
    const unsigned char *s = (const unsigned char *)(text ? text : "");
    while (*s) {
        int length = legal(s);
        if (!length) {
            fputs(UTF8_REPLACEMENT, out);
            s++;
        } else if (length > 1) {
            fwrite(s, 1, (size_t)length, out);
            s += length;
        } else {
            switch (*s) {
            case '&':
                fputs("&amp;", out);
                break;
            case '<':
                fputs("&lt;", out);
                break;
            case '>':
                fputs("&gt;", out);
                break;
            case '"':
                fputs("&quot;", out);
                break;
            case '\t':
            case '\n':
            case '\r': /* as they are, a reader would make spaces of them in attributes */
                fprintf(out, "&#%d;", *s);
                break;
            default:
                fputc(*s, out);
            }
            s++;
        }
    }
}

static void attribute(FILE *out, const char *name, const char *value) {
    fprintf(out, " %s=\"", name);
    escape(out, value);
    fputc('"', out);
}

static void testcase(FILE *out, const struct report_case *one) {
    fputs("  <testcase", out);
    attribute(out, "classname", one->file);
    attribute(out, "name", one->name);
    attribute(out, "file", one->file);
    fprintf(out, " time=\"%.3f\"", one->seconds);
    if (one->verdict == VERDICT_PASS) {
        fputs("/>\n", out);
        return;
    }
    const char *element = one->verdict == VERDICT_FAIL    ? "failure"
                          : one->verdict == VERDICT_ERROR ? "error"
                                                          : "skipped";
    fprintf(out, ">\n   <%s", element);
    attribute(out, "message", one->reason ? one->reason : one->finding.present ? one->finding.tensor : "");
    fputc('>', out);
    if (one->finding.present)
        escape(out, one->finding.text);
    if (one->repeat) {
        escape(out, "\nsee it again: ");
        escape(out, one->repeat);
    }
    fprintf(out, "</%s>\n  </testcase>\n", element);
}

static void testsuite(FILE *out, const struct report *report, int first, const bool *done) {
    const char *file = report->cases[first].file;
    int tests = 0, failures = 0, errors = 0, skipped = 0;
    double seconds = 0;
    for (int i = first; i < report->count; i++) {
        const struct report_case *one = &report->cases[i];
        if (done[i] || strcmp(one->file, file) != 0)
            continue;
        tests++;
        failures += one->verdict == VERDICT_FAIL;
        errors += one->verdict == VERDICT_ERROR;
        skipped += one->verdict == VERDICT_SKIP;
        seconds += one->seconds;
    }
    fputs(" <testsuite", out);
    attribute(out, "name", file);
    fprintf(out, " tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\" time=\"%.3f\">\n", tests, failures, errors,
            skipped, seconds);
}

enum status report_write_junit(const struct report *report, const char *path) {
    char *text = NULL;
    size_t length = 0;
    bool *done = calloc((size_t)report->count + 1, sizeof *done);
    FILE *out = done ? open_memstream(&text, &length) : NULL;
    if (!out) {
        free(done);
        return status_fail(STATUS_MEMORY, "%s: the report does not fit into memory", path);
    }
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"shardproof\">\n", out);
    for (int i = 0; i < report->count; i++) {
        if (done[i])
            continue;
        testsuite(out, report, i, done);
        for (int j = i; j < report->count; j++) {
            if (done[j] || strcmp(report->cases[j].file, report->cases[i].file) != 0)
                continue;
            testcase(out, &report->cases[j]);
            done[j] = true;
        }
        fputs(" </testsuite>\n", out);
    }
    fputs("</testsuites>\n", out);
    free(done);
    if (fclose(out) != 0) {
        free(text);
        return status_fail(STATUS_MEMORY, "%s: the report does not fit into memory", path);
    }
    enum status status = file_write(path, text, length);
    free(text);
    return status;
}
