/* `fsdp`: how FSDP2 cuts units, what it does between forward and backward, and which dim of the experts it cuts. */
#include "harness/case_private.h"

#include "harness/judge_place.h"

#include <stdio.h>
#include <string.h>

/* One of a key's words; `out` is its position. */
static enum status read_word(const struct case_reader *reader, const struct yaml_node *map, const char *key,
                             const char *const *words, const char *expected, int *out) {
    const struct yaml_node *node = yaml_get(map, key);
    const char *text;
    *out = 0;
    if (!node)
        return STATUS_OK;
    TRY(yaml_string(reader->yaml, node, &text));
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], text) == 0) {
            *out = i;
            return STATUS_OK;
        }
    return yaml_fail(reader->yaml, node, "%s '%s' is unknown, expected %s", key, text, expected);
}

static enum status read_reshard(const struct case_reader *reader, const struct yaml_node *node,
                                struct fsdp_options *out) {
    int64_t ranks;
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_SCALAR, "reshard_after_forward"));
    if (!node->quoted && strcmp(node->text, "true") == 0)
        return STATUS_OK;
    out->keep_gathered = !node->quoted && strcmp(node->text, "false") == 0;
    if (out->keep_gathered)
        return STATUS_OK;
    if (node->quoted || !*node->text || node->text[strspn(node->text, "0123456789")])
        return yaml_fail(reader->yaml, node, "reshard_after_forward '%s' is unknown, expected true, false or a number",
                         node->text);
    TRY(yaml_integer(reader->yaml, node, 1, 1 << 20, &ranks));
    out->reshard_group = (int)ranks;
    return STATUS_OK;
}

enum status case_read_fsdp(struct case_reader *reader) {
    static const char *const keys[] = {"units", "reshard_after_forward", "recompute", "expert_dim", NULL};
    static const char *const units[] = {"layer", "attention_experts", NULL};
    static const char *const dims[] = {"auto", "0", "1", NULL};
    struct fsdp_options *out = &reader->one->job.fsdp;
    const struct yaml_node *node = case_field(reader, "fsdp");
    int unit, dim;
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "fsdp"));
    TRY(yaml_known(reader->yaml, node, "fsdp", keys));
    TRY(read_word(reader, node, "units", units, "layer or attention_experts", &unit));
    TRY(read_word(reader, node, "expert_dim", dims, "auto, 0 or 1", &dim));
    TRY(read_reshard(reader, yaml_get(node, "reshard_after_forward"), out));
    if (yaml_get(node, "recompute"))
        TRY(yaml_boolean(reader->yaml, yaml_get(node, "recompute"), &out->recompute));
    out->experts_apart = unit == 1;
    out->expert_dim = (enum expert_dim)dim;
    if (reader->one->layout && out->expert_dim != EXPERT_DIM_AUTO)
        return yaml_fail(reader->yaml, yaml_get(node, "expert_dim"),
                         "expert_dim %s beside a layout file, expected one of them", dims[dim]);
    return STATUS_OK;
}

static enum status places_of(const struct test_case *one, const struct job *job) {
    for (int i = 0; i < case_segments(one); i++) {
        const struct case_segment segment = case_segment(one, i);
        struct places places = {0};
        TRY(places_make(&places, job, &segment.mesh, one->layout));
        enum status status = places_check(&places);
        places_free(&places);
        TRY(status);
    }
    return STATUS_OK;
}

/* A refusal that is about a key of `fsdp` alone gets that key's line. */
static enum status at_key(const struct case_reader *reader, const char *key, enum status status) {
    char note[1024];
    const struct yaml_node *map = case_field(reader, "fsdp");
    if (status != STATUS_INPUT)
        return status;
    snprintf(note, sizeof note, "%s", status_note());
    status_clear();
    return yaml_fail(reader->yaml, yaml_get(map, key), "%s", note);
}

enum status case_check_places(const struct case_reader *reader) {
    const struct test_case *one = reader->one;
    struct job plain = one->job;
    plain.fsdp = (struct fsdp_options){0};
    TRY(places_of(one, &plain));
    plain.fsdp.expert_dim = one->job.fsdp.expert_dim;
    TRY(at_key(reader, "expert_dim", places_of(one, &plain)));
    return at_key(reader, "reshard_after_forward", places_of(one, &one->job));
}
