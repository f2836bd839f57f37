/* Tensors: a dtype, a shape and a block of memory, row-major, last index fastest.
 *
 * Whoever called tensor_make or tensor_copy owns the memory and calls tensor_free; a view borrows and never frees.
 * Memory is born NaN (every byte 0xff: NaN in each float type, -1 in integers), so that an element that nobody wrote
 * fails every comparison. */
#ifndef CORE_TENSOR_H
#define CORE_TENSOR_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All types of the safetensors format. Arithmetic is done in the first three; ids and counts are I64. */
enum dtype {
    DTYPE_F64,
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_I64,
    DTYPE_BOOL,
    DTYPE_F4,
    DTYPE_F6_E2M3,
    DTYPE_F6_E3M2,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_F8_E5M2,
    DTYPE_F8_E4M3,
    DTYPE_F8_E8M0,
    DTYPE_F8_E4M3FNUZ,
    DTYPE_F8_E5M2FNUZ,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_F16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_C64,
    DTYPE_U64,
    DTYPE_COUNT
};

#define TENSOR_MAX_DIMS 8

struct tensor {
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS];
    void *data;
    bool owns;
};

int dtype_bits(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* safetensors spelling: "F64", "BF16", ... */
const char *dtype_word(enum dtype dtype); /* the case file's: "float64", "float32", "bfloat16", "int64" */
bool dtype_parse(const char *name, size_t length, enum dtype *out); /* safetensors spelling */
size_t dtype_bytes(enum dtype dtype);                               /* of one element; 0 for types below a byte */

/* STATUS_MEMORY, or STATUS_INTERNAL for a shape whose size overflows. Zero elements are legal (data then non-NULL). */
enum status tensor_make(struct tensor *out, enum dtype dtype, int ndim, const int64_t *shape);
struct tensor tensor_view(enum dtype dtype, int ndim, const int64_t *shape, void *data);
void tensor_free(struct tensor *tensor); /* accepts {0} and views */
int64_t tensor_elements(const struct tensor *tensor);
size_t tensor_bytes(const struct tensor *tensor);
bool tensor_same_shape(const struct tensor *a, const struct tensor *b);
/* "[12,28,20]"; the caller's buffer, always terminated. Returns `out`. */
char *shape_text(char *out, size_t size, int ndim, const int64_t *shape);

/* Element i (row-major) as a double: exact for F64, F32, BF16, F16 and integers up to 2^53; other types STATUS_INTERNAL
 * is impossible here, so they give NaN. */
double tensor_get(const struct tensor *tensor, int64_t i);
/* Rounds to nearest even into the dtype (F64, F32, BF16, I64). */
void tensor_set(struct tensor *tensor, int64_t i, double value);
/* A new tensor of the same shape in another type, each element rounded to nearest even. From F64 F32 BF16 F16 I64 to
 * F64 F32 BF16 I64. */
enum status tensor_convert(struct tensor *out, enum dtype dtype, const struct tensor *from);
/* double -> the value that `dtype` holds for it, as a double (identity for F64). */
double dtype_round(enum dtype dtype, double value);
uint16_t bf16_from_float(float value); /* nearest even, NaN stays NaN */
float bf16_to_float(uint16_t bits);

#endif
