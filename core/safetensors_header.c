#include "core/safetensors_header.h"

#include "core/json_scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_TEXT = 160
};

/* The three fields of one entry, as far as they were seen. */
struct fields {
    bool dtype_seen, shape_seen, offsets_seen;
    enum dtype dtype;
    int ndim;
    bool fits; /* every dim fits a struct tensor's */
    int64_t shape[TENSOR_MAX_DIMS];
    bool overflow; /* the product of the shape does */
    uint64_t elements;
    uint64_t begin, end;
};

char *safetensors_name_text(char *out, size_t size, const char *name, size_t length) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < length; i++) {
        if (used + 8 > size) {
            snprintf(out + used, size - used, "...");
            break;
        }
        unsigned char c = (unsigned char)name[i];
        const char *form = c < 0x20 || c == 0x7f ? "\\x%02x" : "%c";
        used += (size_t)snprintf(out + used, size - used, form, c);
    }
    return out;
}

static bool same_word(const char *text, size_t length, const char *word) {
    return strlen(word) == length && memcmp(text, word, length) == 0;
}

/* "F32", or {"F32": null}, serde's other spelling of an enum. */
static bool read_dtype(struct json_scan *scan, struct fields *fields) {
    char *word = NULL;
    size_t length = 0;
    bool map = json_peek(scan) == '{';
    bool ok =
        map ? json_open(scan, '{', "expected '{'") && json_key(scan, &word, &length) : json_text(scan, &word, &length);
    if (ok && !dtype_parse(word, length, &fields->dtype))
        ok = json_fail(scan, "an unknown dtype, expected one of the format (BOOL, F16, BF16, F32, ...)");
    free(word);
    if (!ok || !map)
        return ok;
    if (!json_nothing(scan))
        return false;
    if (json_more(scan, '}', false))
        return json_fail(scan, "a dtype of several words, expected one");
    return scan->problem == NULL;
}

static bool read_shape(struct json_scan *scan, struct fields *fields) {
    fields->elements = 1;
    fields->fits = true;
    if (!json_open(scan, '[', "expected a shape: a list of whole numbers"))
        return false;
    for (bool first = true; json_more(scan, ']', first); first = false) {
        uint64_t size = 0;
        if (!json_unsigned(scan, &size))
            return false;
        if (fields->ndim < TENSOR_MAX_DIMS)
            fields->shape[fields->ndim] = (int64_t)size;
        fields->fits = fields->fits && fields->ndim < TENSOR_MAX_DIMS && size <= INT64_MAX;
        fields->ndim++;
        if (__builtin_mul_overflow(fields->elements, size, &fields->elements))
            fields->overflow = true;
    }
    return scan->problem == NULL;
}

static bool read_offsets(struct json_scan *scan, struct fields *fields) {
    static const char expected[] = "expected data_offsets: a list of two whole numbers";
    if (!json_open(scan, '[', expected))
        return false;
    if (!json_more(scan, ']', true) || !json_unsigned(scan, &fields->begin) || !json_more(scan, ']', false) ||
        !json_unsigned(scan, &fields->end) || json_more(scan, ']', false))
        return json_fail(scan, expected);
    return scan->problem == NULL;
}

/* One field of an entry that is a map. */
static bool read_field(struct json_scan *scan, struct fields *fields, const char *key, size_t length) {
    static const struct {
        const char *word;
        bool (*read)(struct json_scan *, struct fields *);
    } known[] = {{"dtype", read_dtype}, {"shape", read_shape}, {"data_offsets", read_offsets}};
    bool *seen[] = {&fields->dtype_seen, &fields->shape_seen, &fields->offsets_seen};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!same_word(key, length, known[i].word))
            continue;
        if (*seen[i])
            return json_fail(scan, "a field that stands twice, expected it once");
        *seen[i] = true;
        return known[i].read(scan, fields);
    }
    return json_skip(scan);
}

static bool read_fields_map(struct json_scan *scan, struct fields *fields) {
    if (!json_open(scan, '{', "expected an entry: a map with dtype, shape and data_offsets"))
        return false;
    for (bool first = true; json_more(scan, '}', first); first = false) {
        char *key = NULL;
        size_t length = 0;
        bool ok = json_key(scan, &key, &length) && read_field(scan, fields, key, length);
        free(key);
        if (!ok)
            return false;
    }
    if (scan->problem == NULL && !(fields->dtype_seen && fields->shape_seen && fields->offsets_seen))
        return json_fail(scan, "a missing field, expected dtype, shape and data_offsets");
    return scan->problem == NULL;
}

