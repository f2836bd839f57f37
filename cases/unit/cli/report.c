/* `run --json`: every field, counts that agree with each other, with the last line and with the exit code. */
#include "report.h"

#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields */

struct field {
    const char *path;
    const char *kinds; /* s string, n null, i integer, r number, a list, o object */
};

static bool has_kind(const json_t *value, char kind) {
    switch (kind) {
    case 's':
        return json_is_string(value);
    case 'n':
        return json_is_null(value);
    case 'i':
        return json_is_integer(value);
    case 'r':
        return json_is_number(value);
    case 'a':
        return json_is_array(value);
    default:
        return json_is_object(value);
    }
}

static void expect_fields(const json_t *object, const struct field *field, const char *name) {
    for (; field->path; field++) {
        const json_t *value = json_at(object, field->path);
        bool fits = false;
        for (const char *kind = field->kinds; *kind && value; kind++)
            fits = fits || has_kind(value, *kind);
        cr_expect(fits, "%s: '%s' is %s, expected one of '%s'", name, field->path,
                  value ? "of another type" : "missing", field->kinds);
    }
}

static const struct field report_fields[] = {{"schema", "s"},          {"command", "s"},        {"version", "s"},
                                             {"engine", "s"},          {"device", "s"},         {"seconds", "r"},
                                             {"summary", "o"},         {"summary.passed", "i"}, {"summary.failed", "i"},
                                             {"summary.skipped", "i"}, {"cases", "a"},          {NULL, NULL}};

static const struct field case_fields[] = {{"name", "s"},
                                           {"verdict", "s"},
                                           {"reason", "sn"},
                                           {"mesh", "s"},
                                           {"world", "i"},
                                           {"dtype", "s"},
                                           {"engine", "s"},
                                           {"seconds", "r"},
                                           {"compared.records", "i"},
                                           {"compared.elements", "i"},
                                           {"owed.records", "i"},
                                           {"owed.elements", "i"},
                                           {"golden", "on"},
                                           {"worst.tensor", "sn"},
                                           {"worst.error_over_bar", "r"},
                                           {"routing.tokens", "i"},
                                           {"routing.ties", "i"},
                                           {"finding", "on"},
                                           {"consequences", "a"},
                                           {"repeat", "sn"},
                                           {NULL, NULL}};

static const struct field golden_fields[] = {
    {"golden.compared", "i"}, {"golden.unreached", "a"}, {"golden.worst", "r"}, {NULL, NULL}};

static const struct field finding_fields[] = {{"finding.tensor", "s"},
                                              {"finding.phase", "s"},
                                              {"finding.step", "i"},
                                              {"finding.micro", "in"},
                                              {"finding.tenant", "sn"},
                                              {"finding.slot", "in"},
                                              {"finding.rank", "i"},
                                              {"finding.ranks", "a"},
                                              {"finding.kind", "s"},
                                              {"finding.index", "a"},
                                              {"finding.axis", "s"},
                                              {"finding.expert", "in"},
                                              {"finding.want", "r"},
                                              {"finding.got", "r"},
                                              {"finding.error", "r"},
                                              {"finding.bar", "r"},
                                              {"finding.collective", "n"},
                                              {"finding.text", "s"},
                                              {NULL, NULL}};

/* A pass has compared all that is owed, and something is. */
static void expect_counts(const json_t *one) {
    const char *name = text_of(one, "name");
    if (strcmp(text_of(one, "verdict"), "pass") != 0)
        return;
    cr_expect_gt(number_of(one, "owed.records"), 0, "%s", name);
    cr_expect_gt(number_of(one, "owed.elements"), 0, "%s", name);
    cr_expect(json_equal(json_object_get(one, "compared"), json_object_get(one, "owed")), "%s", name);
    cr_expect(json_is_null(json_object_get(one, "finding")), "%s", name);
    cr_expect_leq(json_number_value(json_at(one, "worst.error_over_bar")), 1, "%s", name);
}

static int tensors_of(const char *path) {
    struct safetensors file = {0};
    DONE(safetensors_open(&file, path));
    int count = file.count;
    safetensors_close(&file);
    return count;
}

static json_t *run_suite_file(const struct scratch *scratch, const char *file, const char *filter,
                              struct result *result) {
    char *json = scratch_path(scratch, "report.json");
    *result = RUN(scratch, "run", file, "--filter", filter, "--json", json);
    cr_expect_eq(result->code, 0, "%s%s", result->out, result->err);
    free(json);
    return report_load(scratch, "report.json");
}

Test(cli, report_has_every_field) {
    struct scratch scratch = scratch_make();
    struct result result;
    json_t *report = run_suite_file(&scratch, "cases/suite/tiny_ada.yaml", "*ep2.fsdp*", &result);
    expect_fields(report, report_fields, "report");
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(report, "cases"), i, one) {
        expect_fields(one, case_fields, text_of(one, "name"));
        expect_counts(one);
        cr_expect_str_eq(text_of(one, "verdict"), "pass");
        cr_expect_str_eq(text_of(one, "engine"), "local");
    }
    cr_expect_eq(i, 6); /* two meshes, three types */
    cr_expect_eq(number_of(report, "summary.passed"), 6);
    cr_expect_str_eq(last_line(&result), "6 passed, 0 failed, 0 skipped");
    one = report_case_of(report, "tiny_ada[ep2.fsdp4.float32]");
    cr_expect_str_eq(text_of(one, "mesh"), "{ep: 2, fsdp: 4}");
    cr_expect_str_eq(text_of(one, "dtype"), "float32");
    cr_expect_eq(number_of(one, "world"), 8);
    json_decref(report);
    result_free(&result);
    scratch_free(&scratch);
}

