#include "layout/mesh.h"

#include <criterion/criterion.h>
#include <string.h>

/* All sizes different; rank = (ep*3 + fsdp)*4 + tp. */
static const struct mesh mesh = {.axes = 3, .name = {"ep", "fsdp", "tp"}, .size = {2, 3, 4}};

Test(mesh, ranks_are_row_major) {
    int rank = 0;
    cr_assert_eq(mesh_world(&mesh), 24);
    for (int ep = 0; ep < 2; ep++)
        for (int fsdp = 0; fsdp < 3; fsdp++)
            for (int tp = 0; tp < 4; tp++, rank++) {
                cr_assert_eq(mesh_coordinate(&mesh, 0, rank), ep);
                cr_assert_eq(mesh_coordinate(&mesh, 1, rank), fsdp);
                cr_assert_eq(mesh_coordinate(&mesh, 2, rank), tp);
            }
}

Test(mesh, names_and_sizes) {
    char text[64], small[8];
    cr_assert_eq(mesh_axis(&mesh, "fsdp"), 1);
    cr_assert_eq(mesh_axis(&mesh, "dp"), -1);
    cr_assert_eq(mesh_axis_size(&mesh, "tp"), 4);
    cr_assert_eq(mesh_axis_size(&mesh, "dp"), 1);
    cr_assert_str_eq(mesh_text(text, sizeof text, &mesh), "{ep: 2, fsdp: 3, tp: 4}");
    cr_assert_str_eq(mesh_text(small, sizeof small, &mesh), "{ep: 2,");
    cr_assert_eq(mesh_world(&(struct mesh){0}), 1);
    cr_assert_str_eq(mesh_text(text, sizeof text, &(struct mesh){0}), "{}");
}

static void expect_group(unsigned axes, int rank, int count, const int *want) {
    int members[24];
    cr_assert_eq(mesh_group(&mesh, axes, rank, members), count);
    for (int i = 0; i < count; i++)
        cr_assert_eq(members[i], want[i], "mask %u rank %d member %d: %d", axes, rank, i, members[i]);
}

Test(mesh, a_group_agrees_outside_its_axes) {
    /* rank 18 = (1, 1, 2) */
    expect_group(0, 18, 1, (int[]){18});
    expect_group(1, 18, 2, (int[]){6, 18});
    expect_group(2, 18, 3, (int[]){14, 18, 22});
    expect_group(4, 18, 4, (int[]){16, 17, 18, 19});
    expect_group(3, 18, 6, (int[]){2, 6, 10, 14, 18, 22});
    expect_group(7, 18, 24,
                 (int[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
}
