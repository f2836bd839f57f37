/* Tier 3: the same program at world 1, started before each step from the parameters, slots and state that world N
 * recorded, holds the same bits wherever nothing adds over ranks. */
#include "harness/judge_compare.h"
#include "harness/world.h"

#include "sharded/subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct twin {
    struct judge *judge;
    const struct trace *trace; /* of world N */
    struct mesh mesh;
    struct rules rules;
    enum status (*record)(void *sink, const struct point *point, const struct tensor *data);
    void *sink;
};

/* ---- the twin's own process */

static enum status twin_record(void *context, const struct point *point, const struct tensor *data) {
    struct twin *twin = context;
    return twin->record(twin->sink, point, data);
}

/* What world N recorded under `param` before this step. A record that is missing or of wrong shape is left alone: the
 * relay has named it. */
static enum status twin_before_step(void *context, struct subject *subject, int step) {
    struct twin *twin = context;
    struct judge *judge = twin->judge;
    for (int i = 0; i < judge->owed_count; i++) {
        const struct owed_point *owed = &judge->owed[i];
        struct tensor whole = {0};
        bool sound;
        if (owed->point.phase != PHASE_PARAM || owed->point.step != step)
            continue;
        judge_enter(judge, owed->segment);
        TRY(records_find(judge, &twin->trace[owed->segment], &owed->point, owed->name, owed->place, false, &sound));
        if (!sound)
            continue;
        enum status status = records_whole(judge, owed->place, &whole);
        if (status == STATUS_OK)
            status = subject_overwrite(subject, &owed->point, &whole);
        tensor_free(&whole);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status twin_rank(void *context, int index, struct comm *comm,
                             enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                             void *sink) {
    struct twin twin = *(struct twin *)context;
    (void)index;
    twin.record = record;
    twin.sink = sink;
    struct subject_hooks hooks = {
        .context = &twin, .record = twin_record, .before_step = twin_before_step, .save_folder = twin.judge->saves};
    return subject_run(twin.judge->job, &twin.mesh, NULL, &twin.rules, comm, &hooks);
}

/* ---- the comparison */

/* After the last action nobody overwrites the twin: its last `param` records follow its own update. So does the rest of
 * a window into which another tenant's update of base tensors fell. */
static bool is_compared(const struct job *job, const struct point *point) {
    return point_is_split_invariant(point) && !window_drifted(job, point) &&
           !(point->phase == PHASE_PARAM && point->step == job->steps);
}

static enum status twin_differs(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                enum finding_kind kind, const char *detail) {
    struct failure failure = FAILURE_NONE;
    failure.point = &owed->point;
    failure.name = owed->name;
    failure.kind = kind;
    failure.place = place;
    failure.what = "is not what the same program holds at world 1";
    failure.detail = detail;
    return judge_fail(judge, &failure);
}

/* The first local element whose bytes differ, -1 if none. */
static int64_t first_difference(const void *a, const void *b, int64_t elements, size_t element) {
    for (int64_t i = 0; i < elements; i++)
        if (memcmp((const char *)a + (size_t)i * element, (const char *)b + (size_t)i * element, element) != 0)
            return i;
    return -1;
}

struct twin_difference {
    int ranks;
    int64_t at; /* global, of the first rank */
    double want, got;
};

static enum status compare_rank(struct judge *judge, const struct place *place, int rank, const struct tensor *twin,
                                struct twin_difference *out) {
    const struct shard *piece = place_shard(place, rank);
    const struct tensor *mine = &judge->record[rank]->tensor;
    size_t element = dtype_bytes(mine->dtype);
    int64_t elements = shard_elements(piece);
    struct tensor cut = {0};
    TRY(tensor_make(&cut, mine->dtype, mine->ndim, mine->shape));
    shard_cut(piece, element, twin->data, cut.data);
    if (memcmp(cut.data, mine->data, (size_t)elements * element) != 0) {
        int64_t i = first_difference(cut.data, mine->data, elements, element);
        if (out->ranks == 0)
            *out = (struct twin_difference){0, shard_global(piece, i, NULL), tensor_get(&cut, i), tensor_get(mine, i)};
        judge->rank_scratch[out->ranks++] = rank;
    }
    tensor_free(&cut);
    return STATUS_OK;
}

static enum status compare_pieces(struct judge *judge, const struct owed_point *owed, const struct place *place,
                                  const struct tensor *twin) {
    struct twin_difference difference = {0};
    for (int rank = 0; rank < judge->world; rank++)
        TRY(compare_rank(judge, place, rank, twin, &difference));
    if (difference.ranks == 0)
        return STATUS_OK;
    struct failure failure = FAILURE_NONE;
    failure.point = &owed->point;
    failure.name = owed->name;
    failure.kind = FINDING_VALUE;
    failure.place = place;
    failure.ranks = difference.ranks;
    failure.rank = judge->rank_scratch;
    failure.located = failure.numbers = true;
    failure.at = difference.at;
    failure.want = difference.want;
    failure.got = difference.got;
    failure.error = fabs(difference.got - difference.want);
    failure.what = "is not, bit for bit, what the same program holds at world 1,";
    return judge_fail(judge, &failure);
}

static enum status compare_point(struct judge *judge, const struct trace *trace, const struct trace *twin,
                                 const struct owed_point *owed, const struct place *place) {
    const struct trace_record *alone = trace_find(twin, 0, owed->name);
    bool sound;
    if (!alone)
        return twin_differs(judge, owed, place, FINDING_MISSING, "World 1 recorded nothing here.");
    TRY(records_find(judge, trace, &owed->point, owed->name, place, false, &sound));
    if (!sound)
        return STATUS_OK;
    if (alone->tensor.dtype != judge->record[0]->tensor.dtype)
        return twin_differs(judge, owed, place, FINDING_DTYPE, "World 1 recorded another type.");
    if (alone->tensor.ndim != place->ndim ||
        memcmp(alone->tensor.shape, place->shape, (size_t)place->ndim * sizeof *place->shape) != 0)
        return twin_differs(judge, owed, place, FINDING_SHAPE, "World 1 recorded another shape.");
    return compare_pieces(judge, owed, place, &alone->tensor);
}

static enum status compare_exchanged(struct judge *judge, const struct trace *trace, const struct trace *twin,
                                     const struct owed_point *owed) {
    const struct route *route = &judge->route[owed->point.layer];
    struct place place;
    if (!route->made) /* choices that cannot be followed are a failure already */
        return STATUS_OK;
    TRY(place_rows(&place, &judge->places, &owed->point, owed->ndim, owed->shape, route));
    enum status status = compare_point(judge, trace, twin, owed, &place);
    judge_place_free(&place);
    return status;
}

/* The rows of this layer, from the choices that world N recorded. */
static enum status route_from_records(struct judge *judge, const struct trace *trace, const struct owed_point *owed) {
    struct route *route = &judge->route[owed->point.layer];
    const struct micro_batch *micro = micro_numbered(judge->job, owed->point.micro);
    int64_t experts = checkpoint_config(judge->job->model)->experts;
    bool sound;
    judge_route_free(route);
    TRY(records_find(judge, trace, &owed->point, owed->name, owed->place, false, &sound));
    if (!sound)
        return STATUS_OK;
    TRY(records_assemble(judge, owed->place, NULL));
    if (!choices_usable(judge->x, owed->shape[0], owed->shape[1], experts))
        return STATUS_OK;
    return judge_route_make(route, judge->places.mesh, owed->place, experts, micro ? micro->tokens : 1, judge->x);
}

static enum status compare_all(struct judge *judge, const struct trace *twin) {
    for (int i = 0; i < judge->owed_count; i++) {
        const struct owed_point *owed = &judge->owed[i];
        if (!is_compared(judge->job, &owed->point))
            continue;
        judge_enter(judge, owed->segment);
        if (owed->point.activation == ACT_TOPK_INDEX)
            TRY(route_from_records(judge, judge->trace, owed));
        if (owed->place)
            TRY(compare_point(judge, judge->trace, twin, owed, owed->place));
        else
            TRY(compare_exchanged(judge, judge->trace, twin, owed));
    }
    for (int i = 0; twin->ranks > 0 && i < twin->rank[0].count; i++) {
        const char *name = twin->rank[0].record[i].name;
        struct failure failure = FAILURE_NONE;
        if (name_set_has(&judge->names, name))
            continue;
        failure.name = name;
        failure.kind = FINDING_EXTRA;
        failure.what = "was recorded at world 1, but nobody owes it";
        TRY(judge_fail(judge, &failure));
    }
    return STATUS_OK;
}

static enum status twin_died(struct judge *judge, const struct outcome *outcome) {
    struct failure failure = FAILURE_NONE;
    if (outcome->kind == OUTCOME_STOPPED)
        return status_fail(STATUS_RANK, "stopped");
    failure.name = "the twin at world 1";
    failure.no_tensor = true;
    failure.kind = outcome->kind == OUTCOME_HANG ? FINDING_HANG : FINDING_CRASH;
    failure.what = "did not finish";
    failure.detail = outcome->text;
    return judge_fail(judge, &failure);
}

enum status judge_twin(struct judge *judge, const struct trace *trace) {
    struct twin twin = {.judge = judge,
                        .trace = trace,
                        .mesh = {.axes = 2, .name = {"ep", "fsdp"}, .size = {1, 1}},
                        .rules = rules_right};
    struct world_spec spec = {.engine = ENGINE_LOCAL, .size = 1, .run = twin_rank, .context = &twin};
    struct world *world = NULL;
    struct outcome outcome = {0};
    struct trace alone = {0};
    enum status status;
    TRY(judge_count_once(judge));
    judge_segments_trace(judge, trace);
    if (judge->one->fault)
        judge->one->fault->plant(&twin.rules);
    twin.rules.skip.operation = COLLECTIVE_NONE; /* one rank has nobody to leave alone */
    TRY_DONE(world_launch(&world, &spec));
    world_run(world, 0, judge->one->limit, &outcome);
    if (outcome.kind == OUTCOME_DONE) {
        TRY_DONE(world_trace(world, &alone));
        TRY_DONE(compare_all(judge, &alone));
    } else {
        TRY_DONE(twin_died(judge, &outcome));
    }
done:
    trace_free(&alone);
    outcome_free(&outcome);
    world_end(world);
    return status;
}
