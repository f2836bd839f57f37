/* Sizes: from the tensor's shape, from the file's `axes`, and where they disagree. */
#include "layout/line.h"

#include <criterion/criterion.h>

static const struct mesh mesh = {.axes = 2, .name = {"ep", "fsdp"}, .size = {2, 3}};
static const struct axis_size sizes[] = {{"expert", 12}, {"half", 2}, {"inter", 14}, {"hidden", 20}};

static struct line parsed(const char *text) {
    struct line line;
    cr_assert_eq(line_parse(&line, text, &mesh, "t"), STATUS_OK, "%s", status_note());
    return line;
}

Test(bind, the_shape_gives_every_plain_axis) {
    struct line line = parsed("expert[ep] out hidden");
    int64_t shape[LINE_MAX_DIMS];
    cr_assert_eq(line_bind(&line, 3, (int64_t[]){12, 28, 20}, NULL, 0, "t"), STATUS_OK, "%s", status_note());
    cr_assert_eq(line.dim[1].axis[0].size, 28);
    line_shape(&line, shape);
    cr_assert(shape[0] == 12 && shape[1] == 28 && shape[2] == 20);
}

Test(bind, one_unknown_of_a_parenthesis_follows) {
    struct line line = parsed("(half inter) (rank expert)");
    cr_assert_eq(line_bind(&line, 2, (int64_t[]){28, 60}, (struct axis_size[]){{"half", 2}, {"expert", 12}}, 2, "t"),
                 STATUS_OK, "%s", status_note());
    cr_assert_eq(line.dim[0].axis[1].size, 14);
    cr_assert_eq(line.dim[1].axis[0].size, 5);
}

Test(bind, sizes_alone_suffice) {
    struct line line = parsed("expert[ep] (half inter)[fsdp] hidden");
    int64_t shape[LINE_MAX_DIMS];
    cr_assert_eq(line_bind(&line, 0, NULL, sizes, 4, "t"), STATUS_OK, "%s", status_note());
    line_shape(&line, shape);
    cr_assert(shape[0] == 12 && shape[1] == 28 && shape[2] == 20);
}

Test(bind, a_bound_line_can_be_bound_anew) {
    struct line line = parsed("(half inter) x");
    cr_assert_eq(line_bind(&line, 2, (int64_t[]){28, 5}, sizes, 2, "t"), STATUS_OK, "%s", status_note());
    cr_assert_eq(line_bind(&line, 2, (int64_t[]){6, 7}, sizes, 2, "t"), STATUS_OK, "%s", status_note());
    cr_assert(line.dim[0].axis[1].size == 3 && line.dim[1].axis[0].size == 7);
}

Test(bind, empty_tensors_are_legal) {
    struct line line = parsed("a (half b)");
    cr_assert_eq(line_bind(&line, 2, (int64_t[]){0, 0}, sizes, 4, "t"), STATUS_OK, "%s", status_note());
    cr_assert_eq(line.dim[1].axis[1].size, 0);
}

struct conflict {
    const char *line;
    int ndim;
    int64_t shape[3];
    const char *note;
};

static const struct conflict conflicts[] = {
    {"expert hidden", 3, {12, 28, 20}, "t: the line has 2 dims, expected 3 as the tensor"},
    {"expert hidden", 2, {12, 21}, "t: axis 'hidden' has size 20 in 'axes', expected 21 as the tensor's dim 1"},
    {"x (half inter)", 2, {1, 30}, "t: the axes of dim 1 make 28 elements, expected 30 as the tensor's"},
    {"(half rank)", 1, {31}, "t: no size of axis 'rank' makes dim 0 31 elements long, expected a multiple of 2"},
    {"(half rank out)",
     1,
     {32},
     "t: neither 'rank' nor 'out' has a size, expected one unknown in the parenthesis of dim 0 at most (sizes stand in "
     "'axes')"},
    {"expert rank", -1, {0}, "t: axis 'rank' has no size, expected one in 'axes'"},
    {"(half rank)", -1, {0}, "t: axis 'rank' has no size, expected one in 'axes'"},
};

Test(bind, conflicts_are_refused) {
    for (size_t i = 0; i < sizeof conflicts / sizeof *conflicts; i++) {
        const struct conflict *c = &conflicts[i];
        struct line line = parsed(c->line);
        status_clear();
        cr_assert_eq(line_bind(&line, c->ndim, c->ndim < 0 ? NULL : c->shape, sizes, 4, "t"), STATUS_INPUT, "%s",
                     c->line);
        cr_assert_str_eq(status_note(), c->note);
    }
}

Test(bind, sizes_that_overflow_are_refused) {
    struct line line = parsed("(a b)");
    struct axis_size large[] = {{"a", INT64_C(1) << 40}, {"b", INT64_C(1) << 40}};
    cr_assert_eq(line_bind(&line, 1, (int64_t[]){0}, large, 2, "t"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "t: the sizes of dim 0 are too large, expected their product below 2^63");
}

Test(bind, an_axis_is_found_by_its_name) {
    struct line line = parsed("out (rank expert[ep])");
    int dim, position;
    cr_assert(line_find_axis(&line, "expert", &dim, &position));
    cr_assert(dim == 1 && position == 1);
    cr_assert_not(line_find_axis(&line, "hidden", &dim, &position));
}

Test(bind, a_gather_drops_the_cuts_of_its_axes) {
    char text[128];
    struct line line = parsed("(rank expert[ep])[fsdp] x");
    struct line gathered = line_gathered(&line, 1U << 1);
    cr_assert_str_eq(line_text(text, sizeof text, &gathered, &mesh), "(rank expert[ep]) x");
    gathered = line_gathered(&line, 1U << 0);
    cr_assert_str_eq(line_text(text, sizeof text, &gathered, &mesh), "(rank expert)[fsdp] x");
    line = parsed("x[ep*fsdp]");
    gathered = line_gathered(&line, 1U << 0);
    cr_assert_str_eq(line_text(text, sizeof text, &gathered, &mesh), "x");
    line = parsed("x[ep] +[fsdp]");
    gathered = line_gathered(&line, 3);
    cr_assert_str_eq(line_text(text, sizeof text, &gathered, &mesh), "x +[fsdp]");
}
