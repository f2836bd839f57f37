#include "harness/judge_route.h"

#include "harness/judge_place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void rows_free(struct route *route) {
    free(route->expert);
    free(route->token);
    free(route->choice);
    free(route->own);
    free(route->begin);
    route->expert = route->token = route->choice = route->own = route->begin = NULL;
    route->made = false;
}

void judge_route_free(struct route *route) {
    free(route->scores);
    rows_free(route);
    *route = (struct route){0};
}

enum status route_scores(struct route *route, int64_t tokens, int64_t experts, const double *scores) {
    judge_route_free(route);
    size_t bytes = (size_t)(tokens * experts) * sizeof *scores;
    route->scores = malloc(bytes ? bytes : 1);
    if (!route->scores)
        return status_fail(STATUS_MEMORY, "out of memory");
    memcpy(route->scores, scores, bytes);
    route->tokens = tokens;
    route->experts = experts;
    return STATUS_OK;
}

static int64_t *numbers(int64_t count) {
    return calloc(count > 0 ? (size_t)count : 1, sizeof(int64_t));
}

/* The rank that a row travels to: the token's own rank with its `ep` coordinate replaced by the expert's block. */
static int row_owner(const struct mesh *mesh, int source, int64_t expert, int64_t experts) {
    int axis = mesh_axis(mesh, "ep");
    if (axis < 0)
        return source;
    int64_t block, unused;
    int stride = 1, ep = mesh->size[axis];
    for (int later = axis + 1; later < mesh->axes; later++)
        stride *= mesh->size[later];
    for (block = 0; block < ep; block++) {
        int64_t begin;
        chunk_range(experts, ep, block, false, &begin, &unused);
        if (expert >= begin && expert < begin + unused)
            break;
    }
    return source + ((int)block - mesh_coordinate(mesh, axis, source)) * stride;
}

/* Every row of the whole form, ascending by (expert, token). */
static enum status rows_list(struct route *route, const double *choice) {
    int64_t *next = numbers(route->experts + 1);
    if (!next)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < route->rows; i++)
        next[(int64_t)choice[i] + 1]++;
    for (int64_t e = 0; e < route->experts; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; i < route->rows; i++) {
        int64_t row = next[(int64_t)choice[i]]++;
        route->expert[row] = (int64_t)choice[i];
        route->token[row] = i / route->choices;
        route->choice[row] = i % route->choices;
    }
    free(next);
    return STATUS_OK;
}

static enum status rows_share_out(struct route *route, const struct mesh *mesh, const struct place *topk) {
    int64_t *source = numbers(route->tokens), *owner = numbers(route->rows), *next = numbers(topk->world + 1);
    if (!source || !owner || !next) {
        free(source);
        free(owner);
        free(next);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    for (int rank = topk->world - 1; rank >= 0; rank--) {
        const struct shard *piece = place_shard(topk, rank);
        for (int64_t i = 0; i < piece->shape[0]; i++)
            source[piece->index[0][i]] = rank;
    }
    for (int64_t row = 0; row < route->rows; row++) {
        owner[row] = row_owner(mesh, (int)source[route->token[row]], route->expert[row], route->experts);
        route->begin[owner[row] + 1]++;
    }
    for (int rank = 0; rank < topk->world; rank++) {
        route->begin[rank + 1] += route->begin[rank];
        next[rank] = route->begin[rank];
    }
    for (int64_t row = 0; row < route->rows; row++)
        route->own[next[owner[row]]++] = row;
    free(source);
    free(owner);
    free(next);
    return STATUS_OK;
}

enum status judge_route_make(struct route *route, const struct mesh *mesh, const struct place *topk, int64_t experts,
                             int64_t batch_tokens, const double *choice) {
    rows_free(route);
    route->tokens = topk->shape[0];
    route->choices = topk->shape[1];
    route->experts = experts;
    route->batch_tokens = batch_tokens > 0 ? batch_tokens : 1;
    route->rows = route->tokens * route->choices;
    route->expert = numbers(route->rows);
    route->token = numbers(route->rows);
    route->choice = numbers(route->rows);
    route->own = numbers(route->rows);
    route->begin = numbers(topk->world + 1);
    if (!route->expert || !route->token || !route->choice || !route->own || !route->begin)
        return status_fail(STATUS_MEMORY, "out of memory");
    TRY(rows_list(route, choice));
    TRY(rows_share_out(route, mesh, topk));
    route->made = true;
    return STATUS_OK;
}

static bool is_expert(double choice, int64_t experts) {
    return choice >= 0 && choice < (double)experts && choice == floor(choice);
}

static bool blame(struct choice_verdict *out, const char *why, int64_t choice, double want, double got) {
    out->why = why;
    out->choice = choice;
    out->want = want;
    out->got = got;
    return false;
}

static bool chosen(const double *choice, int64_t k, int64_t expert) {
    for (int64_t c = 0; c < k; c++)
        if ((int64_t)choice[c] == expert)
            return true;
    return false;
}

bool choice_is_topk(const double *choice, int64_t k, const double *scores, int64_t experts, struct choice_verdict *out,
                    bool *tie) {
    *tie = false;
    for (int64_t c = 0; c < k; c++) {
        if (!is_expert(choice[c], experts))
            return blame(out, "is not an expert's number", c, NAN, choice[c]);
        if (chosen(choice, c, (int64_t)choice[c]))
            return blame(out, "was chosen twice", c, NAN, choice[c]);
    }
    for (int64_t c = 0; c + 1 < k; c++) {
        double here = scores[(int64_t)choice[c]], after = scores[(int64_t)choice[c + 1]];
        if (!(here >= after))
            return blame(out, "stands before an expert of higher score", c, choice[c + 1], choice[c]);
        *tie = *tie || here == after;
    }
    double last = k ? scores[(int64_t)choice[k - 1]] : INFINITY;
    int64_t best = -1; /* the highest that should have been chosen instead */
    for (int64_t e = 0; e < experts; e++) {
        if (chosen(choice, k, e))
            continue;
        *tie = *tie || scores[e] == last;
        if (!(last >= scores[e]) && (best < 0 || scores[e] > scores[best]))
            best = e;
    }
    if (best >= 0)
        return blame(out, "was chosen although an expert of higher score was not", k - 1, (double)best, choice[k - 1]);
    return true;
}

bool choices_usable(const double *choice, int64_t tokens, int64_t k, int64_t experts) {
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t c = 0; c < k; c++) {
            const double *row = choice + n * k;
            if (!is_expert(row[c], experts) || chosen(row, c, (int64_t)row[c]))
                return false;
        }
    return true;
}
