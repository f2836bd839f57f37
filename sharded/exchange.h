/* Token exchange over the EP group: rows travel to the ranks that hold their experts, and back.
 *
 * A rank sends its (token, choice) rows sorted by (expert, token); the receiver puts what arrives by (source, expert,
 * token) in the order (expert, source, token), which is ascending (expert, global token), since sequences are split
 * over the ranks in rank order. The way back undoes both. The route is integer bookkeeping on the host; rows stay on
 * the device. */
#ifndef SHARDED_EXCHANGE_H
#define SHARDED_EXCHANGE_H

#include "core/points.h"
#include "sharded/comm.h"

struct subject;

struct route {                /* of one layer and micro-batch on one rank; freed by route_free */
    struct comm_group *group; /* the ranks that share all coordinates but ep's */
    int size;
    int64_t experts;       /* held by this rank */
    int64_t sent, arrived; /* rows */
    int64_t *sends;        /* host [size] rows to each member */
    int64_t *receives;     /* host [size] rows from each member */
    int64_t *begin;        /* host [experts + 1]: rows of local expert e are begin[e] .. begin[e+1]-1 */
    int64_t *token;        /* device [sent] local token behind each row sent */
    int64_t *choice;       /* device [sent] token*k + c behind each row sent */
    int64_t *regroup;      /* device [arrived] where row i by (expert, source, token) lies by (source, expert, token) */
};

/* Collective over the EP group: who sends how many rows to which expert. `index` [tokens, choices] (device) holds
 * expert numbers below `experts`; each expert at most once per token. */
enum status route_make(struct route *out, struct subject *subject, const char *what, const int64_t *index,
                       int64_t tokens, int64_t choices, int64_t experts);
void route_free(const struct ops *ops, struct route *route); /* accepts {0} */

/* Collective. Row `from[i]` of `table` (from = route->token or route->choice) is row i sent; rows of n elements; `out`
 * [arrived, n] by (expert, global token). */
enum status route_to_experts(const struct route *route, struct subject *subject, const char *what, const void *table,
                             const int64_t *from, int64_t n, void *out);
/* Collective. `rows` [arrived, n] by (expert, global token) go back to their sources: `out` [tokens*choices, n].
 * `phase` is forward or backward. */
enum status route_to_sources(const struct route *route, struct subject *subject, const char *what, enum phase phase,
                             const void *rows, int64_t n, void *out);

#endif
