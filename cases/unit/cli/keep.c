/* `run --keep`: the dump of a case. */
#include "report.h"

#include "core/files.h"
#include "core/safetensors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_same_file(const char *a, const char *b) {
    char *left, *right;
    size_t left_length, right_length;
    DONE(file_read(a, &left, &left_length));
    DONE(file_read(b, &right, &right_length));
    cr_expect_eq(left_length, right_length, "%s is %zu bytes, %s %zu", a, left_length, b, right_length);
    if (left_length == right_length)
        cr_expect_eq(memcmp(left, right, left_length), 0, "%s and %s differ", a, b);
    free(right);
    free(left);
}

static void expect_readable(const struct scratch *scratch, const char *path) {
    char last[64];
    struct safetensors file = {0};
    DONE(safetensors_open(&file, path));
    cr_expect_str_eq(safetensors_metadata(&file, "schema"), "shardproof.trace/1", "%s", path);
    cr_expect_gt(file.count, 100);
    snprintf(last, sizeof last, "%d tensors", file.count);
    safetensors_close(&file);
    struct result result = RUN(scratch, "show", "trace", path);
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_str_eq(last_line(&result), last);
    result_free(&result);
}

static void expect_dump(const struct scratch *scratch, const char *folder, int world, bool exports) {
    char *path = path_join(folder, "reference.safetensors");
    expect_readable(scratch, path);
    free(path);
    for (int rank = 0; rank < world; rank++) {
        char name[64], number[16];
        struct safetensors file = {0};
        snprintf(name, sizeof name, "rank%05d.safetensors", rank);
        snprintf(number, sizeof number, "%d", rank);
        path = path_join(folder, name);
        expect_readable(scratch, path);
        DONE(safetensors_open(&file, path));
        cr_expect_str_eq(safetensors_metadata(&file, "rank"), number);
        cr_expect_not_null(safetensors_metadata(&file, "mesh"));
        cr_expect_not_null(safetensors_metadata(&file, "layout"));
        safetensors_close(&file);
        free(path);
    }
    cr_expect_eq(scratch_entries(folder), world + 1 + exports, "reference, ranks, export: %s", folder);
}

/* Exported before its first step, bob must come out byte for byte; after it, not. */
static const char script[] = "case: base\nmodel: @/model\nmesh: {ep: 4, fsdp: 2}\n"
                             "tenants: {bob: {adapter: @/adapters/bob}}\nbatches: @/batches.safetensors\n"
                             "script:\n- acquire: bob\n- export: {tenant: bob}\n- train: {tenant: bob, micro: [0]}\n"
                             "- export: {tenant: bob}\n";

static void keep_on(const char *engine) {
    struct scratch scratch = scratch_make();
    char *path = scratch_write(&scratch, "case.yaml", script), *keep = scratch_path(&scratch, "a/b/keep");
    struct result result = RUN(&scratch, "run", path, "--engine", engine, "--keep", keep);
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    result_free(&result);
    char *dump = scratch_path(&scratch, "a/b/keep/base");
    expect_dump(&scratch, dump, 8, true);
    static const char *const names[] = {"adapter_model.safetensors", "adapter_config.json"};
    for (int i = 0; i < 2; i++) {
        char fixture[512], untrained[64], trained[64];
        snprintf(fixture, sizeof fixture, TINY "/adapters/bob/%s", names[i]);
        snprintf(untrained, sizeof untrained, "export/step.0/bob/%s", names[i]);
        snprintf(trained, sizeof trained, "export/step.1/bob/%s", names[i]);
        char *first = path_join(dump, untrained), *second = path_join(dump, trained);
        expect_same_file(first, fixture);
        cr_expect(path_exists(second), "%s", second);
        free(second);
        free(first);
    }
    free(dump);
    free(keep);
    free(path);
    scratch_free(&scratch);
}

Test(cli, keep_writes_a_dump_local) {
    keep_on("local");
}

Test(cli, keep_writes_a_dump_mpi) {
    keep_on("mpi");
}

/* A trained export is a PEFT folder: it is read again as an adapter. */
Test(cli, keep_exports_what_can_be_acquired) {
    struct scratch scratch = scratch_make();
    char *path = scratch_write(&scratch, "case.yaml", script), *keep = scratch_path(&scratch, "keep");
    struct result result = RUN(&scratch, "run", path, "--keep", keep);
    result_free(&result);
    free(path);
    path = scratch_case(&scratch, "again.yaml", 4,
                        "tenants: {ada: {adapter: keep/base/export/step.1/bob}, dov: {adapter: @/adapters/dov}}");
    result = RUN(&scratch, "run", path);
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    result_free(&result);
    free(keep);
    free(path);
    scratch_free(&scratch);
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* A matrix over paths puts slashes into names: they make no folders, least of all outside DIR. */
Test(cli, keep_stays_in_its_folder) {
    struct scratch scratch = scratch_make();
    char *path = scratch_case(&scratch, "case.yaml", 3, "matrix: {model: [\"@/../qwen3_moe_tiny/model\"]}");
    char *keep = scratch_path(&scratch, "keep");
    struct result result = RUN(&scratch, "run", path, "--keep", keep);
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    cr_expect_eq(scratch_entries(keep), 1);
    struct dirent **entry;
    int count = scandir(keep, &entry, is_visible, alphasort);
    for (int i = 0; i < count; i++) {
        char *dump = path_join(keep, entry[i]->d_name);
        expect_dump(&scratch, dump, 1, false);
        free(dump);
        free(entry[i]);
    }
    free(entry);
    result_free(&result);
    free(keep);
    free(path);
    scratch_free(&scratch);
}
