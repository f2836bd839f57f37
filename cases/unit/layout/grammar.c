/* The grammar of layout lines: what is read, what is refused, and with which message. */
#include "layout/line.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const struct mesh mesh = {.axes = 3, .name = {"ep", "fsdp", "dp"}, .size = {2, 3, 4}};

Test(grammar, a_line_prints_back_as_it_was_written) {
    static const char *const lines[] = {
        "",
        "hidden",
        "expert[ep] (half inter)[fsdp] hidden",
        "(expert[ep] rank) hidden",
        "out (rank expert[ep])",
        "(rank expert[ep])[fsdp] x",
        "out[ep*fsdp] in",
        "out[fsdp*ep*dp:balanced] in",
        "x[ep,fsdp] y[dp:balanced]",
        "x[fsdp,ep]",
        "out in +[fsdp]",
        "+[ep,fsdp]",
        "x[ep] +[fsdp*dp]",
        "(a)[ep]",
        "a b c d e f g h",
        "(a b c d)",
        "_x9 Half_2",
        "(batch[ep*fsdp] token) choice hidden",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct line line;
        char text[256];
        cr_assert_eq(line_parse(&line, lines[i], &mesh, "t"), STATUS_OK, "%s: %s", lines[i], status_note());
        cr_assert_str_eq(line_text(text, sizeof text, &line, &mesh), lines[i]);
    }
}

Test(grammar, spaces_may_stand_between_tokens) {
    struct line line;
    char text[256];
    cr_assert_eq(line_parse(&line, "  ( a [ ep * fsdp : balanced , dp ]\tb)  c  ", &mesh, "t"), STATUS_OK, "%s",
                 status_note());
    cr_assert_str_eq(line_text(text, sizeof text, &line, &mesh), "(a[ep*fsdp:balanced,dp] b) c");
}

Test(grammar, a_parsed_line_holds_what_stands_there) {
    struct line line;
    cr_assert_eq(line_parse(&line, "x (r[fsdp:balanced] e)[dp*ep] y", &mesh, "t"), STATUS_OK);
    cr_assert_eq(line.dims, 3);
    cr_assert_not(line.dim[0].parenthesis);
    cr_assert(line.dim[1].parenthesis);
    cr_assert_eq(line.dim[1].axes, 2);
    cr_assert_str_eq(line.dim[1].axis[1].name, "e");
    cr_assert_eq(line.dim[1].axis[0].size, -1);
    cr_assert_eq(line.dim[1].axis[0].cuts.count, 1);
    cr_assert_eq(line.dim[1].axis[0].cuts.cut[0].axis[0], 1);
    cr_assert(line.dim[1].axis[0].cuts.cut[0].balanced);
    cr_assert_eq(line.dim[1].axis[1].cuts.count, 0);
    cr_assert_eq(line.dim[1].cuts.count, 1);
    cr_assert_eq(line.dim[1].cuts.cut[0].axes, 2);
    cr_assert_eq(line.dim[1].cuts.cut[0].axis[0], 2);
    cr_assert_eq(line.dim[1].cuts.cut[0].axis[1], 0);
    cr_assert_eq(line_cut_axes(&line), 7);
    cr_assert_eq(line_owed_axes(&line), 0);
}

Test(grammar, two_sums_are_one_list) {
    struct line line;
    char text[64];
    cr_assert_eq(line_parse(&line, "x[ep] +[fsdp] +[dp]", &mesh, "t"), STATUS_OK);
    cr_assert_eq(line_cut_axes(&line), 1);
    cr_assert_eq(line_owed_axes(&line), 6);
    cr_assert_str_eq(line_text(text, sizeof text, &line, &mesh), "x[ep] +[fsdp,dp]");
}

struct refusal {
    const char *line;
    const char *note;
};

