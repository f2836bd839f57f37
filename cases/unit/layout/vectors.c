/* Pieces worked out by hand, or taken from PyTorch and PEFT. */
#include "layout/shard.h"

#include <criterion/criterion.h>
#include <string.h>

static struct shard piece(const char *text, const struct mesh *mesh, int rank, const int64_t *shape,
                          const struct axis_size *sizes, int count) {
    struct line line;
    struct shard shard;
    cr_assert_eq(line_parse(&line, text, mesh, "t"), STATUS_OK, "%s", status_note());
    cr_assert_eq(line_bind(&line, line.dims, shape, sizes, count, "t"), STATUS_OK, "%s", status_note());
    cr_assert_eq(shard_make(&shard, &line, mesh, rank), STATUS_OK, "%s", status_note());
    return shard;
}

/* One dim of n elements: `want` holds each rank's indices, -1 behind each rank's last. */
static void expect_pieces(const char *text, const struct mesh *mesh, int64_t n, const int *want) {
    for (int rank = 0; rank < mesh_world(mesh); rank++) {
        struct shard shard = piece(text, mesh, rank, &n, NULL, 0);
        for (int64_t i = 0; i < shard.shape[0]; i++)
            cr_assert_eq(shard.index[0][i], *want++, "%s n=%d rank %d element %d", text, (int)n, rank, (int)i);
        cr_assert_eq(*want++, -1, "%s n=%d rank %d has %d elements", text, (int)n, rank, (int)shard.shape[0]);
        cr_assert_eq(shard.global[0], n);
        shard_free(&shard);
    }
}

static const struct mesh two_by_two = {.axes = 2, .name = {"a", "b"}, .size = {2, 2}};
static const struct mesh one_by_four = {.axes = 1, .name = {"f"}, .size = {4}};
static const struct mesh three = {.axes = 1, .name = {"f"}, .size = {3}};

Test(vectors, one_cut_over_two_axes_is_not_two_cuts) {
    expect_pieces("x[a*b]", &two_by_two, 5, (int[]){0, 1, -1, 2, 3, -1, 4, -1, -1});
    expect_pieces("x[a,b]", &two_by_two, 5, (int[]){0, 1, -1, 2, -1, 3, -1, 4, -1});
    expect_pieces("x[a*b]", &two_by_two, 2, (int[]){0, -1, 1, -1, -1, -1});
    expect_pieces("x[a,b]", &two_by_two, 2, (int[]){0, -1, -1, 1, -1, -1});
}

Test(vectors, the_other_order_is_strided) {
    /* rank = 2a + b; b splits first: rank 1 (b = 1) begins the second half */
    expect_pieces("x[b,a]", &two_by_two, 8, (int[]){0, 1, -1, 4, 5, -1, 2, 3, -1, 6, 7, -1});
    expect_pieces("x[b*a]", &two_by_two, 5, (int[]){0, 1, -1, 4, -1, 2, 3, -1, -1});
    /* mesh (fsdp, ep), experts by ep first: the owner of expert 2p + f is rank 2f + p */
    struct mesh mesh = {.axes = 2, .name = {"fsdp", "ep"}, .size = {2, 2}};
    expect_pieces("expert[ep,fsdp]", &mesh, 4, (int[]){0, -1, 2, -1, 1, -1, 3, -1});
}

Test(vectors, chunks_are_those_of_torch) {
    expect_pieces("x[f]", &one_by_four, 5, (int[]){0, 1, -1, 2, 3, -1, 4, -1, -1});
    expect_pieces("x[f]", &one_by_four, 6, (int[]){0, 1, -1, 2, 3, -1, 4, 5, -1, -1});
    expect_pieces("x[f]", &three, 4, (int[]){0, 1, -1, 2, 3, -1, -1});
    expect_pieces("x[f]", &one_by_four, 1, (int[]){0, -1, -1, -1, -1});
    expect_pieces("x[f]", &one_by_four, 0, (int[]){-1, -1, -1, -1});
    expect_pieces("x", &three, 2, (int[]){0, 1, -1, 0, 1, -1, 0, 1, -1});
}

