#include "sharded/comm_engine.h"

#include <mpi.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Records come together by an MPI_Allgather over the world before every collective, so that it matches even where the
 * collectives themselves would not; bytes move by point-to-point messages between the members of the group. */
struct mpi {
    struct ledger_record *records; /* [world] */
    bool *known;                   /* [world], all true */
    MPI_Request *requests;         /* grows */
    int room;
};

#define MPI_PIECE ((size_t)1 << 30) /* a message's count is an int */

static enum status check(int code, const char *call) {
    if (code == MPI_SUCCESS)
        return STATUS_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return status_fail(STATUS_RANK, "%s: %s", call, text);
}

static int find_deviator(const struct comm *comm, const struct comm_group *group) {
    const struct mpi *mpi = comm->state;
    for (int i = 0; i < group->size; i++)
        if (mpi->records[group->member[i]].whole != comm->record.whole)
            return group->member[i];
    return -1;
}

static enum status mpi_agree(struct comm *comm, const struct comm_group *group) {
    struct mpi *mpi = comm->state;
    int bytes = (int)sizeof comm->record;
    TRY(check(MPI_Allgather(&comm->record, bytes, MPI_BYTE, mpi->records, bytes, MPI_BYTE, MPI_COMM_WORLD),
              "MPI_Allgather"));
    int other = find_deviator(comm, group);
    if (other < 0 && ledger_agrees(mpi->records, mpi->known, comm->world))
        return STATUS_OK;
    struct board_fault fault;
    ledger_judge(mpi->records, mpi->known, comm->world, comm->rank, other < 0 ? comm->rank : other, &fault);
    board_fault_write(comm->board, &fault);
    return status_fail(STATUS_RANK, "%s", fault.text);
}

/* ---- movement: every call posts all its receives, then all its sends, then waits */

struct posting {
    struct mpi *mpi;
    int count;
};

static enum status post_room(struct posting *posting) {
    struct mpi *mpi = posting->mpi;
    if (posting->count < mpi->room)
        return STATUS_OK;
    int room = mpi->room == 0 ? 64 : 2 * mpi->room;
    MPI_Request *more = realloc(mpi->requests, (size_t)room * sizeof *more);
    if (more == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for %d messages", room);
    mpi->requests = more;
    mpi->room = room;
    return STATUS_OK;
}

static enum status post(struct posting *posting, void *data, size_t bytes, int rank, bool send) {
    for (size_t at = 0; at < bytes; at += MPI_PIECE) {
        size_t piece = bytes - at < MPI_PIECE ? bytes - at : MPI_PIECE;
        TRY(post_room(posting));
        MPI_Request *request = &posting->mpi->requests[posting->count];
        int code = send ? MPI_Isend((char *)data + at, (int)piece, MPI_BYTE, rank, 0, MPI_COMM_WORLD, request)
                        : MPI_Irecv((char *)data + at, (int)piece, MPI_BYTE, rank, 0, MPI_COMM_WORLD, request);
        TRY(check(code, send ? "MPI_Isend" : "MPI_Irecv"));
        posting->count++;
    }
    return STATUS_OK;
}

static enum status post_wait(struct posting *posting) {
    return check(MPI_Waitall(posting->count, posting->mpi->requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
}

static enum status mpi_all_gather(struct comm *comm, const struct comm_group *group, const void *send, void *recv,
                                  size_t bytes) {
    struct posting posting = {.mpi = comm->state};
    if (bytes == 0)
        return STATUS_OK; /* the ledger's exchange was a barrier */
    for (int i = 0; i < group->size; i++)
        if (i != group->self)
            TRY(post(&posting, (char *)recv + (size_t)i * bytes, bytes, group->member[i], false));
    for (int k = 1; k < group->size; k++) /* each begins with its neighbour */
        TRY(post(&posting, (void *)(uintptr_t)send, bytes, group->member[(group->self + k) % group->size], true));
    memmove((char *)recv + (size_t)group->self * bytes, send, bytes);
    return post_wait(&posting);
}

static enum status mpi_all_to_all(struct comm *comm, const struct comm_group *group, const void *send,
                                  const size_t *send_bytes, void *recv, const size_t *recv_bytes, size_t largest) {
    (void)largest;
    struct posting posting = {.mpi = comm->state};
    const char *own = NULL;
    char *to = recv, *own_to = NULL;
    for (int i = 0; i < group->size; i++) {
        if (i == group->self)
            own_to = to;
        else
            TRY(post(&posting, to, recv_bytes[i], group->member[i], false));
        to += recv_bytes[i];
    }
    const char *from = send;
    for (int j = 0; j < group->size; j++) {
        if (j == group->self)
            own = from;
        else
            TRY(post(&posting, (void *)(uintptr_t)from, send_bytes[j], group->member[j], true));
        from += send_bytes[j];
    }
    if (send_bytes[group->self] > 0)
        memmove(own_to, own, send_bytes[group->self]);
    return post_wait(&posting);
}

static enum status mpi_settle(struct comm *comm) {
    (void)comm;
    return STATUS_OK;
}

static _Noreturn void mpi_abort(struct comm *comm) {
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, 3);
    _Exit(3);
}

static void mpi_free(struct mpi *mpi) {
    if (mpi == NULL)
        return;
    free(mpi->records);
    free(mpi->known);
    free(mpi->requests);
    free(mpi);
}

static void mpi_close(struct comm *comm) {
    mpi_free(comm->state);
    MPI_Finalize();
}

static const struct comm_engine mpi_engine = {
    .agree = mpi_agree,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .settle = mpi_settle,
    .abort = mpi_abort,
    .close = mpi_close,
};

static enum status mpi_make(struct mpi **out, int world) {
    struct mpi *mpi = calloc(1, sizeof *mpi);
    if (mpi != NULL) {
        mpi->records = calloc((size_t)world, sizeof *mpi->records);
        mpi->known = malloc((size_t)world * sizeof *mpi->known);
    }
    if (mpi == NULL || mpi->records == NULL || mpi->known == NULL) {
        mpi_free(mpi);
        return status_fail(STATUS_MEMORY, "out of memory for an MPI world of %d ranks", world);
    }
    for (int r = 0; r < world; r++)
        mpi->known[r] = true;
    *out = mpi;
    return STATUS_OK;
}

enum status comm_mpi_open(struct board *(*map_board)(void *context, int world), void *context, const struct ops *ops,
                          struct comm **out) {
    int rank, world;
    TRY(check(MPI_Init(NULL, NULL), "MPI_Init"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank"));
    TRY(check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size"));
    struct board *board = map_board(context, world);
    if (board == NULL)
        return status_fail(STATUS_RANK, "rank %d of %d cannot map its world's board", rank, world);
    struct mpi *mpi = NULL;
    TRY(mpi_make(&mpi, world));
    enum status status = comm_make(out, rank, world, ops, board, &mpi_engine, mpi);
    if (status != STATUS_OK)
        mpi_free(mpi);
    return status;
}
