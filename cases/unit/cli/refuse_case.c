/* A case file that says something wrong is refused at its line. */
#include "refusal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    int line;         /* of the valid case that `text` replaces */
    const char *text; /* may hold several lines */
    int at;           /* line that the message must name */
    const char *what;
};

static void expect_rows(const struct row *row, size_t count) {
    struct scratch scratch = scratch_make();
    for (size_t i = 0; i < count; i++) {
        char place[64];
        char *path = scratch_case(&scratch, "case.yaml", row[i].line, row[i].text);
        snprintf(place, sizeof place, "#/case.yaml:%d", row[i].at);
        REFUSED(&scratch, place, row[i].what, path);
        free(path);
    }
    scratch_free(&scratch);
}
#define ROWS(...)                                                                                                      \
    const struct row rows[] = {__VA_ARGS__};                                                                           \
    expect_rows(rows, sizeof rows / sizeof *rows)

/* The rows below prove something only if what they change is accepted as it stands. */
Test(cli, unchanged_case_passes) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 0, "");
    struct result result = RUN(&scratch, "run", path);
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    cr_expect_str_eq(result.err, "");
    cr_expect_str_eq(last_line(&result), "1 passed, 0 failed, 0 skipped");
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

Test(cli, refuses_broken_yaml) {
    ROWS({3, "mesh: {ep: 2, fsdp: 2", 4, "expected well-formed YAML"}, {3, "mesh: [ep: 2", 4, "well-formed"},
         {3, "\tmesh: {ep: 2}", 3, "well-formed"},
         {5, "optimizer: {name: sgd, lr: 0.1}\nmesh: {ep: 1}", 6, "stands twice"},
         {3, "mesh: {ep: 2, fsdp: 2, ep: 1}", 3, "stands twice"}, {1, "case: &a base", 1, "anchor"},
         {1, "case: !x base", 1, "tag"}, {1, "- case: base", 2, "expected"}, );
}

Test(cli, refuses_unknown_words) {
    ROWS({3, "mehs: {ep: 2, fsdp: 2}", 3, "unknown key 'mehs', did you mean 'mesh'?"},
         {3, "mesh: {ep: 2, fsdpp: 2}", 3, "did you mean 'fsdp'?"},
         {5, "optimizer: {name: sgd, rl: 0.1}", 5, "did you mean 'lr'?"},
         {5, "optimizer: {name: sgdd, lr: 0.1}", 5, "expected sgd"},
         {4, "tenants: {ada: {adaptor: @/adapters/ada}}", 4, "did you mean 'adapter'?"},
         {4, "tenants: {ada: {rank: 2, alfa: 4}}", 4, "did you mean 'alpha'?"},
         {7, "script: [{acquire: [ada, dov]}, {trian: {tenant: ada, micro: [0]}}]", 7, "did you mean 'train'?"},
         {7, "script: [{acquire: ada}, {train: {tenant: ada, micros: [0]}}]", 7, "did you mean 'micro'?"},
         {3, "dtype: float16", 3, "expected float64, float32 or bfloat16"}, {3, "expect: fail", 3, "expected pass"},
         {3, "expect: {fault: ep_slice_of_by_one}", 3, "did you mean 'ep_slice_off_by_one'?"},
         {3, "expect: {fault: ep_slice_off_by_one, finding: {tensr: x}}", 3, "did you mean 'tensor'?"},
         {6, "batches: {seed: 1, micro: [{batch: 2, token: 3}]}", 6, "did you mean 'tokens'?"}, );
}

Test(cli, refuses_wrong_values) {
    ROWS({1, "case: Base", 1, "[a-z0-9_]+"}, {1, "case: \"two\\nlines\"", 1, "[a-z0-9_]+"},
         {1, "about: x", 1, "'case'"}, {2, "about: x", 1, "'model'"}, {6, "about: x", 1, "'batches'"},
         {3, "mesh: {ep: 5, fsdp: 2}", 3, "ep = 5 does not divide the model's 12 experts"},
         {3, "mesh: {ep: 2, fsdp: 513}", 3, "a world of 1026 ranks, expected at most 1024"},
         {3, "mesh: {ep: 0, fsdp: 2}", 3, "'0'"}, {3, "mesh: {ep: two}", 3, "'two'"},
         {3, "mesh: {ep: 1048576, fsdp: 1048576}", 3, "at most 1024"}, {3, "limit: 0", 3, "seconds above 0"},
         {3, "limit: .nan", 3, "finite"}, {3, "zero: all", 3, "list"},
         {5, "optimizer: {name: sgd, lr: fast}", 5, "'fast'"}, {5, "optimizer: {name: sgd}", 5, "'lr'"},
         {5, "optimizer: {lr: 0.1}", 5, "'name'"}, {4, "tenants: {Ada: {adapter: @/adapters/ada}}", 4, "[a-z0-9_]+"},
         {4, "tenants: {none: {adapter: @/adapters/ada}}", 4, "other than none"},
         {4, "tenants: {ada: {rank: 0}}", 4, "'0'"}, {4, "tenants: {ada: {alpha: 1}}", 4, "'rank'"},
         {6, "batches: {seed: 1, micro: [{batch: 2, tokens: 1}]}", 6, "'1'"},
         {6, "batches: {seed: 1}", 6, "'micro'"}, );
}

