/* Where each tensor of a run lies: the built-in rule, and what a layout file may say instead. */
#include "layout/sharding.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define GATE_UP "expert (half inter) hidden"

static struct mesh grid(int ep, int fsdp) {
    return (struct mesh){.axes = 2, .name = {"ep", "fsdp"}, .size = {ep, fsdp}};
}

struct built_in {
    int ep, fsdp, ndim;
    int64_t shape[3];
    const char *axes;
    bool expert;
    const char *line, *gathered;
    unsigned gather_axes, owed_axes; /* 1: ep, 2: fsdp */
};

/* Shapes of the qwen3_moe_tiny fixture: E 12, 2I 28, H 20, R 5. */
static const struct built_in rules[] = {
    {2,
     2,
     3,
     {12, 28, 20},
     GATE_UP,
     true,
     "expert[ep] (half inter)[fsdp] hidden",
     "expert[ep] (half inter) hidden",
     2,
     2},
    {2,
     3,
     3,
     {12, 28, 20},
     GATE_UP,
     true,
     "expert[ep,fsdp] (half inter) hidden",
     "expert[ep] (half inter) hidden",
     2,
     2},
    {3,
     4,
     3,
     {12, 20, 14},
     "expert hidden inter",
     true,
     "expert[ep] hidden[fsdp] inter",
     "expert[ep] hidden inter",
     2,
     2},
    {3, 2, 3, {12, 5, 20}, "expert rank in", true, "expert[ep,fsdp] rank in", "expert[ep] rank in", 2, 2},
    {6, 1, 3, {12, 5, 20}, "expert rank in", true, "expert[ep] rank[fsdp] in", "expert[ep] rank in", 0, 2},
    {1, 3, 3, {12, 5, 20}, "expert rank in", true, "expert[ep,fsdp] rank in", "expert[ep] rank in", 2, 2},
    {2, 3, 2, {28, 20}, "out in", false, "out[ep*fsdp] in", "out in", 3, 3},
    {2, 1, 2, {28, 20}, "(half inter) hidden", false, "(half inter)[ep*fsdp] hidden", "(half inter) hidden", 1, 3},
    {1, 1, 1, {20}, "hidden", false, "hidden[ep*fsdp]", "hidden", 0, 3},
    {2, 3, 0, {0}, "", false, "", "", 0, 3},
};

Test(sharding, the_built_in_rule) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct built_in *rule = &rules[i];
        struct mesh mesh = grid(rule->ep, rule->fsdp);
        struct placed placed;
        char text[128];
        cr_assert_eq(sharding_place(&placed, &mesh, NULL, EXPERT_DIM_AUTO, "t", rule->ndim, rule->shape, rule->axes,
                                    rule->expert),
                     STATUS_OK, "%s", status_note());
        cr_assert_str_eq(line_text(text, sizeof text, &placed.line, &mesh), rule->line);
        cr_assert_str_eq(line_text(text, sizeof text, &placed.gathered, &mesh), rule->gathered);
        cr_assert_eq(placed.gather_axes, rule->gather_axes, "%s: %u", rule->line, placed.gather_axes);
        cr_assert_eq(placed.owed_axes, rule->owed_axes, "%s: %u", rule->line, placed.owed_axes);
    }
}

static void expect_on(const struct mesh *mesh, bool expert, const char *want, unsigned gather_axes,
                      unsigned owed_axes) {
    struct placed placed;
    char text[128];
    cr_assert_eq(sharding_place(&placed, mesh, NULL, EXPERT_DIM_AUTO, "t", 3, (int64_t[]){12, 28, 20}, GATE_UP, expert),
                 STATUS_OK);
    cr_assert_str_eq(line_text(text, sizeof text, &placed.line, mesh), want);
    cr_assert_eq(placed.gather_axes, gather_axes);
    cr_assert_eq(placed.owed_axes, owed_axes);
}

