#include "sharded/exchange.h"

#include "sharded/state.h"

#include <stdlib.h>

struct draft {                         /* what only route_make needs */
    int64_t *index;                    /* host [tokens, choices] */
    int64_t *rows;                     /* host [experts] own rows per expert, all experts in order */
    int64_t *by_peer;                  /* host [size * local experts] rows that arrive, by (source, local expert) */
    int64_t *token, *choice, *regroup; /* host copies */
    int64_t *splits;                   /* host [size] experts of each member */
    int64_t *same;                     /* host [size] local experts, once per source */
    void *out, *in;                    /* device */
};

static void draft_free(const struct ops *ops, struct draft *draft) {
    free(draft->index);
    free(draft->rows);
    free(draft->by_peer);
    free(draft->token);
    free(draft->choice);
    free(draft->regroup);
    free(draft->splits);
    free(draft->same);
    ops->release(draft->out);
    ops->release(draft->in);
}

static enum status numbers(int64_t **out, int64_t count) {
    void *block;
    TRY(host_zeros(&block, (size_t)count, sizeof **out));
    *out = block;
    return STATUS_OK;
}

/* Rows sorted by (expert, token): a counting sort, since tokens are visited in order. */
static enum status sort_sent(struct draft *draft, int64_t tokens, int64_t choices, int64_t experts) {
    enum status status = STATUS_OK;
    int64_t *next = NULL;
    TRY_DONE(numbers(&draft->rows, experts));
    TRY_DONE(numbers(&next, experts + 1));
    for (int64_t i = 0; i < tokens * choices; i++)
        draft->rows[draft->index[i]]++;
    for (int64_t e = 0; e < experts; e++)
        next[e + 1] = next[e] + draft->rows[e];
    TRY_DONE(numbers(&draft->token, tokens * choices));
    TRY_DONE(numbers(&draft->choice, tokens * choices));
    for (int64_t i = 0; i < tokens * choices; i++) {
        int64_t at = next[draft->index[i]]++;
        draft->token[at] = i / choices;
        draft->choice[at] = i;
    }
done:
    free(next);
    return status;
}

/* Every member learns how many rows each source sends to each of its experts. */
static enum status exchange_counts(struct route *route, struct draft *draft, struct subject *subject, const char *what,
                                   int64_t experts) {
    const struct comm_call call = {COMM_SITE, what, DTYPE_I64};
    TRY(numbers(&draft->splits, route->size));
    TRY(numbers(&draft->same, route->size));
    for (int member = 0; member < route->size; member++) {
        int64_t begin;
        chunk_range(experts, route->size, member, false, &begin, &draft->splits[member]);
        for (int64_t e = 0; e < draft->splits[member]; e++)
            route->sends[member] += draft->rows[begin + e];
    }
    route->experts = draft->splits[comm_group_self(route->group)];
    for (int member = 0; member < route->size; member++)
        draft->same[member] = route->experts;
    size_t in_bytes = (size_t)(route->size * route->experts) * sizeof(int64_t);
    TRY(numbers(&draft->by_peer, route->size * route->experts));
    TRY(device_block(subject->ops, &draft->out, (size_t)experts * sizeof(int64_t)));
    TRY(device_block(subject->ops, &draft->in, in_bytes));
    subject->ops->to_device(draft->out, draft->rows, (size_t)experts * sizeof(int64_t));
    TRY(comm_all_to_all(subject->comm, route->group, &call, draft->out, draft->splits, draft->in, draft->same));
    subject->ops->to_host(draft->by_peer, draft->in, in_bytes);
    return STATUS_OK;
}

/* From (source, expert, token) to (expert, source, token). */
static enum status regroup_arrived(struct route *route, struct draft *draft) {
    int64_t *start = NULL; /* of the rows of (source, expert) as they arrive */
    int64_t pairs = route->size * route->experts, at = 0;
    TRY(numbers(&start, pairs + 1));
    for (int64_t i = 0; i < pairs; i++) {
        start[i + 1] = start[i] + draft->by_peer[i];
        route->receives[i / route->experts] += draft->by_peer[i];
    }
    route->arrived = start[pairs];
    enum status status = numbers(&draft->regroup, route->arrived);
    for (int64_t e = 0; status == STATUS_OK && e < route->experts; e++) {
        for (int64_t source = 0; source < route->size; source++)
            for (int64_t row = 0; row < draft->by_peer[source * route->experts + e]; row++)
                draft->regroup[at++] = start[source * route->experts + e] + row;
        route->begin[e + 1] = at;
    }
    free(start);
    return status;
}

