#include "cases/unit/core_io/scratch.h"
#include "core/safetensors.h"
#include "core/safetensors_header.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct scratch scratch;

static void begin(void) {
    scratch_make(&scratch);
}

static void end(void) {
    scratch_remove(&scratch);
}

/* Writes by hand: the length, the header, the data. */
static const char *put(const char *header, const void *data, size_t size) {
    char bytes[2048] = {0};
    size_t length = strlen(header);
    cr_assert_leq(8 + length + size, sizeof bytes);
    bytes[0] = (char)(length & 0xff);
    bytes[1] = (char)(length >> 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, data, size);
    return scratch_put(&scratch, "x.safetensors", bytes, 8 + length + size);
}

static const char two[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[2,10]},"
                          "\"__metadata__\":{\"format\":\"pt\",\"k\":\"1\",\"k\":\"2\"},"
                          "\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}";

Test(core_safetensors_read, entries_values_and_metadata, .init = begin, .fini = end) {
    unsigned char data[10] = {0x80, 0x3f};
    const float values[] = {0.5f, -3.0f};
    struct safetensors file;
    memcpy(data + 2, values, sizeof values);
    cr_assert_eq(safetensors_open(&file, put(two, data, sizeof data)), STATUS_OK, "%s", status_note());
    cr_assert_eq(file.count, 2);
    cr_assert_str_eq(file.entries[0].name, "a", "by offset, not by place in the header");
    cr_assert_str_eq(file.entries[1].name, "b");
    const struct safetensors_entry *b = safetensors_find(&file, "b");
    cr_assert_eq(b, &file.entries[1]);
    cr_assert_eq(b->ndim, 2);
    cr_assert_eq(b->begin, 2);
    cr_assert_eq(b->end, 10);
    cr_assert_eq(b->tensor.dtype, DTYPE_F32);
    cr_assert_eq(b->tensor.shape[0], 2);
    cr_assert_eq(b->tensor.shape[1], 1);
    cr_assert_not(b->tensor.owns);
    cr_assert_eq(tensor_get(&b->tensor, 0), 0.5);
    cr_assert_eq(tensor_get(&b->tensor, 1), -3.0);
    cr_assert_eq(tensor_get(&safetensors_find(&file, "a")->tensor, 0), 1.0);
    cr_assert_null(safetensors_find(&file, "c"));
    cr_assert_null(safetensors_find(&file, ""));
    cr_assert_str_eq(safetensors_metadata(&file, "format"), "pt");
    cr_assert_str_eq(safetensors_metadata(&file, "k"), "2", "the last one counts");
    cr_assert_null(safetensors_metadata(&file, "x"));
    safetensors_close(&file);
    cr_assert_null(safetensors_find(&file, "a"));
    safetensors_close(&file);
}

