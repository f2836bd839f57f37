/* `show` and `agree`. */
#include "refusal.h"
#include "report.h"

#include "core/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- trace */

static void expect_verdict(const struct scratch *scratch, const char *name, const char *verdict) {
    char path[256], last[64];
    snprintf(path, sizeof path, "fixtures/safetensors_vectors/%s", name);
    struct result result = RUN(scratch, "show", "trace", path);
    if (strncmp(verdict, "OK ", 3) == 0) {
        snprintf(last, sizeof last, "%d tensors", atoi(verdict + 3));
        cr_expect_eq(result.code, 0, "%s: %s", name, result.err);
        cr_expect_str_eq(result.err, "", "%s", name);
        for (const char *c = result.out; *c; c++)
            cr_expect(*c == '\n' || (unsigned char)*c >= 0x20, "%s: a control character is printed", name);
        cr_expect_str_eq(last_line(&result), last, "%s", name);
    } else {
        expect_refusal(scratch, &result, path, "");
    }
    result_free(&result);
}

Test(cli, show_trace_agrees_with_the_official_parser) {
    struct scratch scratch = scratch_make();
    char *oracle = read_text("fixtures/safetensors_vectors/oracle.txt");
    int vectors = 0;
    for (char *line = strtok(oracle, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line == '#')
            continue;
        vectors++;
        char *colon = strchr(line, ':');
        cr_assert_not_null(colon, "%s", line);
        *colon = '\0';
        expect_verdict(&scratch, line, colon + 2);
    }
    cr_expect_eq(vectors + 1, scratch_entries("fixtures/safetensors_vectors"), "%d", vectors); /* oracle.txt itself */
    free(oracle);
    scratch_free(&scratch);
}

