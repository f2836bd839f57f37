#include "core/tensor.h"

#include <criterion/criterion.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bfloat16: 8 bits of precision, so the step at 1 is 2^-7 and 1 + 2^-8 stands in the middle. */
Test(core_tensor, bf16_rounds_to_nearest_even) {
    cr_assert_eq(bf16_from_float(1.0f), 0x3f80);
    cr_assert_eq(bf16_from_float(-2.0f), 0xc000);
    cr_assert_eq(bf16_from_float(0.0f), 0x0000);
    cr_assert_eq(bf16_from_float(-0.0f), 0x8000);
    cr_assert_eq(bf16_from_float(0x1.01p0f), 0x3f80, "1 + 2^-8: a tie, down to the even 1");
    cr_assert_eq(bf16_from_float(0x1.03p0f), 0x3f82, "1 + 3*2^-8: a tie, up to the even 1 + 2^-6");
    cr_assert_eq(bf16_from_float(-0x1.03p0f), 0xbf82);
    cr_assert_eq(bf16_from_float(0x1.010002p0f), 0x3f81, "one float above the tie");
    cr_assert_eq(bf16_from_float(0x1.00fffep0f), 0x3f80, "one float below the tie");
    cr_assert_eq(bf16_from_float(0x1.ffp0f), 0x4000, "2 - 2^-8: a tie that carries into the exponent");
}

Test(core_tensor, bf16_at_the_ends_of_the_range) {
    cr_assert_eq(bf16_from_float(INFINITY), 0x7f80);
    cr_assert_eq(bf16_from_float(-INFINITY), 0xff80);
    cr_assert_eq(bf16_from_float(FLT_MAX), 0x7f80, "beyond the middle between the largest and 2^128");
    cr_assert_eq(bf16_from_float(0x1.fep127f), 0x7f7f, "the largest");
    cr_assert_eq(bf16_from_float(0x1.fefffep127f), 0x7f7f, "just below the middle");
    cr_assert_eq(bf16_from_float(0x1p-133f), 0x0001, "the smallest");
    cr_assert_eq(bf16_from_float(0x1p-134f), 0x0000, "a tie, down to zero");
    cr_assert_eq(bf16_from_float(0x3p-134f), 0x0002, "a tie, up to the even one");
}

Test(core_tensor, bf16_nan_stays_nan) {
    const uint32_t patterns[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000, 0x7f80ffff};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        uint16_t bits = bf16_from_float(float_of(patterns[i]));
        cr_assert((bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0, "%08x -> %04x", patterns[i], bits);
        cr_assert_eq(bits >> 15, patterns[i] >> 31, "the sign of %08x", patterns[i]);
        cr_assert(isnan(bf16_to_float(bits)));
    }
    cr_assert(isnan(dtype_round(DTYPE_BF16, NAN)));
}

Test(core_tensor, every_bf16_comes_back) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = bf16_to_float((uint16_t)bits);
        if (!isnan(value))
            cr_assert_eq(bf16_from_float(value), bits);
    }
}

/* Through float32 these would be rounded twice: first onto the middle, then to even. */
Test(core_tensor, double_to_bf16_rounds_once) {
    cr_assert_eq(dtype_round(DTYPE_BF16, 0x1.01p0 + 0x1p-40), 0x1.02p0);
    cr_assert_eq(dtype_round(DTYPE_BF16, 0x1.03p0 - 0x1p-40), 0x1.02p0);
    cr_assert_eq(dtype_round(DTYPE_BF16, -0x1.01p0 - 0x1p-40), -0x1.02p0);
    cr_assert_eq(dtype_round(DTYPE_BF16, 0x1.01p0), 1.0);
    cr_assert_eq(dtype_round(DTYPE_BF16, 0x1p-134 + 0x1p-180), 0x1p-133);
    cr_assert_eq(dtype_round(DTYPE_BF16, 1e-300), 0.0);
    cr_assert_eq(dtype_round(DTYPE_BF16, 1e300), (double)INFINITY);
    cr_assert_eq(dtype_round(DTYPE_BF16, -1e300), -(double)INFINITY);
}

