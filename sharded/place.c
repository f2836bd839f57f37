#include "sharded/place.h"

#include "sharded/state.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void axes_text(char *out, size_t size, const struct mesh *mesh, unsigned axes) {
    size_t length = 0;
    out[0] = '\0';
    for (int axis = 0; axis < mesh->axes && length < size; axis++)
        if (axes >> axis & 1)
            length += (size_t)snprintf(out + length, size - length, "%s%s", length ? "*" : "", mesh->name[axis]);
}

enum status groups_get(struct subject *subject, unsigned axes, struct comm_group **out) {
    struct comm_group **group = &subject->groups.by_axes[axes];
    enum status status = STATUS_OK;
    void *members = NULL;
    if (!*group) {
        char text[BOARD_TEXT];
        axes_text(text, sizeof text, &subject->mesh, axes);
        TRY_DONE(host_zeros(&members, (size_t)subject->world, sizeof(int)));
        int size = mesh_group(&subject->mesh, axes, subject->rank, members);
        TRY_DONE(comm_group_make(subject->comm, members, size, text, group));
    }
    *out = *group;
done:
    free(members);
    return status;
}

static bool dim_is_whole(const struct shard *shard, int dim) {
    if (shard->shape[dim] != shard->global[dim])
        return false;
    for (int64_t i = 0; i < shard->shape[dim]; i++)
        if (shard->index[dim][i] != i)
            return false;
    return true;
}

static enum status moves_make(struct moves *out, const struct ops *ops, const struct shard *piece,
                              const struct shard *block) {
    enum status status = STATUS_OK;
    struct shard within = {0};
    void *index = NULL;
    *out = (struct moves){.width = 1};
    if (shard_elements(piece) == 0)
        return STATUS_OK;
    TRY_DONE(shard_within(&within, piece, block));
    for (int dim = within.ndim; dim > 0 && dim_is_whole(&within, dim - 1); dim--)
        out->width *= within.shape[dim - 1];
    out->rows = shard_elements(piece) / out->width;
    TRY_DONE(host_zeros(&index, (size_t)out->rows, sizeof(int64_t)));
    for (int64_t row = 0; row < out->rows; row++)
        ((int64_t *)index)[row] = shard_global(&within, row * out->width, NULL) / out->width;
    TRY_DONE(device_indices(ops, &out->index, index, out->rows));
done:
    free(index);
    shard_free(&within);
    return status;
}

/* An axis of size 1 moves nothing. */
static unsigned axes_that_move(const struct mesh *mesh, unsigned axes) {
    for (int axis = 0; axis < mesh->axes; axis++)
        if (mesh->size[axis] == 1)
            axes &= ~(1u << axis);
    return axes;
}

static enum status peers_make(struct peers *out, struct subject *subject, const struct place *place, unsigned axes) {
    enum status status = STATUS_OK;
    void *piece;
    *out = (struct peers){.axes = axes, .size = 1};
    if (axes) {
        TRY(groups_get(subject, axes, &out->group));
        out->size = comm_group_size(out->group);
        out->self = comm_group_self(out->group);
    }
    TRY(host_zeros(&piece, (size_t)out->size, sizeof *out->piece));
    out->piece = piece;
    for (int i = 0; i < out->size; i++) {
        struct shard shard = {0};
        int member = out->group ? comm_group_member(out->group, i) : subject->rank;
        TRY_DONE(shard_make(&shard, &place->placed.line, &subject->mesh, member));
        if (shard_elements(&shard) > out->block)
            out->block = shard_elements(&shard);
        status = moves_make(&out->piece[i], subject->ops, &shard, &place->used);
        shard_free(&shard);
        TRY_DONE(status);
    }
done:
    return status;
}

static void peers_free(const struct ops *ops, struct peers *peers) {
    for (int i = 0; peers->piece && i < peers->size; i++)
        ops->release(peers->piece[i].index);
    free(peers->piece);
}

/* The group's members in blocks of N, one behind the other. */
static enum status blocks_get(struct subject *subject, const struct peers *gather, struct comm_group **out) {
    struct comm_group **group = &subject->groups.blocks_by_axes[gather->axes];
    enum status status = STATUS_OK;
    const int size = subject->job->fsdp.reshard_group, first = gather->self / size * size;
    char axes[BOARD_TEXT - 16], text[BOARD_TEXT];
    void *block = NULL;
    if (!*group) {
        TRY_DONE(host_zeros(&block, (size_t)size, sizeof(int)));
        int *members = block;
        for (int i = 0; i < size; i++)
            members[i] = comm_group_member(gather->group, first + i);
        axes_text(axes, sizeof axes, &subject->mesh, gather->axes);
        snprintf(text, sizeof text, "%s by %d", axes, size);
        TRY_DONE(comm_group_make(subject->comm, members, size, text, group));
    }
    *out = *group;
done:
    free(block);
    return status;
}

