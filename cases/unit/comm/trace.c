#include "cases/unit/comm/help.h"

#include "core/files.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static double numbers[6] = {1, -2, 0.5, 3, 4, 5};

static struct tensor view(int64_t rows, int64_t columns) {
    return tensor_view(DTYPE_F64, 2, (int64_t[]){rows, columns}, numbers);
}

Test(trace, finds_what_was_added) {
    struct trace trace;
    static char names[1000][16];
    struct tensor tensor = view(2, 3);
    cr_assert(trace_make(&trace, 2) == STATUS_OK);
    cr_expect(trace_find(&trace, 1, "n0") == NULL);
    for (int i = 0; i < 1000; i++) {
        snprintf(names[i], sizeof names[i], "n%d", i);
        cr_assert(trace_add(&trace, 1, names[i], &tensor) == STATUS_OK);
    }
    for (int i = 0; i < 1000; i++)
        cr_expect(trace_find(&trace, 1, names[i]) == &trace.rank[1].record[i]);
    cr_expect(trace_find(&trace, 1, "n1000") == NULL && trace_find(&trace, 0, "n7") == NULL);
    cr_expect(trace_add(&trace, 1, "n7", &tensor) == STATUS_INPUT);
    cr_expect(strstr(status_note(), "rank 1: n7 stands twice") != NULL, "%s", status_note());
    trace_free(&trace);
}

Test(trace, arena_keeps_copies_until_reset) {
    struct arena *arena;
    struct trace trace;
    struct tensor six = view(2, 3), none = view(0, 3);
    cr_assert(arena_make(&arena, 1 << 20, 3) == STATUS_OK);
    cr_assert(arena_record(arena, 2, "six", &six) == STATUS_OK);
    cr_assert(arena_record(arena, 0, "none", &none) == STATUS_OK);
    cr_assert(arena_record(arena, 2, "again", &six) == STATUS_OK);
    numbers[4] = 77; /* the copies do not follow */
    cr_assert(arena_trace(arena, &trace) == STATUS_OK);
    cr_expect(trace.rank[0].count == 1 && trace.rank[1].count == 0 && trace.rank[2].count == 2);
    cr_expect_str_eq(trace.rank[2].record[1].name, "again");
    const struct trace_record *record = trace_find(&trace, 2, "six");
    cr_expect(tensor_get(&record->tensor, 4) == 4 && tensor_same_shape(&record->tensor, &six));
    cr_expect((uintptr_t)record->tensor.data % 64 == 0);
    trace_free(&trace);
    arena_reset(arena);
    cr_assert(arena_trace(arena, &trace) == STATUS_OK);
    cr_expect(trace.rank[2].count == 0);
    trace_free(&trace);
    arena_free(arena);
}

Test(trace, a_full_arena_says_so) {
    struct arena *arena;
    struct tensor six = view(2, 3);
    enum status status = STATUS_OK;
    int taken = 0;
    cr_assert(arena_make(&arena, 8192, 1) == STATUS_OK);
    for (char name[16]; status == STATUS_OK && taken < 1000; taken++) {
        snprintf(name, sizeof name, "n%d", taken);
        status = arena_record(arena, 0, name, &six);
    }
    cr_expect(status == STATUS_MEMORY && taken > 20 && taken < 200, "%d records", taken);
    cr_expect(strstr(status_note(), "need more than") != NULL, "%s", status_note());
    arena_free(arena);
}

static void digest(const char *name, int64_t rows, int64_t columns, int rank, char out[33]) {
    struct trace trace;
    struct tensor tensor = view(rows, columns);
    cr_assert(trace_make(&trace, 2) == STATUS_OK);
    cr_assert(trace_add(&trace, 0, "z", &tensor) == STATUS_OK);
    cr_assert(trace_add(&trace, rank, name, &tensor) == STATUS_OK);
    trace_digest(&trace, out);
    trace_free(&trace);
}

/* One bit, a name, a shape or the rank changes it; the order of recording and the address do not. */
Test(trace, digest_sees_every_bit) {
    char first[33], other[33];
    digest("a", 2, 3, 0, first);
    cr_expect(strlen(first) == 32);
    digest("b", 2, 3, 0, other);
    cr_expect_str_neq(first, other);
    digest("a", 3, 2, 0, other);
    cr_expect_str_neq(first, other);
    digest("a", 2, 3, 1, other);
    cr_expect_str_neq(first, other);
    numbers[5] = -numbers[5];
    digest("a", 2, 3, 0, other);
    cr_expect_str_neq(first, other);
    numbers[5] = -numbers[5];
    struct trace trace;
    double copy[6];
    memcpy(copy, numbers, sizeof copy);
    struct tensor tensor = tensor_view(DTYPE_F64, 2, (int64_t[]){2, 3}, copy);
    cr_assert(trace_make(&trace, 2) == STATUS_OK);
    cr_assert(trace_add(&trace, 0, "a", &tensor) == STATUS_OK);
    cr_assert(trace_add(&trace, 0, "z", &tensor) == STATUS_OK);
    trace_digest(&trace, other);
    cr_expect_str_eq(first, other);
    trace_free(&trace);
}

Test(trace, files_keep_the_order_of_recording) {
    const char *folder = help_tmpdir();
    struct trace made, read;
    struct tensor six = view(2, 3), none = view(0, 3);
    struct safetensors_pair layout = {(char[]){"layout"}, (char[]){"{\"z\": \"a b\", \"m\": \"\", \"a\": \"a b\"}"}};
    cr_assert(trace_make(&made, 2) == STATUS_OK);
    for (int r = 0; r < 2; r++) {
        char path[300];
        cr_assert(trace_add(&made, r, "z", &six) == STATUS_OK);
        cr_assert(trace_add(&made, r, "m", &none) == STATUS_OK);
        cr_assert(trace_add(&made, r, "a", &six) == STATUS_OK);
        snprintf(path, sizeof path, "%s/rank0000%d.safetensors", folder, r);
        cr_assert(trace_write_rank(path, &made.rank[r], &layout, r == 0) == STATUS_OK, "%s", status_note());
    }
    cr_assert(trace_open(&read, folder, 2) == STATUS_OK, "%s", status_note());
    for (int i = 0; i < 3; i++)
        cr_expect_str_eq(read.rank[0].record[i].name, made.rank[0].record[i].name);
    cr_expect(read.rank[1].count == 3, "without a layout all are there all the same");
    char first[33], second[33];
    trace_digest(&made, first);
    trace_digest(&read, second);
    cr_expect_str_eq(first, second);
    trace_free(&made);
    trace_free(&read);
    cr_expect(trace_open(&read, folder, 3) == STATUS_IO, "rank 2 has no file");
    cr_expect(strstr(status_note(), "rank00002.safetensors") != NULL, "%s", status_note());
    folder_remove(folder);
}
