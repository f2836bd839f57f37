/* PEFT's flat index order and the formulas of delta, dA and dB, against the vectors worked out by hand for E=2, r=2,
 * I=3, O=2, s=1 from A rows (1,2,3) (4,5,6) (7,8,9) (10,11,12), B rows (1,2,3,4) (5,6,7,8). */
#include "reference/adapter.h"
#include "reference/bound.h"

#include <criterion/criterion.h>
#include <string.h>

enum {
    E = 2,
    SMALL = 2,
    IN = 3,
    OUT = 2,
    BIG = 3 /* R > r */
};

static const double flat_a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const double flat_b[] = {1, 2, 3, 4, 5, 6, 7, 8};
static const struct param param = {.ndim = 3, .shape = {E, OUT, IN}, .expert = true, .linear = true, .alias = -1};
static const struct adapter_target target = {
    .param = &param, .experts = E, .in = IN, .out = OUT, .lora_rank = SMALL, .scale = 1};

static void assert_same(const double *got, const double *want, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(got[i], want[i], "element %lld: %g, not %g", (long long)i, got[i], want[i]);
}

static void assert_exact(const struct value *got, const double *want) {
    assert_same(got->x, want, value_elements(got));
}

/* Slots of R = 3 rows, whose third row is NaN: nobody may read it. */
static void slots(const struct arithmetic *m, struct value *a, struct value *b) {
    cr_assert_eq(value_slot_a(m, &param, BIG, a), STATUS_OK);
    cr_assert_eq(value_slot_b(m, &param, BIG, b), STATUS_OK);
    for (int64_t i = 0; i < value_elements(a); i++)
        a->x[i] = NAN;
    for (int64_t i = 0; i < value_elements(b); i++)
        b->x[i] = NAN;
    reference_unflatten_a(&target, BIG, flat_a, a->x);
    reference_unflatten_b(&target, BIG, flat_b, b->x);
}

Test(lora, slot_form_is_expert_first) {
    const double a3[E][SMALL][IN] = {{{1, 2, 3}, {4, 5, 6}}, {{7, 8, 9}, {10, 11, 12}}};
    const double b3[E][OUT][SMALL] = {{{1, 3}, {5, 7}}, {{2, 4}, {6, 8}}};
    double a[E * SMALL * IN], b[E * OUT * SMALL], back[12];
    reference_unflatten_a(&target, SMALL, flat_a, a);
    reference_unflatten_b(&target, SMALL, flat_b, b);
    assert_same(a, &a3[0][0][0], 12);
    assert_same(b, &b3[0][0][0], 8);
    reference_flatten_a(&target, SMALL, a, back);
    assert_same(back, flat_a, 12);
    reference_flatten_b(&target, SMALL, b, back);
    assert_same(back, flat_b, 8);
}

Test(lora, rows_beyond_the_rank_are_neither_read_nor_written) {
    double a[E * BIG * IN], b[E * OUT * BIG], back[12];
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        a[i] = -7;
    for (size_t i = 0; i < sizeof b / sizeof *b; i++)
        b[i] = -7;
    reference_unflatten_a(&target, BIG, flat_a, a);
    reference_unflatten_b(&target, BIG, flat_b, b);
    for (int e = 0; e < E; e++)
        for (int i = 0; i < IN; i++)
            cr_assert_eq(a[(e * BIG + 2) * IN + i], -7);
    for (int row = 0; row < E * OUT; row++)
        cr_assert_eq(b[row * BIG + 2], -7);
    reference_flatten_a(&target, BIG, a, back);
    assert_same(back, flat_a, 12);
    reference_flatten_b(&target, BIG, b, back);
    assert_same(back, flat_b, 8);
}

Test(lora, delta_of_the_vectors) {
    const double want[E][OUT][IN] = {{{13, 17, 21}, {33, 45, 57}}, {{54, 60, 66}, {122, 136, 150}}};
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value a, b, delta;
    slots(&m, &a, &b);
    cr_assert_eq(value_delta(&m, &target, BIG, &a, &b, &delta), STATUS_OK);
    assert_exact(&delta, &want[0][0][0]);
    for (int64_t i = 0; i < value_elements(&delta); i++) /* two roundings in the sum, one in the scaling */
        cr_assert(delta.e[i] > 2.9 * m.u * delta.x[i] && delta.e[i] < 3.1 * m.u * delta.x[i]);
    value_free(&a);
    value_free(&b);
    value_free(&delta);
}

