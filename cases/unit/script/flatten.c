/* What a script becomes: S of windows that overlap, own steps, who opens, how many slots. */
#include "written.h"

#include <criterion/criterion.h>

static void becomes(const char *rest, const char *actions, int slots, int steps) {
    struct case_list list;
    char text[4096];
    written_load(&list, rest);
    const struct job *job = &list.item[0]->job;
    cr_expect_str_eq(written_actions(text, sizeof text, job), actions);
    cr_expect_eq(job->slots, slots, "%d slots", job->slots);
    cr_expect_eq(job->steps, steps, "%d steps", job->steps);
    cases_free(&list);
}

Test(flatten, train_opens_its_step) {
    becomes("script: [{acquire: ada}, {train: {tenant: ada, micro: [0, 2]}}, {train: {tenant: ada, micro: [1]}}]",
            "acquire ada s0 o0; train ada 0 2 s0 o0 opens; train ada 1 s1 o1 opens", 1, 2);
}

/* An accumulate has the S of the step that closes its window, which stands further down. */
Test(flatten, windows_that_overlap) {
    becomes("script:\n"
            "  - acquire: [ada, bob]\n"
            "  - accumulate: {tenant: ada, micro: [0]}\n"
            "  - accumulate: {tenant: bob, micro: [0, 1]}\n"
            "  - train: {tenant: bob, micro: [2]}\n"
            "  - evaluate: {tenant: none, micro: [0]}\n"
            "  - accumulate: {tenant: ada, micro: [1]}\n"
            "  - step: {tenant: ada}\n"
            "  - export: {tenant: bob}",
            "acquire ada s0 o0; acquire bob s0 o0; accumulate ada 0 s2 o0 opens; accumulate bob 0 1 s0 o0 opens; "
            "accumulate bob 2 s0 o0; step bob s0 o0; evaluate none 0 s1 o0 opens; accumulate ada 1 s2 o0; "
            "step ada s2 o0; export bob s3 o1",
            2, 3);
}

Test(flatten, own_steps_begin_again_with_each_acquire) {
    becomes("script:\n"
            "  - acquire: ada\n"
            "  - train: {tenant: ada, micro: [0]}\n"
            "  - train: {tenant: ada, micro: [1]}\n"
            "  - release: ada\n"
            "  - acquire: bob\n"
            "  - release: [bob]\n"
            "  - acquire: ada\n"
            "  - evaluate: {tenant: ada, micro: [0]}\n"
            "  - accumulate: {tenant: ada, micro: [0]}\n"
            "  - step: {tenant: ada}\n"
            "  - evaluate: {tenant: ada, micro: [0]}",
            "acquire ada s0 o0; train ada 0 s0 o0 opens; train ada 1 s1 o1 opens; release ada s2 o0; "
            "acquire bob s2 o0; release bob s2 o0; acquire ada s2 o0; evaluate ada 0 s2 o0 opens; "
            "accumulate ada 0 s3 o0 opens; step ada s3 o0; evaluate ada 0 s4 o1 opens",
            1, 5);
}

Test(flatten, the_same_micro_batch_in_two_windows) {
    becomes("script:\n"
            "  - acquire: [ada, bob]\n"
            "  - accumulate: {tenant: ada, micro: [0]}\n"
            "  - accumulate: {tenant: bob, micro: [0]}\n"
            "  - step: {tenant: bob}\n"
            "  - accumulate: {tenant: bob, micro: [0]}\n"
            "  - step: {tenant: ada}\n"
            "  - step: {tenant: bob}",
            "acquire ada s0 o0; acquire bob s0 o0; accumulate ada 0 s1 o0 opens; accumulate bob 0 s0 o0 opens; "
            "step bob s0 o0; accumulate bob 0 s2 o1 opens; step ada s1 o0; step bob s2 o1",
            2, 3);
}

Test(flatten, slots_are_as_many_as_live_at_once) {
    becomes("script: [{acquire: [ada, bob]}, {release: ada}, {acquire: cyd}, {evaluate: {tenant: cyd, micro: [0]}}]",
            "acquire ada s0 o0; acquire bob s0 o0; release ada s0 o0; acquire cyd s0 o0; evaluate cyd 0 s0 o0 opens", 2,
            1);
    becomes("slots: {count: 5}\nscript: [{evaluate: {tenant: none, micro: [0]}}]", "evaluate none 0 s0 o0 opens", 5, 1);
    becomes("script: [{evaluate: {tenant: none, micro: [0]}}]", "evaluate none 0 s0 o0 opens", 1, 1);
}

/* Micro-batches 0 to 5, three tenants. */
Test(flatten, without_a_script_everybody_trains_on_everything) {
    struct case_list list;
    written_load(&list, "");
    const struct job *job = &list.item[0]->job;
    cr_assert_eq(job->slots, 3);
    cr_assert_eq(job->actions, 3 + 6 * 3);
    cr_assert_eq(job->steps, 18);
    for (int a = 3; a < job->actions; a++) {
        const struct action *action = &job->action[a];
        cr_expect(action->kind == ACTION_TRAIN && action->opens && action->micros == 1);
        cr_expect_eq(action->step, a - 3);
        cr_expect_eq(action->tenant, (a - 3) % 3);
        cr_expect_eq(action->own_step, (a - 3) / 3);
        cr_expect_eq(action->micro[0], (a - 3) / 3);
    }
    cases_free(&list);
}
