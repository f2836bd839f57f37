#include "layout/shard.h"

#include <stdlib.h>
#include <string.h>

struct range {
    int64_t begin, count;
};

/* The part of `whole` that is left to `rank` after every cut, outermost first. */
static struct range cut_range(struct range whole, const struct line_cuts *cuts, const struct mesh *mesh, int rank) {
    for (int i = 0; i < cuts->count; i++) {
        const struct line_cut *cut = &cuts->cut[i];
        int64_t pieces = 1, index = 0, begin;
        for (int k = 0; k < cut->axes; k++) { /* row-major in the order written */
            pieces *= mesh->size[cut->axis[k]];
            index = index * mesh->size[cut->axis[k]] + mesh_coordinate(mesh, cut->axis[k], rank);
        }
        chunk_range(whole.count, pieces, index, cut->balanced, &begin, &whole.count);
        whole.begin += begin;
    }
    return whole;
}

static enum status make_index(int64_t **out, int64_t count) {
    *out = malloc((size_t)(count ? count : 1) * sizeof **out);
    return *out ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory for %lld indices", (long long)count);
}

/* The axes' ranges span a box; the cuts behind the parenthesis take a range of the box' elements in row-major order. */
static enum status make_dim(struct shard *out, int d, const struct line_dim *dim, const struct mesh *mesh, int rank) {
    struct range axis[LINE_MAX_AXES], box = {0, 1};
    out->global[d] = 1;
    for (int a = 0; a < dim->axes; a++) {
        if (dim->axis[a].size < 0)
            return status_fail(STATUS_INTERNAL, "axis '%s' has no size, expected a bound line", dim->axis[a].name);
        axis[a] = cut_range((struct range){0, dim->axis[a].size}, &dim->axis[a].cuts, mesh, rank);
        box.count *= axis[a].count;
        out->global[d] *= dim->axis[a].size;
    }
    struct range piece = cut_range(box, &dim->cuts, mesh, rank);
    TRY(make_index(&out->index[d], piece.count));
    out->shape[d] = piece.count;
    for (int64_t i = 0; i < piece.count; i++) {
        int64_t rest = piece.begin + i, stride = 1;
        out->index[d][i] = 0;
        for (int a = dim->axes - 1; a >= 0; a--) { /* the last axis is the fastest */
            out->index[d][i] += (axis[a].begin + rest % axis[a].count) * stride;
            rest /= axis[a].count;
            stride *= dim->axis[a].size;
        }
    }
    return STATUS_OK;
}

enum status shard_make(struct shard *out, const struct line *line, const struct mesh *mesh, int rank) {
    enum status status = STATUS_OK;
    *out = (struct shard){.ndim = line->dims};
    for (int d = 0; d < line->dims; d++)
        TRY_DONE(make_dim(out, d, &line->dim[d], mesh, rank));
done:
    if (status != STATUS_OK)
        shard_free(out);
    return status;
}

enum status shard_of_rows(struct shard *out, int ndim, const int64_t *global, const int64_t *rows, int64_t count) {
    enum status status = STATUS_OK;
    *out = (struct shard){.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        out->global[d] = global[d];
        TRY_DONE(make_index(&out->index[d], d ? global[d] : count));
        out->shape[d] = d ? global[d] : count;
        for (int64_t i = 0; i < out->shape[d]; i++)
            out->index[d][i] = d ? i : rows[i];
    }
done:
    if (status != STATUS_OK)
        shard_free(out);
    return status;
}

void shard_free(struct shard *shard) {
    for (int d = 0; d < LINE_MAX_DIMS; d++)
        free(shard->index[d]);
    *shard = (struct shard){0};
}

int64_t shard_elements(const struct shard *shard) {
    int64_t elements = 1;
    for (int d = 0; d < shard->ndim; d++)
        elements *= shard->shape[d];
    return elements;
}

