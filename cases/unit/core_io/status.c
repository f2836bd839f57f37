#include "core/status.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <string.h>

static enum status relay(enum status code) {
    TRY(code);
    return STATUS_OK;
}

static enum status cleaned(enum status code, int *cleanings) {
    enum status status = STATUS_OK;
    TRY_DONE(code);
done:
    ++*cleanings;
    return status;
}

Test(core_status, the_first_note_wins) {
    cr_assert_str_eq(status_note(), "");
    cr_assert_eq(status_fail(STATUS_INPUT, "a.yaml:%d: %s", 3, "origin"), STATUS_INPUT);
    cr_assert_eq(status_fail(STATUS_IO, "later"), STATUS_IO);
    cr_assert_str_eq(status_note(), "a.yaml:3: origin");
    status_clear();
    cr_assert_str_eq(status_note(), "");
    status_fail(STATUS_IO, "later");
    cr_assert_str_eq(status_note(), "later");
}

Test(core_status, macros_relay_the_code_and_clean_up) {
    int cleanings = 0;
    cr_assert_eq(relay(STATUS_RANK), STATUS_RANK);
    cr_assert_eq(relay(STATUS_OK), STATUS_OK);
    cr_assert_eq(cleaned(STATUS_MEMORY, &cleanings), STATUS_MEMORY);
    cr_assert_eq(cleaned(STATUS_OK, &cleanings), STATUS_OK);
    cr_assert_eq(cleanings, 2);
}

static void *fail_elsewhere(void *seen) {
    *(int *)seen = strlen(status_note()) > 0;
    status_fail(STATUS_IO, "of the other thread");
    return NULL;
}

Test(core_status, a_note_belongs_to_its_thread) {
    pthread_t other;
    int seen = -1;
    status_fail(STATUS_INPUT, "mine");
    cr_assert_eq(pthread_create(&other, NULL, fail_elsewhere, &seen), 0);
    pthread_join(other, NULL);
    cr_assert_eq(seen, 0);
    cr_assert_str_eq(status_note(), "mine");
}

Test(core_status, a_long_note_is_cut_not_overrun) {
    static char text[20000];
    memset(text, 'x', sizeof text - 1);
    status_fail(STATUS_INPUT, "%s", text);
    cr_assert_gt(strlen(status_note()), 1000);
    cr_assert_lt(strlen(status_note()), 19999);
}