Test(core_tensor, rounding_of_the_other_types) {
    cr_assert_eq(dtype_round(DTYPE_F64, 0x1.0000000000001p0), 0x1.0000000000001p0);
    cr_assert_eq(dtype_round(DTYPE_F32, 0x1.000001p0), 1.0, "a tie, down to the even");
    cr_assert_eq(dtype_round(DTYPE_F32, 0x1.000003p0), 0x1.000004p0, "a tie, up to the even");
    cr_assert_eq(dtype_round(DTYPE_I64, 2.5), 2.0);
    cr_assert_eq(dtype_round(DTYPE_I64, 3.5), 4.0);
    cr_assert_eq(dtype_round(DTYPE_I64, -2.5), -2.0);
    cr_assert(isnan(dtype_round(DTYPE_U8, 1.0)), "no arithmetic in U8");
}

Test(core_tensor, memory_is_born_nan) {
    const enum dtype floats[] = {DTYPE_F64, DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t t = 0; t < sizeof floats / sizeof *floats; t++) {
        struct tensor tensor;
        cr_assert_eq(tensor_make(&tensor, floats[t], 2, (const int64_t[]){3, 5}), STATUS_OK);
        for (int64_t i = 0; i < 15; i++)
            cr_assert(isnan(tensor_get(&tensor, i)), "%s", dtype_name(floats[t]));
        tensor_free(&tensor);
    }
    struct tensor ids;
    cr_assert_eq(tensor_make(&ids, DTYPE_I64, 1, (const int64_t[]){2}), STATUS_OK);
    cr_assert_eq(tensor_get(&ids, 1), -1.0);
    tensor_free(&ids);
}

Test(core_tensor, sizes) {
    struct tensor tensor;
    cr_assert_eq(tensor_make(&tensor, DTYPE_BF16, 3, (const int64_t[]){12, 28, 20}), STATUS_OK);
    cr_assert_eq(tensor_elements(&tensor), 6720);
    cr_assert_eq(tensor_bytes(&tensor), 13440);
    cr_assert(tensor.owns);
    tensor_free(&tensor);
    cr_assert_null(tensor.data);
    tensor_free(&tensor);
    cr_assert_eq(tensor_make(&tensor, DTYPE_F32, 0, NULL), STATUS_OK);
    cr_assert_eq(tensor_elements(&tensor), 1, "no dims: one element");
    tensor_free(&tensor);
    cr_assert_eq(tensor_make(&tensor, DTYPE_F32, 2, (const int64_t[]){0, 7}), STATUS_OK);
    cr_assert_not_null(tensor.data);
    cr_assert_eq(tensor_elements(&tensor), 0);
    tensor_free(&tensor);
    cr_assert_eq(tensor_make(&tensor, DTYPE_F6_E2M3, 1, (const int64_t[]){3}), STATUS_OK);
    cr_assert_eq(tensor_bytes(&tensor), 3, "18 bits");
    tensor_free(&tensor);
}

Test(core_tensor, impossible_sizes_are_refused) {
    struct tensor tensor;
    const int64_t huge[] = {INT64_MAX, INT64_MAX}, negative[] = {2, -1}, edge[] = {INT64_MAX / 8};
    cr_assert_eq(tensor_make(&tensor, DTYPE_F32, 2, huge), STATUS_INTERNAL);
    cr_assert_str_eq(status_note(), "a F32 tensor of shape [9223372036854775807,9223372036854775807], "
                                    "expected a size that fits the memory");
    cr_assert_null(tensor.data);
    cr_assert_eq(tensor_make(&tensor, DTYPE_F32, 2, negative), STATUS_INTERNAL);
    cr_assert_eq(tensor_make(&tensor, DTYPE_F32, TENSOR_MAX_DIMS + 1, NULL), STATUS_INTERNAL);
#ifndef __SANITIZE_ADDRESS__ /* which ends the program at such a request */
    cr_assert_eq(tensor_make(&tensor, DTYPE_U8, 1, edge), STATUS_MEMORY, "2^60 bytes: no overflow, no memory");
#else
    (void)edge;
#endif
}