/* place[g] = position of the global index g in the outer piece, -1 where it is not held. */
static enum status within_dim(struct shard *out, int d, const struct shard *inner, const struct shard *outer) {
    enum status status = STATUS_OK;
    int64_t *place = NULL;
    TRY_DONE(make_index(&place, outer->global[d]));
    for (int64_t g = 0; g < outer->global[d]; g++)
        place[g] = -1;
    for (int64_t i = 0; i < outer->shape[d]; i++)
        place[outer->index[d][i]] = i;
    TRY_DONE(make_index(&out->index[d], inner->shape[d]));
    out->shape[d] = inner->shape[d];
    out->global[d] = outer->shape[d];
    for (int64_t i = 0; i < inner->shape[d]; i++) {
        out->index[d][i] = place[inner->index[d][i]];
        if (out->index[d][i] < 0)
            TRY_DONE(status_fail(STATUS_INTERNAL, "index %lld of dim %d lies outside the piece, expected it within",
                                 (long long)inner->index[d][i], d));
    }
done:
    free(place);
    return status;
}

enum status shard_within(struct shard *out, const struct shard *inner, const struct shard *outer) {
    enum status status = STATUS_OK;
    *out = (struct shard){.ndim = inner->ndim};
    if (inner->ndim != outer->ndim || memcmp(inner->global, outer->global, sizeof inner->global) != 0)
        return status_fail(STATUS_INTERNAL, "pieces of two different tensors, expected one");
    for (int d = 0; d < inner->ndim; d++)
        TRY_DONE(within_dim(out, d, inner, outer));
done:
    if (status != STATUS_OK)
        shard_free(out);
    return status;
}

/* One copy between a whole tensor and a piece: dims behind `last` are whole, so that one index of `last` is a block. */
struct copy {
    const struct shard *shard;
    int last;     /* -1: the piece is the whole tensor */
    size_t block; /* bytes */
    bool place;
};

static bool dim_is_whole(const struct shard *shard, int d) {
    if (shard->shape[d] != shard->global[d])
        return false;
    for (int64_t i = 0; i < shard->shape[d]; i++)
        if (shard->index[d][i] != i)
            return false;
    return true;
}

static struct copy plan_copy(const struct shard *shard, size_t element, bool place) {
    struct copy copy = {shard, shard->ndim - 1, element, place};
    while (copy.last >= 0 && dim_is_whole(shard, copy.last))
        copy.block *= (size_t)shard->global[copy.last--];
    return copy;
}

static void copy_block(const struct copy *copy, int64_t at, int64_t blocks, char *whole, char *local) {
    char *place = whole + (size_t)at * copy->block;
    memcpy(copy->place ? place : local, copy->place ? local : place, (size_t)blocks * copy->block);
}

/* Copies everything below the global index `at` of the dims before d; returns the place behind it in `local`. */
static char *copy_dim(const struct copy *copy, int d, int64_t at, char *whole, char *local) {
    const int64_t *index = copy->shard->index[d];
    int64_t count = copy->shard->shape[d], run;
    at *= copy->shard->global[d];
    for (int64_t i = 0; i < count; i += run) {
        run = 1;
        if (d < copy->last) {
            local = copy_dim(copy, d + 1, at + index[i], whole, local);
            continue;
        }
        while (i + run < count && index[i + run] == index[i] + run)
            run++;
        copy_block(copy, at + index[i], run, whole, local);
        local += (size_t)run * copy->block;
    }
    return local;
}

static void copy_all(const struct shard *shard, size_t element, bool place, char *whole, char *local) {
    struct copy copy = plan_copy(shard, element, place);
    if (shard_elements(shard) == 0)
        return;
    if (copy.last < 0)
        copy_block(&copy, 0, 1, whole, local);
    else
        copy_dim(&copy, 0, 0, whole, local);
}

/* copy_all only reads the side that is const here. */
void shard_cut(const struct shard *shard, size_t element, const void *whole, void *local) {
    copy_all(shard, element, false, (char *)whole, local);
}

void shard_place(const struct shard *shard, size_t element, const void *local, void *whole) {
    copy_all(shard, element, true, whole, (char *)local);
}

int64_t shard_global(const struct shard *shard, int64_t i, int64_t *where) {
    int64_t offset = 0, stride = 1;
    for (int d = shard->ndim - 1; d >= 0; d--) {
        int64_t global = shard->index[d][i % shard->shape[d]];
        i /= shard->shape[d];
        offset += global * stride;
        stride *= shard->global[d];
        if (where)
            where[d] = global;
    }
    return offset;
}
