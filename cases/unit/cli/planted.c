/* Each planted fault of cases/faults is found where it was planted; and where something else is expected, it fails. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <glob.h>
#include <string.h>

#define FAULTS 6

/* What the rule breaks first, by what the rule says: not read from the case files. */
static const struct {
    const char *name, *kind, *phase, *tensor; /* phase "": null */
    json_int_t rank;
} rows[FAULTS] = {
    {"ep_slice_off_by_one_rank", "value", "param", "model.layers.0.mlp.experts.gate_up_proj", 0},
    {"flat_b_concatenated_across_ep", "value", "export",
     "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight", 0},
    {"flat_b_read_expert_major", "value", "param", "model.layers.0.mlp.experts.gate_up_proj.lora_B", 0},
    {"loss_as_mean_of_means", "replica", "loss", "count", 0},
    {"reduce_scatter_left_out_on_one_rank", "order", "", "model.layers.1", 1},
    {"world_factor_in_expert_divisor", "value", "grad", "model.layers.0.mlp.experts.gate_up_proj.lora_A", 0},
};

static void expect_found(const json_t *one, int i) {
    cr_expect_str_eq(text_of(one, "verdict"), "pass", "%s", rows[i].name);
    cr_expect_str_eq(text_of(one, "finding.kind"), rows[i].kind, "%s", rows[i].name);
    cr_expect_str_eq(text_of(one, "finding.phase"), rows[i].phase, "%s", rows[i].name);
    cr_expect_str_eq(text_of(one, "finding.tensor"), rows[i].tensor, "%s", rows[i].name);
    cr_expect_eq(number_of(one, "finding.rank"), rows[i].rank, "%s", rows[i].name);
}

/* Fields that the lines of the table leave out. */
static void expect_details(const json_t *report) {
    const json_t *order = report_case_of(report, "reduce_scatter_left_out_on_one_rank");
    cr_expect_str_eq(text_of(order, "finding.collective.operation"), "reduce_scatter");
    cr_expect_str_eq(text_of(order, "finding.collective.group"), "fsdp");
    cr_expect_eq(strncmp(text_of(order, "finding.collective.site"), "sharded/fsdp.c:", 15), 0);
    cr_expect_gt(number_of(order, "finding.collective.sequence"), 0);
    cr_expect_eq(json_array_size(json_at(order, "finding.ranks")), 1);
    const json_t *slice = report_case_of(report, "ep_slice_off_by_one_rank");
    cr_expect_eq(json_array_size(json_at(slice, "finding.ranks")), 6); /* all EP ranks read their neighbour's block */
    cr_expect_eq(number_of(slice, "finding.expert"), 0);
    /* rank slow, expert FAST: column 1 of flat B is expert 1, not rank 1 */
    cr_expect(strstr(text_of(report_case_of(report, "flat_b_read_expert_major"), "finding.axis"), "lora rank 1"));
    const json_t *divisor = report_case_of(report, "world_factor_in_expert_divisor");
    double want = json_number_value(json_at(divisor, "finding.want")),
           got = json_number_value(json_at(divisor, "finding.got"));
    cr_expect(got != 0 && want / got > 3.999 && want / got < 4.001, "%g, %g", want, got); /* a world of 4 */
}

/* Every file of cases/faults is one case. */
static size_t fault_files(void) {
    glob_t found;
    cr_assert_eq(glob("cases/faults/*.yaml", 0, NULL, &found), 0);
    size_t count = found.gl_pathc;
    globfree(&found);
    return count;
}

static void run_faults(const char *engine) {
    struct scratch scratch = scratch_make();
    char *json = scratch_path(&scratch, "report.json");
    struct result result = RUN(&scratch, "run", "cases/faults", "--engine", engine, "--json", json);
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    json_t *report = report_load(&scratch, "report.json");
    cr_expect_eq(json_array_size(json_object_get(report, "cases")), fault_files());
    for (int i = 0; i < FAULTS; i++)
        expect_found(report_case_of(report, rows[i].name), i);
    expect_details(report);
    json_decref(report);
    result_free(&result);
    free(json);
    scratch_free(&scratch);
}

