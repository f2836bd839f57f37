/* Tier 4: the subject's records against the free-running reference at the golden bounds. */
#include "harness/golden_answers.h"
#include "harness/judge_compare.h"

#include <math.h>
#include <stdlib.h>

struct held { /* one tensor against its answer */
    const double *want;
    double floor; /* 1e-3 max |want| */
    double bound;
};

/* Rows beyond a tenant's rank may hold NaN on both sides; the relay has compared them bit for bit. */
static double relative(const struct held *held, int64_t i, double got) {
    if (isnan(held->want[i]) && isnan(got))
        return 0;
    double scale = fabs(held->want[i]) > held->floor ? fabs(held->want[i]) : held->floor;
    double error = fabs(got - held->want[i]);
    return scale > 0 ? error / scale : error;
}

static bool off(const void *context, int64_t global, double got) {
    const struct held *held = context;
    return !(relative(held, global, got) <= held->bound);
}

static struct held held_make(const struct answer *answer, const struct place *place) {
    struct held held = {.want = answer->value.x, .bound = golden_bound(answer->updates)};
    for (int64_t i = 0; i < place->elements; i++)
        if (fabs(held.want[i]) > held.floor)
            held.floor = fabs(held.want[i]);
    held.floor *= 1e-3;
    return held;
}

static bool any_off(const struct held *held, int64_t n, const double *got) {
    for (int64_t i = 0; i < n; i++)
        if (off(held, i, got[i]))
            return true;
    return false;
}

static enum status report_off(struct judge *judge, const struct answer *answer, const struct place *place,
                              const struct held *held) {
    struct failure failure = FAILURE_NONE;
    int64_t at = -1;
    if (judge_first(judge))
        TRY(ranks_wrong(judge, place, off, held, &failure.ranks, &at));
    failure.point = &answer->point;
    failure.name = answer->name;
    failure.kind = FINDING_VALUE;
    failure.place = place;
    failure.rank = judge->rank_scratch;
    failure.what = "leaves the free-running reference";
    failure.located = failure.numbers = at >= 0;
    if (at >= 0) {
        failure.at = at;
        failure.want = held->want[at];
        failure.got = judge->x[at];
        failure.error = relative(held, at, judge->x[at]);
        failure.bar = held->bound;
    }
    failure.window_want = held->want;
    failure.window_got = judge->x;
    failure.detail = "Error and bar are relative, as for golden answers.";
    return judge_fail(judge, &failure);
}

/* Of whose world a record is. */
static int owed_segment(const struct judge *judge, const char *name) {
    int segment = judge->segments - 1;
    while (segment > 0 && !name_set_has(&judge->part[segment].names, name))
        segment--;
    return segment;
}

enum status judge_answers(struct judge *judge, const struct trace *trace, const struct answers *answers) {
    if (judge->job->dtype != DTYPE_F64) /* the golden bounds are about doubles */
        return STATUS_OK;
    TRY(judge_count_once(judge));
    judge_segments_trace(judge, trace);
    for (int i = 0; i < answers->count; i++) {
        const struct answer *answer = &answers->item[i];
        const struct place *place;
        bool sound;
        judge_enter(judge, owed_segment(judge, answer->name));
        TRY(place_find(&judge->places, &answer->point, answer->value.ndim, answer->value.shape, &place));
        TRY(records_find(judge, judge->trace, &answer->point, answer->name, place, true, &sound));
        if (!sound)
            continue;
        TRY(records_assemble(judge, place, NULL));
        struct held held = held_make(answer, place);
        if (any_off(&held, place->elements, judge->x))
            TRY(report_off(judge, answer, place, &held));
    }
    return STATUS_OK;
}
