/* Where one tensor lies in a run and how it moves: this rank's shard, its gathered form, and the tables that lead from
 * every member's piece into that form. Gathers and padded reduce-scatters follow from these tables alone. */
#ifndef SHARDED_PLACE_H
#define SHARDED_PLACE_H

#include "layout/sharding.h"
#include "sharded/comm.h"

struct subject;

struct moves { /* row i of a piece is row index[i] of the block that holds it; rows of `width` elements */
    int64_t rows, width;
    int64_t *index; /* on the device */
};

struct peers {                /* the ranks of one gather or reduction, and each one's piece inside the gathered form */
    unsigned axes;            /* mesh axes larger than 1 (mask) */
    struct comm_group *group; /* NULL: this rank alone */
    int size, self;
    int held;            /* `kept`: number of the piece that this rank keeps: self */
    int64_t block;       /* elements of the largest piece: what everybody's is padded to */
    struct moves *piece; /* [size] */
};

struct place {
    struct placed placed;
    struct shard shard;          /* own piece of the whole */
    struct shard used;           /* own gathered form, as a piece of the whole */
    struct peers gather, reduce; /* one and the same where both run along the same axes */
    struct peers kept;           /* the group of N that keeps the gathered form after forward; size 0: there is none */
};

/* Collective (a group may be made). `shape` is the whole tensor's; `axes` and `expert` as in sharding_place. */
enum status place_make(struct place *out, struct subject *subject, const char *tensor, int ndim, const int64_t *shape,
                       const char *axes, bool expert);
void place_free(const struct ops *ops, struct place *place);

/* Groups of ranks by the mask of mesh axes they run along, made when first asked for. */
struct groups {
    struct comm_group *by_axes[1 << MESH_MAX_AXES];
    struct comm_group *blocks_by_axes[1 << MESH_MAX_AXES]; /* in blocks of job->fsdp.reshard_group */
};

/* Collective over the world the first time a mask is asked for. Mask 0 is no group. */
enum status groups_get(struct subject *subject, unsigned axes, struct comm_group **out);

#endif
