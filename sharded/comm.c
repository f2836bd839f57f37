#include "sharded/comm_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int comm_rank(const struct comm *comm) {
    return comm->rank;
}

int comm_world(const struct comm *comm) {
    return comm->world;
}

const struct ops *comm_ops(const struct comm *comm) {
    return comm->ops;
}

struct board *comm_board(struct comm *comm) {
    return comm->board;
}

void comm_set_intercept(struct comm *comm, comm_intercept intercept, void *context) {
    comm->intercept = intercept;
    comm->intercept_context = context;
}

/* ---- groups */

int comm_group_size(const struct comm_group *group) {
    return group->size;
}

int comm_group_self(const struct comm_group *group) {
    return group->self;
}

int comm_group_member(const struct comm_group *group, int position) {
    return group->member[position];
}

static void group_free(struct comm_group *group) {
    if (group != NULL)
        free(group->member);
    free(group);
}

static enum status group_new(const struct comm *comm, const int *members, int size, const char *axes,
                             struct comm_group **out) {
    struct comm_group *group = calloc(1, sizeof *group);
    int *copy = malloc((size_t)size * sizeof *copy);
    if (group == NULL || copy == NULL) {
        free(group);
        free(copy);
        return status_fail(STATUS_MEMORY, "out of memory for a group of %d ranks", size);
    }
    memcpy(copy, members, (size_t)size * sizeof *copy);
    *group = (struct comm_group){.size = size, .self = -1, .member = copy};
    group->members = ledger_hash(LEDGER_HASH, members, (size_t)size * sizeof *members);
    snprintf(group->axes, sizeof group->axes, "%s", axes);
    for (int i = 0; i < size; i++)
        if (members[i] == comm->rank)
            group->self = i;
    *out = group;
    return STATUS_OK;
}

/* The fault of this rank, with the thread's note, if none stands yet. */
static void fault_status(struct comm *comm) {
    struct board_fault fault = {.kind = FAULT_STATUS, .rank = comm->rank, .ranks = 1, .deviating = {comm->rank}};
    fault.entry = fault.expected = comm->record.entry;
    const char *note = status_note();
    snprintf(fault.text, sizeof fault.text, "%s", note[0] != '\0' ? note : "it ended its world without a note");
    board_fault_write(comm->board, &fault);
}

static enum status members_check(const struct comm *comm, const int *members, int size, const char *axes) {
    bool self = false, ascending = size > 0;
    if (comm->made == COMM_MAX_GROUPS)
        return status_fail(STATUS_INTERNAL, "group %s: a case may make %d groups", axes, COMM_MAX_GROUPS);
    for (int i = 0; i < size; i++) {
        self |= members[i] == comm->rank;
        ascending &= members[i] < comm->world && members[i] > (i == 0 ? -1 : members[i - 1]);
    }
    if (!self || !ascending)
        return status_fail(STATUS_INTERNAL, "group %s of rank %d: %s", axes, comm->rank,
                           ascending ? "it does not hold the rank itself"
                                     : "its ranks are not ascending ranks of the world");
    return STATUS_OK;
}

enum status comm_group_make(struct comm *comm, const int *members, int size, const char *axes,
                            struct comm_group **out) {
    enum status status = members_check(comm, members, size, axes);
    if (status == STATUS_OK)
        status = group_new(comm, members, size, axes, out);
    if (status != STATUS_OK) {
        fault_status(comm);
        return status;
    }
    (*out)->ordinal = ++comm->made;
    (*out)->next = comm->groups;
    comm->groups = *out;
    return STATUS_OK;
}

static void groups_drop(struct comm *comm) {
    while (comm->groups != NULL) {
        struct comm_group *next = comm->groups->next;
        group_free(comm->groups);
        comm->groups = next;
    }
    comm->made = 0;
}

void comm_groups_free(struct comm *comm) {
    if (comm->engine->settle(comm) != STATUS_OK)
        fault_status(comm);
    groups_drop(comm);
    comm->sequence = 0;
}

/* ---- the life of a comm */

enum status comm_make(struct comm **out, int rank, int world, const struct ops *ops, struct board *board,
                      const struct comm_engine *engine, void *state) {
    enum status status = STATUS_OK;
    struct comm *comm = calloc(1, sizeof *comm);
    int *everyone = malloc((size_t)world * sizeof *everyone);
    if (comm == NULL || everyone == NULL) {
        status = status_fail(STATUS_MEMORY, "out of memory for a communicator of %d ranks", world);
        goto done;
    }
    *comm = (struct comm){.rank = rank, .world = world, .ops = ops, .board = board, .engine = engine, .state = state};
    for (int r = 0; r < world; r++)
        everyone[r] = r;
    TRY_DONE(group_new(comm, everyone, world, "world", &comm->everyone));
    *out = comm;
    comm = NULL;
done:
    free(everyone);
    free(comm);
    return status;
}

