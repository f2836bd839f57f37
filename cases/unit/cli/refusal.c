#include "refusal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void expect_refusal(const struct scratch *scratch, const struct result *result, const char *place, const char *what) {
    char *full = scratch_text(scratch, place ? place : "");
    char begin[4096];
    snprintf(begin, sizeof begin, "shardproof: %s%s", full, place ? ": " : "");
    cr_expect_eq(result->code, 2, "exit %d, expected 2: %s", result->code, result->err);
    cr_expect_str_eq(result->out, "", "stdout is not empty");
    cr_expect_eq(line_count(result->err), 1, "not one line: %s", result->err);
    cr_expect_eq(strncmp(result->err, begin, strlen(begin)), 0, "does not begin with '%s': %s", begin, result->err);
    cr_expect(strstr(result->err, what), "'%s' is not in: %s", what, result->err);
    cr_expect(strstr(result->err, "expected") || strstr(result->err, "did you mean"), "what was expected? %s",
              result->err);
    free(full);
}

void expect_run_refused(const struct scratch *scratch, const char *place, const char *what, const char *const *words) {
    const char *all[32] = {"run"};
    int count = 1;
    scratch_mkdir(scratch, "written");
    char *folder = scratch_path(scratch, "written"), *json = scratch_path(scratch, "written/report.json");
    char *junit = scratch_path(scratch, "written/report.xml"), *keep = scratch_path(scratch, "written/keep");
    const char *const outputs[] = {"--json", json, "--junit", junit, "--keep", keep};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        all[count++] = outputs[i];
    for (int i = 0; words[i]; i++)
        all[count++] = words[i];
    struct result result = command_run(scratch, all);
    expect_refusal(scratch, &result, place, what);
    cr_expect_eq(scratch_entries(folder), 0, "something was written: %s", result.err);
    result_free(&result);
    free(keep);
    free(junit);
    free(json);
    free(folder);
}
