#include "core/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* one cache line, and the widest vector register */
enum {
    ALIGNMENT = 64
};

static const struct {
    const char *name, *word;
    int bits;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F64] = {"F64", "float64", 64},
    [DTYPE_F32] = {"F32", "float32", 32},
    [DTYPE_BF16] = {"BF16", "bfloat16", 16},
    [DTYPE_I64] = {"I64", "int64", 64},
    [DTYPE_BOOL] = {"BOOL", "bool", 8},
    [DTYPE_F4] = {"F4", "float4_e2m1fn", 4},
    [DTYPE_F6_E2M3] = {"F6_E2M3", "float6_e2m3fn", 6},
    [DTYPE_F6_E3M2] = {"F6_E3M2", "float6_e3m2fn", 6},
    [DTYPE_U8] = {"U8", "uint8", 8},
    [DTYPE_I8] = {"I8", "int8", 8},
    [DTYPE_F8_E5M2] = {"F8_E5M2", "float8_e5m2", 8},
    [DTYPE_F8_E4M3] = {"F8_E4M3", "float8_e4m3fn", 8},
    [DTYPE_F8_E8M0] = {"F8_E8M0", "float8_e8m0fnu", 8},
    [DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
    [DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
    [DTYPE_I16] = {"I16", "int16", 16},
    [DTYPE_U16] = {"U16", "uint16", 16},
    [DTYPE_F16] = {"F16", "float16", 16},
    [DTYPE_I32] = {"I32", "int32", 32},
    [DTYPE_U32] = {"U32", "uint32", 32},
    [DTYPE_C64] = {"C64", "complex64", 64},
    [DTYPE_U64] = {"U64", "uint64", 64},
};

int dtype_bits(enum dtype dtype) {
    return dtypes[dtype].bits;
}

const char *dtype_name(enum dtype dtype) {
    return dtypes[dtype].name;
}

const char *dtype_word(enum dtype dtype) {
    return dtypes[dtype].word;
}

bool dtype_parse(const char *name, size_t length, enum dtype *out) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strlen(dtypes[i].name) == length && memcmp(dtypes[i].name, name, length) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

size_t dtype_bytes(enum dtype dtype) {
    return (size_t)dtypes[dtype].bits / 8;
}

/* Whole bytes: elements * bits / 8, rounded up. False if that overflows or a dimension is negative. */
static bool size_of_shape(enum dtype dtype, int ndim, const int64_t *shape, size_t *bytes) {
    size_t bits = 1;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0 || __builtin_mul_overflow(bits, (size_t)shape[d], &bits))
            return false;
    }
    if (bits > INT64_MAX || __builtin_mul_overflow(bits, (size_t)dtypes[dtype].bits, &bits))
        return false;
    *bytes = bits / 8 + (bits % 8 != 0);
    return true;
}

enum status tensor_make(struct tensor *out, enum dtype dtype, int ndim, const int64_t *shape) {
    *out = (struct tensor){0};
    size_t bytes = 0;
    char text[256];
    if (ndim < 0 || ndim > TENSOR_MAX_DIMS)
        return status_fail(STATUS_INTERNAL, "a tensor of %d dimensions, expected 0 to %d", ndim, TENSOR_MAX_DIMS);
    if (!size_of_shape(dtype, ndim, shape, &bytes))
        return status_fail(STATUS_INTERNAL, "a %s tensor of shape %s, expected a size that fits the memory",
                           dtype_name(dtype), shape_text(text, sizeof text, ndim, shape));
    size_t room = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    void *data = aligned_alloc(ALIGNMENT, room);
    if (data == NULL)
        return status_fail(STATUS_MEMORY, "out of memory: %zu bytes for a %s tensor of shape %s", bytes,
                           dtype_name(dtype), shape_text(text, sizeof text, ndim, shape));
    memset(data, 0xff, room);
    *out = tensor_view(dtype, ndim, shape, data);
    out->owns = true;
    return STATUS_OK;
}

struct tensor tensor_view(enum dtype dtype, int ndim, const int64_t *shape, void *data) {
    struct tensor view = {.dtype = dtype, .ndim = ndim <= TENSOR_MAX_DIMS ? ndim : -1, .data = data};
    for (int d = 0; d < view.ndim; d++)
        view.shape[d] = shape[d];
    return view;
}

void tensor_free(struct tensor *tensor) {
    if (tensor->owns)
        free(tensor->data);
    *tensor = (struct tensor){0};
}

int64_t tensor_elements(const struct tensor *tensor) {
    if (tensor->ndim < 0)
        return 0;
    uint64_t elements = 1; /* unsigned: [2^62, 2, 0] is a legal shape of a file */
    for (int d = 0; d < tensor->ndim; d++)
        elements *= (uint64_t)tensor->shape[d];
    return (int64_t)elements;
}

size_t tensor_bytes(const struct tensor *tensor) {
    size_t bits = (size_t)tensor_elements(tensor) * (size_t)dtypes[tensor->dtype].bits;
    return bits / 8 + (bits % 8 != 0);
}

bool tensor_same_shape(const struct tensor *a, const struct tensor *b) {
    if (a->ndim != b->ndim || a->ndim < 0)
        return false;
    for (int d = 0; d < a->ndim; d++) {
        if (a->shape[d] != b->shape[d])
            return false;
    }
    return true;
}

char *shape_text(char *out, size_t size, int ndim, const int64_t *shape) {
    if (size == 0)
        return out;
    size_t used = (size_t)snprintf(out, size, "[");
    for (int d = 0; d < ndim && used < size; d++)
        used += (size_t)snprintf(out + used, size - used, d == 0 ? "%lld" : ",%lld", (long long)shape[d]);
    if (used < size)
        snprintf(out + used, size - used, "]");
    return out;
}
