#include "reference/router.h"

#include "reference/bound.h"
#include "reference/softmax.h"

#include <stdlib.h>

enum status value_router_scores(const struct arithmetic *m, const struct value *logits, struct value *out) {
    TRY(value_like(m, out, logits));
    int64_t experts = value_last(logits);
    for (int64_t row = 0, rows = m->dry ? 0 : value_rows(logits); row < rows; row++)
        softmax_span(m, logits, row * experts, experts, out);
    return STATUS_OK;
}

/* Whether expert a goes before expert b. */
static bool goes_before(const double *scores, int64_t a, int64_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

/* The expert with exactly `place` experts before it. */
static double expert_at_place(const double *scores, int64_t experts, int64_t place) {
    for (int64_t a = 0; a < experts; a++) {
        int64_t before = 0;
        for (int64_t b = 0; b < experts; b++)
            before += goes_before(scores, b, a);
        if (before == place)
            return (double)a;
    }
    return -1; /* scores that are not numbers have no order */
}

enum status value_router_choices(const struct arithmetic *m, const struct value *scores, int64_t choices,
                                 struct value *out) {
    int64_t experts = value_last(scores);
    TRY(value_new(m, out, 2, (const int64_t[]){scores->shape[0], choices}));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++)
        num_set(out, i, num_exact(expert_at_place(scores->x + i / choices * experts, experts, i % choices)));
    return STATUS_OK;
}

void routing_free(struct routing *routing) {
    free(routing->expert);
    free(routing->row);
    free(routing->origin);
    free(routing->start);
    free(routing->ascending);
    *routing = (struct routing){0};
}

static enum status routing_allocate(struct routing *routing) {
    size_t n = (size_t)(routing->tokens * routing->choices) + 1;
    routing->expert = calloc(n, sizeof *routing->expert);
    routing->row = calloc(n, sizeof *routing->row);
    routing->origin = calloc(n, sizeof *routing->origin);
    routing->ascending = calloc(n, sizeof *routing->ascending);
    routing->start = calloc((size_t)routing->experts + 1, sizeof *routing->start);
    if (routing->expert && routing->row && routing->origin && routing->ascending && routing->start)
        return STATUS_OK;
    return status_fail(STATUS_MEMORY, "out of memory in the reference");
}

static enum status routing_read(struct routing *routing, const struct value *choices) {
    for (int64_t i = 0, n = value_elements(choices); i < n; i++) {
        double expert = choices->x[i];
        if (!(expert >= 0 && expert < (double)routing->experts && expert == floor(expert)))
            return status_fail(STATUS_INTERNAL, "router choice %g of token %lld is not one of %lld experts", expert,
                               (long long)(i / routing->choices), (long long)routing->experts);
        routing->expert[i] = (int64_t)expert;
    }
    return STATUS_OK;
}

/* Rows in order of (expert, token, choice); by the way each token meets its choices in ascending expert order. */
static void routing_order(struct routing *routing, int64_t *met) {
    int64_t row = 0, n = routing->tokens * routing->choices;
    for (int64_t expert = 0; expert < routing->experts; expert++) {
        routing->start[expert] = row;
        for (int64_t i = 0; i < n; i++) {
            if (routing->expert[i] != expert)
                continue;
            int64_t token = i / routing->choices;
            routing->ascending[token * routing->choices + met[token]++] = i % routing->choices;
            routing->origin[row] = i;
            routing->row[i] = row++;
        }
    }
    routing->start[routing->experts] = row;
}

enum status routing_make(const struct arithmetic *m, struct routing *out, const struct value *choices,
                         int64_t experts) {
    *out = (struct routing){.tokens = choices->shape[0], .choices = choices->shape[1], .experts = experts};
    if (m->dry)
        return STATUS_OK;
    int64_t *met = calloc((size_t)out->tokens + 1, sizeof *met);
    enum status status = met ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory in the reference");
    if (status == STATUS_OK)
        status = routing_allocate(out);
    if (status == STATUS_OK)
        status = routing_read(out, choices);
    if (status == STATUS_OK)
        routing_order(out, met);
    else
        routing_free(out);
    free(met);
    return status;
}

static struct num score_of(const struct routing *r, const struct value *scores, int64_t token, int64_t choice) {
    return num_at(scores, token * r->experts + r->expert[token * r->choices + choice]);
}

static struct num chosen_total(const struct arithmetic *m, const struct routing *r, const struct value *scores,
                               int64_t token) {
    struct sum sum = {0};
    for (int64_t c = 0; c < r->choices; c++)
        sum_term(&sum, score_of(r, scores, token, c));
    return sum_close(m, &sum, r->choices - 1);
}

enum status value_router_weights(const struct arithmetic *m, const struct routing *r, const struct value *scores,
                                 bool normalise, struct value *out) {
    TRY(value_new(m, out, 2, (const int64_t[]){r->tokens, r->choices}));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        struct num score = score_of(r, scores, i / r->choices, i % r->choices);
        if (normalise)
            score = num_divide(m, score, chosen_total(m, r, scores, i / r->choices));
        num_set(out, i, score);
    }
    return STATUS_OK;
}

/* (dw_c - sum_j dw_j w_j) / S. */
static struct num normalised_gradient(const struct arithmetic *m, const struct routing *r, const struct value *scores,
                                      const struct value *weight, const struct value *d_weight, int64_t at) {
    int64_t token = at / r->choices;
    struct sum mean = {0};
    for (int64_t j = token * r->choices; j < (token + 1) * r->choices; j++)
        sum_product(&mean, num_at(d_weight, j), num_at(weight, j));
    struct num centred = num_subtract(m, num_at(d_weight, at), sum_close(m, &mean, r->choices));
    return num_divide(m, centred, chosen_total(m, r, scores, token));
}

enum status value_router_d_scores(const struct arithmetic *m, const struct routing *r, const struct value *scores,
                                  const struct value *weight, const struct value *d_weight, bool normalise,
                                  struct value *out) {
    TRY(value_new(m, out, 2, (const int64_t[]){r->tokens, r->experts}));
    value_zero(out);
    for (int64_t i = 0, n = m->dry ? 0 : r->tokens * r->choices; i < n; i++)
        num_set(out, i / r->choices * r->experts + r->expert[i],
                normalise ? normalised_gradient(m, r, scores, weight, d_weight, i) : num_at(d_weight, i));
    return STATUS_OK;
}

enum status value_router_d_logits(const struct arithmetic *m, const struct value *scores, const struct value *d_scores,
                                  struct value *out) {
    TRY(value_like(m, out, scores));
    int64_t experts = value_last(scores);
    for (int64_t row = 0, rows = m->dry ? 0 : value_rows(scores); row < rows; row++)
        softmax_gradient_span(m, scores, d_scores, row * experts, experts, out);
    return STATUS_OK;
}
