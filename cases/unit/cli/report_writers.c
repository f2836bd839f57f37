/* The writers of reports/ with a report made by hand: what no real run shows on demand. */
#include "report.h"

#include "reports/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOSTILE                                                                                                        \
    "<a & \"b\"> 'c'\x01\x1b[31m\x7f\t\n\r \xff\xc3( \xc3\xa4 \xf0\x9f\x98\x80 \xed\xa0\x80 \xef\xbf\xbf ]]>"

static void add(struct report *report, const char *name, const char *file, enum verdict verdict) {
    struct report_case *one;
    DONE(report_add(report, &one));
    one->name = strdup(name);
    one->file = strdup(file);
    one->mesh = strdup("{ep: 2, fsdp: 2}");
    one->dtype = strdup("float64");
    one->engine = strdup("local");
    one->verdict = verdict;
    one->world = 4;
    one->seconds = 0.25;
}

static struct report_finding *find(struct report *report, const char *text) {
    struct report_finding *finding = &report->cases[report->count - 1].finding;
    *finding = (struct report_finding){.present = true, .kind = FINDING_NOT_FINITE, .step = 2, .micro = -1, .slot = -1};
    finding->tensor = strdup(text);
    finding->phase = strdup("grad");
    finding->text = strdup(text);
    finding->expert = -1;
    finding->rank = 3;
    finding->ranks = 2;
    finding->rank_list = calloc(2, sizeof(int));
    finding->rank_list[0] = 3;
    finding->rank_list[1] = 5;
    finding->numbers = true;
    finding->want = INFINITY;
    finding->got = NAN;
    finding->error = -INFINITY;
    finding->bar = 0.1;
    finding->dims = 2;
    finding->index[1] = 7;
    return finding;
}

/* Two files, taking turns; each verdict once or more. */
static struct report mixed(void) {
    struct report report = {.command = "run", .engine = "local", .device = "cpu", .seconds = 1.5};
    add(&report, "one", "first & \"only\".yaml", VERDICT_PASS);
    add(&report, "two", "second.yaml", VERDICT_FAIL);
    find(&report, HOSTILE);
    DONE(report_strings_add(&report.cases[1].consequences, HOSTILE));
    DONE(report_strings_add(&report.cases[1].consequences, "plain"));
    add(&report, "three", "first & \"only\".yaml", VERDICT_ERROR);
    report.cases[2].reason = strdup("crash");
    find(&report, "rank 3 died");
    add(&report, "four", "first & \"only\".yaml", VERDICT_SKIP);
    report.cases[3].reason = strdup("no hardware");
    add(&report, HOSTILE, "second.yaml", VERDICT_PASS);
    return report;
}

/* ---- JSON */

Test(cli, json_of_any_text_and_number) {
    struct scratch scratch = scratch_make();
    struct report report = mixed();
    char *path = scratch_path(&scratch, "report.json");
    DONE(report_write_json(&report, path));
    json_t *root = report_load(&scratch, "report.json");
    json_t *one = report_case_of(root, "two");
    cr_expect_eq(json_array_size(json_object_get(root, "cases")), 5);
    cr_expect_str_eq(text_of(one, "finding.want"), "inf");
    cr_expect_str_eq(text_of(one, "finding.got"), "nan");
    cr_expect_str_eq(text_of(one, "finding.error"), "-inf");
    cr_expect_eq(json_number_value(json_at(one, "finding.bar")), 0.1);
    cr_expect_str_eq(text_of(one, "finding.kind"), "not_finite");
    cr_expect(json_is_null(json_at(one, "finding.micro")));
    cr_expect_eq(number_of(one, "finding.step"), 2);
    cr_expect_eq(json_integer_value(json_array_get(json_at(one, "finding.ranks"), 1)), 5);
    cr_expect_eq(json_integer_value(json_array_get(json_at(one, "finding.index"), 1)), 7);
    cr_expect_eq(json_array_size(json_object_get(one, "consequences")), 2);
    /* bytes that are no UTF-8 are U+FFFD, one each; all else, control characters too, comes back as it was */
    cr_expect_str_eq(text_of(one, "finding.text"),
                     "<a & \"b\"> 'c'\x01\x1b[31m\x7f\t\n\r \xef\xbf\xbd\xef\xbf\xbd( \xc3\xa4 \xf0\x9f\x98\x80 "
                     "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbf ]]>");
    cr_expect_eq(number_of(root, "summary.passed"), 2);
    cr_expect_eq(number_of(root, "summary.failed"), 2);
    cr_expect_eq(number_of(root, "summary.skipped"), 1);
    json_decref(root);
    report_free(&report);
    free(path);
    scratch_free(&scratch);
}

/* ---- JUnit */

/* What `xmllint --xpath` prints; "" if it fails. */
static char *xpath(const char *path, const char *expression) {
    char command[8192], *out = calloc(1, 65536);
    snprintf(command, sizeof command, "xmllint --xpath '%s' '%s' 2>&1", expression, path);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t length = fread(out, 1, 65535, pipe);
    cr_expect_eq(pclose(pipe), 0, "%s: %s", expression, out);
    while (length > 0 && out[length - 1] == '\n')
        out[--length] = '\0';
    return out;
}

static void expect_xpath(const char *path, const char *expression, const char *want) {
    char *got = xpath(path, expression);
    cr_expect_str_eq(got, want, "%s", expression);
    free(got);
}

static void expect_well_formed(const char *path) {
    char command[8192];
    snprintf(command, sizeof command, "xmllint --noout '%s'", path);
    cr_expect_eq(system(command), 0, "%s", path);
}