Test(vectors, balanced_pieces_differ_by_one) {
    expect_pieces("x[f:balanced]", &one_by_four, 5, (int[]){0, 1, -1, 2, -1, 3, -1, 4, -1});
    expect_pieces("x[f:balanced]", &three, 7, (int[]){0, 1, 2, -1, 3, 4, -1, 5, 6, -1});
    expect_pieces("x[f:balanced]", &three, 2, (int[]){0, -1, 1, -1, -1});
    expect_pieces("x[a*b:balanced]", &two_by_two, 6, (int[]){0, 1, -1, 2, 3, -1, 4, -1, 5, -1});
    /* a by chunk: 3, 2; b balanced: 2, 1 and 1, 1 */
    expect_pieces("x[a,b:balanced]", &two_by_two, 5, (int[]){0, 1, -1, 2, -1, 3, -1, 4, -1});
}

Test(vectors, begin_of_an_empty_chunk_is_the_end) {
    int64_t begin, count;
    chunk_range(5, 4, 3, false, &begin, &count);
    cr_assert(begin == 5 && count == 0);
    chunk_range(2, 3, 2, true, &begin, &count);
    cr_assert(begin == 2 && count == 0);
}

static const struct mesh ep2 = {.axes = 1, .name = {"ep"}, .size = {2}};

/* B_flat = ((1,2,3,4),(5,6,7,8)), E = 2, r = 2. */
Test(vectors, flat_b_goes_to_experts_by_every_other_column) {
    static const int whole[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int want[2][4] = {{1, 3, 5, 7}, {2, 4, 6, 8}};
    struct axis_size sizes[] = {{"expert", 2}};
    for (int rank = 0; rank < 2; rank++) {
        int local[4];
        struct shard shard = piece("out (rank expert[ep])", &ep2, rank, (int64_t[]){2, 4}, sizes, 1);
        cr_assert(shard.shape[0] == 2 && shard.shape[1] == 2);
        shard_cut(&shard, sizeof(int), whole, local);
        cr_assert_arr_eq(local, want[rank], sizeof local);
        shard_free(&shard);
    }
}

/* E = 4, r = 2, ep = 2: (e, k) -> right column, column of a plain concatenation, expert-major column.
 */
Test(vectors, column_maps_of_flat_b) {
    static const int map[8][5] = {{0, 0, 0, 0, 0}, {1, 0, 1, 1, 2}, {2, 0, 2, 4, 4}, {3, 0, 3, 5, 6},
                                  {0, 1, 4, 2, 1}, {1, 1, 5, 3, 3}, {2, 1, 6, 6, 5}, {3, 1, 7, 7, 7}};
    struct axis_size sizes[] = {{"expert", 4}};
    for (int i = 0; i < 8; i++) {
        int e = map[i][0], k = map[i][1], rank = e / 2, local_e = e % 2;
        struct shard right = piece("(rank expert[ep])", &ep2, rank, (int64_t[]){8}, sizes, 1);
        struct shard major = piece("(expert[ep] rank)", &ep2, rank, (int64_t[]){8}, sizes, 1);
        cr_assert_eq(right.index[0][k * 2 + local_e], map[i][2]);
        cr_assert_eq(rank * right.shape[0] + k * 2 + local_e, map[i][3]);
        cr_assert_eq(major.index[0][local_e * 2 + k], map[i][4]);
        shard_free(&right);
        shard_free(&major);
    }
}

Test(vectors, the_cut_behind_a_parenthesis_chunks_what_is_left) {
    struct mesh mesh = {.axes = 2, .name = {"ep", "fsdp"}, .size = {2, 3}};
    struct axis_size sizes[] = {{"expert", 4}};
    /* ep 0 keeps the columns 0 1 4 5, ep 1 the columns 2 3 6 7; fsdp takes pieces of ceil(4/3) = 2 */
    static const int want[6][3] = {{0, 1, -1}, {4, 5, -1}, {-1, -1, -1}, {2, 3, -1}, {6, 7, -1}, {-1, -1, -1}};
    for (int rank = 0; rank < 6; rank++) {
        struct shard shard = piece("(rank expert[ep])[fsdp]", &mesh, rank, (int64_t[]){8}, sizes, 1);
        cr_assert_eq(shard.shape[0], want[rank][0] < 0 ? 0 : 2);
        for (int64_t i = 0; i < shard.shape[0]; i++)
            cr_assert_eq(shard.index[0][i], want[rank][i]);
        shard_free(&shard);
    }
}

Test(vectors, a_scalar_is_one_element_everywhere) {
    double whole = 7, local = 0;
    struct shard shard = piece("", &ep2, 1, NULL, NULL, 0);
    cr_assert_eq(shard_elements(&shard), 1);
    cr_assert_eq(shard_global(&shard, 0, NULL), 0);
    shard_cut(&shard, sizeof local, &whole, &local);
    cr_assert_eq(local, 7);
    shard_free(&shard);
}

Test(vectors, rows_chosen_by_hand) {
    static const int whole[5][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}};
    static const int want[6] = {7, 8, 1, 2, 3, 4};
    int local[6], back[5][2] = {{0}};
    int64_t where[2];
    struct shard shard;
    cr_assert_eq(shard_of_rows(&shard, 2, (int64_t[]){5, 2}, (int64_t[]){3, 0, 1}, 3), STATUS_OK);
    cr_assert_eq(shard_elements(&shard), 6);
    cr_assert_eq(shard_global(&shard, 1, where), 7);
    cr_assert(where[0] == 3 && where[1] == 1);
    shard_cut(&shard, sizeof(int), whole, local);
    cr_assert_arr_eq(local, want, sizeof local);
    shard_place(&shard, sizeof(int), local, back);
    cr_assert(back[3][1] == 8 && back[0][0] == 1 && back[1][1] == 4 && back[2][0] == 0 && back[4][1] == 0);
    shard_free(&shard);
    cr_assert_null(shard.index[0]);
    shard_free(&shard);
}

