/* The verdict of the official parser on each file of fixtures/safetensors_vectors, and on what its rules say of others.
 */
#include "cases/unit/core_io/scratch.h"
#include "core/safetensors.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char folder[] = "fixtures/safetensors_vectors";

static int by_text(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* A name as Rust's {:?} prints it; only what the vectors hold is needed. The caller frees. */
static char *quoted(const struct safetensors_entry *entry) {
    static const char values[] = {'\0', '\n', '"', '\\'}, letters[] = {'0', 'n', '"', '\\'};
    char *out = calloc(1, 2 * entry->name_length + 3), *to = out;
    cr_assert_not_null(out);
    *to++ = '"';
    for (size_t i = 0; i < entry->name_length; i++) {
        const char *found = memchr(values, entry->name[i], sizeof values);
        if (found != NULL)
            *to++ = '\\';
        *to++ = found == NULL ? entry->name[i] : letters[found - values];
    }
    *to = '"';
    return out;
}

/* `OK 2 tensors ["a", "b"]`, names in byte order. */
static void verdict(const struct safetensors *file, char *out, size_t size) {
    char *names[16];
    cr_assert_leq(file->count, 16);
    for (int i = 0; i < file->count; i++)
        names[i] = quoted(&file->entries[i]);
    qsort(names, (size_t)file->count, sizeof *names, by_text);
    size_t used = (size_t)snprintf(out, size, "OK %d tensors [", file->count);
    for (int i = 0; i < file->count; i++) {
        used += (size_t)snprintf(out + used, size - used, i == 0 ? "%s" : ", %s", names[i]);
        free(names[i]);
    }
    snprintf(out + used, size - used, "]");
}

static int count_vectors(void) {
    DIR *entries = opendir(folder);
    cr_assert_not_null(entries);
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;)
        count += strstr(entry->d_name, ".st") != NULL;
    closedir(entries);
    return count;
}

/* One line of the oracle: `name.st: OK ...` or `name.st: ERR reason`. */
static void check_line(char *line) {
    char path[1100], found[512];
    struct safetensors file;
    char *expected = strstr(line, ": ");
    cr_assert_not_null(expected, "%s", line);
    *expected = '\0';
    expected += 2;
    snprintf(path, sizeof path, "%s/%s", folder, line);
    status_clear();
    enum status status = safetensors_open(&file, path);
    if (strncmp(expected, "OK ", 3) == 0) {
        cr_expect_eq(status, STATUS_OK, "%s", status_note());
        verdict(&file, found, sizeof found);
        cr_expect_str_eq(found, expected, "%s", path);
    } else {
        cr_expect_eq(strncmp(expected, "ERR ", 4), 0, "%s", expected);
        cr_expect_eq(status, STATUS_INPUT, "%s: taken, expected %s", path, expected);
        cr_expect_eq(strncmp(status_note(), path, strlen(path)), 0, "the note names the file: %s", status_note());
        cr_expect_null(file.path);
    }
    safetensors_close(&file);
}

Test(core_safetensors_vectors, the_official_verdict_on_every_file) {
    char line[1024];
    int compared = 0;
    FILE *oracle = fopen("fixtures/safetensors_vectors/oracle.txt", "r");
    cr_assert_not_null(oracle);
    while (fgets(line, sizeof line, oracle) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || line[0] == '\0')
            continue;
        check_line(line);
        compared++;
    }
    fclose(oracle);
    cr_assert_gt(compared, 50);
    cr_assert_eq(compared, count_vectors(), "every file has a line, every line a file");
}

static struct scratch scratch;

static void begin(void) {
    scratch_make(&scratch);
}

static void end(void) {
    scratch_remove(&scratch);
}

/* Opens a file of this header and `data_size` zero bytes. */
static enum status open_header(struct safetensors *file, const char *header, size_t length, size_t data_size) {
    char *bytes = calloc(1, 8 + length + data_size);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    scratch_put(&scratch, "x.safetensors", bytes, 8 + length + data_size);
    free(bytes);
    status_clear();
    return safetensors_open(file, scratch.path);
}

#define ENTRY(name, shape, begin, end)                                                                                 \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

struct header {
    const char *text;
    size_t data_size;
};