/* Where the parser lets the second entry win, we do not. */
Test(cli, show_trace_refuses_a_name_that_stands_twice) {
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    char bytes[8 + sizeof header - 1 + 4] = {(char)(sizeof header - 1)};
    struct scratch scratch = scratch_make();
    char *path = scratch_path(&scratch, "twice.safetensors");
    memcpy(bytes + 8, header, sizeof header - 1);
    DONE(file_write(path, bytes, sizeof bytes));
    struct result result = RUN(&scratch, "show", "trace", path);
    expect_refusal(&scratch, &result, "#/twice.safetensors", "stands twice");
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

Test(cli, show_trace_prints_types_and_shapes) {
    struct scratch scratch = scratch_make();
    struct result result = RUN(&scratch, "show", "trace", TINY "/batches.safetensors");
    cr_expect(strstr(result.out, "I64    [5,7] "), "%s", result.out);
    cr_expect(strstr(result.out, "micro.0/input_ids\n"), "%s", result.out);
    result_free(&result);
    result = RUN(&scratch, "show", "trace", "nowhere.safetensors");
    cr_expect_eq(result.code, 2);
    cr_expect_eq(line_count(result.err), 1);
    result_free(&result);
    result = RUN(&scratch, "show", "trace", TINY "/model");
    expect_refusal(&scratch, &result, TINY "/model", "is a folder");
    result_free(&result);
    scratch_free(&scratch);
}

/* ---- layout */

Test(cli, show_layout_prints_pieces) {
    struct scratch scratch = scratch_make();
    char *path = scratch_write(&scratch, "layout.yaml",
                               "mesh: {ep: 2, fsdp: 2}\naxes: {expert: 4, rank: 2, out: 3, in: 5}\ntensors:\n"
                               "  flat_b: \"out (rank expert[ep])\"\n  \"*\": \"out[fsdp] in\"\n");
    struct result result = RUN(&scratch, "show", "layout", path);
    /* flat B [out, rank * expert], expert fast: ep 1 holds experts 2, 3 of each rank, columns 2, 3, 6, 7;
     * torch.chunk of 3 rows over 2: 2 and 1 */
    static const char want[] = "mesh {ep: 2, fsdp: 2}, world 4\n"
                               "flat_b  \"out (rank expert[ep])\"  [3,8]\n"
                               "  rank 0    (ep 0, fsdp 0)  [3,4]             dim 0: 0-2  dim 1: 0-1,4-5\n"
                               "  rank 1    (ep 0, fsdp 1)  [3,4]             dim 0: 0-2  dim 1: 0-1,4-5\n"
                               "  rank 2    (ep 1, fsdp 0)  [3,4]             dim 0: 0-2  dim 1: 2-3,6-7\n"
                               "  rank 3    (ep 1, fsdp 1)  [3,4]             dim 0: 0-2  dim 1: 2-3,6-7\n"
                               "*  \"out[fsdp] in\"  [3,5]\n"
                               "  rank 0    (ep 0, fsdp 0)  [2,5]             dim 0: 0-1  dim 1: 0-4\n"
                               "  rank 1    (ep 0, fsdp 1)  [1,5]             dim 0: 2  dim 1: 0-4\n"
                               "  rank 2    (ep 1, fsdp 0)  [2,5]             dim 0: 0-1  dim 1: 0-4\n"
                               "  rank 3    (ep 1, fsdp 1)  [1,5]             dim 0: 2  dim 1: 0-4\n";
    cr_expect_str_eq(result.out, want);
    cr_expect_eq(result.code, 0, "%s", result.err);
    result_free(&result);
    result = RUN(&scratch, "show", "layout", path, "--rank", "3");
    cr_expect_eq(line_count(result.out), 5, "%s", result.out);
    result_free(&result);
    result = RUN(&scratch, "show", "layout", path, "--rank", "4");
    expect_refusal(&scratch, &result, "--rank 4", "expected 0 to 3");
    result_free(&result);
    result = RUN(&scratch, "show", "layout", path, "--rank", "x");
    expect_refusal(&scratch, &result, "--rank x", "not a number");
    result_free(&result);
    free(path);
    path =
        scratch_write(&scratch, "layout.yaml", "mesh: {ep: 2}\naxes: {a: 4}\ntensors:\n  x: \"a[ep]\"\n  y: \"b\"\n");
    result = RUN(&scratch, "show", "layout", path);
    expect_refusal(&scratch, &result, "#/layout.yaml:5", "'b' has no size"); /* nothing of the first line is printed */
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

/* ---- case, model */

Test(cli, show_case_prints_what_a_file_becomes) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3, "matrix: {mesh: [{ep: 2}, {ep: 3, fsdp: 2}]}");
    struct result result = RUN(&scratch, "show", "case", path);
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect(strstr(result.out, "base[ep2]  ("), "%s", result.out);
    cr_expect(strstr(result.out, "base[ep3.fsdp2]  ("), "%s", result.out);
    cr_expect(strstr(result.out, "world 6, float64, layout built in"), "%s", result.out);
    cr_expect(strstr(result.out, "slots 2 of rank 4"), "%s", result.out);
    cr_expect(strstr(result.out, "train      ada          step.0 micro 0"), "%s", result.out);
    result_free(&result);
    free(path);
    path = scratch_case(&scratch, "case.yaml", 3, "mehs: 1");
    result = RUN(&scratch, "show", "case", path);
    expect_refusal(&scratch, &result, "#/case.yaml:3", "did you mean 'mesh'?");
    result_free(&result);
    free(path);
    result = RUN(&scratch, "show", "case", "cases/suite");
    cr_expect_eq(result.code, 0, "%s", result.err);
    result_free(&result);
    scratch_free(&scratch);
}

Test(cli, show_model_lists_parameters) {
    struct scratch scratch = scratch_make();
    struct result result = RUN(&scratch, "show", "model", UNEVEN "/model");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect(strstr(result.out, "model.layers.2.mlp.experts.gate_up_proj"), "%s", result.out);
    cr_expect(strstr(result.out, "[10,22,18]       expert (half inter) hidden"), "%s", result.out);
    cr_expect(
        strstr(result.out, "lm_head.weight                                           [47,18]          vocab hidden"),
        "%s", result.out);
    cr_expect(strstr(result.out, "(tied to the embedding)"), "%s", result.out);
    result_free(&result);
    result = RUN(&scratch, "show", "model", scratch.folder);
    expect_refusal(&scratch, &result, "#", "no config.json");
    result_free(&result);
    scratch_free(&scratch);
}