Test(sharding, the_built_in_rule_on_other_meshes) {
    struct mesh fsdp = {.axes = 1, .name = {"fsdp"}, .size = {4}}, ep = {.axes = 1, .name = {"ep"}, .size = {4}};
    struct mesh turned = {.axes = 3, .name = {"fsdp", "dp", "ep"}, .size = {7, 2, 3}};
    expect_on(&fsdp, true, "expert (half inter)[fsdp] hidden", 1, 1);
    expect_on(&ep, true, "expert[ep] (half inter) hidden", 0, 0);
    expect_on(&turned, true, "expert[ep] (half inter)[fsdp] hidden", 1, 3);
    expect_on(&turned, false, "expert[fsdp*dp*ep] (half inter) hidden", 7, 7);
    expect_on(&(struct mesh){0}, true, "expert (half inter) hidden", 0, 0);
    expect_on(&(struct mesh){0}, false, "expert (half inter) hidden", 0, 0);
}

/* A replica axis cuts nothing, and every gradient is owed over it. */
Test(sharding, replicas) {
    struct mesh mesh = {.axes = 3, .name = {"replicate", "ep", "fsdp"}, .size = {2, 2, 2}};
    struct mesh alone = {.axes = 1, .name = {"replicate"}, .size = {3}};
    expect_on(&mesh, true, "expert[ep] (half inter)[fsdp] hidden", 4, 5);
    expect_on(&mesh, false, "expert[ep*fsdp] (half inter) hidden", 6, 7);
    expect_on(&alone, true, "expert (half inter) hidden", 0, 1);
    expect_on(&alone, false, "expert (half inter) hidden", 0, 1);
}

static void expect_dim(enum expert_dim dim, int fsdp, const char *want) {
    struct mesh mesh = grid(2, fsdp);
    struct placed placed;
    char text[128];
    cr_assert_eq(sharding_place(&placed, &mesh, NULL, dim, "t", 3, (int64_t[]){12, 28, 20}, GATE_UP, true), STATUS_OK);
    cr_assert_str_eq(line_text(text, sizeof text, &placed.line, &mesh), want);
    cr_assert_str_eq(line_text(text, sizeof text, &placed.gathered, &mesh), "expert[ep] (half inter) hidden");
    cr_assert_eq(sharding_place(&placed, &mesh, NULL, dim, "t", 2, (int64_t[]){28, 20}, "out in", false), STATUS_OK);
    cr_assert_str_eq(line_text(text, sizeof text, &placed.line, &mesh), "out[ep*fsdp] in");
}

Test(sharding, a_dim_of_the_experts_by_name) {
    struct mesh mesh = grid(2, 3);
    struct placed placed;
    expect_dim(EXPERT_DIM_0, 2, "expert[ep,fsdp] (half inter) hidden");
    expect_dim(EXPERT_DIM_0, 3, "expert[ep,fsdp] (half inter) hidden");
    expect_dim(EXPERT_DIM_1, 4, "expert[ep] (half inter)[fsdp] hidden");
    cr_assert_eq(sharding_place(&placed, &mesh, NULL, EXPERT_DIM_1, "w", 3, (int64_t[]){12, 28, 20}, GATE_UP, true),
                 STATUS_INPUT);
    cr_assert_str_eq(status_note(), "w: fsdp = 3 does not divide dim 1 of size 28");
}

/* 12 experts over ep 2 are 6 and 6; fsdp 5 takes chunks of ceil(6/5) = 2: 2 2 2 0 0. */
Test(sharding, experts_cut_twice_leave_empty_pieces) {
    struct mesh mesh = grid(2, 5);
    struct placed placed;
    cr_assert_eq(sharding_place(&placed, &mesh, NULL, EXPERT_DIM_AUTO, "t", 3, (int64_t[]){12, 28, 20}, GATE_UP, true),
                 STATUS_OK);
    for (int rank = 0; rank < 10; rank++) {
        struct shard shard;
        cr_assert_eq(shard_make(&shard, &placed.line, &mesh, rank), STATUS_OK);
        cr_assert_eq(shard.shape[0], rank % 5 < 3 ? 2 : 0);
        if (shard.shape[0])
            cr_assert_eq(shard.index[0][0], rank / 5 * 6 + rank % 5 * 2);
        cr_assert(shard.shape[1] == 28 && shard.shape[2] == 20);
        shard_free(&shard);
    }
}