Test(cli, refuses_precision_that_does_not_fit) {
    ROWS({3, "precision: {master: true}", 3, "'master' beside dtype float64, expected bfloat16"},
         {3, "dtype: bfloat16\nprecision: {gather: bfloat16}", 4, "'gather' beside dtype bfloat16, expected float32"},
         {3, "dtype: float32\nprecision: {gather: float16}", 4, "gather 'float16', expected bfloat16"},
         {3, "dtype: bfloat16\nprecision: {master: maybe}", 4, "maybe"},
         {3, "dtype: bfloat16\nprecision: {mister: true}", 4, "did you mean 'master'?"},
         {3, "dtype: bfloat16\ngolden: {ada: @/golden/sgd/ada.safetensors}", 4, "golden files beside dtype bfloat16"},
         {4, "dtype: bfloat16\ntenants: {ada: {rank: 2, data: index, target_parameters: [experts.gate_up_proj]}}", 5,
          "is not exact in bfloat16"}, );
}

Test(cli, refuses_what_does_not_exist) {
    ROWS({2, "model: @/modle", 2, "does not exist"},
         {4, "tenants: {ada: {adapter: @/adapters/eda}}", 4, "does not exist"},
         {6, "batches: @/batch.safetensors", 6, "does not exist"}, {3, "layout: @/layout.yaml", 3, "does not exist"},
         {3, "golden: {ada: @/golden/sgd/eda.safetensors}", 3, "does not exist"},
         {3, "golden: {zed: @/golden/sgd/ada.safetensors}", 3, "no tenant 'zed'"}, );
}

Test(cli, refuses_later_features_by_name) {
    ROWS(
        {7, "script: [{load: {from: a}}]", 7, "no checkpoint 'a' was saved before"},
        {7, "script: [{acquire: ada}, {export: {tenant: ada, merged: true}}]", 7, "merged weights is not supported"}, );
}

Test(cli, refuses_scripts_that_cannot_be) {
    ROWS(
        {7, "script: [{acquire: [zed]}]", 7, "no tenant 'zed'"},
        {7, "script: [{acquire: ada}, {train: {tenant: zed, micro: [0]}}]", 7, "no tenant 'zed'"},
        {7, "script:\n- acquire: ada\n- train: {tenant: ada, micro: [0, 77]}", 9, "no micro-batch 77"},
        {7, "script: [{acquire: ada}, {train: {tenant: ada, micro: [0, 0]}}]", 7, "stands twice"},
        {7, "script: [{acquire: ada}, {train: {tenant: ada, micro: []}}]", 7, "micro is empty"},
        {7, "script: [{acquire: ada}, {train: {tenant: ada}}]", 7, "'micro'"},
        {7, "script:\n- train: {tenant: ada, micro: [0]}\n- acquire: ada", 8, "expected `acquire: ada` before"},
        {7, "script: [{acquire: ada}, {export: {tenant: dov}}]", 7, "dov has no slot"},
        {7, "script: [{acquire: [ada, ada]}]", 7, "holds a slot already"},
        {7,
         "script:\n- acquire: [ada, dov]\n- activate:\n    tenant: ada\n    script:\n"
         "      - train: {tenant: dov, micro: [0]}",
         12, "dov is named inside the activation of ada"},
        {7, "script: [{acquire: ada}, {activate: {tenant: ada, script: [{acquire: dov}]}}]", 7, "inside an activation"},
        {7, "script: [{acquire: ada}, {activate: {tenant: ada}}]", 7, "'script'"},
        {7, "script: [{acquire: ada}, {export: {tenant: ada}}, {export: {tenant: ada}}]", 7, "exported twice"},
        {7, "script: [{acquire: ada}]", 7, "no step"}, {7, "script: []", 7, "no step"},
        {7, "script: [{acquire: ada, train: {tenant: ada, micro: [0]}}]", 7, "2 keys, expected one"},
        {3, "slots: {count: 1}", 7, "no slot is free for dov"},
        {3, "slots: {max_rank: 1}", 3, "ada has rank 2, expected at most max_rank 1"}, );
}

Test(cli, refuses_a_wrong_matrix) {
    ROWS({3, "matrix: {mehs: [{ep: 2}]}", 3, "did you mean 'mesh'?"}, {3, "matrix: {mesh: {ep: 2}}", 3, "list"},
         {3, "matrix: {mesh: []}", 3, "no values"}, {3, "matrix: {dtype: [float64, float16]}", 3, "float16"},
         {3, "matrix: {mesh: [{ep: 2, fsdp: 2}, {ep: 2, fsdp: 2}]}", 1, "has this name already"},
         {3, "matrix: {limit: [\"1\\n2\"]}", 3, "control character"},
         {3, "matrix:\n  mesh:\n    - {ep: 2}\n    - {ep: 7}", 6, "does not divide"}, );
}
