#include "reference/value.h"

#include <math.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

struct arithmetic arithmetic_make(enum dtype dtype, bool dry, bool bounds) {
    bool wide = dtype == DTYPE_F64;
    return (struct arithmetic){
        .dtype = wide ? dtype : DTYPE_F32,
        .u = wide ? 0x1p-53 : 0x1p-24,
        .eta = wide ? 0x1p-1022 : 0x1p-126,
        .largest = wide ? DBL_MAX : (double)FLT_MAX,
        .dry = dry,
        .bounds = bounds && !dry,
    };
}

double arithmetic_constant(const struct arithmetic *m, double exact) {
    return dtype_round(m->dtype, exact);
}

int64_t value_elements(const struct value *value) {
    int64_t elements = 1;
    for (int i = 0; i < value->ndim; i++)
        elements *= value->shape[i];
    return elements;
}

int64_t value_last(const struct value *value) {
    return value->ndim ? value->shape[value->ndim - 1] : 1;
}

int64_t value_rows(const struct value *value) {
    int64_t rows = 1;
    for (int i = 0; i < value->ndim - 1; i++)
        rows *= value->shape[i];
    return rows;
}

static double *born_nan(int64_t elements) {
    size_t bytes = (size_t)(elements > 0 ? elements : 1) * sizeof(double);
    double *memory = malloc(bytes);
    if (memory)
        memset(memory, 0xff, bytes);
    return memory;
}

enum status value_new(const struct arithmetic *m, struct value *out, int ndim, const int64_t *shape) {
    *out = (struct value){0};
    value_reshape(out, ndim, shape);
    if (m->dry)
        return STATUS_OK;
    out->x = born_nan(value_elements(out));
    out->e = m->bounds ? born_nan(value_elements(out)) : NULL;
    if (!out->x || (m->bounds && !out->e)) {
        value_free(out);
        return status_fail(STATUS_MEMORY, "out of memory in the reference");
    }
    return STATUS_OK;
}

enum status value_like(const struct arithmetic *m, struct value *out, const struct value *model) {
    return value_new(m, out, model->ndim, model->shape);
}

enum status value_copy(const struct arithmetic *m, struct value *out, const struct value *from) {
    TRY(value_like(m, out, from));
    size_t bytes = (size_t)value_elements(from) * sizeof(double);
    if (m->dry || bytes == 0)
        return STATUS_OK;
    memcpy(out->x, from->x, bytes);
    if (out->e && from->e)
        memcpy(out->e, from->e, bytes);
    return STATUS_OK;
}

enum status value_scalar(const struct arithmetic *m, struct value *out, double x, double e) {
    TRY(value_new(m, out, 0, NULL));
    if (out->x)
        out->x[0] = x;
    if (out->e)
        out->e[0] = e;
    return STATUS_OK;
}

void value_zero(struct value *value) {
    size_t bytes = (size_t)value_elements(value) * sizeof(double);
    if (value->x && bytes)
        memset(value->x, 0, bytes);
    if (value->e && bytes)
        memset(value->e, 0, bytes);
}

enum status value_from_tensor(const struct arithmetic *m, struct value *out, const struct tensor *tensor) {
    if (tensor->ndim > VALUE_MAX_DIMS)
        return status_fail(STATUS_INTERNAL, "the reference holds at most %d dims", VALUE_MAX_DIMS);
    TRY(value_new(m, out, tensor->ndim, tensor->shape));
    if (m->dry)
        return STATUS_OK;
    bool whole = tensor->dtype == DTYPE_I64;
    for (int64_t i = 0, n = value_elements(out); i < n; i++) {
        double stored = tensor_get(tensor, i);
        out->x[i] = whole ? stored : arithmetic_constant(m, stored); /* what bfloat16 holds, float32 does */
        if (out->e)
            out->e[i] = 0;
    }
    return STATUS_OK;
}

void value_reshape(struct value *value, int ndim, const int64_t *shape) {
    value->ndim = ndim;
    for (int i = 0; i < ndim; i++)
        value->shape[i] = shape[i];
}

enum status value_add_magnitude(struct value *value) {
    int64_t elements = value_elements(value);
    free(value->mag);
    value->mag = born_nan(elements);
    if (!value->mag)
        return status_fail(STATUS_MEMORY, "out of memory in the reference");
    for (int64_t i = 0; i < elements; i++)
        value->mag[i] = fabs(value->x[i]);
    return STATUS_OK;
}

void value_free(struct value *value) {
    free(value->x);
    free(value->e);
    free(value->mag);
    *value = (struct value){0};
}