Test(cli, junit_counts_and_escapes) {
    struct scratch scratch = scratch_make();
    struct report report = mixed();
    char *path = scratch_path(&scratch, "report.xml");
    DONE(report_write_junit(&report, path));
    expect_well_formed(path);
    expect_xpath(path, "count(/testsuites/testsuite)", "2");
    expect_xpath(path, "string(/testsuites/testsuite[1]/@name)", "first & \"only\".yaml");
    expect_xpath(path, "string(/testsuites/testsuite[1]/@tests)", "3");
    expect_xpath(path, "string(/testsuites/testsuite[1]/@failures)", "0");
    expect_xpath(path, "string(/testsuites/testsuite[1]/@errors)", "1");
    expect_xpath(path, "string(/testsuites/testsuite[1]/@skipped)", "1");
    expect_xpath(path, "string(/testsuites/testsuite[2]/@failures)", "1");
    expect_xpath(path, "count(//testsuite[1]/testcase)", "3");
    expect_xpath(path, "count(//testcase[not(*)])", "2");
    expect_xpath(path, "string(//testcase[@name=\"three\"]/error/@message)", "crash");
    expect_xpath(path, "string(//testcase[@name=\"four\"]/skipped/@message)", "no hardware");
    /* what XML cannot hold is U+FFFD, one for each byte (three for U+FFFF) */
    expect_xpath(path, "string(//testcase[@name=\"two\"]/failure)",
                 "<a & \"b\"> 'c'\xef\xbf\xbd\xef\xbf\xbd[31m\xef\xbf\xbd\t\n\r \xef\xbf\xbd\xef\xbf\xbd( \xc3\xa4 "
                 "\xf0\x9f\x98\x80 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd ]]>");
    report_free(&report);
    free(path);
    scratch_free(&scratch);
}

Test(cli, junit_of_a_run) {
    struct scratch scratch = scratch_make();
    char *good = scratch_case(&scratch, "good.yaml", 1, "case: good\nmatrix: {mesh: [{ep: 2}, {ep: 3}]}");
    char *bad =
        scratch_case(&scratch, "bad.yaml", 1, "case: bad\nexpect: {fault: expert_divisor_world, finding: {rank: 9}}");
    char *path = scratch_path(&scratch, "report.xml"), expression[4096];
    struct result result = RUN(&scratch, "run", good, bad, "--junit", path);
    cr_expect_eq(result.code, 1);
    expect_well_formed(path);
    expect_xpath(path, "count(//testsuite)", "2");
    expect_xpath(path, "sum(//testsuite/@tests)", "3");
    expect_xpath(path, "sum(//testsuite/@failures)", "1");
    expect_xpath(path, "sum(//testsuite/@errors)", "0");
    snprintf(expression, sizeof expression, "string(//testsuite[@name=\"%s\"]/testcase/@name)", bad);
    expect_xpath(path, expression, "bad");
    char *failure = xpath(path, "string(//failure)");
    cr_expect(strstr(failure, "see it again: ") && strstr(failure, "expert_divisor_world"), "%s", failure);
    free(failure);
    result_free(&result);
    free(path);
    free(bad);
    free(good);
    scratch_free(&scratch);
}

/* ---- exit codes and the terminal */

Test(cli, exit_codes_of_reports) {
    static const struct {
        enum verdict verdicts[3];
        int code;
    } rows[] = {{{VERDICT_PASS, VERDICT_PASS, VERDICT_PASS}, 0},  {{VERDICT_PASS, VERDICT_FAIL, VERDICT_PASS}, 1},
                {{VERDICT_PASS, VERDICT_FAIL, VERDICT_ERROR}, 3}, {{VERDICT_PASS, VERDICT_ERROR, VERDICT_PASS}, 3},
                {{VERDICT_SKIP, VERDICT_SKIP, VERDICT_SKIP}, 77}, {{VERDICT_PASS, VERDICT_SKIP, VERDICT_SKIP}, 0},
                {{VERDICT_SKIP, VERDICT_FAIL, VERDICT_SKIP}, 1},  {{VERDICT_SKIP, VERDICT_ERROR, VERDICT_SKIP}, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct report report = {0};
        for (int c = 0; c < 3; c++)
            add(&report, "x", "x.yaml", rows[i].verdicts[c]);
        cr_expect_eq(report_exit_code(&report), rows[i].code, "row %zu", i);
        report_free(&report);
    }
    cr_expect_eq(report_exit_code(&(struct report){0}), 77); /* nothing ran: never a pass */
}

Test(cli, terminal_lines) {
    struct report report = mixed();
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    for (int i = 0; i < 8; i++)
        DONE(report_strings_add(&report.cases[2].consequences, "step.0/grad/w"));
    for (int i = 0; i < report.count - 1; i++)
        report_print_case(out, &report.cases[i], i == 0);
    report_print_summary(out, &report);
    fclose(out);
    cr_expect_eq(strncmp(text, "\033[32mpass \033[0m one  {ep: 2, fsdp: 2} float64 local", 45), 0, "%s", text);
    cr_expect(strstr(text, "\nFAIL  two  {ep: 2, fsdp: 2} float64 local"), "%s", text);
    cr_expect(strstr(text, "\nERROR three  {ep: 2, fsdp: 2} float64 local  (crash)"), "%s", text);
    cr_expect(strstr(text, "rank 3 died\n  also differ (8):"), "%s", text);
    cr_expect(strstr(text, "\n    ... and 2 more, in the JSON report\n"), "%s", text);
    cr_expect(strstr(text, "\nskip  four  {ep: 2, fsdp: 2} float64 local  (no hardware)"), "%s", text);
    cr_expect(strstr(text, "\n2 passed, 2 failed, 1 skipped\n"), "%s", text);
    free(text);
    report_free(&report);
}
