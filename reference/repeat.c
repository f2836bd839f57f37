#include "reference/repeat.h"

#include "reference/adapter.h"
#include "reference/embedding.h"
#include "reference/experts.h"
#include "reference/linear.h"
#include "reference/loss.h"
#include "reference/norm.h"

#include <stdlib.h>
#include <string.h>

/* ---- rows of some tokens */

static int64_t row_count(const struct repeat *r) {
    const struct micro_batch *micro = r->walk->micro;
    if (r->kind == REPEAT_LOSS)
        return micro->sequences * (micro->tokens - 1);
    return micro->sequences * micro->tokens * (r->kind == REPEAT_EXPERTS ? r->walk->routing[r->layer].choices : 1);
}

static int64_t token_of(const struct repeat *r, int64_t row) {
    int64_t tokens = r->walk->micro->tokens;
    if (r->kind == REPEAT_LOSS) /* the last token of a sequence has no loss */
        return row / (tokens - 1) * tokens + row % (tokens - 1);
    const struct routing *routing = &r->walk->routing[r->layer];
    return r->kind == REPEAT_EXPERTS ? routing->origin[row] / routing->choices : row;
}

/* out [chosen rows, elements of a row]; empty for an operand that the kind does not have. */
static enum status choose(const struct repeat *r, const bool *tokens, const struct value *from, struct value *out) {
    int64_t rows = row_count(r), count = 0;
    *out = (struct value){0};
    if (!from)
        return STATUS_OK;
    int64_t width = rows > 0 ? value_elements(from) / rows : 1;
    for (int64_t row = 0; row < rows; row++)
        count += tokens[token_of(r, row)];
    TRY(value_new(&r->walk->arithmetic, out, 2, (const int64_t[]){count, width}));
    count = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (!tokens[token_of(r, row)])
            continue;
        memcpy(out->x + count * width, from->x + row * width, (size_t)width * sizeof *out->x);
        memcpy(out->e + count * width, from->e + row * width, (size_t)width * sizeof *out->e);
        count++;
    }
    return STATUS_OK;
}

/* The chosen exchanged rows, expert by expert as they stand in `dy`. */
static enum status experts(const struct repeat *r, const bool *tokens, const struct value *dy, const struct value *x,
                           struct value *out) {
    struct routing routing = r->walk->routing[r->layer];
    const int64_t *start = routing.start;
    routing.start = calloc((size_t)routing.experts + 1, sizeof *routing.start);
    if (!routing.start)
        return status_fail(STATUS_MEMORY, "out of memory in the reference");
    for (int64_t e = 0; e < routing.experts; e++) {
        routing.start[e + 1] = routing.start[e];
        for (int64_t row = start[e]; row < start[e + 1]; row++)
            routing.start[e + 1] += tokens[token_of(r, row)];
    }
    enum status status = value_expert_weight_gradient(&r->walk->arithmetic, &routing, dy, x, out);
    free(routing.start);
    return status;
}

/* ---- the operations */

static enum status of_rows(const struct repeat *r, const bool *tokens, const struct value *own, const struct value *dy,
                           const struct value *x, const struct value *scale, struct value *out) {
    const struct arithmetic *m = &r->walk->arithmetic;
    switch (r->kind) {
    case REPEAT_LINEAR:
        return value_linear_weight_gradient(m, dy, x, out);
    case REPEAT_EXPERTS:
        return experts(r, tokens, dy, x, out);
    case REPEAT_BIAS:
        return value_linear_bias_gradient(m, dy, out);
    case REPEAT_NORM:
        return value_norm_weight_gradient(m, dy, x, scale, r->param->shape[0], out);
    case REPEAT_EMBED:
        return value_embed_gradient(m, x, dy, r->param->shape[0], r->from ? own : NULL, out);
    default:
        return value_loss_sum(m, x, out);
    }
}

static enum status make(const struct repetition *self, const bool *tokens, const struct value *own, struct value *out) {
    const struct repeat *r = (const struct repeat *)self;
    const struct arithmetic *m = &r->walk->arithmetic;
    struct value dy = {0}, x = {0}, scale = {0};
    int64_t max_rank = r->walk->reference->job->max_rank;
    enum status status;
    *out = (struct value){0};
    if (r->kind == REPEAT_LORA_A)
        return value_delta_gradient_a(m, walk_target(r->walk, r->param), max_rank, own, r->x, out);
    if (r->kind == REPEAT_LORA_B)
        return value_delta_gradient_b(m, walk_target(r->walk, r->param), max_rank, own, r->x, out);
    TRY_DONE(choose(r, tokens, r->dy, &dy));
    TRY_DONE(choose(r, tokens, r->x, &x));
    TRY_DONE(choose(r, tokens, r->scale, &scale));
    TRY_DONE(of_rows(r, tokens, own, &dy, &x, &scale, out));
done:
    value_free(&dy);
    value_free(&x);
    value_free(&scale);
    return status;
}

void repeat_offer(struct repeat *repeat, const struct walk *walk, const struct param *param, struct value *value) {
    bool lora = repeat->kind == REPEAT_LORA_A || repeat->kind == REPEAT_LORA_B;
    repeat->walk = walk;
    repeat->param = param;
    repeat->repetition = (struct repetition){make, lora ? param : repeat->from};
    value->repeat = walk->arithmetic.bounds ? &repeat->repetition : NULL;
}
