#include "harness/judge_compare.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- comparing */

struct comparison {
    enum compare_rule rule;
    const double *want;
    const double *bar; /* NULL: 0 */
    double factor;
    const double *got; /* assembled; for sums the only thing to compare */
    bool sum;
    bool bfloat;             /* stored in bfloat16: the bar is about what was rounded */
    int64_t rank;            /* rows from here on may hold NaN, bit for bit; -1: none may */
    int64_t max_rank, inner; /* row of element i: i / inner % max_rank */
};

/* Pieces that were added up here carry this addition's own rounding. */
static double computed_bar(const struct comparison *c, int64_t i) {
    if (!c->bar)
        return 0.0;
    return c->factor * c->bar[i] + (c->sum ? 0x1p-53 * fabs(c->got[i]) : 0.0);
}

/* The subject computed some y' within [x - e, x + e] and stored it. Both roundings are monotone, so that it stored
 * nothing below fl16(x - e) and nothing above fl16(x + e). */
static double stored_bfloat(double x) {
    return dtype_round(DTYPE_BF16, dtype_round(DTYPE_F32, x));
}

static bool bfloat_right(const struct comparison *c, int64_t i, double got) {
    double bar = computed_bar(c, i);
    return stored_bfloat(c->want[i] - bar) <= got && got <= stored_bfloat(c->want[i] + bar);
}

/* The most that an element may be off. */
static double bar_at(const struct comparison *c, int64_t i) {
    double bar = computed_bar(c, i);
    if (!c->bfloat)
        return bar;
    return fmax(stored_bfloat(c->want[i] + bar) - c->want[i], c->want[i] - stored_bfloat(c->want[i] - bar));
}

static bool value_right(const struct comparison *c, int64_t i, double got) {
    return c->bfloat ? bfloat_right(c, i, got) : fabs(got - c->want[i]) <= computed_bar(c, i);
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* A row beyond the tenant's rank keeps the NaN that acquire wrote. */
static bool beyond_rank(const struct comparison *c, int64_t i, double got) {
    return c->rank >= 0 && i / c->inner % c->max_rank >= c->rank && isnan(c->want[i]) && same_bits(got, c->want[i]);
}

static bool element_right(const struct comparison *c, int64_t i, double got) {
    if (c->rule == RULE_EXACT)
        return same_bits(got, c->want[i]);
    if (beyond_rank(c, i, got))
        return true;
    return value_right(c, i, got);
}

static bool element_wrong(const void *context, int64_t global, double got) {
    const struct comparison *c = context;
    return !element_right(c, global, c->sum ? c->got[global] : got);
}

static bool element_not_finite(const void *context, int64_t global, double got) {
    return !isfinite(got) && !beyond_rank(context, global, got);
}

enum status ranks_wrong(struct judge *judge, const struct place *place, wrong_element wrong, const void *context,
                        int *ranks, int64_t *at) {
    *ranks = 0;
    *at = -1;
    for (int rank = 0; rank < place->world; rank++) {
        const struct shard *piece = place_shard(place, rank);
        const struct tensor *local = &judge->record[rank]->tensor;
        for (int64_t i = 0; i < shard_elements(piece); i++) {
            int64_t global = shard_global(piece, i, NULL);
            if (!wrong(context, global, tensor_get(local, i)))
                continue;
            if (*at < 0)
                *at = global;
            judge->rank_scratch[(*ranks)++] = rank;
            break;
        }
    }
    return STATUS_OK;
}

static int64_t count_wrong(const struct comparison *c, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += !element_right(c, i, c->got[i]);
    return count;
}

static bool all_right(const struct comparison *c, int64_t n) {
    bool right = true;
    if (c->rule == RULE_EXACT)
        return memcmp(c->got, c->want, (size_t)n * sizeof *c->got) == 0;
    for (int64_t i = 0; i < n; i++)
        right &= value_right(c, i, c->got[i]);
    return right || (c->rank >= 0 && count_wrong(c, n) == 0);
}

static bool all_finite(const struct comparison *c, int64_t n) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite &= fabs(c->got[i]) <= DBL_MAX;
    for (int64_t i = 0; i < n && !finite && c->rank >= 0; i++)
        if (element_not_finite(c, i, c->got[i]))
            return false;
    return finite || c->rank >= 0;
}

