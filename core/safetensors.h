/* Safetensors files: read by mmap, written by rename.
 *
 * The reader gives the verdict of the official Rust parser on every header (fixtures/safetensors_vectors/oracle.txt),
 * with one exception on purpose: a tensor name that stands twice is refused even if both entries agree. Limits: header
 * <= 100,000,000 bytes, ndim of any size is read but a tensor of more than TENSOR_MAX_DIMS is refused when it is taken
 * as a `struct tensor`. */
#ifndef CORE_SAFETENSORS_H
#define CORE_SAFETENSORS_H

#include "core/tensor.h"

struct safetensors_entry {
    char *name; /* may hold NUL bytes; terminated all the same */
    size_t name_length;
    struct tensor tensor; /* a view into the mapping; ndim < 0 if it has more than TENSOR_MAX_DIMS dims */
    int ndim;
    uint64_t begin, end; /* data_offsets */
};

struct safetensors_pair {
    char *key, *value; /* one pair of __metadata__ */
};

struct safetensors {
    char *path;
    void *map;
    size_t size;
    int count;
    struct safetensors_entry *entries; /* sorted by data offset, then as they stand in the header */
    int pairs;
    struct safetensors_pair *metadata;
    void *index; /* private: lookup by name */
};

/* STATUS_INPUT with `PATH: what, what was expected`; STATUS_IO if it cannot be opened (also `PATH: ...`). */
enum status safetensors_open(struct safetensors *out, const char *path);
void safetensors_close(struct safetensors *file);                                                   /* accepts {0} */
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name); /* NULL if absent */
const char *safetensors_metadata(const struct safetensors *file, const char *key);                  /* NULL if absent */

struct safetensors_item {
    const char *name;
    const struct tensor *tensor;
};

/* Writes as the official writer does (dtype by falling alignment, then name; header padded with spaces to 8 bytes), so
 * that what PEFT wrote comes out byte for byte. Metadata stands first, in the order given; `{"format":"pt"}` for
 * Hugging Face and PEFT. Written to a temporary file in the same folder and renamed: never half a file. */
enum status safetensors_write(const char *path, const struct safetensors_item *items, int count,
                              const struct safetensors_pair *metadata, int pairs);

#endif
