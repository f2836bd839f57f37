/* One program on several worlds: what adds nothing over ranks has the same bits; what is held is a piece of what world
 * 1 holds; points appear in one order; exports of an untrained adapter are the file. */
#include "job_of.h"

#include "core/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY "qwen3_moe_tiny"
#define UNEVEN "qwen3_moe_uneven"

/* The ranks' records of one name, put one behind the other in rank order, against world 1's record. */
static void expect_joined(const struct run *run, const struct run *one, const char *name) {
    const struct tensor *whole = kept_need(one, 0, "%s", name);
    size_t at = 0;
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++) {
        const struct tensor *piece = kept_need(run, rank, "%s", name);
        size_t bytes = tensor_bytes(piece);
        cr_assert_leq(at + bytes, tensor_bytes(whole), "%s", name);
        cr_expect_eq(memcmp((char *)whole->data + at, piece->data, bytes), 0, "%s, rank %d", name, rank);
        at += bytes;
    }
    cr_expect_eq(at, tensor_bytes(whole), "%s", name);
}

/* Every rank's record has the bits of world 1's. */
static void expect_same(const struct run *run, const struct run *one, const char *name) {
    const struct tensor *whole = kept_need(one, 0, "%s", name);
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++) {
        const struct tensor *got = kept_need(run, rank, "%s", name);
        cr_expect_eq(tensor_bytes(got), tensor_bytes(whole), "%s", name);
        cr_expect_eq(memcmp(whole->data, got->data, tensor_bytes(whole)), 0, "%s, rank %d", name, rank);
    }
}

/* Activations that are cut by sequences: all but the exchanged rows and the rotary tables. */
static bool is_of_tokens(const struct point *point) {
    return point->activation != ACT_NONE && point_kind(point) != POINT_EXCHANGED &&
           point->activation != ACT_ROTARY_COS && point->activation != ACT_ROTARY_SIN;
}

/* What every rank holds whole: gathered tensors other than experts, and the count. */
static bool is_whole(const struct point *point) {
    if (point->param && point->param->expert)
        return false;
    return point->phase == PHASE_GATHER || point->phase == PHASE_REGATHER || point->phase == PHASE_DELTA ||
           point->activation == ACT_ROTARY_COS || point->activation == ACT_ROTARY_SIN ||
           (point->phase == PHASE_LOSS && strcmp(point->scalar, "count") == 0);
}

/* In the first step; later ones start from parameters that sums over ranks have made. */
static void expect_bits(const struct job *job, struct mesh mesh) {
    struct run one = {0}, run = {0};
    int compared = 0;
    run_world(&one, job, mesh_of("ep", 1, "fsdp", 1));
    run_world(&run, job, mesh);
    for (const struct kept *kept = one.kept[0]; kept; kept = kept->next) {
        if (kept->point.step > 0 || !point_is_split_invariant(&kept->point))
            continue;
        if (is_of_tokens(&kept->point))
            expect_joined(&run, &one, kept->name);
        else if (is_whole(&kept->point))
            expect_same(&run, &one, kept->name);
        else
            continue;
        compared++;
    }
    cr_expect_gt(compared, 100);
    for (int rank = 0; rank < mesh_world(&mesh); rank++)
        cr_expect_eq(run.records[rank], one.records[0]);
    run_done(&run);
    run_done(&one);
}

Test(worlds, bits_do_not_depend_on_the_split) {
    struct made_job made;
    job_of(&made, TINY, "bob", "ada", DTYPE_F64, 3, 6);
    expect_bits(&made.job, mesh_of("ep", 2, "fsdp", 2));
    expect_bits(&made.job, mesh_of("fsdp", 2, "ep", 3));
    expect_bits(&made.job, mesh_of("ep", 4, "fsdp", 2));
    job_done(&made);
}

Test(worlds, bits_in_float32) {
    struct made_job made;
    job_of(&made, TINY, "eve", "dov", DTYPE_F32, 2, 6);
    expect_bits(&made.job, mesh_of("ep", 3, "fsdp", 2));
    job_done(&made);
}

Test(worlds, bits_of_the_uneven_model) {
    struct made_job made;
    job_of(&made, UNEVEN, "gus", NULL, DTYPE_F64, 1, 5);
    expect_bits(&made.job, mesh_of("ep", 5, "fsdp", 1));
    expect_bits(&made.job, mesh_of("ep", 2, "fsdp", 4));
    job_done(&made);
}

Test(worlds, bits_of_a_tied_head_with_an_adapter) {
    struct made_job made;
    tied_job_of(&made);
    expect_bits(&made.job, mesh_of("fsdp", 3, "ep", 2));
    job_done(&made);
}