static double local_value(const struct judge *judge, const struct place *place, int rank, int64_t global) {
    const struct shard *piece = place_shard(place, rank);
    for (int64_t i = 0; i < shard_elements(piece); i++)
        if (shard_global(piece, i, NULL) == global)
            return tensor_get(&judge->record[rank]->tensor, i);
    return NAN;
}

static struct failure failure_at(const struct owed_point *owed, const struct place *place, enum finding_kind kind,
                                 const struct comparison *c, int64_t at, double got) {
    struct failure failure = FAILURE_NONE;
    failure.point = &owed->point;
    failure.name = owed->name;
    failure.kind = kind;
    failure.place = place;
    failure.located = at >= 0;
    failure.at = at;
    failure.numbers = at >= 0;
    if (at >= 0) {
        failure.want = c->want[at];
        failure.got = got;
        failure.error = fabs(got - c->want[at]);
        failure.bar = c->rule == RULE_EXACT ? 0.0 : bar_at(c, at);
    }
    failure.window_want = c->want;
    failure.window_got = c->got;
    return failure;
}

static enum status report_not_finite(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                     const struct comparison *c) {
    int ranks = 0;
    int64_t at = -1;
    if (judge_first(judge))
        TRY(ranks_wrong(judge, place, element_not_finite, c, &ranks, &at));
    struct failure failure = failure_at(owed, place, FINDING_NOT_FINITE, c, at,
                                        ranks ? local_value(judge, place, judge->rank_scratch[0], at) : NAN);
    failure.ranks = ranks;
    failure.rank = judge->rank_scratch;
    failure.what = "is not finite";
    if (ranks == 0)
        failure.detail = "No rank holds it, or finite pieces add up to it.";
    return judge_fail(judge, &failure);
}

/* A wrong sum whose pieces have been looked at one by one: the failure is the ranks' that differ. */
static void tell_alone(struct failure *failure, const struct alone *alone) {
    if (alone->ranks == 0) {
        failure->detail = "Repeated with each rank's rows alone, no rank differs by itself.";
        return;
    }
    failure->ranks = alone->ranks;
    failure->at = alone->at;
    failure->want = alone->want.x[alone->at];
    failure->got = alone->got[alone->at];
    failure->error = fabs(failure->got - failure->want);
    failure->bar = alone->bar;
    failure->differ = alone->differ;
    failure->window_want = alone->want.x;
    failure->window_got = alone->got;
    failure->what = "adds up to a wrong sum: repeated with each rank's rows alone it differs";
}

static enum status report_wrong(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                const struct value *value, const struct comparison *c) {
    int ranks = 0;
    int64_t at = -1;
    if (judge_first(judge))
        TRY(ranks_wrong(judge, place, element_wrong, c, &ranks, &at));
    double got = at < 0 ? NAN : c->sum ? c->got[at] : local_value(judge, place, judge->rank_scratch[0], at);
    struct failure failure = failure_at(owed, place, FINDING_VALUE, c, at, got);
    failure.ranks = ranks;
    failure.rank = judge->rank_scratch;
    failure.what = c->sum ? "adds up to a wrong sum" : "is wrong";
    failure.differ = at >= 0 ? count_wrong(c, place->elements) : 0;
    if (c->rule == RULE_EXACT && at >= 0)
        failure.detail = "It is moved, not computed: every bit must arrive.";
    struct alone alone = {0};
    enum status status;
    if (c->sum && value->repeat && at >= 0) {
        TRY_DONE(records_alone(judge, owed, place, value, c->factor, ranks, &alone));
        tell_alone(&failure, &alone);
    }
    TRY_DONE(judge_fail(judge, &failure));
done:
    alone_free(&alone);
    return status;
}

/* ---- replicas */

static bool copy_differs(const struct judge *judge, const struct place *place, int rank) {
    int first = place->first[rank];
    if (first == rank)
        return false;
    const struct tensor *a = &judge->record[first]->tensor, *b = &judge->record[rank]->tensor;
    return memcmp(a->data, b->data, tensor_bytes(a)) != 0;
}

struct against_first { /* a rank's copy, element by element against its lowest holder's */
    const struct tensor *mine, *first;
};

static int64_t first_difference(const struct shard *piece, const struct against_first *pair) {
    for (int64_t i = 0; i < shard_elements(piece); i++)
        if (!same_bits(tensor_get(pair->mine, i), tensor_get(pair->first, i)))
            return i;
    return -1;
}

/* Copies that differ from each other: if some are wrong by the reference, those are named; else those that differ from
 * the lowest holder's. */