Test(sharding, ep_must_divide_the_experts) {
    struct mesh mesh = grid(5, 1);
    struct placed placed;
    cr_assert_eq(sharding_place(&placed, &mesh, NULL, EXPERT_DIM_AUTO, "w", 3, (int64_t[]){12, 28, 20}, GATE_UP, true),
                 STATUS_INPUT);
    cr_assert_str_eq(status_note(), "w: ep = 5 does not divide 12 experts");
}

/* --- a layout file --- */

static struct layout_file file_of(struct layout_rule *rule, int sizes, struct axis_size *size) {
    return (struct layout_file){.path = (char *)"f.yaml", .sizes = sizes, .size = size, .rules = 1, .rule = rule};
}

static enum status place_by(const char *line, struct placed *out, const struct mesh *mesh, int sizes,
                            struct axis_size *size, bool expert) {
    struct layout_rule rule = {(char *)"*.w", (char *)line, 7};
    struct layout_file file = file_of(&rule, sizes, size);
    status_clear();
    return sharding_place(out, mesh, &file, EXPERT_DIM_AUTO, "a.w", 3, (int64_t[]){12, 28, 20}, GATE_UP, expert);
}

struct allowed {
    bool expert;
    const char *line, *gathered;
    unsigned gather_axes, owed_axes;
};

static const struct allowed allowed[] = {
    {true, "expert[ep] x hidden[fsdp]", "expert[ep] x hidden", 2, 2},
    {true, "expert[ep,fsdp] (half inter) hidden", "expert[ep] (half inter) hidden", 2, 2},
    {true, "(expert[ep] half)[fsdp] x hidden", "(expert[ep] half) x hidden", 2, 2},
    {true, "expert[ep] x y", "expert[ep] x y", 0, 2},
    {false, "expert[ep] (half inter)[fsdp:balanced] hidden", "expert (half inter) hidden", 3, 3},
    {false, "x[fsdp,ep] y z", "x y z", 3, 3},
    {false, "x y z", "x y z", 0, 3},
};

Test(sharding, a_file_may_cut_otherwise) {
    struct mesh mesh = grid(2, 3);
    struct axis_size half = {"half", 2};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        struct placed placed;
        char text[128];
        cr_assert_eq(place_by(allowed[i].line, &placed, &mesh, 1, &half, allowed[i].expert), STATUS_OK, "%s",
                     status_note());
        cr_assert_str_eq(line_text(text, sizeof text, &placed.line, &mesh), allowed[i].line);
        cr_assert_str_eq(line_text(text, sizeof text, &placed.gathered, &mesh), allowed[i].gathered);
        cr_assert_eq(placed.gather_axes, allowed[i].gather_axes, "%s", allowed[i].line);
        cr_assert_eq(placed.owed_axes, allowed[i].owed_axes, "%s", allowed[i].line);
    }
}

Test(sharding, the_model_sizes_what_a_parenthesis_leaves_open) {
    struct mesh mesh = grid(2, 3);
    struct placed placed;
    struct axis_size inter = {"inter", 7};
    cr_assert_eq(place_by("expert[ep] (inter half) hidden", &placed, &mesh, 0, NULL, true), STATUS_OK, "%s",
                 status_note());
    cr_assert(placed.line.dim[1].axis[0].size == 14 && placed.line.dim[1].axis[1].size == 2);
    cr_assert_eq(place_by("expert[ep] (inter half) hidden", &placed, &mesh, 1, &inter, true), STATUS_OK, "%s",
                 status_note());
    cr_assert(placed.line.dim[1].axis[0].size == 7 && placed.line.dim[1].axis[1].size == 4);
    /* names have no meaning: what the model calls `hidden` is 20, this line's is 28 */
    cr_assert_eq(place_by("expert[ep] hidden half", &placed, &mesh, 0, NULL, true), STATUS_OK, "%s", status_note());
}

