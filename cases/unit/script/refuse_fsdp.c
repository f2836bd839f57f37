/* `fsdp` and the mesh axis `replicate`: what they become, and what is refused. */
#include "written.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

static void refused(const char *rest, const char *message) {
    written_refused(rest, REST_LINE, message);
}

/* The mesh stands on the line before. */
static void refused_on(const char *rest, const char *message) {
    written_refused(rest, REST_LINE + 1, message);
}

static struct fsdp_options options_of(const char *rest) {
    struct case_list list;
    written_load(&list, rest);
    struct fsdp_options out = list.item[0]->job.fsdp;
    cases_free(&list);
    return out;
}

Test(fsdp_key, values) {
    struct fsdp_options none = options_of(""), empty = options_of("fsdp: {}");
    cr_expect(!none.experts_apart && !none.keep_gathered && none.reshard_group == 0 && !none.recompute);
    cr_expect_eq(none.expert_dim, EXPERT_DIM_AUTO);
    cr_expect(!empty.experts_apart && !empty.keep_gathered && empty.reshard_group == 0 && !empty.recompute);
    struct fsdp_options said =
        options_of("fsdp: {units: layer, reshard_after_forward: true, recompute: false, expert_dim: auto}");
    cr_expect(!said.experts_apart && !said.keep_gathered && said.reshard_group == 0 && !said.recompute);
    struct fsdp_options other =
        options_of("fsdp: {units: attention_experts, reshard_after_forward: false, recompute: true, expert_dim: 0}");
    cr_expect(other.experts_apart && other.keep_gathered && other.reshard_group == 0 && other.recompute);
    cr_expect_eq(other.expert_dim, EXPERT_DIM_0);
    struct fsdp_options smaller =
        options_of("mesh: {ep: 2, fsdp: 4}\nslots: {max_rank: 8}\nfsdp: {reshard_after_forward: 2, expert_dim: 1}");
    cr_expect(!smaller.keep_gathered && smaller.reshard_group == 2);
    cr_expect_eq(smaller.expert_dim, EXPERT_DIM_1);
}

Test(fsdp_key, refused) {
    refused("fsdp: 2", "fsdp is '2', expected a map");
    refused("fsdp: {unit: layer}", "fsdp: unknown key 'unit', did you mean 'units'?");
    refused("fsdp: {units: experts}", "units 'experts' is unknown, expected layer or attention_experts");
    refused("fsdp: {reshard_after_forward: maybe}",
            "reshard_after_forward 'maybe' is unknown, expected true, false or a number");
    refused("fsdp: {reshard_after_forward: -1}",
            "reshard_after_forward '-1' is unknown, expected true, false or a number");
    refused("fsdp: {reshard_after_forward: 0}", "'0', expected an integer from 1 to 1048576");
    refused("fsdp: {recompute: 1}", "'1', expected true or false");
    refused("fsdp: {expert_dim: 2}", "expert_dim '2' is unknown, expected auto, 0 or 1");
}

/* 12 experts over ep 2; tiny's gate_up_proj has 28 rows, slots the largest tenant's rank, 5. */
Test(fsdp_key, refused_on_this_mesh) {
    refused_on("mesh: {ep: 2, fsdp: 4}\nfsdp: {reshard_after_forward: 3}",
               "reshard_after_forward 3 does not divide the 8 ranks that gather model.embed_tokens.weight");
    refused_on(
        "mesh: {ep: 2, fsdp: 4}\nfsdp: {reshard_after_forward: 8}",
        "reshard_after_forward 8 does not divide the 4 ranks that gather model.layers.0.mlp.experts.gate_up_proj");
    refused_on("mesh: {ep: 2, fsdp: 3}\nfsdp: {expert_dim: 1}",
               "model.layers.0.mlp.experts.gate_up_proj: fsdp = 3 does not divide dim 1 of size 28");
    refused_on("mesh: {ep: 2, fsdp: 2}\nfsdp: {expert_dim: 1}",
               "model.layers.0.mlp.experts.gate_up_proj.lora_A: fsdp = 2 does not divide dim 1 of size 5");
}

Test(fsdp_key, refused_beside_a_layout) {
    char root[1024], text[2048];
    cr_assert(getcwd(root, sizeof root));
    snprintf(text, sizeof text, "layout: %s/cases/suite/layouts/dim0_experts.yaml\nfsdp: {expert_dim: 0}", root);
    refused_on(text, "expert_dim 0 beside a layout file, expected one of them");
}

Test(fsdp_key, replicate) {
    struct case_list list;
    char text[64];
    written_load(&list, "mesh: {replicate: 2, ep: 2, fsdp: 2}");
    cr_expect_str_eq(mesh_text(text, sizeof text, &list.item[0]->mesh), "{replicate: 2, ep: 2, fsdp: 2}");
    cases_free(&list);
    refused("mesh: {replicas: 2}", "mesh: unknown key 'replicas', did you mean 'replicate'?");
    refused("mesh: {replicate: 0}", "'0', expected an integer from 1 to 1048576");
    refused("mesh: {replicate: 512, ep: 4}", "the mesh has a world of 2048 ranks, expected at most 1024");
}