void comm_free(struct comm *comm) {
    groups_drop(comm);
    group_free(comm->everyone);
    if (comm->scratch != NULL)
        comm->ops->release(comm->scratch);
    free(comm);
}

void comm_close(struct comm *comm) {
    if (comm == NULL)
        return;
    comm->engine->close(comm);
    comm_free(comm);
}

void comm_abort(struct comm *comm) {
    fault_status(comm);
    comm->engine->abort(comm);
    _Exit(3);
}

/* ---- collectives */

static bool left_out(struct comm *comm, enum collective operation, const struct comm_group *group,
                     const struct comm_call *call) {
    return comm->intercept != NULL &&
           comm->intercept(comm->intercept_context, operation, group->axes, call->what, comm->rank);
}

static enum status enter(struct comm *comm, const struct comm_group *group, enum collective operation,
                         const struct comm_call *call, int64_t count) {
    struct ledger_record *record = &comm->record;
    *record = (struct ledger_record){.leader = group->member[0]};
    record->entry.sequence = ++comm->sequence;
    record->entry.operation = operation;
    record->entry.dtype = (int)call->dtype;
    record->entry.count = count;
    snprintf(record->entry.group, BOARD_TEXT, "%s", group->axes);
    snprintf(record->entry.site, BOARD_TEXT, "%s", call->site);
    snprintf(record->entry.what, BOARD_TEXT, "%s", call->what);
    ledger_seal(record, group->members);
    comm->ticket++;
    board_entry_write(comm->board, comm->rank, &record->entry);
    atomic_store(&comm->board->rank[comm->rank].inside, 1);
    return comm->engine->agree(comm, group);
}

static enum status leave(struct comm *comm, enum status status) {
    atomic_store(&comm->board->rank[comm->rank].inside, 0);
    if (status != STATUS_OK)
        fault_status(comm);
    return status;
}

static enum status scratch(struct comm *comm, size_t bytes, void **out) {
    if (comm->scratch_bytes < bytes || comm->scratch == NULL) {
        if (comm->scratch != NULL)
            comm->ops->release(comm->scratch);
        comm->scratch = comm->ops->allocate(bytes);
        comm->scratch_bytes = comm->scratch == NULL ? 0 : bytes;
    }
    *out = comm->scratch;
    return comm->scratch == NULL ? status_fail(STATUS_MEMORY, "out of memory for %zu bytes of a collective", bytes)
                                 : STATUS_OK;
}

static enum status summable(const struct comm_call *call) {
    if (call->dtype == DTYPE_F64 || call->dtype == DTYPE_F32 || call->dtype == DTYPE_I64)
        return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "%s: a sum over ranks of %s, expected float64, float32 or int64", call->site,
                       dtype_word(call->dtype));
}

/* out [count] = sum of the blocks [size][count] in group order. */
static void sum_blocks(const struct comm *comm, enum dtype dtype, int size, int64_t count, const void *blocks,
                       void *out) {
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    if (bytes == 0)
        return;
    comm->ops->copy(out, blocks, bytes);
    for (int i = 1; i < size; i++) {
        const char *block = (const char *)blocks + (size_t)i * bytes;
        if (dtype == DTYPE_I64)
            for (int64_t k = 0; k < count; k++)
                ((uint64_t *)out)[k] += ((const uint64_t *)(const void *)block)[k];
        else
            comm->ops->add(dtype, count, out, out, block);
    }
}

enum status comm_all_gather(struct comm *comm, struct comm_group *group, const struct comm_call *call, const void *send,
                            void *recv, int64_t count) {
    if (left_out(comm, COLLECTIVE_ALL_GATHER, group, call))
        return STATUS_OK;
    enum status status;
    TRY_DONE(enter(comm, group, COLLECTIVE_ALL_GATHER, call, count));
    TRY_DONE(comm->engine->all_gather(comm, group, send, recv, (size_t)count * dtype_bytes(call->dtype)));
done:
    return leave(comm, status);
}