Test(core_tensor, a_view_borrows) {
    float values[] = {1, 2, 3, 4, 5, 6};
    struct tensor view = tensor_view(DTYPE_F32, 2, (const int64_t[]){2, 3}, values);
    cr_assert_eq(tensor_get(&view, 4), 5.0);
    tensor_set(&view, 4, 0.1);
    cr_assert_eq(values[4], 0.1f);
    tensor_free(&view);
    cr_assert_eq(values[0], 1.0f);
}

Test(core_tensor, same_shape) {
    struct tensor a = tensor_view(DTYPE_F32, 2, (const int64_t[]){2, 3}, NULL);
    struct tensor b = tensor_view(DTYPE_F64, 2, (const int64_t[]){2, 3}, NULL);
    struct tensor c = tensor_view(DTYPE_F32, 2, (const int64_t[]){3, 2}, NULL);
    struct tensor d = tensor_view(DTYPE_F32, 3, (const int64_t[]){2, 3, 1}, NULL);
    struct tensor many = tensor_view(DTYPE_F32, 9, NULL, NULL);
    cr_assert(tensor_same_shape(&a, &b));
    cr_assert_not(tensor_same_shape(&a, &c));
    cr_assert_not(tensor_same_shape(&a, &d));
    cr_assert_not(tensor_same_shape(&many, &many), "a shape that was not kept equals none");
}

Test(core_tensor, shape_text_is_always_terminated) {
    char text[8];
    const int64_t shape[] = {12, 28, 20};
    cr_assert_str_eq(shape_text(text, sizeof text, 0, NULL), "[]");
    cr_assert_str_eq(shape_text(text, sizeof text, 2, shape), "[12,28]");
    cr_assert_str_eq(shape_text(text, sizeof text, 3, shape), "[12,28,");
    cr_assert_str_eq(shape_text(text, 2, 3, shape), "[");
    cr_assert_str_eq(shape_text(text, 1, 3, shape), "");
}

