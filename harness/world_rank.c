#include "harness/world_private.h"

#include <stdio.h>
#include <unistd.h>

#define IDLE_MS 200 /* how often an idle rank looks for its parent */

extern void __gcov_dump(void) __attribute__((weak));

void world_leave(int code) {
    if (__gcov_dump != NULL)
        __gcov_dump();
    _exit(code);
}

void world_fault_write(struct board *board, int rank, const char *note) {
    struct board_fault fault = {.kind = FAULT_STATUS, .rank = rank, .ranks = 1, .deviating = {rank}};
    snprintf(fault.text, sizeof fault.text, "%s", note);
    board_fault_write(board, &fault);
}

enum status world_arena(struct arena **out, int ranks) {
    const size_t most = (size_t)64 << 30, least = (size_t)64 << 20;
    enum status status = STATUS_MEMORY;
    for (size_t bytes = most; bytes >= least && status != STATUS_OK; bytes /= 2)
        status = arena_make(out, bytes, ranks);
    if (status == STATUS_OK)
        status_clear(); /* the notes of the larger tries */
    return status;
}

struct sink {
    struct arena *arena;
    int rank;
};

static enum status record(void *sink, const struct point *point, const struct tensor *data) {
    const struct sink *to = sink;
    char name[POINT_NAME_MAX];
    return arena_record(to->arena, to->rank, point_name(name, point), data);
}

/* The next case + 1, or -1: leave. `done` is read before `go`: the harness lowers them in the other order. */
static int wait_go(const struct world_rank *rank) {
    struct board *board = comm_board(rank->comm);
    for (;;) {
        int64_t done = atomic_load(&board->rank[comm_rank(rank->comm)].done);
        int go = atomic_load(&board->go);
        if (go < 0 || getppid() != rank->parent)
            return -1;
        if (go > 0 && go != done)
            return go;
        board_sleep(&board->go, go, IDLE_MS);
    }
}

static enum status run_case(const struct world_rank *rank, int index) {
    struct sink sink = {.arena = rank->arena, .rank = rank->arena_rank};
    TRY(rank->run(rank->context, index, rank->comm, record, &sink));
    comm_set_intercept(rank->comm, NULL, NULL);
    /* all ranks end the case together: one that left the last collective out, or did one too many, is seen here */
    struct comm_call end = {.site = COMM_SITE, .what = "the end of the case", .dtype = DTYPE_I64};
    TRY(comm_barrier(rank->comm, &end));
    comm_groups_free(rank->comm);
    return rank->finish == NULL ? STATUS_OK : rank->finish(rank->finish_context, rank->arena, rank->comm);
}

void world_serve(const struct world_rank *rank) {
    struct board *board = comm_board(rank->comm);
    int go;
    while ((go = wait_go(rank)) > 0) {
        if (run_case(rank, go - 1) != STATUS_OK)
            comm_abort(rank->comm);
        atomic_store(&board->rank[comm_rank(rank->comm)].done, go);
        atomic_fetch_add(&board->finished, 1);
        board_wake(&board->finished);
    }
}
