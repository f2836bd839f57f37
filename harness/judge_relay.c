/* Tier 2: the reference runs once from the subject's own records. */
#include "harness/judge_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- following */

/* Ids that differ are not followed: the reference would look up what no table holds; nor are divisors and norms that
 * can be none. */
static bool may_follow(const struct owed_point *owed, const struct judge *judge, bool finite, bool right) {
    if (right || !finite)
        return finite;
    if (owed->point.activation == ACT_INPUT_IDS || owed->point.activation == ACT_LABELS)
        return false;
    if (owed->point.phase == PHASE_LOSS)
        return judge->x[0] > 0;
    if (owed->point.phase == PHASE_CLIP && owed->point.scalar)
        return judge->x[0] >= 0;
    return true;
}

/* The subject's value from here on. A sum's own reduction may still err: gamma_{n-1} sum |piece|. */
static void follow(const struct judge *judge, const struct place *place, struct value *value, const double *magnitude) {
    size_t bytes = (size_t)place->elements * sizeof(double);
    memcpy(value->x, judge->x, bytes);
    if (!value->e)
        return;
    memset(value->e, 0, bytes);
    if (!magnitude)
        return;
    double u = judge->job->dtype == DTYPE_F64 ? 0x1p-53 : 0x1p-24;
    double k = place->turns - 1, gamma = k * u / (1 - k * u);
    for (int64_t i = 0; i < place->elements; i++)
        value->e[i] = gamma * magnitude[i];
    if (value->mag)
        memcpy(value->mag, magnitude, bytes);
}

/* ---- router choices */

struct choices {
    int64_t tokens, k;
    bool *wrong; /* [tokens] */
    int64_t count, ties;
    int64_t token; /* the first wrong one; -1 */
    struct choice_verdict first;
};

static enum status choices_check(const struct judge *judge, const struct place *place, const struct route *route,
                                 struct choices *out) {
    *out = (struct choices){.tokens = place->shape[0], .k = place->shape[1], .token = -1};
    out->wrong = calloc((size_t)out->tokens + 1, sizeof *out->wrong);
    if (!out->wrong)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t n = 0; n < out->tokens; n++) {
        struct choice_verdict verdict = {0};
        bool tie;
        out->wrong[n] = !choice_is_topk(judge->x + n * out->k, out->k, route->scores + n * route->experts,
                                        route->experts, &verdict, &tie);
        out->ties += !out->wrong[n] && tie;
        out->count += out->wrong[n];
        if (out->wrong[n] && out->token < 0) {
            out->token = n;
            out->first = verdict;
        }
    }
    return STATUS_OK;
}

static int choices_ranks(const struct judge *judge, const struct place *place, const struct choices *choices) {
    int ranks = 0;
    for (int rank = 0; rank < judge->world; rank++) {
        const struct shard *piece = place_shard(place, rank);
        bool wrong = false;
        for (int64_t i = 0; i < piece->shape[0]; i++)
            wrong = wrong || choices->wrong[piece->index[0][i]];
        if (wrong)
            judge->rank_scratch[ranks++] = rank;
    }
    return ranks;
}

static enum status report_routing(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                  const struct route *route, const struct choices *choices) {
    const struct choice_verdict *first = &choices->first;
    const double *scores = route->scores + choices->token * route->experts;
    char detail[384];
    struct failure failure = FAILURE_NONE;
    int used = snprintf(detail, sizeof detail, "%lld of %lld tokens are routed wrong; here expert %.17g %s",
                        (long long)choices->count, (long long)choices->tokens, first->got, first->why);
    if (isfinite(first->want)) {
        double mine = scores[(int64_t)first->got], better = scores[(int64_t)first->want];
        failure.numbers = true;
        failure.want = first->want;
        failure.got = first->got;
        failure.error = better - mine;
        failure.expert = (int64_t)first->got;
        snprintf(detail + used, sizeof detail - (size_t)used,
                 ": recorded scores %.17g of expert %.0f, %.17g of expert %.0f.", mine, first->got, better,
                 first->want);
    } else {
        snprintf(detail + used, sizeof detail - (size_t)used, ".");
    }
    failure.point = &owed->point;
    failure.name = owed->name;
    failure.kind = FINDING_ROUTING;
    failure.place = place;
    failure.ranks = choices_ranks(judge, place, choices);
    failure.rank = judge->rank_scratch;
    failure.located = true;
    failure.at = choices->token * choices->k + first->choice;
    failure.what = "is not a top-k of the recorded scores";
    failure.detail = detail;
    return judge_fail(judge, &failure);
}

static enum status relay_choices(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                 struct value *value) {
    struct route *route = &judge->route[owed->point.layer];
    struct choices choices;
    if (!route->scores || route->tokens != place->shape[0])
        return status_fail(STATUS_INTERNAL, "%s: emitted without scores before it", owed->name);
    TRY(choices_check(judge, place, route, &choices));
    judge->report->compared_records += judge->world;
    judge->report->compared_elements += place->held;
    judge->report->routing_tokens += choices.tokens;
    judge->report->routing_ties += choices.ties;
    enum status status = choices.count ? report_routing(judge, owed, place, route, &choices) : STATUS_OK;
    if (choices_usable(judge->x, choices.tokens, choices.k, route->experts))
        follow(judge, place, value, NULL);
    free(choices.wrong);
    return status;
}

/* ---- a point */