/* What serde_json and the crate's types take (fixtures' oracle has most; the rest follows from serde's rules). */
static const struct header taken[] = {
    {"{}", 0},
    {"{}  \n\t\r", 0},
    {"{\"__metadata__\":{}}", 0},
    {"{\"__metadata__\":null}", 0},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0},
    {"{" ENTRY("a", "[1]", 0, 4) ",\"__metadata__\":{\"format\":\"pt\"}}", 4},
    {"{" ENTRY("a", "[]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[0,18446744073709551615,18446744073709551615]", 0, 0) "}", 0},
    {"{" ENTRY("a", "[1,1,1,1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1},
    {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3},
    {"{\"a\":[\"F32\",[1],[0,4]]}", 4},
    {"{\"a\":{\"dtype\":{\"F32\":null},\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"x\":{\"y\":[1.5e3,-0,true,null,\"\\ud83d\\ude00\"]},\"dtype\":\"F32\",\"shape\":[1],"
     "\"data_offsets\":[0,4]}}",
     4},
    {"{\"\\u0061\\u00e9\\t\\/\":{\"d\\u0074ype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
};

static const struct header refused[] = {
    {"", 0},
    {"[]", 0},
    {"null", 0},
    {"{", 0},
    {"{}x", 0},
    {"{}{}", 0},
    {"{,}", 0},
    {"{\"a\"}", 0},
    {"{} ", 1},
    {"\xef\xbb\xbf{}", 0},
    {"{" ENTRY("a", "[1]", 0, 4) ",}", 4},
    {"{" ENTRY("a", "[1,]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[1 1]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[1.0]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[1e0]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[01]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[+1]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[\"1\"]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[18446744073709551616,0]", 0, 0) "}", 0},
    {"{" ENTRY("a", "[18446744073709551615,18446744073709551615,0]", 0, 0) "}", 0},
    {"{" ENTRY("a", "[2305843009213693952]", 0, 0) "}", 0}, /* 2^61 * 32 bits */
    {"{" ENTRY("a", "[1]", 4, 0) "}", 4},
    {"{" ENTRY("a", "[1]", 4, 8) "}", 8},
    {"{" ENTRY("a", "[1]", 0, 4) "}", 5},
    {"{" ENTRY("a", "[1]", 0, 4) "}", 3},
    {"{" ENTRY("a", "[2]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[1]", 0, 4) "," ENTRY("b", "[1]", 8, 12) "}", 12},
    {"{" ENTRY("a", "[1]", 0, 4) "," ENTRY("b", "[1]", 0, 4) "}", 4},
    {"{" ENTRY("a", "[1]", 0, 4) "," ENTRY("b", "[0]", 5, 5) "}", 4},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"dtype\":17,\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"dtype\":{\"F32\":0},\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"dtype\":{\"F32\":null,\"F16\":null},\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"dtype\":{},\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[]}}", 4},
    {"{\"a\":[\"F32\",[1],[0,4],0]}", 4},
    {"{\"a\":[\"F32\",[1]]}", 4},
    {"{\"a\":null}", 0},
    {"{\"a\":3}", 0},
    {"{\"__metadata__\":[]}", 0},
    {"{\"__metadata__\":{\"a\":null}}", 0},
    {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0},
    {"{\"__metadata__\":null,\"__metadata__\":{}}", 0},
    {"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\\ud800\\u0041\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\\udc00\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\\x41\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\n\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\xc0\x80\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}}", 0},
    {"{\"__metadata__\":{\"a\":\"\xf4\x90\x80\x80\"}}", 0},
    {"{\"a\":{\"x\":1e999,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"x\":-,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"x\":1.,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
    {"{\"a\":{\"x\":nul,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
};

Test(core_safetensors_vectors, more_headers_that_are_taken, .init = begin, .fini = end) {
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        struct safetensors file;
        cr_expect_eq(open_header(&file, taken[i].text, strlen(taken[i].text), taken[i].data_size), STATUS_OK, "%s: %s",
                     taken[i].text, status_note());
        safetensors_close(&file);
    }
}

Test(core_safetensors_vectors, more_headers_that_are_refused, .init = begin, .fini = end) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct safetensors file;
        cr_expect_eq(open_header(&file, refused[i].text, strlen(refused[i].text), refused[i].data_size), STATUS_INPUT,
                     "%s", refused[i].text);
        safetensors_close(&file);
    }
}

Test(core_safetensors_vectors, a_name_that_stands_twice_is_refused, .init = begin, .fini = end) {
    const char header[] = "{" ENTRY("a", "[1]", 0, 4) "," ENTRY("a", "[1]", 0, 4) "}";
    struct safetensors file;
    char note[256];
    cr_assert_eq(open_header(&file, header, sizeof header - 1, 4), STATUS_INPUT);
    snprintf(note, sizeof note, "%s: tensor 'a' stands twice, expected each name once", scratch.path);
    cr_assert_str_eq(status_note(), note);
}

/* {"a":{"x":[[...]]...}}: two levels and those of x. serde_json stops at 128. */
static enum status open_nested(int levels) {
    char header[600] = "{\"a\":{\"x\":";
    struct safetensors file;
    memset(header + strlen(header), '[', (size_t)levels - 2);
    memset(header + strlen(header), ']', (size_t)levels - 2);
    strcat(header, ",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    enum status status = open_header(&file, header, strlen(header), 4);
    safetensors_close(&file);
    return status;
}

Test(core_safetensors_vectors, nesting_ends_where_serde_json_ends, .init = begin, .fini = end) {
    cr_assert_eq(open_nested(127), STATUS_OK, "%s", status_note());
    cr_assert_eq(open_nested(128), STATUS_INPUT);
    cr_assert_not_null(strstr(status_note(), "nesting deeper than 127, expected less"));
}
