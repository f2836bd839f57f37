#include "core/safetensors.h"

#include "core/files_temporary.h"
#include "core/json_scan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The order of the crate's `Dtype`: the writer lays tensors from the last to the first. */
static const int ranks[DTYPE_COUNT] = {
    [DTYPE_BOOL] = 0,         [DTYPE_F4] = 1,      [DTYPE_F6_E2M3] = 2, [DTYPE_F6_E3M2] = 3, [DTYPE_U8] = 4,
    [DTYPE_I8] = 5,           [DTYPE_F8_E5M2] = 6, [DTYPE_F8_E4M3] = 7, [DTYPE_F8_E8M0] = 8, [DTYPE_F8_E4M3FNUZ] = 9,
    [DTYPE_F8_E5M2FNUZ] = 10, [DTYPE_I16] = 11,    [DTYPE_U16] = 12,    [DTYPE_F16] = 13,    [DTYPE_BF16] = 14,
    [DTYPE_I32] = 15,         [DTYPE_U32] = 16,    [DTYPE_F32] = 17,    [DTYPE_C64] = 18,    [DTYPE_F64] = 19,
    [DTYPE_I64] = 20,         [DTYPE_U64] = 21,
};

static int by_dtype_and_name(const void *left, const void *right) {
    const struct safetensors_item *a = left, *b = right;
    int order = ranks[b->tensor->dtype] - ranks[a->tensor->dtype];
    return order != 0 ? order : strcmp(a->name, b->name);
}

static int by_name(const void *left, const void *right) {
    const struct safetensors_item *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static enum status check_item(const char *path, const struct safetensors_item *item) {
    const struct tensor *tensor = item->tensor;
    if (strcmp(item->name, "__metadata__") == 0)
        return status_fail(STATUS_INPUT, "%s: a tensor named __metadata__, expected another name", path);
    if (json_utf8_length(item->name, strlen(item->name)) != strlen(item->name))
        return status_fail(STATUS_INPUT, "%s: a tensor's name is not UTF-8, expected UTF-8", path);
    if (tensor->ndim < 0 || tensor->data == NULL)
        return status_fail(STATUS_INTERNAL, "%s: tensor '%s' has no data, expected some", path, item->name);
    if ((uint64_t)tensor_elements(tensor) * (uint64_t)dtype_bits(tensor->dtype) % 8 != 0)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' does not end at a byte, expected an even number of elements",
                           path, item->name);
    return STATUS_OK;
}

/* Leaves `items` in the file's order. */
static enum status arrange(const char *path, struct safetensors_item *items, size_t count) {
    for (size_t i = 0; i < count; i++)
        TRY(check_item(path, &items[i]));
    qsort(items, count, sizeof *items, by_name);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(items[i - 1].name, items[i].name) == 0)
            return status_fail(STATUS_INPUT, "%s: tensor '%s' stands twice, expected each name once", path,
                               items[i].name);
    }
    qsort(items, count, sizeof *items, by_dtype_and_name);
    return STATUS_OK;
}

/* serde_json's escapes: the short ones where there are, \u00xx for the other control characters, all else as it is. */
static void put_string(FILE *out, const char *text) {
    static const char values[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    fputc('"', out);
    for (const char *c = text; *c != '\0'; c++) {
        const char *found = strchr(values, *c);
        if (found != NULL)
            fprintf(out, "\\%c", letters[found - values]);
        else if ((unsigned char)*c < 0x20)
            fprintf(out, "\\u%04x", (unsigned)*c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

static void put_metadata(FILE *out, const struct safetensors_pair *metadata, int pairs) {
    fputs("\"__metadata__\":{", out);
    for (int i = 0; i < pairs; i++) {
        if (i > 0)
            fputc(',', out);
        put_string(out, metadata[i].key);
        fputc(':', out);
        put_string(out, metadata[i].value);
    }
    fputc('}', out);
}

static void put_entry(FILE *out, const struct safetensors_item *item, uint64_t begin) {
    const struct tensor *tensor = item->tensor;
    put_string(out, item->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->ndim; d++)
        fprintf(out, d == 0 ? "%" PRId64 : ",%" PRId64, tensor->shape[d]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + tensor_bytes(tensor));
}

static void put_header(FILE *out, const struct safetensors_item *items, int count,
                       const struct safetensors_pair *metadata, int pairs) {
    uint64_t begin = 0;
    fputc('{', out);
    if (pairs > 0)
        put_metadata(out, metadata, pairs);
    for (int i = 0; i < count; i++) {
        if (i > 0 || pairs > 0)
            fputc(',', out);
        put_entry(out, &items[i], begin);
        begin += tensor_bytes(items[i].tensor);
    }
    fputc('}', out);
}

/* The header in memory, padded with spaces to 8 bytes. */
static enum status make_header(const char *path, const struct safetensors_item *items, int count,
                               const struct safetensors_pair *metadata, int pairs, char **text, size_t *length) {
    FILE *out = open_memstream(text, length);
    if (out == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    put_header(out, items, count, metadata, pairs);
    fflush(out);
    for (size_t used = *length; used % 8 != 0; used++)
        fputc(' ', out);
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed ? status_fail(STATUS_MEMORY, "%s: out of memory", path) : STATUS_OK;
}

static enum status write_file(const char *path, const struct safetensors_item *items, int count, const char *header,
                              size_t length) {
    struct file_temporary file = {0};
    unsigned char size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)length >> (8 * i));
    enum status status = STATUS_OK;
    TRY_DONE(file_temporary_open(&file, path));
    TRY_DONE(file_temporary_write(&file, size, sizeof size));
    TRY_DONE(file_temporary_write(&file, header, length));
    for (int i = 0; i < count; i++)
        TRY_DONE(file_temporary_write(&file, items[i].tensor->data, tensor_bytes(items[i].tensor)));
    TRY_DONE(file_temporary_commit(&file));
done:
    file_temporary_drop(&file);
    return status;
}

enum status safetensors_write(const char *path, const struct safetensors_item *items, int count,
                              const struct safetensors_pair *metadata, int pairs) {
    struct safetensors_item *sorted = malloc(((size_t)count + 1) * sizeof *sorted);
    char *header = NULL;
    size_t length = 0;
    enum status status = STATUS_OK;
    if (sorted == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    for (int i = 0; i < count; i++)
        sorted[i] = items[i];
    TRY_DONE(arrange(path, sorted, (size_t)count));
    TRY_DONE(make_header(path, sorted, count, metadata, pairs, &header, &length));
    TRY_DONE(write_file(path, sorted, count, header, length));
done:
    free(header);
    free(sorted);
    return status;
}