static enum status report_replica(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                  const struct comparison *c, int differing) {
    struct against_first pair = {&judge->record[differing]->tensor, &judge->record[place->first[differing]]->tensor};
    const struct shard *piece = place_shard(place, differing);
    int64_t local = first_difference(piece, &pair);
    int64_t at = local < 0 ? 0 : shard_global(piece, local, NULL);
    double mine = local < 0 ? NAN : tensor_get(pair.mine, local);
    double lowest = local < 0 ? NAN : tensor_get(pair.first, local);
    char detail[256];
    int ranks = 0;
    int64_t wrong_at = -1;
    snprintf(detail, sizeof detail, "Rank %d holds %.17g where rank %d holds a copy of it, %.17g.", differing, mine,
             place->first[differing], lowest);
    if (!c->sum)
        TRY(ranks_wrong(judge, place, element_wrong, c, &ranks, &wrong_at));
    bool by_reference = ranks > 0;
    if (by_reference)
        mine = local_value(judge, place, judge->rank_scratch[0], at = wrong_at);
    else
        for (int rank = 0; rank < place->world; rank++)
            if (copy_differs(judge, place, rank))
                judge->rank_scratch[ranks++] = rank;
    struct failure failure = failure_at(owed, place, FINDING_REPLICA, c, at, mine);
    if (!by_reference) {
        failure.want = lowest;
        failure.error = fabs(mine - lowest);
        failure.bar = 0;
    }
    failure.ranks = ranks;
    failure.rank = judge->rank_scratch;
    failure.what = "differs between ranks that hold the same piece";
    failure.detail = detail;
    return judge_fail(judge, &failure);
}

/* ---- the verdict at a point */

/* Elements in bfloat16 that are right have no part in it: what their bar leaves open is seldom more than nothing. */
static void note_worst(struct judge *judge, const struct owed_point *owed, const struct comparison *c, int64_t n) {
    struct report_case *report = judge->report;
    double worst = report->worst_error_over_bar, before = worst;
    for (int64_t i = 0; i < n; i++) {
        if (c->bfloat && bfloat_right(c, i, c->got[i]))
            continue;
        double error = fabs(c->got[i] - c->want[i]), bar = bar_at(c, i);
        if (error > worst * bar)
            worst = bar > 0 ? error / bar : INFINITY;
    }
    if (!(worst > before))
        return;
    char *name = strdup(owed->name);
    if (!name)
        return;
    free(report->worst_tensor);
    report->worst_tensor = name;
    report->worst_error_over_bar = worst;
}

static void allow_beyond(const struct job *job, const struct point *point, const struct place *place,
                         struct comparison *c) {
    if (!job->beyond_nan || !point_holds_beyond(point))
        return;
    c->rank = point_rank(job, point);
    c->max_rank = job->max_rank;
    c->inner = point->part == PART_LORA_A ? place->shape[place->ndim - 1] : 1;
}

enum status records_compare(struct judge *judge, const struct owed_point *owed, const struct place *place,
                            const struct value *value, enum compare_rule rule, double factor, bool *finite,
                            bool *right) {
    struct comparison c = {.rule = rule,
                           .want = value->x,
                           .bar = rule == RULE_BAR ? value->e : NULL,
                           .factor = factor,
                           .got = judge->x,
                           .sum = place->turns > 1,
                           .bfloat = rule == RULE_BAR && owed_dtype(judge->job, &owed->point) == DTYPE_BF16,
                           .rank = -1};
    int64_t n = place->elements;
    int differing = -1;
    allow_beyond(judge->job, &owed->point, place, &c);
    *finite = all_finite(&c, n);
    for (int rank = judge->world - 1; rank >= 0; rank--)
        if (copy_differs(judge, place, rank))
            differing = rank;
    *right = *finite && differing < 0 && all_right(&c, n);
    judge->report->compared_records += judge->world;
    judge->report->compared_elements += place->held;
    if (rule == RULE_BAR && *finite)
        note_worst(judge, owed, &c, n);
    if (*right)
        return STATUS_OK;
    int unfinished = 0;
    if (*finite && differing >= 0) /* a copy that was not assembled */
        TRY(ranks_wrong(judge, place, element_not_finite, &c, &unfinished, &(int64_t){0}));
    if (!*finite || unfinished > 0)
        return report_not_finite(judge, owed, place, &c);
    if (differing >= 0)
        return report_replica(judge, owed, place, &c, differing);
    return report_wrong(judge, owed, place, value, &c);
}
