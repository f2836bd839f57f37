#include "sharded/comm_local.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the shared mapping: header, board, ranks, gates, buffers */

static size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

struct plan {
    size_t board, ranks, gates, buffers, bytes;
};

static struct plan plan_make(int world) {
    struct plan plan;
    size_t n = (size_t)world;
    plan.board = round_up(sizeof(struct local_header), 64);
    plan.ranks = round_up(plan.board + board_bytes(world), 64);
    plan.gates = round_up(plan.ranks + n * sizeof(struct local_rank), 64);
    plan.buffers = round_up(plan.gates + n * LOCAL_GATES * sizeof(struct local_gate), 4096);
    plan.bytes = plan.buffers + n * LOCAL_BUFFERS * LOCAL_STAGE;
    return plan;
}

size_t comm_local_bytes(int world) {
    return plan_make(world).bytes;
}

struct board *comm_local_board(void *memory) {
    return (void *)((char *)memory + round_up(sizeof(struct local_header), 64));
}

void comm_local_init(void *memory, int world) {
    struct local_header *header = memory;
    header->world = world;
    board_init(comm_local_board(memory), world);
}

/* ---- one rank's side of it */

struct use { /* who may still read a buffer of this rank */
    const struct comm_group *group;
    int64_t mark;
};

struct local {
    struct board *board;
    struct local_rank *ranks;
    struct local_gate *gates;
    char *buffers;
    pid_t parent;
    int round;    /* of this ticket's movement */
    bool checked; /* this ticket's records were compared */
    int spins;    /* looks at the gate before sleeping */
    int yields;
    struct use use[LOCAL_BUFFERS];
};

static int64_t mark_of(const struct comm *comm, int round) {
    return comm->ticket * LOCAL_ROUNDS + round + 1;
}

/* STATUS_RANK once the world has ended. */
static enum status world_stands(const struct comm *comm) {
    const struct local *local = comm->state;
    if (atomic_load(&local->board->fault.state) != 0)
        return status_fail(STATUS_RANK, "rank %d left: its world has a fault", comm->rank);
    if (getppid() != local->parent)
        return status_fail(STATUS_RANK, "rank %d left: the harness is gone", comm->rank);
    return STATUS_OK;
}

