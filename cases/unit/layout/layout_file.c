/* Layout files: what is kept, which glob wins, and what is refused with its line. */
#include "layout/sharding.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/layout_file_test_XXXXXX";

static void write_file(void) {
    int file = mkstemp(path);
    cr_assert(file >= 0);
    close(file);
}

static void remove_file(void) {
    unlink(path);
}

TestSuite(layout_file, .init = write_file, .fini = remove_file);

static enum status open_text(struct layout_file *out, const char *text) {
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
    status_clear();
    return layout_file_open(out, path);
}

static const char whole[] = "mesh: {fsdp: 3, ep: 2}\n"
                            "axes: {expert: 12, half: 2, rank: 5}\n"
                            "tensors:\n"
                            "  \"*.experts.gate_up_proj\": \"expert[ep] (half inter)[fsdp] hidden\"\n"
                            "  \"*.experts.*\": expert[ep,fsdp] x y\n"
                            "  \"*.layers.?.self_attn.q_proj.weight\": out[ep*fsdp] in\n"
                            "  \"scale\": \"\"\n"
                            "gathers: {\"*.experts.*\": [{over: ep, concat: 0}]}\n"
                            "data: [ep, fsdp]\n"
                            "exchange: [ep]\n"
                            "gradients: {\"*.experts.*\": {sum: [fsdp], divide: 6}}\n"
                            "fsdp2: [fsdp]\n"
                            "reshard: {mesh: {ep: 4, fsdp: 1}}\n";

static void expect_rule(const struct layout_file *file, const char *tensor, const char *line, int at) {
    const struct layout_rule *rule = layout_file_rule(file, tensor);
    if (!line) {
        cr_assert_null(rule, "%s", tensor);
        return;
    }
    cr_assert_not_null(rule, "%s", tensor);
    cr_assert_str_eq(rule->line, line);
    cr_assert_eq(rule->at, at);
}

Test(layout_file, mesh_axes_and_tensors_are_kept) {
    struct layout_file file;
    char text[64];
    cr_assert_eq(open_text(&file, whole), STATUS_OK, "%s", status_note());
    cr_assert_str_eq(file.path, path);
    cr_assert_str_eq(mesh_text(text, sizeof text, &file.mesh), "{fsdp: 3, ep: 2}");
    cr_assert_eq(file.sizes, 3);
    cr_assert_str_eq(file.size[2].name, "rank");
    cr_assert_eq(file.size[2].size, 5);
    cr_assert_eq(file.rules, 4);
    layout_file_close(&file);
    cr_assert(file.rules == 0 && !file.rule && !file.path);
    layout_file_close(&file);
}

Test(layout_file, the_first_glob_that_matches_wins) {
    struct layout_file file;
    cr_assert_eq(open_text(&file, whole), STATUS_OK, "%s", status_note());
    expect_rule(&file, "model.layers.0.mlp.experts.gate_up_proj", "expert[ep] (half inter)[fsdp] hidden", 4);
    expect_rule(&file, "model.layers.0.mlp.experts.down_proj", "expert[ep,fsdp] x y", 5);
    expect_rule(&file, "model.layers.0.self_attn.q_proj.weight", "out[ep*fsdp] in", 6);
    expect_rule(&file, "model.layers.10.self_attn.q_proj.weight", NULL, 0);
    expect_rule(&file, "scale", "", 7);
    expect_rule(&file, "scales", NULL, 0);
    layout_file_close(&file);
}

Test(layout_file, a_file_may_leave_mesh_and_axes_out) {
    struct layout_file file;
    cr_assert_eq(open_text(&file, "tensors: {a: \"x[anything]\"}\n"), STATUS_OK, "%s", status_note());
    cr_assert(file.mesh.axes == 0 && file.sizes == 0);
    layout_file_close(&file);
}

struct refused {
    const char *text;
    int line;         /* 0: any */
    const char *what; /* stands in the note */
};

static const struct refused refused[] = {
    {"mesh: {ep: 2}\ntensors:\n  a: x\n  b: x[fsdp]\n", 4, "column 3 of 'x[fsdp]': unknown mesh axis 'fsdp'"},
    {"mesh: {ep: 2}\ntensors:\n  a: x[ep\n", 3, "column 5 of 'x[ep': the line ends, expected"},
    {"mesh: {ep: 2}\ntensor: {a: x}\n", 2, "unknown key 'tensor'"},
    {"mesh: {ep: 2}\n", 0, "'tensors' is missing, expected GLOB: LINE entries"},
    {"tensors: {}\n", 1, "'tensors' is empty, expected GLOB: LINE entries"},
    {"tensors: [a, b]\n", 1, ""},
    {"tensors: {a: [x]}\n", 1, ""},
    {"tensors: {a: x, a: y}\n", 1, ""},
    {"- a\n", 1, ""},
    {"mesh: {}\ntensors: {a: x}\n", 1, "the mesh has 0 axes, expected 1 to 6"},
    {"mesh: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}\ntensors: {a: x}\n", 1, "the mesh has 7 axes, expected 1 to 6"},
    {"mesh: {ep: 0}\ntensors: {a: x}\n", 1, ""},
    {"mesh: {ep: two}\ntensors: {a: x}\n", 1, ""},
    {"mesh: {ep: 100000, fsdp: 100000}\ntensors: {a: x}\n", 1, "the mesh is too large, expected fewer than 2^31 ranks"},
    {"mesh: {e-p: 2}\ntensors: {a: x}\n", 1,
     "'e-p' is no name of a mesh axis, expected a letter or _, then letters, digits or _"},
    {"mesh: {a_mesh_axis_with_a_long_name: 2}\ntensors: {a: x}\n", 1, "is too long, expected 23 characters at most"},
    {"tensors: {a: x}\naxes: {2x: 3}\n", 2,
     "'2x' is no name of an axis, expected a letter or _, then letters, digits or _"},
    {"tensors: {a: x}\naxes:\n  x: 3\n  y: -1\n", 4, ""},
    {"tensors: {a: x}\naxes: 3\n", 2, ""},
};

Test(layout_file, bad_files_are_refused_with_their_line) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct layout_file file;
        char begin[64];
        cr_assert_eq(open_text(&file, refused[i].text), STATUS_INPUT, "%s", refused[i].text);
        snprintf(begin, sizeof begin, refused[i].line ? "%s:%d: " : "%s:", path, refused[i].line);
        cr_assert_eq(strncmp(status_note(), begin, strlen(begin)), 0, "%s, expected %s", status_note(), begin);
        cr_assert_not_null(strstr(status_note(), refused[i].what), "%s, expected %s", status_note(), refused[i].what);
        cr_assert(file.rules == 0 && !file.rule && !file.size && !file.path, "a refused file keeps memory");
    }
}

Test(layout_file, a_file_that_is_not_there) {
    struct layout_file file;
    cr_assert_neq(layout_file_open(&file, "/nowhere/layout.yaml"), STATUS_OK);
    cr_assert_not_null(strstr(status_note(), "/nowhere/layout.yaml"));
}
