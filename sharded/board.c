#include "sharded/board.h"

#include "core/tensor.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct ledger_entry) % sizeof(uint64_t) == 0, "entries are copied by words");
_Static_assert(sizeof(_Atomic int) == sizeof(int), "a futex word is a plain int");

const char *collective_name(enum collective collective) {
    static const char *const names[] = {
        [COLLECTIVE_NONE] = "none",
        [COLLECTIVE_ALL_GATHER] = "all_gather",
        [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
        [COLLECTIVE_ALL_REDUCE] = "all_reduce",
        [COLLECTIVE_ALL_TO_ALL] = "all_to_all",
        [COLLECTIVE_BARRIER] = "barrier",
    };
    return (size_t)collective < sizeof names / sizeof *names ? names[collective] : "unknown";
}

size_t board_bytes(int world) {
    return sizeof(struct board) + (size_t)world * sizeof(struct board_rank);
}

void board_init(struct board *board, int world) {
    board->world = world;
}

void board_fault_write(struct board *board, const struct board_fault *fault) {
    int free_state = 0;
    if (!atomic_compare_exchange_strong(&board->fault.state, &free_state, 1))
        return;
    struct board_fault *to = &board->fault;
    to->kind = fault->kind;
    to->rank = fault->rank;
    to->ranks = fault->ranks;
    memcpy(to->deviating, fault->deviating, sizeof to->deviating);
    to->entry = fault->entry;
    to->expected = fault->expected;
    memcpy(to->text, fault->text, sizeof to->text);
    atomic_store(&to->state, 2);
    atomic_fetch_add(&board->finished, 1);
    board_wake(&board->finished);
}

/* The word copies below are release stores and acquire loads, so that the counter around them orders them without a
 * fence (thread sanitizer knows none). */
typedef uint64_t __attribute__((may_alias)) shared_word;

void board_words_store(void *to, const void *from, size_t bytes) {
    shared_word *target = to;
    const shared_word *source = from;
    for (size_t i = 0; i < bytes / sizeof *target; i++)
        __atomic_store_n(&target[i], source[i], __ATOMIC_RELEASE);
}

void board_words_load(void *to, const void *from, size_t bytes) {
    shared_word *target = to;
    const shared_word *source = from;
    for (size_t i = 0; i < bytes / sizeof *target; i++)
        target[i] = __atomic_load_n(&source[i], __ATOMIC_ACQUIRE);
}

void board_entry_write(struct board *board, int rank, const struct ledger_entry *entry) {
    struct board_rank *self = &board->rank[rank];
    int64_t version = atomic_load(&self->publish);
    atomic_store(&self->publish, version + 1);
    board_words_store(&self->entry, entry, sizeof *entry);
    atomic_store(&self->publish, version + 2);
}

void board_entry_read(const struct board *board, int rank, struct ledger_entry *out) {
    const struct board_rank *other = &board->rank[rank];
    /* a rank that died while it wrote leaves an odd version: take what is there after a while */
    for (int tries = 0; tries < 10000; tries++) {
        int64_t before = atomic_load(&other->publish);
        board_words_load(out, &other->entry, sizeof *out);
        if (before % 2 == 0 && atomic_load(&other->publish) == before)
            return;
    }
    out->group[BOARD_TEXT - 1] = out->site[BOARD_TEXT - 1] = out->what[BOARD_TEXT - 1] = '\0';
}

char *board_entry_text(char *out, size_t size, const struct ledger_entry *entry) {
    if (entry->operation == COLLECTIVE_NONE)
        snprintf(out, size, "no collective");
    else if (entry->operation == COLLECTIVE_BARRIER)
        snprintf(out, size, "barrier(%s, %s) at %s", entry->group, entry->what, entry->site);
    else
        snprintf(out, size, "%s(%s, %s, %" PRId64 " x %s) at %s", collective_name(entry->operation), entry->group,
                 entry->what, entry->count, dtype_word((enum dtype)entry->dtype), entry->site);
    return out;
}

void board_sleep(_Atomic int *word, int seen, int milliseconds) {
    struct timespec wait = {.tv_sec = milliseconds / 1000, .tv_nsec = (long)(milliseconds % 1000) * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &wait, NULL, 0);
}

void board_wake(_Atomic int *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
