/* Units, reshard after forward and recomputation: the same program, so the same bits of every record that both runs
 * make; and the gathers that each of them is said to make. */
#include "job_of.h"

#include "sharded/fsdp.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define TINY "qwen3_moe_tiny"
#define UNEVEN "qwen3_moe_uneven"

static bool is_regathered(const struct point *point) {
    return point->phase == PHASE_REGATHER || (point->phase == PHASE_DELTA && point->part == PART_REMERGED);
}

/* Every record of `run` has the bits of `plain`; what `plain` has beyond them is regathered. */
static void expect_same_records(const struct run *run, const struct run *plain) {
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++) {
        int regathered = 0;
        for (const struct kept *kept = run->kept[rank]; kept; kept = kept->next) {
            const struct tensor *want = kept_need(plain, rank, "%s", kept->name);
            cr_assert(tensor_same_shape(want, &kept->tensor) && want->dtype == kept->tensor.dtype, "%s", kept->name);
            cr_expect_eq(memcmp(want->data, kept->tensor.data, tensor_bytes(want)), 0, "%s, rank %d", kept->name, rank);
        }
        for (const struct kept *kept = plain->kept[rank]; kept; kept = kept->next)
            regathered += is_regathered(&kept->point);
        cr_expect_gt(regathered, 10);
        cr_expect_gt(run->records[rank], 200);
        cr_expect_eq(run->records[rank] + (run->job->fsdp.keep_gathered ? regathered : 0), plain->records[rank]);
    }
}

static void expect_no_trace(const char *fixture, const char *tenant, enum dtype dtype, struct mesh mesh,
                            struct fsdp_options options) {
    struct made_job job;
    struct run plain = {0}, run = {0};
    job_of(&job, fixture, tenant, NULL, dtype, 2, 5);
    run_world(&plain, &job.job, mesh);
    struct job with = job.job;
    with.fsdp = options;
    run_world(&run, &with, mesh);
    expect_same_records(&run, &plain);
    run_done(&run);
    run_done(&plain);
    job_done(&job);
}

Test(options, recompute) {
    expect_no_trace(TINY, "dov", DTYPE_F64, mesh_of("ep", 2, "fsdp", 2), (struct fsdp_options){.recompute = true});
    expect_no_trace(UNEVEN, "gus", DTYPE_F32, mesh_of("ep", 5, "fsdp", 1), (struct fsdp_options){.recompute = true});
}

Test(options, experts_apart) {
    const struct fsdp_options apart = {.experts_apart = true}, again = {.experts_apart = true, .recompute = true};
    expect_no_trace(TINY, "dov", DTYPE_F32, mesh_of("ep", 2, "fsdp", 2), apart);
    expect_no_trace(UNEVEN, "gus", DTYPE_F64, mesh_of("ep", 2, "fsdp", 3), again);
}

Test(options, kept_gathered) {
    const struct fsdp_options all = {.keep_gathered = true, .experts_apart = true, .recompute = true};
    expect_no_trace(TINY, "bob", DTYPE_F64, mesh_of("ep", 2, "fsdp", 2), (struct fsdp_options){.keep_gathered = true});
    expect_no_trace(UNEVEN, "gus", DTYPE_F64, mesh_of("ep", 1, "fsdp", 3), all);
}

Test(options, kept_by_smaller_groups) {
    const struct fsdp_options all = {.reshard_group = 3, .experts_apart = true, .recompute = true};
    expect_no_trace(TINY, "dov", DTYPE_F64, mesh_of("fsdp", 4, "ep", 2), (struct fsdp_options){.reshard_group = 2});
    expect_no_trace(TINY, "dov", DTYPE_F32, mesh_of("ep", 1, "fsdp", 4), (struct fsdp_options){.reshard_group = 1});
    expect_no_trace(UNEVEN, "gus", DTYPE_F64, mesh_of("ep", 1, "fsdp", 6), all);
}

/* Replicas sum in rank order over the same ranks as one mesh of as many fsdp ranks does, so only tensors' cuts differ:
 * whole tensors have the same bits. */
Test(options, replicas_hold_the_bits_of_one_mesh) {
    struct made_job job;
    struct run flat = {0}, run = {0};
    job_of(&job, TINY, "dov", NULL, DTYPE_F64, 2, 5);
    run_world(&flat, &job.job, mesh_of("ep", 1, "fsdp", 4));
    run_world(&run, &job.job, mesh_of("replicate", 2, "fsdp", 2));
    int whole = 0, halves = 0;
    for (const struct kept *kept = run.kept[0]; kept; kept = kept->next) {
        if (kept->point.phase == PHASE_GATHER || kept->point.phase == PHASE_EXPORT) {
            const struct tensor *want = kept_need(&flat, 0, "%s", kept->name);
            cr_expect_eq(memcmp(want->data, kept->tensor.data, tensor_bytes(want)), 0, "%s", kept->name);
            whole++;
        }
        if (kept->point.phase == PHASE_UPDATE) { /* rank 2 is rank 0's replica */
            const struct tensor *copy = kept_need(&run, 2, "%s", kept->name);
            cr_expect_eq(memcmp(copy->data, kept->tensor.data, tensor_bytes(copy)), 0, "%s", kept->name);
            halves++;
        }
    }
    cr_expect_gt(whole, 100);
    cr_expect_gt(halves, 10);
    run_done(&run);
    run_done(&flat);
    job_done(&job);
}

/* Element i of a gathered form is i; each of four ranks keeps its piece in groups of two, and only then. */
static enum status kept_pieces(struct comm *comm, void *context) {
    const struct job job = {.fsdp.reshard_group = 2};
    struct subject subject = bare_subject(comm, context, DTYPE_F64, &job);
    struct place place = {0}, alone = {0};
    const int64_t shape[] = {5, 3};
    const int rank = comm_rank(comm);
    TRY(place_make(&place, &subject, "tensor", 2, shape, "out in", false));
    cr_expect_eq(place.kept.size, 2);
    cr_expect_eq(place.kept.block, 8); /* ceil(15 / 2) */
    cr_expect_eq(place.kept.self, rank % 2);
    cr_expect_eq(place.kept.held, rank % 2);
    cr_expect_eq(comm_group_member(place.kept.group, 0), rank / 2 * 2);
    cr_expect_eq(place.kept.piece[0].rows * place.kept.piece[0].width, 8);
    cr_expect_eq(place.kept.piece[1].rows * place.kept.piece[1].width, 7);
    cr_expect_eq(place.kept.piece[1].index[0] * place.kept.piece[1].width, 8);
    TRY(place_make(&alone, &subject, "experts", 3, (int64_t[]){4, 3, 2}, "expert hidden inter", true));
    cr_expect_eq(alone.kept.size, 0); /* fsdp 1: nothing is gathered */
    place_free(subject.ops, &alone);
    place_free(subject.ops, &place);
    comm_groups_free(comm);
    return STATUS_OK;
}

Test(options, pieces_of_a_smaller_group) {
    struct mesh mesh = mesh_of("ep", 4, "fsdp", 1);
    run_ranks(4, kept_pieces, &mesh);
}

Test(options, unit_names) {
    char name[UNIT_NAME_MAX];
    cr_expect_str_eq(unit_name(name, UNIT_ROOT), "model");
    cr_expect_str_eq(unit_name(name, (struct unit){3, UNIT_WHOLE}), "model.layers.2");
    cr_expect_str_eq(unit_name(name, (struct unit){1, UNIT_REST}), "model.layers.0");
    cr_expect_str_eq(unit_name(name, (struct unit){1, UNIT_EXPERTS}), "model.layers.0.mlp.experts");
}