/* Base tensors that train, AdamW and clipping: the first step's choices do not depend on the split either. */
Test(worlds, bits_of_a_base_that_trains) {
    static const int both[] = {0, 1};
    for (int tied = 0; tied < 2; tied++) {
        struct made_job made;
        biased_job_of(&made, tied);
        made.job.optimizer = (struct optimizer){
            .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.3, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-8};
        made.job.clip = (struct clip){.present = true, .max = 1};
        job_trains_base(&made, "*");
        then_acquire(&made, 0);
        then_train(&made, 0, 2, both);
        then_train(&made, 0, 1, both);
        expect_bits(&made.job, mesh_of("ep", 2, "fsdp", 2));
        expect_bits(&made.job, mesh_of("fsdp", 3, "ep", 2));
        job_done(&made);
    }
}

/* Names are recorded in one order on every rank of every world. */
Test(worlds, one_order_of_points) {
    struct made_job made;
    struct run one = {0}, run = {0};
    job_of(&made, TINY, "bob", "ada", DTYPE_F64, 2, 5);
    run_world(&one, &made.job, mesh_of("ep", 1, "fsdp", 1));
    run_world(&run, &made.job, mesh_of("ep", 2, "fsdp", 3));
    for (int rank = 0; rank < 6; rank++) {
        const struct kept *a = one.kept[0], *b = run.kept[rank];
        for (; a && b; a = a->next, b = b->next)
            cr_assert_str_eq(a->name, b->name, "rank %d", rank);
        cr_expect(!a && !b);
    }
    run_done(&run);
    run_done(&one);
    job_done(&made);
}

static void expect_same_file(const char *a, const char *b) {
    char *x, *y;
    size_t n, m;
    cr_assert_eq(file_read(a, &x, &n), STATUS_OK, "%s", status_note());
    cr_assert_eq(file_read(b, &y, &m), STATUS_OK, "%s", status_note());
    cr_expect_eq(n, m, "%s", a);
    cr_expect(n == m && memcmp(x, y, n) == 0, "%s", a);
    free(x);
    free(y);
}

static void expect_untouched(const char *fixture, const char *tenant, struct mesh mesh, enum dtype dtype) {
    struct made_job made;
    struct run run = {0};
    char folder[] = "/tmp/shardproof-subject-XXXXXX", ours[256], theirs[256];
    cr_assert_not_null(mkdtemp(folder));
    job_of(&made, fixture, tenant, NULL, dtype, 1, 7);
    made.job.actions = 2; /* acquire, export */
    run.export_folder = folder;
    run_world(&run, &made.job, mesh);
    snprintf(ours, sizeof ours, "%s/step.0/%s/adapter_model.safetensors", folder, tenant);
    snprintf(theirs, sizeof theirs, "fixtures/golden/%s/adapters/%s/adapter_model.safetensors", fixture, tenant);
    expect_same_file(ours, theirs);
    run_done(&run);
    job_done(&made);
    cr_expect_eq(folder_remove(folder), STATUS_OK);
}

Test(worlds, untrained_adapter_comes_out_as_it_went_in) {
    expect_untouched(TINY, "ada", mesh_of("ep", 1, "fsdp", 1), DTYPE_F64);
    expect_untouched(TINY, "bob", mesh_of("ep", 2, "fsdp", 3), DTYPE_F64);
    expect_untouched(TINY, "eve", mesh_of("fsdp", 2, "ep", 4), DTYPE_F64);
    expect_untouched(UNEVEN, "fay", mesh_of("ep", 5, "fsdp", 2), DTYPE_F64);
    expect_untouched(UNEVEN, "gus", mesh_of("ep", 1, "fsdp", 4), DTYPE_F64);
    expect_untouched(TINY, "bob", mesh_of("ep", 3, "fsdp", 2), DTYPE_F32);
}

/* Nothing is recorded without a hook, and the run is the same. */
static enum status run_silent(struct comm *comm, void *context) {
    struct run *run = context;
    const struct subject_hooks hooks = {0};
    return subject_run(run->job, &run->mesh, NULL, &rules_right, comm, &hooks);
}

Test(worlds, without_a_hook) {
    struct made_job made;
    struct run run = {.mesh = mesh_of("ep", 2, "fsdp", 2)};
    job_of(&made, TINY, "ada", NULL, DTYPE_F64, 1, 2);
    run.job = &made.job;
    run_ranks(4, run_silent, &run);
    job_done(&made);
}