struct refused {
    bool expert;
    const char *line, *note;
};

static const struct refused refused[] = {
    {true, "expert[ep] x hidden +[fsdp]", "f.yaml:7: a.w: a parameter owes no sum, expected a line without +[...]"},
    {false, "x y z +[fsdp]", "f.yaml:7: a.w: a parameter owes no sum, expected a line without +[...]"},
    {true, "expert[fspd] x y",
     "f.yaml:7: column 8 of 'expert[fspd] x y': unknown mesh axis 'fspd', did you mean 'fsdp'?"},
    {true, "expert[ep] x", "f.yaml:7: a.w: the line has 2 dims, expected 3 as the tensor"},
    {true, "expert[ep] (a b) c",
     "f.yaml:7: a.w: neither 'a' nor 'b' has a size, expected one unknown in the parenthesis of dim 1 at most (sizes "
     "stand in 'axes')"},
    {true, "(expert[ep] four) x hidden", "f.yaml:7: a.w: ep = 2 does not divide the axis 'expert' of size 3"},
};

static const char *const not_by_ep_first[] = {
    "expert x hidden",       "expert[fsdp] x[ep] hidden",   "expert[fsdp,ep] x hidden", "expert[ep*fsdp] x hidden",
    "e[ep] x hidden",        "(four expert[ep]) x y",       "(four expert)[ep] x y",    "x expert[ep] y",
    "(four[ep] expert) x y", "(expert four[ep])[fsdp] x y",
};

Test(sharding, what_run_cannot_do_is_refused_with_its_line) {
    struct mesh mesh = grid(2, 3);
    struct axis_size four = {"four", 4};
    struct placed placed;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_assert_eq(place_by(refused[i].line, &placed, &mesh, 1, &four, refused[i].expert), STATUS_INPUT, "%s",
                     refused[i].line);
        cr_assert_str_eq(status_note(), refused[i].note);
    }
    for (size_t i = 0; i < sizeof not_by_ep_first / sizeof *not_by_ep_first; i++) {
        cr_assert_eq(place_by(not_by_ep_first[i], &placed, &mesh, 1, &four, true), STATUS_INPUT, "%s",
                     not_by_ep_first[i]);
        cr_assert_str_eq(status_note(), "f.yaml:7: a.w: experts are not cut by ep first, expected dim 0 to begin with "
                                        "expert[ep] or expert[ep,...]");
    }
}

Test(sharding, one_ep_asks_nothing_of_experts) {
    struct mesh mesh = grid(1, 3);
    struct placed placed;
    cr_assert_eq(place_by("e[fsdp] x y[ep]", &placed, &mesh, 0, NULL, true), STATUS_OK, "%s", status_note());
    cr_assert_eq(placed.gather_axes, 2);
    cr_assert_eq(line_cut_axes(&placed.gathered), 0);
}

Test(sharding, a_tensor_without_a_line_is_refused) {
    struct mesh mesh = grid(2, 3);
    struct layout_rule rule = {(char *)"*.w", (char *)"x", 7};
    struct layout_file file = file_of(&rule, 0, NULL);
    struct placed placed;
    cr_assert_eq(sharding_place(&placed, &mesh, &file, EXPERT_DIM_AUTO, "a.norm", 1, (int64_t[]){20}, "hidden", false),
                 STATUS_INPUT);
    cr_assert_str_eq(status_note(), "f.yaml: no line of 'tensors' is for 'a.norm', expected a glob that matches it");
}
