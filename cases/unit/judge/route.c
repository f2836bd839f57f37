/* Router choices and rows, on numbers written by hand. */
#include "fake.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

static bool topk(double a, double b, struct choice_verdict *verdict, bool *tie) {
    static const double scores[] = {0.1, 0.4, 0.2, 0.2, 0.1};
    const double choice[] = {a, b};
    return choice_is_topk(choice, 2, scores, 5, verdict, tie);
}

Test(route, choices) {
    struct choice_verdict verdict = {0};
    bool tie;
    cr_assert(topk(1, 2, &verdict, &tie) && tie); /* 3 has the same score */
    cr_assert(topk(1, 3, &verdict, &tie) && tie);
    cr_assert(!topk(2, 1, &verdict, &tie)); /* rising */
    cr_assert_eq(verdict.choice, 0);
    cr_assert(!topk(1, 4, &verdict, &tie));
    cr_assert_eq(verdict.want, 2);
    cr_assert_eq(verdict.got, 4);
    cr_assert(!topk(2, 3, &verdict, &tie));
    cr_assert_eq(verdict.want, 1);
    cr_assert(!topk(1, 1, &verdict, &tie));
    cr_assert(isnan(verdict.want));
    cr_assert(!topk(1, 5, &verdict, &tie));
    cr_assert(!topk(1, -1, &verdict, &tie));
    cr_assert(!topk(1, 1.5, &verdict, &tie));
    cr_assert(!topk(1, NAN, &verdict, &tie));
}

Test(route, nan_scores_are_no_top) {
    const double scores[] = {0.5, NAN, 0.2}, choice[] = {0}, other[] = {1};
    struct choice_verdict verdict = {0};
    bool tie;
    cr_assert(!choice_is_topk(choice, 1, scores, 3, &verdict, &tie));
    cr_assert(!choice_is_topk(other, 1, scores, 3, &verdict, &tie));
}

Test(route, usable) {
    const double good[] = {0, 1, 1, 0}, twice[] = {0, 1, 1, 1}, none[] = {0, 1, 2, 0};
    cr_assert(choices_usable(good, 2, 2, 2));
    cr_assert(!choices_usable(twice, 2, 2, 2));
    cr_assert(!choices_usable(none, 2, 2, 2));
}