static bool read_fields_list(struct json_scan *scan, struct fields *fields) {
    if (!json_open(scan, '[', "expected '['"))
        return false;
    if (!json_more(scan, ']', true) || !read_dtype(scan, fields) || !json_more(scan, ']', false) ||
        !read_shape(scan, fields) || !json_more(scan, ']', false) || !read_offsets(scan, fields) ||
        json_more(scan, ']', false))
        return json_fail(scan, "expected an entry: [dtype, shape, data_offsets]");
    return scan->problem == NULL;
}

static enum status fail_entry(const struct safetensors *file, const struct safetensors_entry *entry, const char *what) {
    char name[NAME_TEXT];
    return status_fail(STATUS_INPUT, "%s: tensor '%s' %s", file->path,
                       safetensors_name_text(name, sizeof name, entry->name, entry->name_length), what);
}

/* Checks what an entry says of itself. `fields` -> `entry`, whose name is set. */
static enum status settle_entry(const struct safetensors *file, const struct fields *fields,
                                struct safetensors_entry *entry) {
    char what[NAME_TEXT];
    uint64_t bits = 0;
    if (fields->overflow || __builtin_mul_overflow(fields->elements, (uint64_t)dtype_bits(fields->dtype), &bits))
        return fail_entry(file, entry, "has a shape whose size overflows, expected less than 2^64 bits");
    if (bits % 8 != 0)
        return fail_entry(file, entry, "does not end at a byte, expected an even number of elements");
    if (fields->end < fields->begin) {
        snprintf(what, sizeof what, "ends at %" PRIu64 ", expected no less than its begin %" PRIu64, fields->end,
                 fields->begin);
        return fail_entry(file, entry, what);
    }
    if (fields->end - fields->begin != bits / 8) {
        snprintf(what, sizeof what, "has %" PRIu64 " bytes, expected %" PRIu64 " by its dtype and shape",
                 fields->end - fields->begin, bits / 8);
        return fail_entry(file, entry, what);
    }
    entry->ndim = fields->ndim;
    entry->begin = fields->begin;
    entry->end = fields->end;
    entry->tensor = tensor_view(fields->dtype, fields->fits ? fields->ndim : TENSOR_MAX_DIMS + 1, fields->shape, NULL);
    return STATUS_OK;
}

/* The header's place and problem. */
static enum status fail_scan(const struct safetensors *file, const struct json_scan *scan) {
    enum status code = scan->problem == json_out_of_memory ? STATUS_MEMORY : STATUS_INPUT;
    return status_fail(code, "%s: byte %zu of the header: %s", file->path, scan->at, scan->problem);
}

/* One entry more in an array that doubles whenever its count is a power of two; NULL: out of memory. */
static void *grown(void *array, int count, size_t size) {
    size_t used = (size_t)count;
    if (used != 0 && (used & (used - 1)) != 0)
        return array;
    return realloc(array, (used == 0 ? 1 : 2 * used) * size);
}

static enum status fail_memory(const struct safetensors *file) {
    return status_fail(STATUS_MEMORY, "%s: out of memory", file->path);
}

/* The value of a tensor's key. Takes `name`. */
static enum status read_entry(struct safetensors *file, struct json_scan *scan, char *name, size_t length) {
    struct safetensors_entry *entries = grown(file->entries, file->count, sizeof *entries);
    if (entries == NULL) {
        free(name);
        return fail_memory(file);
    }
    file->entries = entries;
    struct safetensors_entry *entry = &entries[file->count++];
    *entry = (struct safetensors_entry){.name = name, .name_length = length};
    struct fields fields = {0};
    bool list = json_peek(scan) == '[';
    if (!(list ? read_fields_list(scan, &fields) : read_fields_map(scan, &fields)))
        return fail_scan(file, scan);
    return settle_entry(file, &fields, entry);
}

/* One pair of the metadata. */
static bool read_pair(struct safetensors *file, struct json_scan *scan) {
    struct safetensors_pair *metadata = grown(file->metadata, file->pairs, sizeof *metadata);
    if (metadata == NULL)
        return json_fail(scan, json_out_of_memory);
    file->metadata = metadata;
    struct safetensors_pair *pair = &metadata[file->pairs++];
    *pair = (struct safetensors_pair){0};
    size_t length = 0;
    return json_key(scan, &pair->key, &length) && json_text(scan, &pair->value, &length);
}

