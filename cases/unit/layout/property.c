/* Random lines and meshes: shard.c against the plain enumeration of enumerate.h, element by element. */
#include "cases/unit/layout/enumerate.h"
#include "layout/shard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum {
    TRIALS = 4000
};

struct trial {
    struct dice dice;
    struct spec spec;
    struct mesh mesh;
    struct line line;
    int64_t shape[3], whole;
    int world;
};

#define EXPECT(t, condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            char expect_text[400];                                                                                     \
            snprintf(expect_text, sizeof expect_text, __VA_ARGS__);                                                    \
            fail_trial(t, expect_text);                                                                                \
        }                                                                                                              \
    } while (0)

static void fail_trial(const struct trial *t, const char *what) {
    char mesh[200];
    cr_assert_fail("seed %llu, line '%s', mesh %s: %s (%s)", (unsigned long long)t->dice.seed, t->spec.text,
                   mesh_text(mesh, sizeof mesh, &t->mesh), what, status_note());
}

static void begin_trial(struct trial *t, uint64_t seed) {
    char text[256];
    struct axis_size sizes[9];
    int count = 0;
    t->dice = (struct dice){seed, seed};
    make_spec(&t->dice, &t->spec);
    t->mesh = (struct mesh){.axes = t->spec.axes};
    t->world = 1;
    for (int axis = 0; axis < t->spec.axes; axis++) {
        strcpy(t->mesh.name[axis], mesh_names[axis]);
        t->mesh.size[axis] = t->spec.size[axis];
        t->world *= t->spec.size[axis];
    }
    t->whole = 1;
    for (int d = 0; d < t->spec.dims; d++) {
        int open = roll(&t->dice, t->spec.dim[d].axes); /* the shape must tell this one's size */
        t->shape[d] = 1;
        for (int a = 0; a < t->spec.dim[d].axes; a++) {
            t->shape[d] *= t->spec.dim[d].size[a];
            if (a != open) {
                snprintf(sizes[count].name, LINE_AXIS_MAX, "x%d%c", d, 'a' + a);
                sizes[count++].size = t->spec.dim[d].size[a];
            }
        }
        t->whole *= t->shape[d];
    }
    EXPECT(t, line_parse(&t->line, t->spec.text, &t->mesh, "t") == STATUS_OK, "parse");
    EXPECT(t, strcmp(line_text(text, sizeof text, &t->line, &t->mesh), t->spec.text) == 0, "prints as '%s'", text);
    EXPECT(t, line_bind(&t->line, t->spec.dims, t->shape, sizes, count, "t") == STATUS_OK, "bind");
}

static void coordinates(const struct trial *t, int rank, int *here) {
    memset(here, 0, 4 * sizeof *here);
    while (rank-- > 0)
        next_tuple(t->spec.axes, t->spec.size, here);
}

static void expect_piece(struct trial *t, const struct shard *shard, const int *here, int rank) {
    static struct list list;
    for (int d = 0; d < t->spec.dims; d++) {
        enumerate_dim(&list, &t->spec, d, 0, here);
        EXPECT(t, shard->shape[d] == list.count, "rank %d dim %d holds %d, want %d", rank, d, (int)shard->shape[d],
               list.count);
        EXPECT(t, shard->global[d] == t->shape[d], "whole dim %d", d);
        for (int i = 0; i < list.count; i++)
            EXPECT(t, shard->index[d][i] == list.at[i], "rank %d dim %d element %d is %d, want %d", rank, d, i,
                   (int)shard->index[d][i], list.at[i]);
    }
}

/* whole[g] = g: a piece shows its global indices; put back, it writes just these places. */
static void expect_round_trip(struct trial *t, const struct shard *shard, int *holders) {
    static int32_t whole[MAX_WHOLE], local[MAX_WHOLE], back[MAX_WHOLE];
    int64_t where[LINE_MAX_DIMS], elements = shard_elements(shard);
    for (int32_t g = 0; g < t->whole; g++) {
        whole[g] = g;
        back[g] = local[g] = -1;
    }
    shard_cut(shard, sizeof *whole, whole, local);
    shard_place(shard, sizeof *whole, local, back);
    for (int64_t i = 0; i < elements; i++) {
        int64_t offset = 0;
        EXPECT(t, shard_global(shard, i, where) == local[i], "element %d is cut from %d", (int)i, (int)local[i]);
        for (int d = 0; d < t->spec.dims; d++)
            offset = offset * t->shape[d] + where[d];
        EXPECT(t, offset == local[i], "element %d lies elsewhere than its coordinates", (int)i);
        EXPECT(t, back[local[i]] == local[i], "element %d is not put back", (int)i);
        holders[local[i]]++;
        back[local[i]] = -1;
    }
    for (int64_t g = elements; g < t->whole; g++)
        EXPECT(t, local[g] == -1, "cut wrote behind the piece");
    for (int64_t g = 0; g < t->whole; g++)
        EXPECT(t, back[g] == -1, "place wrote %d, which is not the piece's", (int)g);
}

