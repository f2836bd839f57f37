/* Options of `run` that choose cases, and what it prints. */
#include "processes.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void expect_names(const struct scratch *scratch, const char *const *words, const char *const *names) {
    char *json = scratch_path(scratch, "report.json");
    const char *all[32] = {"run", "--json", json};
    int count = 3;
    for (int i = 0; words[i]; i++)
        all[count++] = words[i];
    struct result result = command_run(scratch, all);
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    json_t *report = report_load(scratch, "report.json");
    size_t i = 0;
    while (names[i]) {
        report_case_of(report, names[i]);
        i++;
    }
    cr_expect_eq(json_array_size(json_object_get(report, "cases")), i);
    json_decref(report);
    result_free(&result);
    free(json);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(cli, matrix_names_and_the_options_that_choose) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3,
                              "matrix: {mesh: [{ep: 2, fsdp: 1}, {fsdp: 2, ep: 1}, {ep: 3}], dtype: [float64, float32],"
                              " optimizer: [{name: sgd, lr: 0.1}]}");
    expect_names(&scratch, WORDS(path),
                 WORDS("base[ep2.fsdp1.float64.optimizer0]", "base[ep2.fsdp1.float32.optimizer0]",
                       "base[fsdp2.ep1.float64.optimizer0]", "base[fsdp2.ep1.float32.optimizer0]",
                       "base[ep3.float64.optimizer0]", "base[ep3.float32.optimizer0]"));
    expect_names(&scratch, WORDS(path, "--dtype", "float32"),
                 WORDS("base[ep2.fsdp1.float32.optimizer0]", "base[fsdp2.ep1.float32.optimizer0]",
                       "base[ep3.float32.optimizer0]"));
    expect_names(&scratch, WORDS(path, "--ranks", "3"),
                 WORDS("base[ep3.float64.optimizer0]", "base[ep3.float32.optimizer0]"));
    expect_names(&scratch, WORDS(path, "--filter", "*ep2*float??.*"),
                 WORDS("base[ep2.fsdp1.float64.optimizer0]", "base[ep2.fsdp1.float32.optimizer0]"));
    expect_names(&scratch, WORDS(path, "--filter", "base[ep3.float64.optimizer0]", "--engine", "mpi"),
                 WORDS("base[ep3.float64.optimizer0]"));
    expect_names(&scratch, WORDS("--engine", "mpi", "--ranks", "3", "--dtype", "float64", "--", path),
                 WORDS("base[ep3.float64.optimizer0]"));
    free(path);
    scratch_free(&scratch);
}

Test(cli, engines_agree_and_repeat_commands_work) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "it's a folder");
    char *path = scratch_case(&scratch, "it's a folder/case.yaml", 0, ""),
         *local = scratch_path(&scratch, "local.json");
    char *mpi = scratch_path(&scratch, "mpi.json"), *threads = scratch_path(&scratch, "threads.json");
    struct result result = RUN(&scratch, "run", path, "--json", local);
    result_free(&result);
    result = RUN(&scratch, "run", path, "--json", mpi, "--engine", "mpi");
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    result_free(&result);
    result = RUN(&scratch, "run", path, "--json", threads, "--threads", "--dtype", "float64");
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    result_free(&result);
    for (int i = 0; i < 2; i++) {
        result = RUN(&scratch, "agree", local, i ? threads : mpi);
        cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
        result_free(&result);
    }
    json_t *report = report_load(&scratch, "threads.json");
    char command[8192];
    snprintf(command, sizeof command, "%s >/dev/null", text_of(report_case_of(report, "base"), "repeat"));
    cr_expect(strstr(command, "--threads") && strstr(command, "--dtype float64"), "%s", command);
    cr_expect_eq(system(command), 0, "%s", command);
    json_decref(report);
    free(threads);
    free(mpi);
    free(local);
    free(path);
    scratch_free(&scratch);
}

Test(cli, quiet_prints_failures_and_the_last_line) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3, "matrix: {mesh: [{ep: 2}, {ep: 3}]}");
    struct result result = RUN(&scratch, "run", "--quiet", path);
    cr_expect_str_eq(result.out, "2 passed, 0 failed, 0 skipped\n");
    result_free(&result);
    result = RUN(&scratch, "run", path);
    cr_expect_eq(line_count(result.out), 3, "%s", result.out);
    cr_expect_str_eq(result.err, "");
    cr_expect_null(strchr(result.out, '\033'), "colours in a pipe");
    result_free(&result);
    free(path);
    path = scratch_case(&scratch, "case.yaml", 3, "expect: {fault: expert_divisor_world, finding: {rank: 99}}");
    result = RUN(&scratch, "run", "--quiet", path);
    cr_expect_gt(line_count(result.out), 1);
    cr_expect_eq(strncmp(result.out, "FAIL", 4), 0, "%s", result.out);
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

/* What cannot be printed must not look like a pass. */
Test(cli, full_or_closed_stdout) {
    struct scratch scratch = scratch_make();
    char command[8192], *path = scratch_case(&scratch, "case.yaml", 0, ""),
                        *json = scratch_path(&scratch, "report.json");
    snprintf(command, sizeof command, "TMPDIR=%s %s run %s >/dev/full 2>/dev/null", scratch.tmp, command_program(),
             path);
    int status = system(command);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%d", status);
    snprintf(command, sizeof command, "TMPDIR=%s %s run %s --json %s <&- >&- 2>&-", scratch.tmp, command_program(),
             path, json);
    cr_expect_eq(system(command), 0);
    json_decref(report_load(&scratch, "report.json")); /* nothing else was written into it */
    expect_nothing_left(&scratch, "run");
    free(json);
    free(path);
    scratch_free(&scratch);
}