/* The widths of the format's own list (safetensors README, "dtype"). */
Test(core_tensor, dtypes_are_the_formats) {
    const struct {
        char name[16];
        int bits;
    } known[] = {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
                 {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
                 {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
                 {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
    cr_assert_eq(sizeof known / sizeof *known, DTYPE_COUNT);
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        enum dtype dtype = DTYPE_COUNT;
        cr_assert(dtype_parse(known[i].name, strlen(known[i].name), &dtype), "%s", known[i].name);
        cr_assert_eq(dtype_bits(dtype), known[i].bits, "%s", known[i].name);
        cr_assert_eq(dtype_bytes(dtype), known[i].bits / 8, "%s", known[i].name);
        cr_assert_str_eq(dtype_name(dtype), known[i].name);
    }
    enum dtype dtype;
    cr_assert_not(dtype_parse("f32", 3, &dtype));
    cr_assert_not(dtype_parse("F3", 2, &dtype));
    cr_assert_not(dtype_parse("", 0, &dtype));
    cr_assert(dtype_parse("F32xx", 3, &dtype) && dtype == DTYPE_F32);
    cr_assert_str_eq(dtype_word(DTYPE_BF16), "bfloat16");
    cr_assert_str_eq(dtype_word(DTYPE_F64), "float64");
}

/* IEEE binary16 by hand: sign, 5 bits of exponent with bias 15, 10 of fraction. */
Test(core_tensor, reads_f16_and_integers) {
    uint16_t halves[] = {0x3c00, 0xc100, 0x0001, 0x03ff, 0x7bff, 0x7c00, 0xfc00};
    const double expected[] = {1, -2.5, 0x1p-24, 1023 * 0x1p-24, 65504, (double)INFINITY, -(double)INFINITY};
    struct tensor view = tensor_view(DTYPE_F16, 1, (const int64_t[]){7}, halves);
    for (int64_t i = 0; i < 7; i++)
        cr_assert_eq(tensor_get(&view, i), expected[i]);
    uint8_t bytes[] = {0x80, 0xff, 0xfe, 0xff};
    struct tensor u8 = tensor_view(DTYPE_U8, 1, (const int64_t[]){4}, bytes);
    struct tensor i8 = tensor_view(DTYPE_I8, 1, (const int64_t[]){4}, bytes);
    struct tensor i32 = tensor_view(DTYPE_I32, 1, (const int64_t[]){1}, bytes);
    struct tensor u16 = tensor_view(DTYPE_U16, 1, (const int64_t[]){2}, bytes);
    struct tensor f8 = tensor_view(DTYPE_F8_E4M3, 1, (const int64_t[]){4}, bytes);
    cr_assert_eq(tensor_get(&u8, 0), 128.0);
    cr_assert_eq(tensor_get(&i8, 0), -128.0);
    cr_assert_eq(tensor_get(&i32, 0), -65664.0, "0xfffeff80");
    cr_assert_eq(tensor_get(&u16, 1), 65534.0);
    cr_assert(isnan(tensor_get(&f8, 0)), "no arithmetic in float8");
}

Test(core_tensor, reads_unaligned_memory) {
    _Alignas(8) char bytes[20] = {0};
    float value = 0.5f;
    memcpy(bytes + 3, &value, sizeof value);
    struct tensor view = tensor_view(DTYPE_F32, 1, (const int64_t[]){1}, bytes + 3);
    cr_assert_eq(tensor_get(&view, 0), 0.5);
    tensor_set(&view, 0, 3.0);
    cr_assert_eq(tensor_get(&view, 0), 3.0);
}

Test(core_tensor, conversion_keeps_shape_and_rounds) {
    double values[] = {1.0, 0x1.01p0, 0x1.03p0, NAN, -(double)INFINITY, 0x1.01p0 + 0x1p-40};
    const uint16_t expected[] = {0x3f80, 0x3f80, 0x3f82, 0, 0xff80, 0x3f81};
    struct tensor from = tensor_view(DTYPE_F64, 2, (const int64_t[]){3, 2}, values), to;
    cr_assert_eq(tensor_convert(&to, DTYPE_BF16, &from), STATUS_OK);
    cr_assert(tensor_same_shape(&from, &to));
    cr_assert_eq(to.dtype, DTYPE_BF16);
    const uint16_t *bits = to.data;
    for (int i = 0; i < 6; i++) {
        if (i == 3)
            cr_assert(isnan(bf16_to_float(bits[i])));
        else
            cr_assert_eq(bits[i], expected[i], "element %d: %04x", i, bits[i]);
    }
    tensor_free(&to);
}

/* Steps at 2^62: 2^10 in float64, 2^39 in float32. Through float64 the last 1 would be lost and leave a tie. */
Test(core_tensor, integers_convert_with_one_rounding) {
    const int64_t tie = INT64_C(1) << 62 | INT64_C(1) << 38;
    int64_t values[] = {tie, tie + 1, tie - 1, -tie - 1, INT64_MIN, INT64_MAX, (INT64_C(1) << 53) + 1, 7};
    const double expected[] = {0x1p62, 0x1p62 + 0x1p39, 0x1p62, -0x1p62 - 0x1p39, -0x1p63, 0x1p63, 0x1p53, 7};
    struct tensor from = tensor_view(DTYPE_I64, 1, (const int64_t[]){8}, values), to;
    cr_assert_eq(tensor_convert(&to, DTYPE_F32, &from), STATUS_OK);
    for (int64_t i = 0; i < 8; i++)
        cr_assert_eq(tensor_get(&to, i), expected[i], "element %d", (int)i);
    tensor_free(&to);
    cr_assert_eq(tensor_convert(&to, DTYPE_F64, &from), STATUS_OK);
    cr_assert_eq(tensor_get(&to, 6), 0x1p53);
    tensor_free(&to);
    cr_assert_eq(tensor_convert(&to, DTYPE_I64, &from), STATUS_OK);
    cr_assert_eq(memcmp(to.data, values, sizeof values), 0, "the same type: the same bits");
    tensor_free(&to);
}

Test(core_tensor, conversion_of_other_types_is_refused) {
    uint8_t byte = 0;
    struct tensor from = tensor_view(DTYPE_U8, 1, (const int64_t[]){1}, &byte), to;
    cr_assert_eq(tensor_convert(&to, DTYPE_F32, &from), STATUS_INTERNAL);
    cr_assert_null(to.data);
    from.dtype = DTYPE_F32;
    status_clear();
    cr_assert_eq(tensor_convert(&to, DTYPE_F16, &from), STATUS_INTERNAL);
    cr_assert_null(to.data);
}
