/* The local engine's shared memory. Private to comm_local.c.
 *
 * A rank publishes its ledger record under its ticket, puts outgoing bytes into one of its buffers, and passes the
 * group's gate; behind the gate the records of all members lie there to be compared, and then their bytes to be taken.
 * A buffer is filled again only when all its readers have finished the round in which it was filled. */
#ifndef SHARDED_COMM_LOCAL_H
#define SHARDED_COMM_LOCAL_H

#include "sharded/comm_engine.h"

#define LOCAL_STAGE ((size_t)256 << 10) /* bytes of a buffer; longer messages take several rounds */
#define LOCAL_BUFFERS 4                 /* two rounds of this ticket, two of the one before */
#define LOCAL_ROUNDS (INT64_C(1) << 24) /* room for rounds in a mark */
#define LOCAL_RING 64                   /* records that a rank keeps: how far it can run ahead and still be compared */
#define LOCAL_GATES (COMM_MAX_GROUPS + 1)
#define LOCAL_COLLECT_MS 200 /* how long a mismatch waits for the records of the other ranks */

_Static_assert(sizeof(struct ledger_record) % sizeof(uint64_t) == 0, "records are copied by words");

struct local_header {
    int world;
};

struct local_rank {
    _Alignas(64) _Atomic int64_t published; /* ticket of the newest record */
    _Atomic int64_t finished;               /* ticket * LOCAL_ROUNDS + rounds it has read of it */
    struct ledger_record ring[LOCAL_RING];  /* record of ticket t at t % LOCAL_RING */
};

struct local_gate { /* of a group: at [lowest member][ordinal] */
    _Alignas(64) _Atomic int arrived;
    _Atomic int turn; /* futex word: bumped when all have arrived */
};

#endif