/* Columns counted by hand, from 1. */
static const struct refusal refusals[] = {
    {"x[", "t: column 3 of 'x[': the line ends, expected a mesh axis"},
    {"x[]", "t: column 3 of 'x[]': ']', expected a mesh axis"},
    {"x[ep", "t: column 5 of 'x[ep': the line ends, expected ',', '*', ':balanced' or ']'"},
    {"x[ep y", "t: column 6 of 'x[ep y': 'y', expected ',', '*', ':balanced' or ']'"},
    {"x[ep,]", "t: column 6 of 'x[ep,]': ']', expected a mesh axis"},
    {"x[ep*]", "t: column 6 of 'x[ep*]': ']', expected a mesh axis"},
    {"x[*ep]", "t: column 3 of 'x[*ep]': '*', expected a mesh axis"},
    {"x[ep:]", "t: column 6 of 'x[ep:]': ']', expected 'balanced'"},
    {"x[ep:even]", "t: column 6 of 'x[ep:even]': ':even', expected ':balanced'"},
    {"x[fspd]", "t: column 3 of 'x[fspd]': unknown mesh axis 'fspd', did you mean 'fsdp'?"},
    {"x[pipeline]", "t: column 3 of 'x[pipeline]': unknown mesh axis 'pipeline', expected one of the mesh {ep: 2, "
                    "fsdp: 3, dp: 4}"},
    {"x[ep] y[ep]", "t: column 9 of 'x[ep] y[ep]': mesh axis 'ep' stands twice, expected once in a line"},
    {"x[ep*ep]", "t: column 6 of 'x[ep*ep]': mesh axis 'ep' stands twice, expected once in a line"},
    {"x[ep] +[ep]", "t: column 9 of 'x[ep] +[ep]': mesh axis 'ep' stands twice, expected once in a line"},
    {"x y x", "t: column 5 of 'x y x': axis 'x' stands twice, expected once in a line"},
    {"(x x)", "t: column 4 of '(x x)': axis 'x' stands twice, expected once in a line"},
    {"y (x y)", "t: column 6 of 'y (x y)': axis 'y' stands twice, expected once in a line"},
    {"(a (b c))", "t: column 4 of '(a (b c))': '(' inside a parenthesis, expected an axis: parentheses do not nest"},
    {"()", "t: column 2 of '()': ')', expected an axis"},
    {"(a b", "t: column 5 of '(a b': the line ends, expected an axis or ')'"},
    {"(a b x[ep] y z)", "t: column 14 of '(a b x[ep] y z)': too many axes, expected 4 in a parenthesis at most"},
    {"a)", "t: column 2 of 'a)': ')', expected an axis, '(' or '+['"},
    {"a ]", "t: column 3 of 'a ]': ']', expected an axis, '(' or '+['"},
    {"a, b", "t: column 2 of 'a, b': ',', expected an axis, '(' or '+['"},
    {"[ep]", "t: column 1 of '[ep]': '[', expected an axis, '(' or '+['"},
    {"a[ep][dp]", "t: column 6 of 'a[ep][dp]': '[', expected an axis, '(' or '+['"},
    {"a 3", "t: column 3 of 'a 3': '3', expected an axis, '(' or '+['"},
    {"a-b", "t: column 2 of 'a-b': '-', expected an axis, '(' or '+['"},
    {"a +", "t: column 4 of 'a +': the line ends, expected '[' behind '+'"},
    {"a + [ep]", "t: column 4 of 'a + [ep]': ' ', expected '[' behind '+'"},
    {"a +[]", "t: column 5 of 'a +[]': ']', expected a mesh axis"},
    {"a +[ep] b", "t: column 9 of 'a +[ep] b': 'b', expected '+[' or the end: sums come last"},
    {"a b c d e f g h i", "t: column 17 of 'a b c d e f g h i': too many dims, expected 8 at most"},
    {"an_axis_whose_name_is_far_too_long",
     "t: column 1 of 'an_axis_whose_name_is_far_too_long': the name 'an_axis_whose_name_is_far_too_long' is too long, "
     "expected 31 characters at most"},
};

Test(grammar, every_bad_form_is_refused_at_its_column) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct line line;
        status_clear();
        cr_assert_eq(line_parse(&line, refusals[i].line, &mesh, "t"), STATUS_INPUT, "%s", refusals[i].line);
        cr_assert_str_eq(status_note(), refusals[i].note);
    }
}

Test(grammar, world_stands_for_the_mesh_in_its_order) {
    static const char *const pairs[][2] = {
        {"batch[world] token", "batch[ep*fsdp*dp] token"},
        {"(batch[world] token) x", "(batch[ep*fsdp*dp] token) x"},
        {"a[x,world]", "a[x,ep*fsdp*dp]"},
        {"a[world:balanced]", "a[ep*fsdp*dp:balanced]"},
        {"x +[world]", "x +[ep*fsdp*dp]"},
        {"world[ep] my_world[ep]", "world[ep] my_world[ep]"},
        {"a[worlds] b[my_world]", "a[worlds] b[my_world]"},
        {"", ""},
    };
    char text[128];
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        cr_assert_str_eq(line_with_world(text, sizeof text, pairs[i][0], &mesh), pairs[i][1]);
    cr_assert_str_eq(line_with_world(text, sizeof text, "batch[world] token", &(struct mesh){0}), "batch token");
}

Test(grammar, a_text_that_does_not_fit_is_no_line) {
    char text[17]; /* cut off, `b[ep*fsdp*dp] to` would be a line */
    struct line line;
    line_with_world(text, sizeof text, "b[world] token", &mesh);
    cr_assert_eq(line_parse(&line, text, &mesh, "t"), STATUS_INPUT);
}
