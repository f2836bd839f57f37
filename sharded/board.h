/* The board: one page of shared memory per world where every rank shows where it stands.
 *
 * Ranks write their own entry; the harness and (on the local engine) their peers read it. It lies in a shared anonymous
 * mapping (local) or in a mapped file of the world's folder (mpi), so that both engines are supervised alike: which
 * case, which collective, finished or not, and the first fault. */
#ifndef SHARDED_BOARD_H
#define SHARDED_BOARD_H

#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_TEXT 96

enum collective {
    COLLECTIVE_NONE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_BARRIER
};
const char *collective_name(enum collective collective); /* "all_gather", ... */

/* One ledger entry: what a rank is about to do together with its group. */
struct ledger_entry {
    int64_t sequence; /* the rank's collectives of this case, from 1 */
    enum collective operation;
    int dtype;              /* enum dtype */
    int64_t count;          /* elements per member (all_to_all: not compared, the splits are) */
    char group[BOARD_TEXT]; /* mesh axes of the group: "ep", "fsdp", "ep*fsdp" */
    char site[BOARD_TEXT];  /* call site: "sharded/fsdp.c:120" */
    char what[BOARD_TEXT];  /* the tensor or unit it moves: "model.layers.0" */
};

enum fault_kind {
    FAULT_NONE,
    FAULT_ORDER,
    FAULT_STATUS,
    FAULT_CRASH
};

struct board_fault {   /* the first fault of a world; written once (compare and swap on `state`) */
    _Atomic int state; /* 0 free, 1 being written, 2 complete */
    enum fault_kind kind;
    int rank;  /* who deviates (or who failed) */
    int ranks; /* how many deviate; their numbers: */
    int deviating[64];
    struct ledger_entry entry;    /* the deviating rank's call */
    struct ledger_entry expected; /* what the others do */
    char text[512];               /* one sentence */
};

struct board_rank {
    _Atomic int pid;
    _Atomic int ready;         /* its comm is open: it can run cases */
    _Atomic int inside;        /* 1: it is in the collective of `entry`; 0: that was its last */
    _Atomic int told;          /* 1: it was told to end (SIGTERM): its death is a consequence */
    _Atomic int64_t done;      /* cases finished, by number + 1 */
    _Atomic int64_t publish;   /* seqlock of `entry`: odd while it is written */
    struct ledger_entry entry; /* where it stands */
};

struct board {
    int world;
    _Atomic int go;       /* case number + 1 that may run; -1: leave */
    _Atomic int finished; /* futex word: bumped whenever a rank finishes a case or a fault is written */
    struct board_fault fault;
    struct board_rank rank[]; /* [world] */
};

size_t board_bytes(int world);
void board_init(struct board *board, int world); /* memory is zero */
/* Ends the world on the first fault: writes it (the first wins) and wakes the harness. */
void board_fault_write(struct board *board, const struct board_fault *fault);
/* Copies a rank's entry consistently. */
void board_entry_read(const struct board *board, int rank, struct ledger_entry *out);
void board_entry_write(struct board *board, int rank, const struct ledger_entry *entry); /* by the rank itself */
/* "all_gather(fsdp, model.layers.0, 120 x float64) at sharded/fsdp.c:88"; returns `out`. */
char *board_entry_text(char *out, size_t size, const struct ledger_entry *entry);

/* Sleeps while *word == seen, at most `milliseconds`; wakes early on a signal. */
void board_sleep(_Atomic int *word, int seen, int milliseconds);
void board_wake(_Atomic int *word); /* all sleepers */
/* Copies 8-byte words that another rank may write or read at the same moment (checked by the caller afterwards). */
void board_words_store(void *to, const void *from, size_t bytes);
void board_words_load(void *to, const void *from, size_t bytes);

#endif