static enum status reduce_scatter(struct comm *comm, struct comm_group *group, const struct comm_call *call,
                                  const void *send, void *recv, int64_t count) {
    size_t block = (size_t)count * dtype_bytes(call->dtype);
    void *blocks;
    TRY(scratch(comm, (size_t)group->size * block, &blocks));
    size_t *sizes = malloc((size_t)group->size * sizeof *sizes);
    if (sizes == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for a reduce_scatter over %d ranks", group->size);
    for (int j = 0; j < group->size; j++)
        sizes[j] = block;
    enum status status = comm->engine->all_to_all(comm, group, send, sizes, blocks, sizes, block);
    free(sizes);
    if (status == STATUS_OK)
        sum_blocks(comm, call->dtype, group->size, count, blocks, recv);
    return status;
}

enum status comm_reduce_scatter(struct comm *comm, struct comm_group *group, const struct comm_call *call,
                                const void *send, void *recv, int64_t count) {
    if (left_out(comm, COLLECTIVE_REDUCE_SCATTER, group, call))
        return STATUS_OK;
    enum status status;
    TRY_DONE(summable(call));
    TRY_DONE(enter(comm, group, COLLECTIVE_REDUCE_SCATTER, call, count));
    TRY_DONE(reduce_scatter(comm, group, call, send, recv, count));
done:
    return leave(comm, status);
}

enum status comm_all_reduce(struct comm *comm, struct comm_group *group, const struct comm_call *call, void *data,
                            int64_t count) {
    if (left_out(comm, COLLECTIVE_ALL_REDUCE, group, call))
        return STATUS_OK;
    enum status status;
    size_t bytes = (size_t)count * dtype_bytes(call->dtype);
    void *blocks;
    TRY_DONE(summable(call));
    TRY_DONE(scratch(comm, (size_t)group->size * bytes, &blocks));
    TRY_DONE(enter(comm, group, COLLECTIVE_ALL_REDUCE, call, count));
    TRY_DONE(comm->engine->all_gather(comm, group, data, blocks, bytes));
    sum_blocks(comm, call->dtype, group->size, count, blocks, data);
done:
    return leave(comm, status);
}

/* The members tell each other what they send and expect; `largest` becomes the largest block of any pair. */
static enum status agree_splits(struct comm *comm, struct comm_group *group, const int64_t *send_counts,
                                const int64_t *recv_counts, int64_t *largest) {
    enum status status = STATUS_OK;
    size_t n = (size_t)group->size;
    int64_t *own = malloc(2 * n * sizeof *own), *all = malloc(2 * n * n * sizeof *all);
    if (own == NULL || all == NULL) {
        status = status_fail(STATUS_MEMORY, "out of memory for the splits of %zu ranks", n);
        goto done;
    }
    memcpy(own, send_counts, n * sizeof *own);
    memcpy(own + n, recv_counts, n * sizeof *own);
    TRY_DONE(comm->engine->all_gather(comm, group, own, all, 2 * n * sizeof *own));
    struct board_fault fault;
    if (!ledger_splits_fit(all, group->member, group->size, &comm->record.entry, &fault)) {
        board_fault_write(comm->board, &fault);
        status = status_fail(STATUS_RANK, "%s", fault.text);
        goto done;
    }
    *largest = 0;
    for (size_t i = 0; i < 2 * n * n; i++)
        *largest = all[i] > *largest ? all[i] : *largest;
done:
    free(own);
    free(all);
    return status;
}

static enum status all_to_all(struct comm *comm, struct comm_group *group, enum dtype dtype, const void *send,
                              const int64_t *send_counts, void *recv, const int64_t *recv_counts) {
    int64_t largest;
    TRY(agree_splits(comm, group, send_counts, recv_counts, &largest));
    size_t n = (size_t)group->size, element = dtype_bytes(dtype);
    size_t *sizes = malloc(2 * n * sizeof *sizes);
    if (sizes == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for an all_to_all over %zu ranks", n);
    for (size_t j = 0; j < n; j++) {
        sizes[j] = (size_t)send_counts[j] * element;
        sizes[n + j] = (size_t)recv_counts[j] * element;
    }
    enum status status = comm->engine->all_to_all(comm, group, send, sizes, recv, sizes + n, (size_t)largest * element);
    free(sizes);
    return status;
}

enum status comm_all_to_all(struct comm *comm, struct comm_group *group, const struct comm_call *call, const void *send,
                            const int64_t *send_counts, void *recv, const int64_t *recv_counts) {
    if (left_out(comm, COLLECTIVE_ALL_TO_ALL, group, call))
        return STATUS_OK;
    int64_t total = 0;
    for (int j = 0; j < group->size; j++)
        total += send_counts[j];
    enum status status;
    TRY_DONE(enter(comm, group, COLLECTIVE_ALL_TO_ALL, call, total));
    TRY_DONE(all_to_all(comm, group, call->dtype, send, send_counts, recv, recv_counts));
done:
    return leave(comm, status);
}

enum status comm_barrier(struct comm *comm, const struct comm_call *call) {
    if (left_out(comm, COLLECTIVE_BARRIER, comm->everyone, call))
        return STATUS_OK;
    enum status status;
    TRY_DONE(enter(comm, comm->everyone, COLLECTIVE_BARRIER, call, 0));
    TRY_DONE(comm->engine->all_gather(comm, comm->everyone, NULL, NULL, 0));
done:
    return leave(comm, status);
}
