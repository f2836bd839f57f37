/* The router: which experts a token goes to, with what weight, and the gradient of that. */
#ifndef REFERENCE_ROUTER_H
#define REFERENCE_ROUTER_H

#include "reference/value.h"

/* out [N,E] = softmax over E of logits [N,E]. */
enum status value_router_scores(const struct arithmetic *m, const struct value *logits, struct value *out);
/* out [N,k], whole numbers: the k largest scores, falling; equal scores: the lower expert first. */
enum status value_router_choices(const struct arithmetic *m, const struct value *scores, int64_t choices,
                                 struct value *out);

/* Choices as they stand, and the exchanged order that follows: rows ascending by (expert, token). */
struct routing {
    int64_t tokens, choices, experts; /* N, k, E */
    int64_t *expert;                  /* [N,k] */
    int64_t *row;                     /* [N,k] -> exchanged row */
    int64_t *origin;                  /* exchanged row -> token*k + choice */
    int64_t *start;                   /* [E+1] first row of each expert */
    int64_t *ascending;               /* [N,k] each token's choice numbers in ascending expert order */
};

/* STATUS_INTERNAL if a choice is no expert's number. In a dry run only the sizes are set. */
enum status routing_make(const struct arithmetic *m, struct routing *out, const struct value *choices, int64_t experts);
void routing_free(struct routing *routing); /* accepts {0} */

/* out [N,k] = chosen scores, divided by their sum if `normalise`. */
enum status value_router_weights(const struct arithmetic *m, const struct routing *routing, const struct value *scores,
                                 bool normalise, struct value *out);
/* out [N,E], 0 where not chosen; normalise (w = p/S): (dw - sum dw w)/S, else dw. */
enum status value_router_d_scores(const struct arithmetic *m, const struct routing *routing, const struct value *scores,
                                  const struct value *weight, const struct value *d_weight, bool normalise,
                                  struct value *out);
/* out [N,E] = y (dy - sum y dy). */
enum status value_router_d_logits(const struct arithmetic *m, const struct value *scores, const struct value *d_scores,
                                  struct value *out);

#endif
