/* Elements as numbers: reading, rounding, conversion. Memory may be unaligned (a view into a file), so elements are
 * copied in and out. */
#include "core/tensor.h"

#include <math.h>
#include <string.h>

#define LOAD(type, from, i)                                                                                            \
    ({                                                                                                                 \
        type loaded;                                                                                                   \
        memcpy(&loaded, (const char *)(from) + (size_t)(i) * sizeof loaded, sizeof loaded);                            \
        loaded;                                                                                                        \
    })

#define STORE(type, to, i, value)                                                                                      \
    do {                                                                                                               \
        type stored = (value);                                                                                         \
        memcpy((char *)(to) + (size_t)(i) * sizeof stored, &stored, sizeof stored);                                    \
    } while (0)

uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40); /* the payload's upper part may be zero: quiet it, or it reads infinity */
    bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

float bf16_to_float(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Rounds to odd: toward zero, last bit set if that lost something. Rounding the result again to a shorter type gives
 * what one rounding would (Boldo and Melquiond, "When double rounding is odd", 2005): float32 has more than 2 bits more
 * than bfloat16. */
static float float_to_odd(double value) {
    float near = (float)value;
    if (isnan(value) || (double)near == value)
        return near;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if (fabs((double)near) > fabs(value))
        bits--;
    bits |= 1;
    memcpy(&near, &bits, sizeof near);
    return near;
}

static uint16_t bf16_from_double(double value) {
    return bf16_from_float(float_to_odd(value));
}

/* Sign 1, exponent 5 (bias 15), fraction 10. */
static double f16_value(uint16_t bits) {
    int exponent = bits >> 10 & 0x1f;
    double fraction = bits & 0x3ff;
    double size;
    if (exponent == 0x1f)
        size = fraction == 0 ? (double)INFINITY : (double)NAN;
    else if (exponent == 0)
        size = ldexp(fraction, -24);
    else
        size = ldexp(fraction + 1024, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

/* Saturates; NaN has no place among integers and becomes the lowest. */
static int64_t i64_from_double(double value) {
    double near = nearbyint(value);
    if (!(near >= -0x1p63))
        return INT64_MIN;
    return near >= 0x1p63 ? INT64_MAX : (int64_t)near;
}

double tensor_get(const struct tensor *tensor, int64_t i) {
    const void *data = tensor->data;
    switch (tensor->dtype) {
    case DTYPE_F64:
        return LOAD(double, data, i);
    case DTYPE_F32:
        return (double)LOAD(float, data, i);
    case DTYPE_BF16:
        return (double)bf16_to_float(LOAD(uint16_t, data, i));
    case DTYPE_F16:
        return f16_value(LOAD(uint16_t, data, i));
    case DTYPE_I64:
        return (double)LOAD(int64_t, data, i);
    case DTYPE_U64:
        return (double)LOAD(uint64_t, data, i);
    case DTYPE_I32:
        return (double)LOAD(int32_t, data, i);
    case DTYPE_U32:
        return (double)LOAD(uint32_t, data, i);
    case DTYPE_I16:
        return (double)LOAD(int16_t, data, i);
    case DTYPE_U16:
        return (double)LOAD(uint16_t, data, i);
    case DTYPE_I8:
        return (double)LOAD(int8_t, data, i);
    case DTYPE_U8:
    case DTYPE_BOOL:
        return (double)LOAD(uint8_t, data, i);
    default:
        return (double)NAN;
    }
}

void tensor_set(struct tensor *tensor, int64_t i, double value) {
    switch (tensor->dtype) {
    case DTYPE_F64:
        STORE(double, tensor->data, i, value);
        break;
    case DTYPE_F32:
        STORE(float, tensor->data, i, (float)value);
        break;
    case DTYPE_BF16:
        STORE(uint16_t, tensor->data, i, bf16_from_double(value));
        break;
    case DTYPE_I64:
        STORE(int64_t, tensor->data, i, i64_from_double(value));
        break;
    default: /* not written: stays NaN */
        break;
    }
}

double dtype_round(enum dtype dtype, double value) {
    switch (dtype) {
    case DTYPE_F64:
        return value;
    case DTYPE_F32:
        return (double)(float)value;
    case DTYPE_BF16:
        return (double)bf16_to_float(bf16_from_double(value));
    case DTYPE_I64:
        return (double)i64_from_double(value);
    default:
        return (double)NAN;
    }
}

static bool converts_from(enum dtype dtype) {
    return dtype == DTYPE_F64 || dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_I64;
}

static bool converts_to(enum dtype dtype) {
    return dtype == DTYPE_F64 || dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_I64;
}

/* An integer as a double that rounds to float32 or bfloat16 as the integer itself does: above 2^53 the low 11 bits are
 * folded into one sticky bit, far below the last place of the target. */
static double i64_for_rounding(int64_t value) {
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (size >> 53 != 0 && (size & 0x7ff) != 0)
        size = (size & ~(uint64_t)0x7ff) | 0x800;
    return value < 0 ? -(double)size : (double)size;
}

enum status tensor_convert(struct tensor *out, enum dtype dtype, const struct tensor *from) {
    *out = (struct tensor){0};
    if (!converts_from(from->dtype) || !converts_to(dtype))
        return status_fail(STATUS_INTERNAL,
                           "a conversion from %s to %s, expected from F64 F32 BF16 F16 I64 to F64 F32 BF16 I64",
                           dtype_name(from->dtype), dtype_name(dtype));
    TRY(tensor_make(out, dtype, from->ndim, from->shape));
    if (dtype == from->dtype) {
        memcpy(out->data, from->data, tensor_bytes(from));
        return STATUS_OK;
    }
    int64_t elements = tensor_elements(from);
    bool sticky = from->dtype == DTYPE_I64 && dtype != DTYPE_F64;
    for (int64_t i = 0; i < elements; i++)
        tensor_set(out, i, sticky ? i64_for_rounding(LOAD(int64_t, from->data, i)) : tensor_get(from, i));
    return STATUS_OK;
}
