/* Gathers and padded reduce-scatters with index codes: every element says where it belongs. */
#include "sharded/fsdp.h"

#include "ranks.h"

#include <criterion/criterion.h>
#include <stdlib.h>

struct item {
    const char *axes;
    int ndim;
    int64_t shape[3];
    bool expert;
};

/* Pieces that are short, empty or single; dim 1 that divides by fsdp 2 and 3 and dim 1 that does not. */
static const struct item items[] = {
    {"out in", 2, {5, 3}, false},
    {"hidden", 1, {7}, false},
    {"expert (half inter) hidden", 3, {6, 12, 2}, true},
    {"expert hidden inter", 3, {6, 5, 3}, true},
    {"expert rank in", 3, {6, 6, 4}, true},
    {"rank in", 2, {1, 4}, false},
};
enum {
    ITEMS = sizeof items / sizeof *items
};

struct held {
    struct place place;
    double *shard, *whole; /* whole: the gathered form */
    int64_t elements, whole_elements;
};

static int64_t volume(const struct item *item) {
    int64_t n = 1;
    for (int dim = 0; dim < item->ndim; dim++)
        n *= item->shape[dim];
    return n;
}

/* The number, in the whole tensor, of element i of the gathered form: an expert block is contiguous. */
static int64_t used_number(const struct item *item, const struct mesh *mesh, int rank, int64_t i) {
    int ep = mesh_axis(mesh, "ep");
    return item->expert ? volume(item) / mesh->size[ep] * mesh_coordinate(mesh, ep, rank) + i : i;
}

static enum status held_make(struct held *out, struct subject *subject, const struct item *item) {
    TRY(place_make(&out->place, subject, "tensor", item->ndim, item->shape, item->axes, item->expert));
    out->elements = shard_elements(&out->place.shard);
    out->whole_elements = shard_elements(&out->place.used);
    cr_expect_eq(out->whole_elements, volume(item) / (item->expert ? mesh_axis_size(&subject->mesh, "ep") : 1));
    out->shard = calloc((size_t)out->elements + 1, sizeof(double));
    out->whole = calloc((size_t)out->whole_elements + 1, sizeof(double));
    return STATUS_OK;
}

static void held_free(const struct subject *subject, struct held *held) {
    place_free(subject->ops, &held->place);
    free(held->shard);
    free(held->whole);
}

static enum status round_trip(struct comm *comm, void *context) {
    const struct mesh *mesh = context;
    const struct job job = {0};
    struct subject subject = bare_subject(comm, mesh, DTYPE_F64, &job);
    struct held held[ITEMS] = {0};
    struct transfer transfers[ITEMS];
    int rank = comm_rank(comm), world = comm_world(comm);
    for (int i = 0; i < ITEMS; i++) {
        TRY(held_make(&held[i], &subject, &items[i]));
        for (int64_t j = 0; j < held[i].elements; j++)
            held[i].shard[j] = (double)(1000 * i + shard_global(&held[i].place.shard, j, NULL));
        transfers[i] = (struct transfer){&held[i].place.gather, held[i].shard, held[i].whole};
    }
    TRY(fsdp_gather(&subject, "unit", subject.precision.store, subject.dtype, transfers, ITEMS));
    for (int i = 0; i < ITEMS; i++)
        for (int64_t j = 0; j < held[i].whole_elements; j++)
            cr_expect_eq(held[i].whole[j], (double)(1000 * i + used_number(&items[i], mesh, rank, j)),
                         "rank %d item %d element %d", rank, i, (int)j);
    /* rank r gives (r + 1) times the code; the sum goes on top of what is there */
    for (int i = 0; i < ITEMS; i++) {
        transfers[i].peers = &held[i].place.reduce;
        for (int64_t j = 0; j < held[i].whole_elements; j++)
            held[i].whole[j] *= rank + 1;
    }
    TRY(fsdp_reduce(&subject, "unit", transfers, ITEMS));
    for (int i = 0; i < ITEMS; i++) {
        int ep = mesh_axis(mesh, "ep"), factor = 1;
        for (int r = 0; r < world; r++)
            if (!items[i].expert || mesh_coordinate(mesh, ep, r) == mesh_coordinate(mesh, ep, rank))
                factor += r + 1;
        for (int64_t j = 0; j < held[i].elements; j++)
            cr_expect_eq(held[i].shard[j], (double)(factor * (1000 * i + shard_global(&held[i].place.shard, j, NULL))),
                         "rank %d item %d element %d", rank, i, (int)j);
        held_free(&subject, &held[i]);
    }
    comm_groups_free(comm);
    return STATUS_OK;
}

#define MESH(name, first, n, second, m)                                                                                \
    Test(fsdp, name) {                                                                                                 \
        struct mesh mesh = mesh_of(first, n, second, m);                                                               \
        run_ranks(n *m, round_trip, &mesh);                                                                            \
    }

MESH(one_rank, "ep", 1, "fsdp", 1)
MESH(fsdp_alone, "ep", 1, "fsdp", 3)
MESH(ep_alone, "ep", 3, "fsdp", 1)
MESH(two_by_two, "ep", 2, "fsdp", 2)
MESH(two_by_three, "ep", 2, "fsdp", 3)
MESH(axes_the_other_way_round, "fsdp", 3, "ep", 2)
MESH(more_ranks_than_rows, "ep", 2, "fsdp", 4)

/* Pieces as FSDP2 makes them: torch.chunk's rule over the whole world, the last short or empty. */
static enum status sizes(struct comm *comm, void *context) {
    const struct mesh *mesh = context;
    const struct job job = {0};
    const int64_t rows[] = {2, 2, 1, 0};
    struct subject subject = bare_subject(comm, mesh, DTYPE_F64, &job);
    struct place place = {0};
    TRY(place_make(&place, &subject, "tensor", 2, items[0].shape, items[0].axes, false));
    cr_expect_eq(place.shard.shape[0], rows[comm_rank(comm)]);
    cr_expect_eq(place.gather.block, 6);
    cr_expect_eq(place.gather.size, 4);
    place_free(subject.ops, &place);
    comm_groups_free(comm);
    return STATUS_OK;
}

Test(fsdp, padded_to_the_largest_shard) {
    struct mesh mesh = mesh_of("ep", 2, "fsdp", 2);
    run_ranks(4, sizes, &mesh);
}