static bool read_metadata(struct safetensors *file, struct json_scan *scan) {
    if (json_peek(scan) == 'n')
        return json_nothing(scan);
    if (!json_open(scan, '{', "expected __metadata__: a map of strings"))
        return false;
    for (bool first = true; json_more(scan, '}', first); first = false) {
        if (!read_pair(file, scan))
            return false;
    }
    return scan->problem == NULL;
}

static enum status read_map(struct safetensors *file, struct json_scan *scan) {
    bool metadata_seen = false;
    json_open(scan, '{', "expected a map of tensors");
    for (bool first = true; json_more(scan, '}', first); first = false) {
        char *name = NULL;
        size_t length = 0;
        if (!json_key(scan, &name, &length))
            break;
        if (!same_word(name, length, "__metadata__")) {
            TRY(read_entry(file, scan, name, length));
            continue;
        }
        free(name);
        if (metadata_seen)
            json_fail(scan, "__metadata__ stands twice, expected it once");
        metadata_seen = true;
        if (scan->problem != NULL || !read_metadata(file, scan))
            break;
    }
    if (scan->problem != NULL || !json_end(scan))
        return fail_scan(file, scan);
    return STATUS_OK;
}

struct placed {
    struct safetensors_entry entry;
    int place; /* in the header: the order of tensors without a byte at the same offset */
};

static int by_offsets(const void *left, const void *right) {
    const struct placed *a = left, *b = right;
    if (a->entry.begin != b->entry.begin)
        return a->entry.begin < b->entry.begin ? -1 : 1;
    if (a->entry.end != b->entry.end)
        return a->entry.end < b->entry.end ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

static enum status sort_entries(struct safetensors *file) {
    size_t count = (size_t)file->count;
    struct placed *placed = malloc((count + 1) * sizeof *placed);
    if (placed == NULL)
        return fail_memory(file);
    for (size_t i = 0; i < count; i++)
        placed[i] = (struct placed){file->entries[i], (int)i};
    qsort(placed, count, sizeof *placed, by_offsets);
    for (size_t i = 0; i < count; i++)
        file->entries[i] = placed[i].entry;
    free(placed);
    return STATUS_OK;
}

/* Sorted by offsets, each begins where the last one ended, and the last one ends with the file. */
static enum status check_places(const struct safetensors *file, uint64_t data_size) {
    char what[NAME_TEXT];
    uint64_t place = 0;
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        if (entry->begin != place) {
            snprintf(what, sizeof what, "begins at %" PRIu64 ", expected %" PRIu64 " where the one before ends",
                     entry->begin, place);
            return fail_entry(file, entry, what);
        }
        place = entry->end;
    }
    if (place != data_size)
        return status_fail(STATUS_INPUT, "%s: %" PRIu64 " bytes of data, expected %" PRIu64 " by the header",
                           file->path, data_size, place);
    return STATUS_OK;
}

int safetensors_by_name(const void *left, const void *right) {
    const struct safetensors_entry *a = *(const struct safetensors_entry *const *)left;
    const struct safetensors_entry *b = *(const struct safetensors_entry *const *)right;
    size_t common = a->name_length < b->name_length ? a->name_length : b->name_length;
    int order = memcmp(a->name, b->name, common);
    return order != 0 ? order : (a->name_length > b->name_length) - (a->name_length < b->name_length);
}

/* `index`: pointers to the entries, sorted by name; twins are neighbours there. */
static enum status make_index(struct safetensors *file) {
    size_t count = (size_t)file->count;
    const struct safetensors_entry **index = malloc((count + 1) * sizeof *index);
    if (index == NULL)
        return fail_memory(file);
    file->index = index;
    for (size_t i = 0; i < count; i++)
        index[i] = &file->entries[i];
    qsort(index, count, sizeof *index, safetensors_by_name);
    for (size_t i = 1; i < count; i++) {
        if (safetensors_by_name(&index[i - 1], &index[i]) == 0)
            return fail_entry(file, index[i], "stands twice, expected each name once");
    }
    return STATUS_OK;
}

enum status safetensors_read_header(struct safetensors *file, const char *text, size_t length, uint64_t data_size) {
    size_t good = json_utf8_length(text, length);
    if (good != length)
        return status_fail(STATUS_INPUT, "%s: byte %zu of the header is not UTF-8, expected UTF-8", file->path, good);
    struct json_scan scan = {.text = text, .length = length};
    TRY(read_map(file, &scan));
    TRY(sort_entries(file));
    TRY(make_index(file));
    return check_places(file, data_size);
}
