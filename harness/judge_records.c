#include "harness/judge_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the records */

static enum status structure_failure(struct judge *judge, const struct point *point, const char *name,
                                     const struct place *place, enum finding_kind kind, const char *detail, int ranks) {
    static const char *const what[] = {[FINDING_MISSING] = "is missing",
                                       [FINDING_DTYPE] = "has the wrong type",
                                       [FINDING_SHAPE] = "has the wrong shape"};
    struct failure failure = FAILURE_NONE;
    failure.point = point;
    failure.name = name;
    failure.kind = kind;
    failure.place = place;
    failure.ranks = ranks;
    failure.rank = judge->rank_scratch;
    failure.what = what[kind];
    failure.detail = detail;
    return judge_fail(judge, &failure);
}

bool record_shape_fits(const struct tensor *tensor, const struct shard *piece) {
    if (tensor->ndim != piece->ndim)
        return false;
    for (int d = 0; d < piece->ndim; d++)
        if (tensor->shape[d] != piece->shape[d])
            return false;
    return true;
}

static bool record_fits(const struct trace_record *record, const struct shard *piece, enum dtype dtype,
                        enum finding_kind kind) {
    if (kind == FINDING_MISSING)
        return record != NULL;
    if (!record)
        return true;
    return kind == FINDING_DTYPE ? record->tensor.dtype == dtype : record_shape_fits(&record->tensor, piece);
}

static void structure_detail(const struct trace_record *record, const struct shard *piece, enum dtype dtype, int rank,
                             enum finding_kind kind, char *out, size_t size) {
    char got[128], want[128];
    out[0] = '\0';
    if (kind == FINDING_SHAPE)
        snprintf(out, size, "Rank %d holds %s where its piece is %s.", rank,
                 shape_text(got, sizeof got, record->tensor.ndim, record->tensor.shape),
                 shape_text(want, sizeof want, piece->ndim, piece->shape));
    else if (kind == FINDING_DTYPE)
        snprintf(out, size, "Rank %d holds %s where %s is owed.", rank, dtype_name(record->tensor.dtype),
                 dtype_name(dtype));
}

enum status records_find(struct judge *judge, const struct trace *trace, const struct point *point, const char *name,
                         const struct place *place, bool report, bool *sound) {
    static const enum finding_kind order[] = {FINDING_MISSING, FINDING_SHAPE, FINDING_DTYPE};
    enum dtype dtype = owed_dtype(judge->job, point);
    *sound = true;
    for (int rank = 0; rank < judge->world; rank++)
        judge->record[rank] = rank < trace->ranks ? trace_find(trace, rank, name) : NULL;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        int ranks = 0;
        for (int rank = 0; rank < judge->world; rank++)
            if (!record_fits(judge->record[rank], place_shard(place, rank), dtype, order[k]))
                judge->rank_scratch[ranks++] = rank;
        if (ranks == 0)
            continue;
        *sound = false;
        if (!report)
            return STATUS_OK;
        char detail[384];
        int first = judge->rank_scratch[0];
        structure_detail(judge->record[first], place_shard(place, first), dtype, first, order[k], detail,
                         sizeof detail);
        return structure_failure(judge, point, name, place, order[k], detail[0] ? detail : NULL, ranks);
    }
    return STATUS_OK;
}

/* ---- assembling */

enum status judge_room(struct judge *judge, int64_t elements) {
    if (elements <= judge->room)
        return STATUS_OK;
    int64_t room = elements > 2 * judge->room ? elements : 2 * judge->room;
    free(judge->x);
    free(judge->raw);
    judge->x = malloc((size_t)room * sizeof *judge->x);
    judge->raw = malloc((size_t)room * sizeof(double));
    judge->room = judge->x && judge->raw ? room : 0;
    return judge->room ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

static void widen(enum dtype dtype, int64_t n, const void *raw, double *out) {
    if (dtype == DTYPE_F64) {
        memcpy(out, raw, (size_t)n * sizeof *out);
    } else if (dtype == DTYPE_F32) {
        const float *from = raw;
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)from[i];
    } else if (dtype == DTYPE_I64) {
        const int64_t *from = raw;
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)from[i];
    } else {
        int64_t shape[] = {n};
        struct tensor view = tensor_view(dtype, 1, shape, (void *)(uintptr_t)raw);
        for (int64_t i = 0; i < n; i++)
            out[i] = tensor_get(&view, i);
    }
}

/* Every rank's piece number `turn` at its places; bytes that nobody owns stay 0xff, which is NaN. */
static void place_turn(const struct judge *judge, const struct place *place, int turn, size_t element, void *raw) {
    memset(raw, 0xff, (size_t)place->elements * element);
    for (int rank = 0; rank < place->world; rank++)
        if (place->first[rank] == rank && place->turn[rank] == turn)
            shard_place(place_shard(place, rank), element, judge->record[rank]->tensor.data, raw);
}

/* Adds a piece; what rounding takes from the running sum is kept beside it (Neumaier), so that the sum's own error is
 * one rounding, however many ranks there are. */
static void add_piece(int64_t n, const double *piece, double *sum, double *lost, double *magnitude) {
    for (int64_t i = 0; i < n; i++) {
        double total = sum[i] + piece[i];
        double larger = fabs(sum[i]) >= fabs(piece[i]) ? sum[i] : piece[i];
        double smaller = fabs(sum[i]) >= fabs(piece[i]) ? piece[i] : sum[i];
        lost[i] += larger - total + smaller;
        sum[i] = total;
        if (magnitude)
            magnitude[i] += fabs(piece[i]);
    }
}

static enum status assemble_sum(struct judge *judge, const struct place *place, double *magnitude) {
    size_t elements = (size_t)(place->elements > 0 ? place->elements : 1);
    double *piece = malloc(elements * sizeof *piece), *lost = calloc(elements, sizeof *lost);
    enum dtype dtype = judge->record[0]->tensor.dtype;
    enum status status = piece && lost ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int64_t i = 0; status == STATUS_OK && magnitude && i < place->elements; i++)
        magnitude[i] = fabs(judge->x[i]);
    for (int turn = 1; status == STATUS_OK && turn < place->turns; turn++) {
        place_turn(judge, place, turn, dtype_bytes(dtype), judge->raw);
        widen(dtype, place->elements, judge->raw, piece);
        add_piece(place->elements, piece, judge->x, lost, magnitude);
    }
    for (int64_t i = 0; status == STATUS_OK && i < place->elements; i++)
        if (isfinite(lost[i])) /* not where a piece is not finite */
            judge->x[i] += lost[i];
    free(piece);
    free(lost);
    return status;
}

enum status records_assemble(struct judge *judge, const struct place *place, double *magnitude) {
    TRY(judge_room(judge, place->elements > 0 ? place->elements : 1));
    enum dtype dtype = judge->record[0]->tensor.dtype;
    place_turn(judge, place, 0, dtype_bytes(dtype), judge->raw);
    widen(dtype, place->elements, judge->raw, judge->x);
    return place->turns == 1 && !magnitude ? STATUS_OK : assemble_sum(judge, place, magnitude);
}

enum status records_whole(struct judge *judge, const struct place *place, struct tensor *out) {
    TRY(tensor_make(out, judge->record[0]->tensor.dtype, place->ndim, place->shape));
    place_turn(judge, place, 0, dtype_bytes(out->dtype), out->data);
    return STATUS_OK;
}