static enum status relay_values(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                struct value *value, const double *magnitude) {
    enum compare_rule rule = RULE_BAR;
    bool finite, right;
    if (point_kind(&owed->point) == POINT_EXACT || owed->point.phase == PHASE_EXPORT)
        rule = RULE_EXACT;
    enum dtype dtype = judge->record[0]->tensor.dtype;
    if (owed->point.phase == PHASE_EXPORT && dtype != DTYPE_F64)
        for (int64_t i = 0; i < place->elements; i++)
            value->x[i] = dtype_round(dtype, value->x[i]);
    /* a float64 subject and this reference both round */
    double factor = judge->job->dtype == DTYPE_F64 ? 2.0 : 1.0;
    TRY(records_compare(judge, owed, place, value, rule, factor, &finite, &right));
    if (may_follow(owed, judge, finite, right))
        follow(judge, place, value, magnitude);
    return STATUS_OK;
}

static enum status relay_point(struct judge *judge, const struct owed_point *owed, const struct place *place,
                               struct value *value) {
    bool sound;
    double *magnitude = NULL;
    TRY(records_find(judge, judge->trace, &owed->point, owed->name, place, true, &sound));
    if (!sound)
        return STATUS_OK;
    if (point_is_partial(&owed->point)) {
        magnitude = malloc((size_t)(place->elements + 1) * sizeof *magnitude);
        if (!magnitude)
            return status_fail(STATUS_MEMORY, "out of memory");
    }
    enum status status = records_assemble(judge, place, magnitude);
    if (status == STATUS_OK && point_kind(&owed->point) == POINT_CHOICE)
        status = relay_choices(judge, owed, place, value);
    else if (status == STATUS_OK)
        status = relay_values(judge, owed, place, value, magnitude);
    free(magnitude);
    return status;
}

static enum status relay_exchanged(struct judge *judge, const struct owed_point *owed, struct value *value) {
    const struct route *route = &judge->route[owed->point.layer];
    struct place place;
    if (!route->made)
        return status_fail(STATUS_INTERNAL, "%s: emitted without choices before it", owed->name);
    TRY(place_rows(&place, &judge->places, &owed->point, owed->ndim, owed->shape, route));
    enum status status = relay_point(judge, owed, &place, value);
    judge_place_free(&place);
    return status;
}

/* What later points need: scores for the choices, choices for the exchanged rows; as the reference goes on from them.
 */
static enum status remember(struct judge *judge, const struct owed_point *owed, const struct value *value) {
    const struct point *point = &owed->point;
    if (point->phase != PHASE_FORWARD)
        return STATUS_OK;
    if (point->activation == ACT_ROUTER_SCORES)
        return route_scores(&judge->route[point->layer], value->shape[0], value->shape[1], value->x);
    if (point->activation != ACT_TOPK_INDEX)
        return STATUS_OK;
    const struct micro_batch *micro = micro_numbered(judge->job, point->micro);
    return judge_route_make(&judge->route[point->layer], judge->places.mesh, owed->place,
                            checkpoint_config(judge->job->model)->experts, micro ? micro->tokens : 1, value->x);
}

static enum status keep_value(const struct judge *judge, struct owed_point *owed, const struct value *value) {
    int64_t elements = 1;
    for (int d = 0; d < value->ndim; d++)
        elements *= value->shape[d];
    if (!judge->keep)
        return STATUS_OK;
    owed->kept = malloc((size_t)(elements + 1) * sizeof *owed->kept);
    if (!owed->kept)
        return status_fail(STATUS_MEMORY, "out of memory");
    memcpy(owed->kept, value->x, (size_t)elements * sizeof *owed->kept);
    return STATUS_OK;
}

static enum status relay_emit(void *context, const struct point *point, struct value *value) {
    struct judge *judge = context;
    struct owed_point *owed;
    TRY(judge_next(judge, point, &owed));
    TRY(keep_value(judge, owed, value));
    if (owed->place)
        TRY(relay_point(judge, owed, owed->place, value));
    else
        TRY(relay_exchanged(judge, owed, value));
    return remember(judge, owed, value);
}

static enum status missing_ranks(struct judge *judge, const struct trace *trace) {
    struct failure failure = FAILURE_NONE;
    char name[32];
    int ranks = 0;
    for (int rank = trace->ranks; rank < judge->world; rank++)
        judge->rank_scratch[ranks++] = rank;
    if (ranks == 0)
        return STATUS_OK;
    snprintf(name, sizeof name, "rank %d", judge->rank_scratch[0]);
    failure.name = name;
    failure.no_tensor = true;
    failure.kind = FINDING_MISSING;
    failure.ranks = ranks;
    failure.rank = judge->rank_scratch;
    failure.what = "nothing was recorded";
    return judge_fail(judge, &failure);
}

enum status judge_relay(struct judge *judge, const struct trace *trace) {
    struct reference_options options = {.bounds = true};
    struct reference_hooks hooks = {.context = judge, .emit = relay_emit, .at_action = judge_at_action};
    TRY(judge_count_once(judge));
    judge_segments_trace(judge, trace);
    for (int segment = 0; segment < judge->segments; segment++) {
        judge_enter(judge, segment);
        TRY(missing_ranks(judge, judge->trace));
    }
    judge->at = 0;
    TRY(reference_run(judge->job, &options, &hooks));
    if (judge->at != judge->owed_count)
        return status_fail(STATUS_INTERNAL, "the reference stopped before %s", judge->owed[judge->at].name);
    return STATUS_OK;
}
