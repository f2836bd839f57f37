/* The ledger: what each rank is about to do, compared before it is done.
 *
 * The n-th collective (ticket) of every rank of a world is the same operation on the same thing in the same type over
 * the same mesh axes; within one group the members and the count are the same too. Both engines bring the records of
 * one ticket together in their own way; who is wrong is decided here. */
#ifndef SHARDED_LEDGER_H
#define SHARDED_LEDGER_H

#include "sharded/board.h"

struct ledger_record {
    struct ledger_entry entry;
    uint64_t common; /* hash of operation, dtype, axes and what: equal over the world */
    uint64_t whole;  /* that with count and members: equal over the group */
    int64_t leader;  /* the group's lowest rank */
};

/* Fills the hashes from the entry; `members` is the hash of the group's ranks. */
void ledger_seal(struct ledger_record *record, uint64_t members);
uint64_t ledger_hash(uint64_t hash, const void *data, size_t bytes); /* FNV-1a; start from LEDGER_HASH */
#define LEDGER_HASH UINT64_C(0xcbf29ce484222325)

/* The records of one ticket, [world]; known[r] is false where rank r has not come that far. Whether those known agree.
 */
bool ledger_agrees(const struct ledger_record *records, const bool *known, int world);
/* Decides who deviates and writes the sentence: the minority of the world, or of the group (where a count that more
 * ranks of the world have wins); a tie goes to the side of the lowest rank. `self` and `other` (two ranks that saw each
 * other differ) are taken where the records alone show nothing. */
void ledger_judge(const struct ledger_record *records, const bool *known, int world, int self, int other,
                  struct board_fault *out);

/* All-to-all: row i of `splits` holds [2][size]: what member i sends to each, what it expects from each. True if all
 * fit; else `out` names the member with most misfits (a tie: the sender of the first). */
bool ledger_splits_fit(const int64_t *splits, const int *member, int size, const struct ledger_entry *entry,
                       struct board_fault *out);

/* "rank 3", "ranks 0-2, 5"; returns `out`. `in[r]` says whether rank r is listed. */
char *ledger_ranks_text(char *out, size_t size, const bool *in, int world);

#endif