Test(core_safetensors_read, a_name_with_a_nul_is_not_its_beginning, .init = begin, .fini = end) {
    struct safetensors file;
    const char *path = put("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "x", 1);
    cr_assert_eq(safetensors_open(&file, path), STATUS_OK);
    cr_assert_eq(file.entries[0].name_length, 3);
    cr_assert_null(safetensors_find(&file, "a"));
    safetensors_close(&file);
}

Test(core_safetensors_read, more_dims_than_a_tensor_has, .init = begin, .fini = end) {
    struct safetensors file;
    const char *path = put("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,3],\"data_offsets\":[0,3]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775808],\"data_offsets\":[3,3]},"
                           "\"c\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[3,6]}}",
                           "abcdef", 6);
    cr_assert_eq(safetensors_open(&file, path), STATUS_OK, "%s", status_note());
    cr_assert_eq(file.entries[0].ndim, 9);
    cr_assert_lt(file.entries[0].tensor.ndim, 0);
    cr_assert_eq(file.entries[1].ndim, 2);
    cr_assert_lt(file.entries[1].tensor.ndim, 0, "2^63 does not fit a dim");
    cr_assert_eq(file.entries[2].tensor.ndim, 8);
    cr_assert_eq(tensor_get(&file.entries[2].tensor, 2), 'f');
    safetensors_close(&file);
}

Test(core_safetensors_read, tensors_without_bytes_keep_the_headers_order, .init = begin, .fini = end) {
    struct safetensors file;
    const char *path = put("{\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]},"
                           "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]},"
                           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                           "\"x\":{\"dtype\":\"U8\",\"shape\":[3,0],\"data_offsets\":[0,0]}}",
                           "d", 1);
    const char *const expected[] = {"x", "a", "z", "y"};
    cr_assert_eq(safetensors_open(&file, path), STATUS_OK, "%s", status_note());
    cr_assert_eq(file.count, 4);
    for (int i = 0; i < 4; i++)
        cr_expect_str_eq(file.entries[i].name, expected[i]);
    cr_assert_not_null(safetensors_find(&file, "y")->tensor.data);
    safetensors_close(&file);
}

static void expect_refusal(const char *path, enum status code, const char *what) {
    struct safetensors file;
    char note[512];
    status_clear();
    cr_expect_eq(safetensors_open(&file, path), code, "%s", path);
    snprintf(note, sizeof note, "%s: %s", path, what);
    cr_expect_str_eq(status_note(), note);
    safetensors_close(&file);
}

Test(core_safetensors_read, what_is_no_file, .init = begin, .fini = end) {
    expect_refusal("no/such.safetensors", STATUS_IO, "cannot be opened: No such file or directory");
    expect_refusal(scratch.folder, STATUS_IO, "is a folder, expected a safetensors file");
    cr_assert_eq(mkfifo(scratch_path(&scratch, "pipe"), 0600), 0);
    expect_refusal(scratch.path, STATUS_IO, "is not a regular file, expected a safetensors file");
}

Test(core_safetensors_read, messages_say_what_and_what_was_expected, .init = begin, .fini = end) {
    unsigned char length[9] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{'};
    expect_refusal(scratch_put(&scratch, "a", "", 0), STATUS_INPUT,
                   "0 bytes, expected at least the 8 of the header's length");
    expect_refusal(scratch_put(&scratch, "a", "1234567", 7), STATUS_INPUT,
                   "7 bytes, expected at least the 8 of the header's length");
    expect_refusal(scratch_put(&scratch, "a", length, 9), STATUS_INPUT,
                   "a header of 18446744073709551615 bytes, expected at most 100000000");
    expect_refusal(scratch_put(&scratch, "a", "\x02\0\0\0\0\0\0\0{", 9), STATUS_INPUT,
                   "ends after 1 bytes of the header, expected 2");
    expect_refusal(put("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "12345678", 8), STATUS_INPUT,
                   "tensor 'a' has 8 bytes, expected 12 by its dtype and shape");
    expect_refusal(put("{\"a\\n\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "12345678", 8),
                   STATUS_INPUT, "tensor 'a\\x0a' begins at 4, expected 0 where the one before ends");
    expect_refusal(put("{\"a\":[],}", "", 0), STATUS_INPUT,
                   "byte 7 of the header: expected an entry: [dtype, shape, data_offsets]");
    expect_refusal(put("{\"__metadata__\":{\"a\":\"b\",}}", "", 0), STATUS_INPUT,
                   "byte 25 of the header: a trailing comma, expected an entry");
    expect_refusal(put("{}", "12345678", 8), STATUS_INPUT, "8 bytes of data, expected 0 by the header");
    expect_refusal(put("{\"a\":{\"shape\":[-1]}}", "", 0), STATUS_INPUT,
                   "byte 15 of the header: expected a whole number from 0 to 2^64-1");
}

/* The header ends where readable memory ends: a step too far is a crash. Every beginning of a good header and every
 * single changed byte must come to a verdict. */
Test(core_safetensors_read, never_reads_beyond_the_header) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), length = sizeof two - 1;
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(pages, MAP_FAILED);
    cr_assert_eq(mprotect(pages + page, page, PROT_NONE), 0);
    static const char changes[] = "\"\\{}[],:0-.eEu \0\x80\xff";
    int taken = 0, tried = 0;
    for (size_t cut = 0; cut <= length; cut++) {
        char *header = pages + page - cut;
        memcpy(header, two, cut);
        for (size_t c = 0; cut > 0 && c < sizeof changes; c++, tried++) {
            size_t at = (cut * 7 + c * 13) % cut;
            struct safetensors file = {.path = strdup("x")};
            status_clear();
            header[at] = c == 0 ? two[at] : changes[c - 1];
            taken += safetensors_read_header(&file, header, cut, 10) == STATUS_OK && c == 0;
            safetensors_close(&file);
            header[at] = two[at];
        }
    }
    cr_assert_eq(taken, 1, "only the whole header, unchanged");
    cr_assert_gt(tried, 3000);
    munmap(pages, 2 * page);
}

Test(core_safetensors_read, a_file_cut_anywhere_is_refused, .init = begin, .fini = end) {
    size_t size = 0;
    char *bytes = scratch_read("fixtures/safetensors_vectors/ok.st", &size);
    for (size_t cut = 0; cut < size; cut++) {
        struct safetensors file;
        status_clear();
        cr_expect_eq(safetensors_open(&file, scratch_put(&scratch, "x", bytes, cut)), STATUS_INPUT, "%zu bytes", cut);
        safetensors_close(&file);
    }
    free(bytes);
}
