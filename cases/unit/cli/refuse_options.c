/* Words of the command line that mean nothing are refused; so are lists of cases that would test nothing. */
#include "refusal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_usage(const struct scratch *scratch, const char *what, const char *const *words) {
    struct result result = command_run(scratch, words);
    expect_refusal(scratch, &result, NULL, what);
    result_free(&result);
}
#define USAGE(scratch, what, ...) expect_usage(scratch, what, (const char *const[]){__VA_ARGS__, NULL})

Test(cli, refuses_unknown_options) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 0, "");
    REFUSED(&scratch, "--frob", "unknown option", "--frob", path);
    REFUSED(&scratch, "--frob=3", "unknown option", "--frob=3", path);
    REFUSED(&scratch, "-x", "unknown option", path, "-xyz");
    REFUSED(&scratch, "--quiet=3", "takes no value", path, "--quiet=3");
    REFUSED(&scratch, "--filter", "value is missing", path, "--filter");
    REFUSED(&scratch, "--engine", "value is missing", path, "--engine");
    REFUSED(&scratch, "--engine tcp", "expected local, mpi or nccl", path, "--engine", "tcp");
    REFUSED(&scratch, "--device tpu", "expected cpu or cuda", path, "--device", "tpu");
    REFUSED(&scratch, "--dtype float16", "expected float64, float32 or bfloat16", path, "--dtype", "float16");
    USAGE(&scratch, "no command was given", "");
    USAGE(&scratch, "is no command", "rnu");
    USAGE(&scratch, "a word is missing", "show");
    USAGE(&scratch, "a word is missing", "show", "trace");
    USAGE(&scratch, "unknown", "show", "frob", "x");
    USAGE(&scratch, "too much", "show", "trace", path, path);
    USAGE(&scratch, "two reports", "agree", path);
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_numbers_that_are_none) {
    static const char *const numbers[] = {"0", "-1", "4x", "", "1e3", "1025", "99999999999999999999"};
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 0, "");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char place[64];
        snprintf(place, sizeof place, "--ranks %s", numbers[i]);
        REFUSED(&scratch, place, "1024", path, "--ranks", numbers[i]);
    }
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_an_empty_list_of_cases) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 0, ""), *folder = scratch_path(&scratch, "none");
    scratch_mkdir(&scratch, "none");
    REFUSED(&scratch, "--filter nothing*", "no case", path, "--filter", "nothing*");
    REFUSED(&scratch, "--filter ", "no case", path, "--filter", "");
    REFUSED(&scratch, "--ranks 5", "no case", path, "--ranks", "5");
    REFUSED(&scratch, "#/none", "holds no case", folder);
    REFUSED(&scratch, "nowhere.yaml", "does not exist", "nowhere.yaml");
    REFUSED(&scratch, "two?lines", "does not exist", "two\nlines");
    REFUSED(&scratch, "/dev/null:1", "empty", "/dev/null");
    USAGE(&scratch, "holds no case", "show", "case", folder);
    free(folder);
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_a_name_that_stands_twice) {
    struct scratch scratch = scratch_make();
    scratch_mkdir(&scratch, "both");
    char *first = scratch_case(&scratch, "both/first.yaml", 0, "");
    char *second = scratch_case(&scratch, "both/second.yaml", 1, "about: x\ncase: base"),
         *both = scratch_path(&scratch, "both");
    REFUSED(&scratch, "#/both/second.yaml:2", "first.yaml:1", both);
    REFUSED(&scratch, "#/both/first.yaml:1", "second.yaml:2", second, first);
    REFUSED(&scratch, "#/both/first.yaml:1", "has this name already", first, first);
    free(both);
    free(second);
    free(first);
    scratch_free(&scratch);
}

/* Before anything runs, not after hours. */
Test(cli, refuses_reports_that_cannot_be_written) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 0, ""), *file = scratch_path(&scratch, "report");
    USAGE(&scratch, "cannot be written", "run", path, "--json", "/nowhere/report.json");
    USAGE(&scratch, "cannot be written", "run", path, "--junit", "/nowhere/report.xml");
    USAGE(&scratch, "is no file", "run", path, "--json", scratch.folder);
    USAGE(&scratch, "is no file", "run", path, "--json", "");
    USAGE(&scratch, "both reports", "run", path, "--json", file, "--junit", file);
    USAGE(&scratch, "expected a folder", "run", path, "--keep", path);
    USAGE(&scratch, "--keep", "run", path, "--keep", "");
    free(file);
    free(path);
    scratch_free(&scratch);
}