Test(cli, planted_faults_local) {
    run_faults("local");
}

Test(cli, planted_faults_mpi) {
    command_leaks_unwatched(); /* a left-out collective ends its world */
    run_faults("mpi");
}

/* A copy of a fault's file with absolute paths and TEXT instead of its expect block. */
static char *copy_fault(const struct scratch *scratch, const char *name, const char *text) {
    char path[256], *out = NULL;
    size_t length;
    snprintf(path, sizeof path, "cases/faults/%s.yaml", name);
    char *all = read_text(path), *expect = strstr(all, "\nexpect:");
    cr_assert_not_null(expect, "%s has no expect block at its end", path);
    *expect = '\0';
    FILE *file = open_memstream(&out, &length);
    for (const char *at = all; *at; at++) {
        if (strncmp(at, "../../fixtures/golden/qwen3_moe_tiny", 36) == 0) {
            fputs("@", file);
            at += 35;
        } else {
            fputc(*at, file);
        }
    }
    fprintf(file, "\n%s\n", text);
    fclose(file);
    free(all);
    char *copy = scratch_write(scratch, "fault.yaml", out);
    free(out);
    return copy;
}

static void expect_code(const struct scratch *scratch, const char *name, const char *text, int code, const char *what) {
    char *path = copy_fault(scratch, name, text);
    struct result result = RUN(scratch, "run", path);
    cr_expect_eq(result.code, code, "%s, %s: exit %d\n%s%s", name, text, result.code, result.out, result.err);
    cr_expect(strstr(result.out, what), "%s, %s: %s", name, text, result.out);
    result_free(&result);
    free(path);
}

/* The check can fail: without the rule the same case passes, a finding elsewhere fails. */
Test(cli, planted_faults_are_not_found_elsewhere) {
    static const char *const rules[FAULTS] = {"ep_slice_off_by_one", "export_b_plain_concat",   "import_b_expert_major",
                                              "loss_mean_of_means",  "reduce_scatter_left_out", "expert_divisor_world"};
    static const char *const wrong[] = {"tensor: lm_head.weight", "kind: extra", "rank: 3", "step: 9",
                                        "collective: {site: nowhere}"};
    struct scratch scratch = scratch_make();
    for (int i = 0; i < FAULTS; i++) {
        char text[256];
        expect_code(&scratch, rows[i].name, "", 0, "pass");
        snprintf(text, sizeof text, "expect: {fault: %s}", rules[i]);
        expect_code(&scratch, rows[i].name, text, 0, "pass");
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            snprintf(text, sizeof text, "expect: {fault: %s, finding: {%s}}", rules[i], wrong[w]);
            expect_code(&scratch, rows[i].name, text, 1, "was found, but not as expected");
        }
    }
    scratch_free(&scratch);
}

/* A rule that changes nothing in this case (a world of one has no neighbour) is no pass. */
Test(cli, planted_fault_without_effect_fails) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3, "mesh: {ep: 1}\nexpect: {fault: ep_slice_off_by_one}");
    struct result result = RUN(&scratch, "run", path);
    cr_expect_eq(result.code, 1);
    cr_expect(strstr(result.out, "the planted fault ep_slice_off_by_one was not found"), "%s", result.out);
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

Test(cli, every_rule_is_planted_by_a_case) {
    struct scratch scratch = scratch_make();
    struct result result = RUN(&scratch, "show", "faults");
    cr_expect_eq(result.code, 0);
    char *all = strdup("");
    glob_t found;
    cr_assert_eq(glob("cases/faults/*.yaml", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *text = read_text(found.gl_pathv[i]);
        all = realloc(all, strlen(all) + strlen(text) + 1);
        cr_assert_not_null(all);
        strcat(all, text);
        free(text);
    }
    globfree(&found);
    for (char *line = strtok(result.out, "\n"); line; line = strtok(NULL, "\n")) {
        char want[128];
        snprintf(want, sizeof want, "fault: %.*s\n", (int)strcspn(line, " "), line);
        cr_expect(strstr(all, want), "%s", want);
    }
    free(all);
    result_free(&result);
    scratch_free(&scratch);
}
