/* A wrong sum of ranks' partials: whose partial is it? The reference repeats the one operation with each rank's rows
 * alone, from the operands that it went by. */
#include "harness/judge_compare.h"

#include <math.h>
#include <stdlib.h>

void alone_free(struct alone *alone) {
    value_free(&alone->want);
    free(alone->got);
    *alone = (struct alone){0};
}

/* ---- a rank's rows */

/* The ranks whose tokens a rank's rows come from: packed experts see the tokens of their column, all else the rank's
 * own. `members` has room for the world. */
static int row_sources(const struct judge *judge, const struct point *point, int rank, int *members) {
    const struct mesh *mesh = judge->places.mesh;
    int ep = point->param && point->param->expert ? mesh_axis(mesh, "ep") : -1;
    return mesh_group(mesh, ep < 0 ? 0 : 1u << ep, rank, members);
}

/* Marks the tokens behind a rank's rows among the micro-batch's B*T. */
static enum status mark_tokens(struct judge *judge, const struct point *point, const struct micro_batch *micro,
                               int rank, bool *tokens) {
    struct point ids = POINT_NONE;
    const struct place *place;
    ids.phase = PHASE_FORWARD;
    ids.step = point->step;
    ids.micro = point->micro;
    ids.activation = ACT_INPUT_IDS;
    TRY(place_find(&judge->places, &ids, 2, (const int64_t[]){micro->sequences, micro->tokens}, &place));
    int *members = malloc((size_t)judge->world * sizeof *members);
    if (!members)
        return status_fail(STATUS_MEMORY, "out of memory");
    int count = row_sources(judge, point, rank, members);
    for (int64_t n = 0; n < place->elements; n++)
        tokens[n] = false;
    for (int m = 0; m < count; m++) {
        const struct shard *piece = place_shard(place, members[m]);
        for (int64_t i = 0; i < shard_elements(piece); i++)
            tokens[shard_global(piece, i, NULL)] = true;
    }
    free(members);
    return STATUS_OK;
}

/* ---- a rank's pieces in whole form */

static void spread(const struct shard *piece, const struct tensor *local, double *whole) {
    for (int64_t i = 0; i < shard_elements(piece); i++)
        whole[shard_global(piece, i, NULL)] = tensor_get(local, i);
}

/* The rank's own partial that the operation starts from; its x is NULL where there is none to start from. Elements that
 * the rank does not hold are 0: what follows from them is not its own either. */
static enum status own_partial(struct judge *judge, const struct point *point, const struct param *param, int rank,
                               struct value *out) {
    struct point from = *point;
    char name[POINT_NAME_MAX];
    const struct place *place;
    *out = (struct value){.ndim = param->ndim};
    for (int d = 0; d < param->ndim; d++)
        out->shape[d] = param->shape[d];
    from.param = param;
    from.part = PART_WEIGHT;
    TRY(place_find(&judge->places, &from, out->ndim, out->shape, &place));
    const struct trace_record *record = trace_find(judge->trace, rank, point_name(name, &from));
    const struct shard *piece = place_shard(place, rank);
    if (!record || record->tensor.dtype != owed_dtype(judge->job, &from) || !record_shape_fits(&record->tensor, piece))
        return STATUS_OK;
    out->x = calloc((size_t)place->elements + 1, sizeof *out->x);
    if (!out->x)
        return status_fail(STATUS_MEMORY, "out of memory");
    spread(piece, &record->tensor, out->x);
    return STATUS_OK;
}

/* ---- comparing */

/* *want stays empty if the rank has no partial to start from. */
static enum status repeat_rank(struct judge *judge, const struct owed_point *owed, const struct value *value, int rank,
                               bool *tokens, const struct micro_batch *micro, struct value *want) {
    const struct repetition *repeat = value->repeat;
    struct value own = {0};
    enum status status;
    TRY_DONE(mark_tokens(judge, &owed->point, micro, rank, tokens));
    if (repeat->from)
        TRY_DONE(own_partial(judge, &owed->point, repeat->from, rank, &own));
    if (!repeat->from || own.x)
        TRY_DONE(repeat->make(repeat, tokens, repeat->from ? &own : NULL, want));
done:
    value_free(&own);
    return status;
}

/* Elements of the rank's piece that differ; `out` (of an earlier rank: ranks > 0) is filled by the first that has any.
 */
static int64_t differences(const struct judge *judge, const struct place *place, int rank, double factor,
                           const struct value *want, struct alone *out) {
    const struct shard *piece = place_shard(place, rank);
    int64_t count = 0;
    for (int64_t i = 0; i < shard_elements(piece); i++) {
        int64_t at = shard_global(piece, i, NULL);
        double bar = factor * want->e[at];
        if (fabs(tensor_get(&judge->record[rank]->tensor, i) - want->x[at]) <= bar)
            continue;
        if (count++ == 0 && out->ranks == 0) {
            out->at = at;
            out->bar = bar;
        }
    }
    return count;
}

static enum status keep_first(const struct judge *judge, const struct place *place, int rank, int64_t differ,
                              struct value *want, struct alone *out) {
    out->want = *want;
    *want = (struct value){0};
    out->differ = differ;
    out->got = malloc((size_t)(place->elements + 1) * sizeof *out->got);
    if (!out->got)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; i < place->elements; i++)
        out->got[i] = NAN;
    spread(place_shard(place, rank), &judge->record[rank]->tensor, out->got);
    return STATUS_OK;
}

enum status records_alone(struct judge *judge, const struct owed_point *owed, const struct place *place,
                          const struct value *value, double factor, int ranks, struct alone *out) {
    const struct micro_batch *micro = micro_numbered(judge->job, owed->point.micro);
    struct value want = {0};
    enum status status = STATUS_OK;
    *out = (struct alone){0};
    bool *tokens = micro ? malloc((size_t)(micro->sequences * micro->tokens) + 1) : NULL;
    if (!tokens)
        return status_fail(micro ? STATUS_MEMORY : STATUS_INTERNAL, "%s: cannot be repeated", owed->name);
    for (int i = 0; i < ranks; i++) {
        int rank = judge->rank_scratch[i];
        value_free(&want);
        TRY_DONE(repeat_rank(judge, owed, value, rank, tokens, micro, &want));
        int64_t differ = want.x ? differences(judge, place, rank, factor, &want, out) : 0;
        if (differ == 0)
            continue;
        if (out->ranks == 0)
            TRY_DONE(keep_first(judge, place, rank, differ, &want, out));
        judge->rank_scratch[out->ranks++] = rank; /* never behind i */
    }
done:
    value_free(&want);
    free(tokens);
    return status;
}
