/* One rank's handle on its world: the small communicator interface that the whole subject uses.
 *
 * Engines (local: shared memory; mpi: OpenMPI; later nccl) carry bytes; sums are made here, in rank order, by the table
 * of operations, so every engine gives the same bits. Every call is entered in the ledger; in checked mode the ranks
 * first compare that small record (`what` too, `site` not), and a mismatch of operation, order, count, dtype, group or
 * split is written to the board with the ranks at fault before anyone blocks. The program is SPMD: the n-th collective
 * of every rank is the same operation over the same mesh axes, whatever the members.
 *
 * A rank's fault ends its world at once: a function that returns a status other than OK has already written the fault;
 * the caller relays it up and the rank ends (comm_abort). Nobody returns past a collective in which others wait. */
#ifndef SHARDED_COMM_H
#define SHARDED_COMM_H

#include "core/tensor.h"
#include "sharded/board.h"
#include "sharded/ops.h"

struct comm;
struct comm_group; /* some ranks of the world, ascending; freed with the comm's case (comm_groups_free) */

/* Called before each collective; true: this rank leaves the collective out (a planted fault). `group` is the axes'
 * text. */
typedef bool (*comm_intercept)(void *context, enum collective operation, const char *group, const char *what, int rank);

int comm_rank(const struct comm *comm);
int comm_world(const struct comm *comm);
const struct ops *comm_ops(const struct comm *comm);
void comm_set_intercept(struct comm *comm, comm_intercept intercept, void *context);

/* Collective over the world (every rank calls with its own group, in the same order): the ranks `members` (ascending,
 * self among them). `axes` names it in the ledger ("ep", "fsdp", "ep*fsdp"). */
enum status comm_group_make(struct comm *comm, const int *members, int size, const char *axes, struct comm_group **out);
int comm_group_size(const struct comm_group *group);
int comm_group_self(const struct comm_group *group);                 /* own position */
int comm_group_member(const struct comm_group *group, int position); /* world rank */
void comm_groups_free(struct comm *comm); /* at the end of a case; also sets the ledger's sequence back to 0 */

/* Where a call stands in the source, and what it moves. */
struct comm_call {
    const char *site; /* COMM_SITE */
    const char *what;
    enum dtype dtype;
};
#define COMM_TEXT_(x) #x
#define COMM_TEXT(x) COMM_TEXT_(x)
#define COMM_SITE __FILE__ ":" COMM_TEXT(__LINE__)

/* Collective. recv [size*count] in group order; send [count]. */
enum status comm_all_gather(struct comm *comm, struct comm_group *group, const struct comm_call *call, const void *send,
                            void *recv, int64_t count);
/* Collective. send [size*count]: block j goes to member j; recv [count] = sum of the members' blocks in group order. */
enum status comm_reduce_scatter(struct comm *comm, struct comm_group *group, const struct comm_call *call,
                                const void *send, void *recv, int64_t count);
/* Collective. data [count] becomes the sum over the group in group order, the same bits everywhere. F64, F32 or I64. */
enum status comm_all_reduce(struct comm *comm, struct comm_group *group, const struct comm_call *call, void *data,
                            int64_t count);
/* Collective. send_counts[j] elements go to member j, recv_counts[j] come from it; buffers packed in group order. */
enum status comm_all_to_all(struct comm *comm, struct comm_group *group, const struct comm_call *call, const void *send,
                            const int64_t *send_counts, void *recv, const int64_t *recv_counts);
/* Collective over the world. */
enum status comm_barrier(struct comm *comm, const struct comm_call *call);

/* Writes FAULT_STATUS with the thread's note if no fault stands yet, and ends this rank's process. Does not return. */
_Noreturn void comm_abort(struct comm *comm);

/* ---- engines: how a comm comes to be. */

/* local: all memory that ranks share (board, mailboxes), one mapping; made before the ranks are forked or started as
 * threads. `bytes` for `world` ranks; init once; attach in each rank. The comm is the rank's; comm_close frees it. */
size_t comm_local_bytes(int world);
void comm_local_init(void *memory, int world);
struct board *comm_local_board(void *memory);
enum status comm_local_attach(void *memory, int rank, const struct ops *ops, struct comm **out);
/* mpi: MPI_Init, the world is MPI_COMM_WORLD; `board` is the mapped file of the world's folder (one machine). */
enum status comm_mpi_open(struct board *(*map_board)(void *context, int world), void *context, const struct ops *ops,
                          struct comm **out);
struct board *comm_board(struct comm *comm);
void comm_close(struct comm *comm); /* mpi: MPI_Finalize */

#endif
