/* The JSON header of a safetensors file, read into entries and metadata.
 *
 * Private to core. The rules are those of the Rust crate (safetensors/src/tensor.rs, `HashMetadata`, `Metadata::new`
 * and `Metadata::validate`): an entry is a map with dtype, shape and data_offsets in any order (unknown fields are
 * dropped) or a list of the three; sorted by offsets the tensors fill the data without hole or overlap; the sizes are
 * the product of the shape, multiplied from left to right without overflow. */
#ifndef CORE_SAFETENSORS_HEADER_H
#define CORE_SAFETENSORS_HEADER_H

#include "core/safetensors.h"

/* Fills entries (sorted, `tensor.data` still NULL), count, metadata, pairs and index of `file`, whose path is set.
 * `data_size` is the number of bytes behind the header. On failure the caller closes `file`. */
enum status safetensors_read_header(struct safetensors *file, const char *text, size_t length, uint64_t data_size);

/* The order of `index`, for bsearch: bytes of the names. Both point to a `const struct safetensors_entry *`. */
int safetensors_by_name(const void *left, const void *right);

/* A name for a message: control characters as \xHH, cut with "..." where it is long. Returns `out`. */
char *safetensors_name_text(char *out, size_t size, const char *name, size_t length);

#endif