Test(lora, gradients_of_the_vectors) {
    const double want_a[] = {6, 6, 6, 10, 10, 10, 8, 8, 8, 12, 12, 12};
    const double want_b[] = {6, 24, 15, 33, 6, 24, 15, 33};
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value a, b, g, slot_a, slot_b, got_a, got_b;
    slots(&m, &a, &b);
    cr_assert_eq(value_new(&m, &g, 3, param.shape), STATUS_OK);
    for (int64_t i = 0; i < value_elements(&g); i++)
        num_set(&g, i, num_exact(1));
    cr_assert_eq(value_delta_gradient_a(&m, &target, BIG, &g, &b, &slot_a), STATUS_OK);
    cr_assert_eq(value_delta_gradient_b(&m, &target, BIG, &g, &a, &slot_b), STATUS_OK);
    cr_assert_eq(value_flat_a(&m, &target, BIG, &slot_a, &got_a), STATUS_OK);
    cr_assert_eq(value_flat_b(&m, &target, BIG, &slot_b, &got_b), STATUS_OK);
    assert_exact(&got_a, want_a);
    assert_exact(&got_b, want_b);
    for (int e = 0; e < E; e++)
        for (int i = 0; i < IN; i++)
            cr_assert_eq(slot_a.x[(e * BIG + 2) * IN + i], 0);
    for (int row = 0; row < E * OUT; row++)
        cr_assert_eq(slot_b.x[row * BIG + 2], 0);
    struct value *all[] = {&a, &b, &g, &slot_a, &slot_b, &got_a, &got_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
}

/* An expert without tokens has G = 0 exactly, and so have its dA and dB: nothing else may stand there. */
Test(lora, an_idle_expert_has_exact_zeros) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct value a, b, g, got_a, got_b;
    slots(&m, &a, &b);
    cr_assert_eq(value_new(&m, &g, 3, param.shape), STATUS_OK);
    for (int64_t i = 0; i < value_elements(&g); i++)
        num_set(&g, i, num_exact(i < OUT * IN ? 0 : 1));
    cr_assert_eq(value_delta_gradient_a(&m, &target, BIG, &g, &b, &got_a), STATUS_OK);
    cr_assert_eq(value_delta_gradient_b(&m, &target, BIG, &g, &a, &got_b), STATUS_OK);
    for (int64_t i = 0; i < SMALL * IN; i++)
        cr_assert(got_a.x[i] == 0 && got_a.e[i] == 0 && got_a.e[BIG * IN + i] > 0);
    for (int64_t i = 0; i < OUT * BIG; i++)
        cr_assert(got_b.x[i] == 0 && got_b.e[i] == 0);
    cr_assert(got_b.e[OUT * BIG] > 0);
    struct value *all[] = {&a, &b, &g, &got_a, &got_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
}

/* Two ranks whose partial G nearly cancel: each rounds its own dA, so the sum of their dA errs by far more than its own
 * size suggests. A bound on |sum| is too small, one on the sum of magnitudes holds. */
Test(lora, partials_that_cancel_are_bounded_by_their_magnitudes) {
    struct arithmetic m = arithmetic_make(DTYPE_F32, false, true);
    struct adapter_target thirds = target;
    thirds.scale = 1.0 / 3;
    float scale = 1.0f / 3, part[2][E * OUT * IN];
    struct value a, b, g, with, without;
    slots(&m, &a, &b);
    cr_assert_eq(value_new(&m, &g, 3, param.shape), STATUS_OK);
    for (int64_t i = 0; i < value_elements(&g); i++) {
        part[0][i] = 1000.1f + 0.37f * (float)i;
        part[1][i] = -1000.1f - 0.36f * (float)i;
        num_set(&g, i, num_exact((double)part[0][i] + (double)part[1][i]));
    }
    cr_assert_eq(value_delta_gradient_a(&m, &thirds, BIG, &g, &b, &without), STATUS_OK);
    cr_assert_eq(value_add_magnitude(&g), STATUS_OK);
    for (int64_t i = 0; i < value_elements(&g); i++)
        g.mag[i] = fabs((double)part[0][i]) + fabs((double)part[1][i]);
    cr_assert_eq(value_delta_gradient_a(&m, &thirds, BIG, &g, &b, &with), STATUS_OK);
    int outside = 0;
    for (int e = 0; e < E; e++)
        for (int q = 0; q < SMALL; q++)
            for (int i = 0; i < IN; i++) {
                double sum = 0;
                for (int rank = 0; rank < 2; rank++) {
                    float chain = 0;
                    for (int o = 0; o < OUT; o++)
                        chain += (float)b.x[(e * OUT + o) * BIG + q] * part[rank][(e * OUT + o) * IN + i];
                    sum += (double)(chain * scale);
                }
                int at = (e * BIG + q) * IN + i;
                cr_assert(fabs(sum - with.x[at]) <= with.e[at], "%g > %g", fabs(sum - with.x[at]), with.e[at]);
                outside += !(fabs(sum - without.x[at]) <= without.e[at]);
            }
    cr_assert_gt(outside, 0);
    struct value *all[] = {&a, &b, &g, &with, &without};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        value_free(all[i]);
}