/* The piece inside what a gather over random axes makes. Where an outer cut is undone and an inner one is not, the
 * piece need not lie within: then it is refused. */
static void expect_within(struct trial *t, const struct shard *inner, int rank, const int *here) {
    static struct list in, out;
    unsigned undone = (unsigned)roll(&t->dice, 16);
    struct line gathered = line_gathered(&t->line, undone);
    struct shard outer, within = {0};
    bool fits = true;
    EXPECT(t, shard_make(&outer, &gathered, &t->mesh, rank) == STATUS_OK, "gathered piece");
    for (int d = 0; d < t->spec.dims; d++) {
        enumerate_dim(&in, &t->spec, d, 0, here);
        enumerate_dim(&out, &t->spec, d, undone, here);
        EXPECT(t, outer.shape[d] == out.count, "gathered by %u: dim %d holds %d, want %d", undone, d,
               (int)outer.shape[d], out.count);
        for (int i = 0; i < in.count; i++)
            fits = fits && holds(&out, in.at[i]);
    }
    enum status status = shard_within(&within, inner, &outer);
    EXPECT(t, status == (fits ? STATUS_OK : STATUS_INTERNAL), "within %u", undone);
    for (int d = 0; fits && d < t->spec.dims; d++) {
        enumerate_dim(&in, &t->spec, d, 0, here);
        enumerate_dim(&out, &t->spec, d, undone, here);
        EXPECT(t, within.shape[d] == in.count && within.global[d] == out.count, "within: shapes of dim %d", d);
        for (int i = 0; i < in.count; i++)
            EXPECT(t, out.at[within.index[d][i]] == in.at[i], "within: dim %d element %d", d, i);
    }
    status_clear();
    shard_free(&within);
    shard_free(&outer);
}

/* Replicas: one holder per tuple of the mesh axes that cut nothing. */
static int replicas(const struct trial *t) {
    int count = 1;
    for (int axis = 0; axis < t->spec.axes; axis++)
        if (!(line_cut_axes(&t->line) >> axis & 1))
            count *= t->spec.size[axis];
    return count;
}

static void run_trial(uint64_t seed) {
    static int holders[MAX_WHOLE];
    struct trial trial, *t = &trial;
    int here[4];
    begin_trial(t, seed);
    memset(holders, 0, sizeof holders);
    for (int rank = 0; rank < t->world; rank++) {
        struct shard shard;
        coordinates(t, rank, here);
        EXPECT(t, shard_make(&shard, &t->line, &t->mesh, rank) == STATUS_OK, "piece of rank %d", rank);
        expect_piece(t, &shard, here, rank);
        expect_round_trip(t, &shard, holders);
        expect_within(t, &shard, rank, here);
        shard_free(&shard);
    }
    for (int64_t g = 0; g < t->whole; g++)
        EXPECT(t, holders[g] == replicas(t), "element %d has %d holders, want %d", (int)g, holders[g], replicas(t));
}

Test(property, pieces_agree_with_plain_enumeration) {
    for (uint64_t seed = 1; seed <= TRIALS; seed++)
        run_trial(seed);
}

/* Groups: the ranks that a group's definition names, found by comparing tuples. */
Test(property, groups_agree_with_plain_enumeration) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct trial trial, *t = &trial;
        int members[MAX_WORLD], a[4], b[4];
        begin_trial(t, seed);
        unsigned mask = (unsigned)roll(&t->dice, 16);
        for (int rank = 0; rank < t->world; rank++) {
            int count = mesh_group(&t->mesh, mask, rank, members), found = 0;
            coordinates(t, rank, a);
            for (int other = 0; other < t->world; other++) {
                bool same = true;
                coordinates(t, other, b);
                for (int axis = 0; axis < t->spec.axes; axis++)
                    same = same && ((mask >> axis & 1) || a[axis] == b[axis]);
                if (same) {
                    EXPECT(t, found < count && members[found] == other, "group %u of %d lacks %d", mask, rank, other);
                    found++;
                }
            }
            EXPECT(t, found == count, "group %u of %d has %d, want %d", mask, rank, count, found);
        }
    }
}
