/* Behind comm.h: what an engine must do, and what all of them share. Private to the engines. */
#ifndef SHARDED_COMM_ENGINE_H
#define SHARDED_COMM_ENGINE_H

#include "sharded/comm.h"
#include "sharded/ledger.h"

#define COMM_MAX_GROUPS 31 /* of a case, besides the world */

struct comm_group {
    int size, self;
    int *member;      /* world ranks, ascending */
    int ordinal;      /* the how-manieth group of the case; 0 is the world */
    uint64_t members; /* hash of the ranks */
    char axes[BOARD_TEXT];
    struct comm_group *next;
};

/* An engine carries bytes between the members of a group. A call that sees the world end returns STATUS_RANK; a ledger
 * mismatch it has written to the board before. Every collective is `agree`, then the movement. */
struct comm_engine {
    /* comm->record enters the ledger. The comparison is done when the next movement returns at the latest, and before
     * any byte of it is taken. */
    enum status (*agree)(struct comm *comm, const struct comm_group *group);
    /* recv [size][bytes]; bytes 0 is a barrier of the group. */
    enum status (*all_gather)(struct comm *comm, const struct comm_group *group, const void *send, void *recv,
                              size_t bytes);
    /* Packed in group order; `largest` is the largest block between any two members. */
    enum status (*all_to_all)(struct comm *comm, const struct comm_group *group, const void *send,
                              const size_t *send_bytes, void *recv, const size_t *recv_bytes, size_t largest);
    enum status (*settle)(struct comm *comm); /* before the groups go: nobody reads this rank's memory any more */
    void (*abort)(struct comm *comm);         /* does not return */
    void (*close)(struct comm *comm);         /* the engine's state */
};

struct comm {
    int rank, world;
    const struct ops *ops;
    struct board *board;
    const struct comm_engine *engine;
    void *state; /* the engine's */
    comm_intercept intercept;
    void *intercept_context;
    int64_t ticket;   /* collectives since the world began */
    int64_t sequence; /* of this case */
    struct ledger_record record;
    struct comm_group *everyone;
    struct comm_group *groups;
    int made;
    void *scratch; /* from the table of operations, grows */
    size_t scratch_bytes;
};

enum status comm_make(struct comm **out, int rank, int world, const struct ops *ops, struct board *board,
                      const struct comm_engine *engine, void *state);
void comm_free(struct comm *comm); /* all but the engine's state */

#endif