Test(cli, help_and_version) {
    static const char *const words[][2] = {
        {"--help", NULL}, {"help", NULL}, {"run", "--help"}, {"show", "--help"}, {"agree", "--help"}};
    struct scratch scratch = scratch_make();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct result result = RUN(&scratch, words[i][0], words[i][1]);
        cr_expect_eq(result.code, 0);
        cr_expect_eq(strncmp(result.out, "usage: shardproof run", 21), 0, "%s", result.out);
        result_free(&result);
    }
    struct result result = RUN(&scratch, "--version");
    cr_expect_eq(strncmp(result.out, "shardproof ", 11), 0);
    result_free(&result);
    scratch_free(&scratch);
}

/* ---- agree */

#define REPORT(cases) "{\"schema\": \"shardproof.report/1\", \"cases\": [" cases "]}"
#define CASE(name, verdict, digest) "{\"name\": \"" name "\", \"verdict\": \"" verdict "\", \"digest\": " digest "}"
#define TWO REPORT(CASE("x", "pass", "\"0a\"") ", " CASE("y", "pass", "\"0b\""))

static void agree(const char *a, const char *b, int code, const char *what) {
    struct scratch scratch = scratch_make();
    char *first = scratch_write(&scratch, "a.json", a), *second = scratch_write(&scratch, "b.json", b);
    struct result result = RUN(&scratch, "agree", first, second);
    cr_expect_eq(result.code, code, "%s, %s: %s%s", a, b, result.out, result.err);
    if (code == 2)
        expect_refusal(&scratch, &result, NULL, what);
    else
        cr_expect(strstr(result.out, what), "%s", result.out);
    result_free(&result);
    free(second);
    free(first);
    scratch_free(&scratch);
}

Test(cli, agree_compares_verdicts_and_bits) {
    agree(TWO, TWO, 0, "2 cases, 2 with records: the same bits");
    agree(TWO, REPORT(CASE("y", "pass", "\"0b\"") ", " CASE("x", "pass", "\"0a\"")), 0, "the same bits");
    agree(TWO, REPORT(CASE("x", "pass", "\"0a\"") ", " CASE("y", "fail", "\"0b\"")), 1, "y: the verdicts differ");
    agree(TWO, REPORT(CASE("x", "pass", "\"0c\"") ", " CASE("y", "pass", "\"0b\"")), 1, "x: the recorded bits differ");
    agree(TWO, REPORT(CASE("x", "pass", "\"0a\"") ", " CASE("y", "pass", "null")), 1, "y: the recorded bits differ");
    agree(TWO, REPORT(CASE("x", "pass", "\"0a\"")), 1, "y stands in one report only");
    agree(REPORT(CASE("x", "pass", "\"0a\"")), TWO, 1, "has 1 cases");
    agree(TWO, REPORT(CASE("x", "pass", "\"0a\"") ", " CASE("z", "pass", "\"0b\"")), 1, "y stands in one report only");
    /* nothing recorded is nothing shown */
    agree(REPORT(CASE("x", "skip", "null")), REPORT(CASE("x", "skip", "null")), 1, "nothing to compare");
    agree(REPORT(""), REPORT(""), 1, "nothing to compare");
}

Test(cli, agree_refuses_what_is_no_report) {
    agree(TWO, "{", 2, "b.json:1");
    agree("{}\n", TWO, 2, "a.json:1: not a report");
    agree("[1]", TWO, 2, "a.json:1: not a report");
    agree(TWO, "{\"schema\": \"shardproof.report/2\", \"cases\": []}", 2, "b.json:1: not a report");
    agree(TWO, "{\"schema\": \"shardproof.report/1\"}", 2, "without cases");
    agree("{\n\"a\": 1,\n\"a\": 2}", TWO, 2, "a.json:3");
    struct scratch scratch = scratch_make();
    struct result result = RUN(&scratch, "agree", "nowhere.json", "nowhere.json");
    expect_refusal(&scratch, &result, "nowhere.json", "cannot be read");
    result_free(&result);
    scratch_free(&scratch);
}