static void pause_briefly(int looks) {
    if (looks < 100)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* ---- the ledger */

static bool record_known(const struct local *local, int rank, int64_t ticket) {
    int64_t published = atomic_load(&local->ranks[rank].published);
    return published >= ticket && published - ticket <= LOCAL_RING - 2;
}

/* False if the rank has not come that far, or is so far ahead that its record is gone. */
static bool record_load(const struct local *local, int rank, int64_t ticket, struct ledger_record *out) {
    if (!record_known(local, rank, ticket))
        return false;
    board_words_load(out, &local->ranks[rank].ring[ticket % LOCAL_RING], sizeof *out);
    return record_known(local, rank, ticket);
}

static bool whole_load(const struct local *local, int rank, int64_t ticket, uint64_t *out) {
    if (!record_known(local, rank, ticket))
        return false;
    board_words_load(out, &local->ranks[rank].ring[ticket % LOCAL_RING].whole, sizeof *out);
    return record_known(local, rank, ticket);
}

/* A member that does something else at this ticket; -1: none seen. `passed`: all members went through the gate, so one
 * that has not come to this ticket is at another (one that is far ahead has made this comparison itself). */
static int find_deviator(const struct comm *comm, const struct comm_group *group, bool passed) {
    const struct local *local = comm->state;
    for (int i = 0; i < group->size; i++) {
        int rank = group->member[i];
        uint64_t whole;
        if (rank == comm->rank)
            continue;
        if (whole_load(local, rank, comm->ticket, &whole)) {
            if (whole != comm->record.whole)
                return rank;
            continue;
        }
        bool behind = atomic_load(&local->ranks[rank].published) < comm->ticket;
        if (behind == passed)
            return rank;
    }
    return -1;
}

static int load_ticket(const struct comm *comm, int64_t ticket, struct ledger_record *records, bool *known) {
    int count = 0;
    for (int r = 0; r < comm->world; r++)
        count += known[r] = record_load(comm->state, r, ticket, &records[r]);
    return count;
}

/* The first ticket on which the world's records part, looking again until all ranks have come to it or time is up. */
static bool first_parting(const struct comm *comm, struct ledger_record *records, bool *known) {
    const struct local *local = comm->state;
    bool found = false;
    for (int looks = 0; looks < LOCAL_COLLECT_MS; looks++) {
        int64_t ticket = comm->ticket > LOCAL_RING - 2 ? comm->ticket - LOCAL_RING + 2 : 1;
        int count = 0;
        for (found = false; !found && ticket <= comm->ticket; ticket++) {
            count = load_ticket(comm, ticket, records, known);
            found = !ledger_agrees(records, known, comm->world);
        }
        if ((found && count == comm->world) || atomic_load(&local->board->fault.state) != 0)
            return found;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return found;
}

static enum status mismatch(struct comm *comm, int other) {
    const struct local *local = comm->state;
    struct board_fault fault;
    struct ledger_record *records = calloc((size_t)comm->world, sizeof *records);
    bool *known = calloc((size_t)comm->world, sizeof *known);
    if (records == NULL || known == NULL) {
        free(records);
        free(known);
        return status_fail(STATUS_MEMORY,
                           "ranks %d and %d differ in their collectives, and no memory is left to say how", comm->rank,
                           other);
    }
    if (!first_parting(comm, records, known)) {
        memset(known, 0, (size_t)comm->world * sizeof *known);
        records[comm->rank] = comm->record;
        if (!record_load(local, other, comm->ticket, &records[other]))
            board_entry_read(local->board, other, &records[other].entry);
    }
    ledger_judge(records, known, comm->world, comm->rank, other, &fault);
    free(records);
    free(known);
    board_fault_write(comm->board, &fault);
    return status_fail(STATUS_RANK, "%s", fault.text);
}

static enum status local_agree(struct comm *comm, const struct comm_group *group) {
    (void)group;
    struct local *local = comm->state;
    struct local_rank *self = &local->ranks[comm->rank];
    board_words_store(&self->ring[comm->ticket % LOCAL_RING], &comm->record, sizeof comm->record);
    atomic_store(&self->published, comm->ticket);
    local->round = 0;
    local->checked = false;
    return STATUS_OK;
}

/* ---- gates: all members come before one goes on */

static enum status gate_wait(struct comm *comm, const struct comm_group *group, struct local_gate *gate, int turn) {
    const struct local *local = comm->state;
    for (int i = 0; i < local->spins; i++) {
        if (atomic_load_explicit(&gate->turn, memory_order_acquire) != turn)
            return STATUS_OK;
        if (i >= local->spins - local->yields)
            sched_yield();
        else
            __builtin_ia32_pause();
    }
    while (atomic_load_explicit(&gate->turn, memory_order_acquire) == turn) {
        /* rarer looks where there are many ranks: each look reads all members */
        board_sleep(&gate->turn, turn, 10 + group->size / 4);
        if (atomic_load_explicit(&gate->turn, memory_order_acquire) != turn)
            return STATUS_OK;
        TRY(world_stands(comm));
        int other = find_deviator(comm, group, false);
        if (other >= 0)
            return mismatch(comm, other);
    }
    return STATUS_OK;
}

static enum status gate_pass(struct comm *comm, const struct comm_group *group) {
    struct local *local = comm->state;
    if (group->size == 1)
        return STATUS_OK;
    struct local_gate *gate = &local->gates[(size_t)group->member[0] * LOCAL_GATES + (size_t)group->ordinal];
    int turn = atomic_load_explicit(&gate->turn, memory_order_acquire);
    if (atomic_fetch_add(&gate->arrived, 1) + 1 == group->size) {
        atomic_store(&gate->arrived, 0);
        atomic_store(&gate->turn, turn + 1);
        board_wake(&gate->turn);
    } else {
        TRY(gate_wait(comm, group, gate, turn));
    }
    if (!local->checked) {
        int other = find_deviator(comm, group, true);
        if (other >= 0)
            return mismatch(comm, other);
        local->checked = true;
    }
    return STATUS_OK;
}

/* ---- buffers: a rank's outgoing bytes of one round */

static char *buffer_of(const struct comm *comm, int rank) {
    const struct local *local = comm->state;
    int64_t which = (2 * comm->ticket + local->round) % LOCAL_BUFFERS;
    return local->buffers + ((size_t)rank * LOCAL_BUFFERS + (size_t)which) * LOCAL_STAGE;
}

static enum status use_end(struct comm *comm, struct use *use) {
    const struct local *local = comm->state;
    for (int i = 0; use->group != NULL && i < use->group->size; i++) {
        const struct local_rank *reader = &local->ranks[use->group->member[i]];
        for (int looks = 0; atomic_load_explicit(&reader->finished, memory_order_acquire) < use->mark; looks++) {
            if (looks % 100 == 99)
                TRY(world_stands(comm));
            pause_briefly(looks);
        }
    }
    use->group = NULL;
    return STATUS_OK;
}

/* This rank's buffer of the round, once nobody reads what was in it. */
static enum status buffer_take(struct comm *comm, const struct comm_group *group, char **out) {
    struct local *local = comm->state;
    struct use *use = &local->use[(2 * comm->ticket + local->round) % LOCAL_BUFFERS];
    TRY(use_end(comm, use));
    if (group->size > 1)
        *use = (struct use){.group = group, .mark = mark_of(comm, local->round)};
    *out = buffer_of(comm, comm->rank);
    return STATUS_OK;
}

static void round_end(struct comm *comm) {
    struct local *local = comm->state;
    atomic_store_explicit(&local->ranks[comm->rank].finished, mark_of(comm, local->round), memory_order_release);
    local->round++;
}

static enum status local_settle(struct comm *comm) {
    struct local *local = comm->state;
    for (int i = 0; i < LOCAL_BUFFERS; i++)
        TRY(use_end(comm, &local->use[i]));
    return STATUS_OK;
}

/* ---- movement */

static void move(void *to, const void *from, size_t bytes) {
    if (bytes > 0)
        memmove(to, from, bytes);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static enum status local_all_gather(struct comm *comm, const struct comm_group *group, const void *send, void *recv,
                                    size_t bytes) {
    size_t at = 0;
    if (bytes > 0)
        move((char *)recv + (size_t)group->self * bytes, send, bytes);
    do {
        size_t part = smaller(bytes - at, LOCAL_STAGE);
        char *buffer;
        if (part > 0 && group->size > 1) {
            TRY(buffer_take(comm, group, &buffer));
            memcpy(buffer, (const char *)recv + (size_t)group->self * bytes + at, part);
        }
        TRY(gate_pass(comm, group));
        for (int i = 0; i < group->size && part > 0; i++)
            if (i != group->self)
                memcpy((char *)recv + (size_t)i * bytes + at, buffer_of(comm, group->member[i]), part);
        round_end(comm);
        at += part;
    } while (at < bytes);
    return STATUS_OK;
}

/* The part [at, at+room) of member j's block goes to slice j of the buffer; slices are `room` long. */
static void stage_blocks(const struct comm_group *group, const char *send, const size_t *send_bytes, size_t at,
                         size_t room, char *buffer) {
    for (int j = 0; j < group->size; j++) {
        if (j != group->self && send_bytes[j] > at)
            memcpy(buffer + (size_t)j * room, send + at, smaller(room, send_bytes[j] - at));
        send += send_bytes[j];
    }
}

static void take_blocks(struct comm *comm, const struct comm_group *group, char *recv, const size_t *recv_bytes,
                        size_t at, size_t room) {
    for (int i = 0; i < group->size; i++) {
        const char *slice = buffer_of(comm, group->member[i]) + (size_t)group->self * room;
        if (i != group->self && recv_bytes[i] > at)
            memcpy(recv + at, slice, smaller(room, recv_bytes[i] - at));
        recv += recv_bytes[i];
    }
}

static void move_self(const struct comm_group *group, const char *send, const size_t *send_bytes, char *recv,
                      const size_t *recv_bytes) {
    for (int j = 0; j < group->self; j++) {
        send += send_bytes[j];
        recv += recv_bytes[j];
    }
    move(recv, send, send_bytes[group->self]);
}

static enum status local_all_to_all(struct comm *comm, const struct comm_group *group, const void *send,
                                    const size_t *send_bytes, void *recv, const size_t *recv_bytes, size_t largest) {
    size_t room = smaller(largest, LOCAL_STAGE / (size_t)group->size / 8 * 8);
    size_t at = 0;
    do {
        char *buffer;
        if (room > 0 && group->size > 1) {
            TRY(buffer_take(comm, group, &buffer));
            stage_blocks(group, send, send_bytes, at, room, buffer);
        }
        TRY(gate_pass(comm, group));
        if (room > 0)
            take_blocks(comm, group, recv, recv_bytes, at, room);
        round_end(comm);
        at += room;
    } while (at < largest);
    if (largest > 0)
        move_self(group, send, send_bytes, recv, recv_bytes);
    return STATUS_OK;
}

/* ---- the engine */

static _Noreturn void local_abort(struct comm *comm) {
    (void)comm;
    _exit(3);
}

static void local_close(struct comm *comm) {
    free(comm->state);
}

static const struct comm_engine local_engine = {
    .agree = local_agree,
    .all_gather = local_all_gather,
    .all_to_all = local_all_to_all,
    .settle = local_settle,
    .abort = local_abort,
    .close = local_close,
};

enum status comm_local_attach(void *memory, int rank, const struct ops *ops, struct comm **out) {
    const struct local_header *header = memory;
    struct plan plan = plan_make(header->world);
    struct local *local = calloc(1, sizeof *local);
    if (local == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for rank %d", rank);
    char *base = memory;
    *local = (struct local){.board = comm_local_board(memory), .parent = getppid()};
    local->ranks = (void *)(base + plan.ranks);
    local->gates = (void *)(base + plan.gates);
    local->buffers = base + plan.buffers;
    bool crowded = header->world > sysconf(_SC_NPROCESSORS_ONLN);
    local->yields = crowded ? 20 : 200;
    local->spins = local->yields + (crowded ? 0 : 2000);
    enum status status = comm_make(out, rank, header->world, ops, local->board, &local_engine, local);
    if (status != STATUS_OK) {
        free(local);
        return status;
    }
    atomic_store(&local->board->rank[rank].pid, getpid());
    atomic_store(&local->board->rank[rank].ready, 1);
    return STATUS_OK;
}
