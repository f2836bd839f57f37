#include "cases/unit/core_io/scratch.h"
#include "core/safetensors.h"

#include <criterion/criterion.h>

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static struct scratch scratch;

static void begin(void) {
    scratch_make(&scratch);
}

static void end(void) {
    scratch_remove(&scratch);
}

static struct safetensors_pair pt = {.key = (char[]){"format"}, .value = (char[]){"pt"}};

/* Reads a file, hands its tensors to the writer in the reverse order, and compares the bytes. */
static void rewrite(const char *path) {
    struct safetensors file;
    size_t size = 0, written = 0;
    cr_assert_eq(safetensors_open(&file, path), STATUS_OK, "%s", status_note());
    cr_assert_gt(file.count, 0);
    struct safetensors_item *items = calloc((size_t)file.count, sizeof *items);
    for (int i = 0; i < file.count; i++) {
        const struct safetensors_entry *entry = &file.entries[file.count - 1 - i];
        items[i] = (struct safetensors_item){entry->name, &entry->tensor};
    }
    const char *copy = scratch_path(&scratch, "copy.safetensors");
    cr_assert_eq(safetensors_write(copy, items, file.count, &pt, 1), STATUS_OK, "%s", status_note());
    char *expected = scratch_read(path, &size), *found = scratch_read(copy, &written);
    cr_expect(size == written && memcmp(expected, found, size) == 0, "%s: other bytes", path);
    cr_expect_eq(scratch_count(&scratch), 1, "no temporary file stays behind");
    free(expected);
    free(found);
    free(items);
    safetensors_close(&file);
}

static size_t rewrite_all(const char *pattern) {
    glob_t found;
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "%s", pattern);
    size_t count = found.gl_pathc;
    for (size_t i = 0; i < count; i++)
        rewrite(found.gl_pathv[i]);
    globfree(&found);
    return count;
}

Test(core_safetensors_write, what_peft_wrote_comes_out_byte_for_byte, .init = begin, .fini = end) {
    cr_assert_eq(rewrite_all("fixtures/golden/*/adapters/*/adapter_model.safetensors"), 15);
}

Test(core_safetensors_write, what_transformers_wrote_comes_out_byte_for_byte, .init = begin, .fini = end) {
    cr_assert_eq(rewrite_all("fixtures/golden/*/model/model*.safetensors"), 9);
}

/* The header by hand: 148 bytes, padded to 152 = 0x98; F32 before BF16 before U8, names in byte order. */
Test(core_safetensors_write, header_by_hand, .init = begin, .fini = end) {
    float one = 1;
    uint16_t half = 0x3f00;
    unsigned char bytes[] = "xy";
    struct tensor f32 = tensor_view(DTYPE_F32, 0, NULL, &one);
    struct tensor bf16 = tensor_view(DTYPE_BF16, 1, (const int64_t[]){1}, &half);
    struct tensor u8 = tensor_view(DTYPE_U8, 2, (const int64_t[]){1, 2}, bytes);
    struct tensor none = tensor_view(DTYPE_BF16, 1, (const int64_t[]){0}, bytes);
    const struct safetensors_item items[] = {{"a", &u8}, {"c", &bf16}, {"B\"\n\x1f\x7f\xc3\xa9", &none}, {"z", &f32}};
    const char header[] = "{\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                          "\"B\\\"\\n\\u001f\x7f\xc3\xa9\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[4,4]},"
                          "\"c\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[4,6]},"
                          "\"a\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[6,8]}}";
    size_t length = strlen(header), padded = (length + 7) / 8 * 8, size = 0;
    const char *path = scratch_path(&scratch, "x");
    cr_assert_eq(safetensors_write(path, items, 4, NULL, 0), STATUS_OK, "%s", status_note());
    char *found = scratch_read(path, &size);
    cr_assert_neq(length % 8, 0, "there is a padding to see");
    cr_assert_eq(size, 8 + padded + 8);
    cr_assert_eq((unsigned char)found[0], padded & 0xff);
    cr_assert_eq((unsigned char)found[1], padded >> 8);
    cr_assert_eq(memcmp(found + 2, "\0\0\0\0\0\0", 6), 0);
    cr_assert_eq(memcmp(found + 8, header, length), 0, "%.*s", (int)padded, found + 8);
    for (size_t i = length; i < padded; i++)
        cr_assert_eq(found[8 + i], ' ');
    cr_assert_eq(memcmp(found + 8 + padded, "\0\0\x80\x3f\0\x3fxy", 8), 0);
    free(found);
}

Test(core_safetensors_write, no_tensors_and_metadata_in_its_order, .init = begin, .fini = end) {
    struct safetensors_pair pairs[] = {{(char[]){"z"}, (char[]){"1"}}, {(char[]){"a"}, (char[]){"\\"}}};
    size_t size = 0;
    const char *path = scratch_path(&scratch, "x");
    cr_assert_eq(safetensors_write(path, NULL, 0, NULL, 0), STATUS_OK);
    char *found = scratch_read(path, &size);
    cr_assert(size == 16 && memcmp(found, "\x08\0\0\0\0\0\0\0{}      ", 16) == 0);
    free(found);
    cr_assert_eq(safetensors_write(path, NULL, 0, pairs, 2), STATUS_OK);
    found = scratch_read(path, &size);
    cr_assert(size == 48 &&
              memcmp(found, "\x28\0\0\0\0\0\0\0{\"__metadata__\":{\"z\":\"1\",\"a\":\"\\\\\"}}       ", 48) == 0);
    free(found);
}

Test(core_safetensors_write, what_a_reader_would_refuse_is_not_written, .init = begin, .fini = end) {
    float one = 1;
    struct tensor f32 = tensor_view(DTYPE_F32, 0, NULL, &one);
    struct tensor odd = tensor_view(DTYPE_F4, 1, (const int64_t[]){3}, &one);
    struct tensor many = tensor_view(DTYPE_F32, 9, NULL, &one);
    const struct {
        struct safetensors_item items[2];
        int count;
        enum status code;
    } bad[] = {
        {{{"a", &f32}, {"a", &f32}}, 2, STATUS_INPUT}, {{{"__metadata__", &f32}}, 1, STATUS_INPUT},
        {{{"\xff", &f32}}, 1, STATUS_INPUT},           {{{"a", &odd}}, 1, STATUS_INPUT},
        {{{"a", &many}}, 1, STATUS_INTERNAL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        status_clear();
        cr_expect_eq(safetensors_write(scratch_path(&scratch, "x"), bad[i].items, bad[i].count, NULL, 0), bad[i].code);
        cr_expect_neq(status_note()[0], '\0');
    }
    cr_assert_eq(scratch_count(&scratch), 0);
}

Test(core_safetensors_write, a_failed_write_leaves_the_old_file, .init = begin, .fini = end) {
    struct rlimit limit = {1000, 1000};
    static float values[1000];
    struct tensor tensor = tensor_view(DTYPE_F32, 1, (const int64_t[]){1000}, values);
    const struct safetensors_item item = {"a", &tensor};
    size_t size = 0;
    const char *path = scratch_put(&scratch, "x", "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(safetensors_write(path, &item, 1, &pt, 1), STATUS_IO);
    cr_assert_not_null(strstr(status_note(), "/x: cannot be written: File too large"));
    char *text = scratch_read(path, &size);
    cr_assert_str_eq(text, "old");
    free(text);
    cr_assert_eq(scratch_count(&scratch), 1, "the temporary file is gone");
}