/* Piece i is the i-th run of the gathered form's elements as they lie in memory: ceil(elements / N), the last ones
 * short or empty. */
static enum status run_make(struct moves *out, const struct ops *ops, int64_t elements, int pieces, int i) {
    void *index = NULL;
    int64_t begin, count;
    chunk_range(elements, pieces, i, false, &begin, &count);
    *out = (struct moves){.width = 1, .rows = count};
    if (count > 0 && begin % count == 0)
        *out = (struct moves){.width = count, .rows = 1};
    if (count == 0)
        return STATUS_OK;
    TRY(host_zeros(&index, (size_t)out->rows, sizeof(int64_t)));
    for (int64_t row = 0; row < out->rows; row++)
        ((int64_t *)index)[row] = begin / out->width + row;
    enum status status = device_indices(ops, &out->index, index, out->rows);
    free(index);
    return status;
}

/* What a group of N ranks keeps of the gathered form between forward and backward. */
static enum status kept_make(struct peers *out, struct subject *subject, const struct peers *gather, int64_t elements) {
    int64_t begin;
    void *piece;
    *out = (struct peers){.axes = gather->axes, .size = subject->job->fsdp.reshard_group};
    if (gather->size % out->size != 0)
        return status_fail(STATUS_INTERNAL, "groups of %d do not divide a gather over %d ranks", out->size,
                           gather->size);
    TRY(blocks_get(subject, gather, &out->group));
    out->self = comm_group_self(out->group);
    chunk_range(elements, out->size, 0, false, &begin, &out->block);
    TRY(host_zeros(&piece, (size_t)out->size, sizeof *out->piece));
    out->piece = piece;
    for (int i = 0; i < out->size; i++)
        TRY(run_make(&out->piece[i], subject->ops, elements, out->size, i));
    out->held = subject->rules->kept_as_strided ? gather->self / (gather->size / out->size) : out->self;
    return STATUS_OK;
}

/* Every cut by the balanced rule. */
static void balance(struct line_cuts *cuts) {
    for (int i = 0; i < cuts->count; i++)
        cuts->cut[i].balanced = true;
}

static void balance_line(struct line *line) {
    for (int d = 0; d < line->dims; d++) {
        balance(&line->dim[d].cuts);
        for (int a = 0; a < line->dim[d].axes; a++)
            balance(&line->dim[d].axis[a].cuts);
    }
}

/* The mesh axes along which a tensor's gradient is summed. */
static unsigned axes_to_sum(const struct subject *subject, const char *tensor, unsigned owed) {
    const struct rules *rules = subject->rules;
    int left_out = rules->unsummed_axis ? mesh_axis(&subject->mesh, rules->unsummed_axis) : -1;
    if (left_out >= 0)
        owed &= ~(1u << left_out);
    if (!rules->narrow_sum.tensors || fnmatch(rules->narrow_sum.tensors, tensor, 0) != 0)
        return owed;
    int axis = mesh_axis(&subject->mesh, rules->narrow_sum.axis);
    return axis < 0 ? 0 : owed & 1u << axis;
}

enum status place_make(struct place *out, struct subject *subject, const char *tensor, int ndim, const int64_t *shape,
                       const char *axes, bool expert) {
    TRY(sharding_place(&out->placed, &subject->mesh, subject->layout, subject->job->fsdp.expert_dim, tensor, ndim,
                       shape, axes, expert));
    if (subject->rules->balanced_shards && !expert)
        balance_line(&out->placed.line);
    TRY(shard_make(&out->shard, &out->placed.line, &subject->mesh, subject->rank));
    TRY(shard_make(&out->used, &out->placed.gathered, &subject->mesh, subject->rank));
    unsigned gather = axes_that_move(&subject->mesh, out->placed.gather_axes);
    unsigned reduce = axes_that_move(&subject->mesh, axes_to_sum(subject, tensor, out->placed.owed_axes));
    TRY(peers_make(&out->gather, subject, out, gather));
    if (subject->job->fsdp.reshard_group > 0 && out->gather.size > 1)
        TRY(kept_make(&out->kept, subject, &out->gather, shard_elements(&out->used)));
    if (gather != reduce)
        return peers_make(&out->reduce, subject, out, reduce);
    out->reduce = out->gather;
    return STATUS_OK;
}

void place_free(const struct ops *ops, struct place *place) {
    peers_free(ops, &place->kept);
    if (place->reduce.piece != place->gather.piece)
        peers_free(ops, &place->reduce);
    peers_free(ops, &place->gather);
    shard_free(&place->used);
    shard_free(&place->shard);
    *place = (struct place){0};
}