Test(vectors, all_rows_in_another_order_are_not_the_whole) {
    static const int whole[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    static const int want[6] = {3, 4, 5, 6, 1, 2};
    int local[6];
    struct shard shard;
    cr_assert_eq(shard_of_rows(&shard, 2, (int64_t[]){3, 2}, (int64_t[]){1, 2, 0}, 3), STATUS_OK);
    shard_cut(&shard, sizeof(int), whole, local);
    cr_assert_arr_eq(local, want, sizeof local);
    shard_free(&shard);
}

Test(vectors, a_line_without_sizes_has_no_pieces) {
    struct line line;
    struct shard shard;
    cr_assert_eq(line_parse(&line, "x[ep]", &ep2, "t"), STATUS_OK);
    cr_assert_eq(shard_make(&shard, &line, &ep2, 0), STATUS_INTERNAL);
}

Test(vectors, what_lies_outside_is_not_within) {
    struct shard inside = piece("x[ep]", &ep2, 1, (int64_t[]){5}, NULL, 0);
    struct shard outside = piece("x[ep]", &ep2, 0, (int64_t[]){5}, NULL, 0);
    struct shard other = piece("x[ep]", &ep2, 0, (int64_t[]){6}, NULL, 0);
    struct shard within;
    cr_assert_eq(shard_within(&within, &inside, &outside), STATUS_INTERNAL);
    status_clear();
    cr_assert_eq(shard_within(&within, &outside, &other), STATUS_INTERNAL);
    shard_free(&inside);
    shard_free(&outside);
    shard_free(&other);
}