Test(cli, golden_answers_are_all_compared) {
    static const struct {
        const char *file, *filter, *name, *golden[5];
    } rows[] = {
        {"cases/suite/tiny_ada.yaml",
         "*ep1.fsdp1.float64*",
         "tiny_ada[ep1.fsdp1.float64]",
         {TINY "/golden/sgd/ada.safetensors"}},
        {"cases/suite/uneven_gus.yaml",
         "*ep2.fsdp1.float64*",
         "uneven_gus[ep2.fsdp1.float64]",
         {UNEVEN "/golden/sgd/gus.safetensors"}},
        {"cases/suite/tiny_tenants_together.yaml",
         "*ep2.fsdp2*",
         "tiny_tenants_together[ep2.fsdp2]",
         {TINY "/golden/sgd/ada.safetensors", TINY "/golden/sgd/bob.safetensors", TINY "/golden/sgd/cyd.safetensors",
          TINY "/golden/sgd/dov.safetensors", TINY "/golden/sgd/eve.safetensors"}},
    };
    struct scratch scratch = scratch_make();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct result result;
        int tensors = 0;
        json_t *report = run_suite_file(&scratch, rows[i].file, rows[i].filter, &result);
        json_t *one = report_case_of(report, rows[i].name);
        expect_fields(one, golden_fields, rows[i].name);
        for (int g = 0; g < 5 && rows[i].golden[g]; g++)
            tensors += tensors_of(rows[i].golden[g]);
        cr_expect_eq(number_of(one, "golden.compared"), tensors, "%s", rows[i].name);
        cr_expect_eq(json_array_size(json_at(one, "golden.unreached")), 0, "%s", rows[i].name);
        double worst = json_number_value(json_at(one, "golden.worst"));
        cr_expect(worst > 0 && worst <= 1e-9, "%s: %g", rows[i].name, worst);
        json_decref(report);
        result_free(&result);
    }
    scratch_free(&scratch);
}

/* One step instead of three: the other steps' answers are named, not forgotten. */
Test(cli, golden_answers_out_of_reach_are_named) {
    struct scratch scratch = scratch_make();
    struct result result;
    char *path =
        scratch_write(&scratch, "case.yaml",
                      "case: base\nmodel: @/model\nmesh: {ep: 2}\ntenants: {ada: {adapter: @/adapters/ada}}\n"
                      "batches: @/batches.safetensors\nscript: [{acquire: ada}, {train: {tenant: ada, micro: [0]}}]\n"
                      "golden: {ada: @/golden/sgd/ada.safetensors}\n");
    json_t *report = run_suite_file(&scratch, path, "*", &result);
    json_t *one = report_case_of(report, "base"), *unreached = json_at(one, "golden.unreached"), *name;
    size_t i;
    cr_expect_gt(json_array_size(unreached), 0);
    cr_expect_gt(number_of(one, "golden.compared"), 0);
    cr_expect_eq(number_of(one, "golden.compared") + (json_int_t)json_array_size(unreached),
                 tensors_of(TINY "/golden/sgd/ada.safetensors"));
    json_array_foreach(unreached, i, name) cr_expect(strncmp(json_string_value(name), "step.1/", 7) == 0 ||
                                                         strncmp(json_string_value(name), "step.2/", 7) == 0,
                                                     "%s", json_string_value(name));
    json_decref(report);
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

/* A finding of the judge, seen through a fault that is expected elsewhere: the case fails, all fields are there. */
Test(cli, finding_has_every_field) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3,
                              "mesh: {ep: 2, fsdp: 2}\nexpect: {fault: expert_divisor_world, finding: {rank: 99}}");
    char *json = scratch_path(&scratch, "report.json");
    struct result result = RUN(&scratch, "run", path, "--json", json);
    cr_expect_eq(result.code, 1, "%s", result.err);
    json_t *report = report_load(&scratch, "report.json");
    json_t *one = report_case_of(report, "base");
    cr_expect_str_eq(text_of(one, "verdict"), "fail");
    expect_fields(one, case_fields, "base");
    expect_fields(one, finding_fields, "base");
    cr_expect_gt(json_array_size(json_object_get(one, "consequences")), 0);
    cr_expect_eq(number_of(report, "summary.failed"), 1);
    cr_expect_str_eq(last_line(&result), "0 passed, 1 failed, 0 skipped");
    json_decref(report);
    result_free(&result);
    free(json);
    free(path);
    scratch_free(&scratch);
}

Test(cli, want_of_hardware_is_a_skip) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 0, ""), *json = scratch_path(&scratch, "report.json");
    struct result result = RUN(&scratch, "run", path, "--engine", "nccl", "--json", json);
    cr_expect_eq(result.code, 77);
    cr_expect_str_eq(last_line(&result), "0 passed, 0 failed, 1 skipped");
    json_t *report = report_load(&scratch, "report.json");
    json_t *one = report_case_of(report, "base");
    expect_fields(one, case_fields, "base");
    cr_expect_str_eq(text_of(one, "verdict"), "skip");
    cr_expect(strstr(text_of(one, "reason"), "GPU"));
    cr_expect_eq(number_of(report, "summary.skipped"), 1);
    json_decref(report);
    result_free(&result);
    result = RUN(&scratch, "run", path, "--device", "cuda");
    cr_expect_eq(result.code, 77);
    result_free(&result);
    free(json);
    free(path);
    scratch_free(&scratch);
}
