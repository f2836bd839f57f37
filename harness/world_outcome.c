#include "harness/world_private.h"

#include "sharded/ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* " in all_gather(...) at ... (its collective 41)": where a rank is, or was last. */
static void where(const struct world *world, int rank, char *out, size_t size) {
    struct ledger_entry entry;
    char call[320];
    board_entry_read(world->board, rank, &entry);
    board_entry_text(call, sizeof call, &entry);
    if (entry.operation == COLLECTIVE_NONE)
        snprintf(out, size, " before its first collective");
    else if (atomic_load(&world->board->rank[rank].inside))
        snprintf(out, size, " in %s (its collective %" PRId64 ")", call, entry.sequence);
    else
        snprintf(out, size, " after %s (its collective %" PRId64 ")", call, entry.sequence);
}

void outcome_fault(const struct world *world, struct outcome *out) {
    const struct board_fault *fault = &world->board->fault;
    out->fault.kind = fault->kind;
    out->fault.rank = fault->rank;
    out->fault.ranks = fault->ranks;
    memcpy(out->fault.deviating, fault->deviating, sizeof out->fault.deviating);
    out->fault.entry = fault->entry;
    out->fault.expected = fault->expected;
    memcpy(out->fault.text, fault->text, sizeof out->fault.text);
    atomic_store(&out->fault.state, 2);
    if (fault->kind == FAULT_ORDER) {
        out->kind = OUTCOME_ORDER;
        snprintf(out->text, sizeof out->text, "%s", fault->text);
        return;
    }
    char place[400];
    out->kind = OUTCOME_CRASH;
    out->rank = fault->rank;
    where(world, fault->rank, place, sizeof place);
    snprintf(out->text, sizeof out->text, "rank %d failed%s: %s", fault->rank, place, fault->text);
}

static void manner(const struct death *death, char *out, size_t size) {
    if (!death->known)
        snprintf(out, size, "died");
    else if (death->signal != 0)
        snprintf(out, size, "was killed by signal %d (SIG%s)", death->signal, sigabbrev_np(death->signal));
    else
        snprintf(out, size, "exited with code %d", death->code);
}

void outcome_crash(const struct world *world, const struct death *death, struct outcome *out) {
    char how[64], place[400];
    manner(death, how, sizeof how);
    out->kind = OUTCOME_CRASH;
    out->rank = death->rank;
    out->fault = (struct board_fault){.kind = FAULT_CRASH, .rank = death->rank};
    if (death->rank < 0) {
        where(world, 0, place, sizeof place);
        snprintf(out->text, sizeof out->text, "the process of all %d ranks %s; rank 0 was%s", world->spec.size, how,
                 place);
    } else {
        where(world, death->rank, place, sizeof place);
        board_entry_read(world->board, death->rank, &out->fault.entry);
        out->fault.ranks = 1;
        out->fault.deviating[0] = death->rank;
        snprintf(out->text, sizeof out->text, "rank %d %s%s", death->rank, how, place);
    }
    snprintf(out->fault.text, sizeof out->fault.text, "%.*s", (int)sizeof out->fault.text - 1, out->text);
}

/* Who holds the others up: stopped processes; else ranks at work outside a collective; if all are inside, those with
 * the lowest collective. */
static int hold_up(const struct world *world, const struct ledger_entry *stands, bool *holds, bool *waits) {
    const struct board *board = world->board;
    int64_t go = atomic_load(&board->go), lowest = INT64_MAX;
    int first = -1;
    bool outside = false;
    for (int r = 0; r < board->world; r++) {
        bool busy = atomic_load(&board->rank[r].done) != go;
        waits[r] = busy && atomic_load(&board->rank[r].inside);
        if (busy && process_stopped(atomic_load(&board->rank[r].pid)))
            waits[r] = false;
        holds[r] = busy && !waits[r];
        outside |= holds[r];
        if (waits[r] && stands[r].sequence < lowest)
            lowest = stands[r].sequence;
    }
    for (int r = board->world - 1; r >= 0; r--) {
        if (!outside && waits[r] && stands[r].sequence == lowest) {
            holds[r] = true;
            waits[r] = false;
        }
        first = holds[r] ? r : first;
    }
    return first;
}

static void hang_text(const struct world *world, double limit, const bool *holds, const bool *waits,
                      struct outcome *out) {
    char who[160], others[160], place[400], call[320];
    int waiting = -1;
    for (int r = world->spec.size - 1; r >= 0; r--)
        waiting = waits[r] ? r : waiting;
    ledger_ranks_text(who, sizeof who, holds, world->spec.size);
    where(world, out->rank, place, sizeof place);
    size_t used = (size_t)snprintf(out->text, sizeof out->text, "the case did not end within %g s: %s hang%s%s", limit,
                                   who, strchr(who, 's') == NULL ? "s" : "", place);
    if (waiting < 0 || used >= sizeof out->text)
        return;
    ledger_ranks_text(others, sizeof others, waits, world->spec.size);
    board_entry_text(call, sizeof call, &out->stands[waiting]);
    snprintf(out->text + used, sizeof out->text - used, "; %s wait%s in %s (collective %" PRId64 ")", others,
             strchr(others, 's') == NULL ? "s" : "", call, out->stands[waiting].sequence);
}

void outcome_hang(const struct world *world, double limit, struct outcome *out) {
    int size = world->spec.size;
    out->kind = OUTCOME_HANG;
    out->stands = calloc((size_t)size, sizeof *out->stands);
    bool *flags = calloc((size_t)size * 2, sizeof *flags);
    if (out->stands == NULL || flags == NULL) {
        snprintf(out->text, sizeof out->text, "the case did not end within %g s", limit);
        free(flags);
        return;
    }
    out->ranks = size;
    for (int r = 0; r < size; r++)
        board_entry_read(world->board, r, &out->stands[r]);
    out->rank = hold_up(world, out->stands, flags, flags + size);
    if (out->rank >= 0)
        hang_text(world, limit, flags, flags + size, out);
    else
        snprintf(out->text, sizeof out->text, "the case ended only at its limit of %g s", limit);
    free(flags);
}
