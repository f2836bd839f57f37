/* Router choices, and the rows that travel because of them. */
#ifndef HARNESS_JUDGE_ROUTE_H
#define HARNESS_JUDGE_ROUTE_H

#include "layout/mesh.h"

struct place;

/* One layer's routing of one micro-batch. The whole form of an exchanged tensor is one row per (token, choice),
 * ascending by (expert, global token). Rank (p, f) holds the rows of its experts from the tokens of column f. */
struct route {
    int64_t tokens, choices, experts;
    double *scores; /* [tokens, experts] as recorded; kept from the point before the choices */
    bool made;      /* the rest is there */
    int64_t rows;
    int64_t *expert, *token, *choice; /* [rows] */
    int64_t *own;                     /* [rows] row numbers, rank by rank, ascending on each */
    int64_t *begin;                   /* [world + 1] where a rank's rows begin in `own` */
    int64_t batch_tokens;             /* T: token n is sequence n / T, position n % T */
};

void judge_route_free(struct route *route);                                                           /* accepts {0} */
enum status route_scores(struct route *route, int64_t tokens, int64_t experts, const double *scores); /* copies */
/* The rows under `choice` [tokens, choices], every one a valid expert, distinct in a token. `topk` is the choices'
 * place: it says which rank a token is on. Keeps the scores. */
enum status judge_route_make(struct route *route, const struct mesh *mesh, const struct place *topk, int64_t experts,
                             int64_t batch_tokens, const double *choice);

/* Whether every choice is an expert, distinct in its token. */
bool choices_usable(const double *choice, int64_t tokens, int64_t k, int64_t experts);

struct choice_verdict {
    int64_t choice;   /* the first that is wrong */
    double want, got; /* experts; want NaN: the choice is no expert, or stands twice */
    const char *why;
};

/* Whether choice [k] of one token is a top-k of scores [experts]: distinct, falling, no unchosen score above a chosen
 * one; if not, `out` says why. *tie: equal scores left it free. */
bool choice_is_topk(const double *choice, int64_t k, const double *scores, int64_t experts, struct choice_verdict *out,
                    bool *tie);

#endif