static enum status route_fill(struct route *route, struct draft *draft, struct subject *subject, const char *what,
                              int64_t tokens, int64_t choices, int64_t experts) {
    route->sent = tokens * choices;
    TRY(numbers(&route->sends, route->size));
    TRY(numbers(&route->receives, route->size));
    TRY(numbers(&route->begin, experts + 1));
    TRY(sort_sent(draft, tokens, choices, experts));
    TRY(exchange_counts(route, draft, subject, what, experts));
    TRY(regroup_arrived(route, draft));
    TRY(device_indices(subject->ops, &route->token, draft->token, route->sent));
    TRY(device_indices(subject->ops, &route->choice, draft->choice, route->sent));
    return device_indices(subject->ops, &route->regroup, draft->regroup, route->arrived);
}

enum status route_make(struct route *out, struct subject *subject, const char *what, const int64_t *index,
                       int64_t tokens, int64_t choices, int64_t experts) {
    enum status status = STATUS_OK;
    struct draft draft = {0};
    *out = (struct route){0};
    TRY(groups_get(subject, 1u << mesh_axis(&subject->mesh, "ep"), &out->group));
    out->size = comm_group_size(out->group);
    TRY_DONE(numbers(&draft.index, tokens * choices));
    subject->ops->to_host(draft.index, index, (size_t)(tokens * choices) * sizeof *index);
    TRY_DONE(route_fill(out, &draft, subject, what, tokens, choices, experts));
done:
    draft_free(subject->ops, &draft);
    return status;
}

void route_free(const struct ops *ops, struct route *route) {
    ops->release(route->regroup);
    ops->release(route->choice);
    ops->release(route->token);
    free(route->begin);
    free(route->receives);
    free(route->sends);
    *route = (struct route){0};
}

struct parcel { /* buffers and element counts of one exchange of rows of n elements */
    void *send, *receive;
    int64_t *sends, *receives;
};

/* Both buffers hold the route's rows of either way. */
static enum status parcel_make(struct parcel *out, const struct subject *subject, const struct route *route,
                               const int64_t *sends, const int64_t *receives, int64_t n) {
    int64_t most = route->sent > route->arrived ? route->sent : route->arrived;
    size_t bytes = (size_t)(most * n) * dtype_bytes(subject->dtype);
    TRY(numbers(&out->sends, route->size));
    TRY(numbers(&out->receives, route->size));
    for (int member = 0; member < route->size; member++) {
        out->sends[member] = sends[member] * n;
        out->receives[member] = receives[member] * n;
    }
    TRY(device_block(subject->ops, &out->send, bytes));
    return device_block(subject->ops, &out->receive, bytes);
}

static void parcel_free(const struct ops *ops, struct parcel *parcel) {
    ops->release(parcel->receive);
    ops->release(parcel->send);
    free(parcel->receives);
    free(parcel->sends);
}

enum status route_to_experts(const struct route *route, struct subject *subject, const char *what, const void *table,
                             const int64_t *from, int64_t n, void *out) {
    const struct comm_call call = {COMM_SITE, what, subject->dtype};
    const struct ops *ops = subject->ops;
    enum status status = STATUS_OK;
    struct parcel parcel = {0};
    TRY_DONE(parcel_make(&parcel, subject, route, route->sends, route->receives, n));
    ops->gather_rows(subject->dtype, route->sent, n, parcel.send, table, from);
    TRY_DONE(comm_all_to_all(subject->comm, route->group, &call, parcel.send, parcel.sends, parcel.receive,
                             parcel.receives));
    ops->gather_rows(subject->dtype, route->arrived, n, out, parcel.receive, route->regroup);
done:
    parcel_free(ops, &parcel);
    return status;
}

enum status route_to_sources(const struct route *route, struct subject *subject, const char *what, enum phase phase,
                             const void *rows, int64_t n, void *out) {
    const struct comm_call call = {COMM_SITE, what, subject->dtype};
    const struct ops *ops = subject->ops;
    enum status status = STATUS_OK;
    struct parcel parcel = {0};
    const bool kept = phase == PHASE_BACKWARD && subject->rules->backward_counts_kept;
    TRY_DONE(parcel_make(&parcel, subject, route, kept ? route->sends : route->receives,
                         kept ? route->receives : route->sends, n));
    ops->scatter_rows(subject->dtype, route->arrived, n, parcel.send, rows, route->regroup);
    TRY_DONE(comm_all_to_all(subject->comm, route->group, &call, parcel.send, parcel.sends, parcel.receive,
                             parcel.receives));
    ops->scatter_rows(subject->dtype, route->sent, n, out, parcel.receive, route->choice);
done:
    parcel_free(ops, &parcel);
    return status;
}
