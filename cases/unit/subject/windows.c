/* Windows of two tenants, rows beyond a tenant's rank, and the norm that gradients are clipped by. */
#include "job_of.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define OK(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())
#define TINY "qwen3_moe_tiny"

static const int ones[] = {0, 2, 3}, twos[] = {1, 4};

static void two_of(struct made_job *out) {
    empty_job_of(out, TINY, "bob", 2, 6);
    job_tenant(out, TINY, "ada");
    out->job.clip = (struct clip){.present = true, .max = 0.7};
    then_acquire(out, 0);
    then_acquire(out, 1);
}

/* What is the same whatever the order: all of a window's end. */
static bool of_the_end(const struct point *point) {
    return point->micro < 0 && point->phase != PHASE_PARAM;
}

/* Two open windows do not see each other: each ends as if it had been alone. */
Test(windows, two_tenants_in_turn) {
    struct made_job turns, apart;
    struct run a = {0}, b = {0};
    int compared = 0;
    two_of(&turns);
    then_accumulate(&turns, 0, 1, ones);
    then_accumulate(&turns, 1, 1, twos);
    then_accumulate(&turns, 0, 2, ones + 1);
    then_evaluate(&turns, 1, 1, ones);
    then_accumulate(&turns, 1, 1, twos + 1);
    then_step(&turns, 1);
    then_step(&turns, 0);
    two_of(&apart);
    then_train(&apart, 0, 3, ones);
    then_train(&apart, 1, 2, twos);
    run_world(&a, &turns.job, mesh_of("ep", 2, "fsdp", 2));
    run_world(&b, &apart.job, mesh_of("ep", 2, "fsdp", 2));
    for (int rank = 0; rank < 4; rank++)
        for (const struct kept *kept = b.kept[rank]; kept; kept = kept->next)
            if (of_the_end(&kept->point)) {
                const struct tensor *got = kept_need(&a, rank, "%s", kept->name);
                cr_expect(same_bits(got, &kept->tensor), "%s", kept->name);
                compared++;
            }
    cr_expect_gt(compared, 4 * 100);
    cr_expect_eq(tensor_get(kept_need(&a, 0, "step.0/loss/count"), 0), 14 + 2 + 10); /* of fixture.json */
    cr_expect_eq(tensor_get(kept_need(&a, 0, "step.1/loss/count"), 0), 13 + 15);
    run_done(&b);
    run_done(&a);
    job_done(&apart);
    job_done(&turns);
}

/* ---- clipping */

/* The plain norm of step 0's GRAD records of world 1. */
static double plain_norm(const struct run *one, bool infinity) {
    double squares = 0, largest = 0;
    for (const struct kept *kept = one->kept[0]; kept; kept = kept->next)
        for (int64_t i = 0; kept->point.phase == PHASE_GRAD && kept->point.micro < 0 && kept->point.step == 0 &&
                            i < tensor_elements(&kept->tensor);
             i++) {
            double g = tensor_get(&kept->tensor, i);
            squares += g * g;
            largest = fmax(largest, fabs(g));
        }
    return infinity ? largest : sqrt(squares);
}

/* Every clipped gradient is the gradient times one factor, rounded once. */
static void expect_clipped(const struct run *run, double norm, double max) {
    double factor = fmin(1, max / (norm + 1e-6));
    int compared = 0;
    for (int rank = 0; rank < mesh_world(&run->mesh); rank++)
        for (const struct kept *kept = run->kept[rank]; kept; kept = kept->next) {
            char name[POINT_NAME_MAX];
            struct point point = kept->point;
            if (point.phase != PHASE_CLIP || point.scalar || point.step != 0)
                continue;
            point.phase = PHASE_GRAD;
            const struct tensor *g = kept_need(run, rank, "%s", point_name(name, &point));
            for (int64_t i = 0; i < tensor_elements(g); i++)
                cr_expect_eq(tensor_get(&kept->tensor, i), tensor_get(g, i) * factor, "%s", kept->name);
            compared++;
        }
    cr_expect_gt(compared, 0);
}

/* Sums of N terms in another order differ by N u at most, N < 1e5 elements and 16 ranks: 1e-11. */
static void expect_norm(const struct made_job *made, struct mesh mesh, const struct layout_file *layout) {
    struct run one = {0}, run = {.layout = layout};
    const struct clip *clip = &made->job.clip;
    run_world(&one, &made->job, mesh_of("ep", 1, "fsdp", 1));
    run_world(&run, &made->job, mesh);
    double want = plain_norm(&one, clip->infinity), same = 0;
    for (int rank = 0; rank < mesh_world(&mesh); rank++) {
        double got = tensor_get(kept_need(&run, rank, "step.0/clip/norm"), 0);
        cr_expect(fabs(got - want) <= 1e-11 * want, "rank %d: %.17g, want %.17g", rank, got, want);
        cr_expect(rank == 0 || got == same);
        same = got;
    }
    cr_expect_gt(want, clip->max); /* it does clip */
    expect_clipped(&run, same, clip->max);
    run_done(&run);
    run_done(&one);
}

static void clipped_job_of(struct made_job *out, bool infinity) {
    empty_job_of(out, TINY, "bob", 1, 6);
    out->job.clip = (struct clip){.present = true, .infinity = infinity, .max = 0.1};
    job_trains_base(out, "*norm.weight");
    job_trains_base(out, "*.mlp.experts.gate_up_proj");
    job_trains_base(out, "model.embed_tokens.weight");
    then_acquire(out, 0);
    then_train(out, 0, 2, twos);
}

static void layout_with_replicas(struct layout_file *out) {
    static const char text[] = "mesh: {fsdp: 2, ep: 2}\n"
                               "tensors:\n"
                               "  \"*norm.weight\": \"hidden\"\n"
                               "  \"*.experts.*.lora_A\": \"expert[ep] rank in\"\n"
                               "  \"*.experts.*\": \"expert[ep] out in[fsdp:balanced]\"\n"
                               "  \"*.q_proj.weight.lora_*\": \"out[fsdp] in\"\n"
                               "  \"*\": \"out[ep] in[fsdp]\"\n";
    char path[] = "/tmp/shardproof-layout-XXXXXX";
    int file = mkstemp(path);
    cr_assert_geq(file, 0);
    cr_assert_eq(write(file, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(file);
    OK(layout_file_open(out, path));
    unlink(path);
}

Test(windows, norm_counts_every_element_once) {
    struct layout_file layout = {0};
    layout_with_replicas(&layout);
    for (int infinity = 0; infinity < 2; infinity++) {
        struct made_job made;
        clipped_job_of(&made, infinity);
        expect_norm(&made, mesh_of("ep", 1, "fsdp", 1), NULL);
        expect_norm(&made, mesh_of("ep", 2, "fsdp", 3), NULL);
        expect_norm(&made, mesh_of("fsdp", 2, "ep", 4), NULL);
        expect_norm(&made, mesh_of("fsdp", 2, "ep", 2), &layout);
        job_done(&made);
    }
    layout_file_close(&layout);
}

/* The norm's planted faults, each seen in the norm where its mesh lets it show. */
static void expect_other_norm(const char *fault, const struct layout_file *layout) {
    struct made_job made;
    struct run right = {.layout = layout}, wrong = {.layout = layout, .rules = rules_right};
    rule_fault_named(fault)->plant(&wrong.rules);
    clipped_job_of(&made, false);
    run_world(&right, &made.job, mesh_of("fsdp", 2, "ep", 2));
    run_world(&wrong, &made.job, mesh_of("fsdp", 2, "ep", 2));
    double a = tensor_get(kept_need(&right, 3, "step.0/clip/norm"), 0);
    double b = tensor_get(kept_need(&wrong, 3, "step.0/clip/norm"), 0);
    cr_expect(fabs(a - b) > 1e-3 * a, "%s: %g and %g", fault, a, b);
    run_done(&wrong);
    run_done(&right);
    job_done(&made);
}

Test(windows, planted_norms) {
    struct layout_file layout = {0};
    layout_with_replicas(&layout);
    expect_other_norm("norm_per_rank", NULL);
    expect_other_norm("norm_experts_one_ep_rank", NULL);
    expect_other_norm("norm_counts_replicas", &layout);
    layout_file_close(&layout);
}

/* ---- rows beyond the rank */

static bool shows_slot_rows(const struct point *point) {
    return point->part != PART_WEIGHT && point->activation == ACT_NONE && !point->state &&
           (point->phase == PHASE_PARAM || point->phase == PHASE_UPDATE || point->phase == PHASE_GATHER ||
            point->phase == PHASE_REGATHER);
}

static int64_t nans(const struct tensor *tensor) {
    int64_t count = 0;
    for (int64_t i = 0; i < tensor_elements(tensor); i++)
        count += isnan(tensor_get(tensor, i));
    return count;
}

static void beyond(bool nan, struct optimizer optimizer, struct mesh mesh, struct run *out, struct made_job *made) {
    empty_job_of(made, TINY, "bob", 1, 8); /* r = 5 of R = 8: fsdp 2 cuts rows 4..7 off, of which one is in use */
    made->job.beyond_nan = nan;
    made->job.optimizer = optimizer;
    made->job.clip = (struct clip){.present = true, .max = 1};
    then_acquire(made, 0);
    then_train(made, 0, 3, ones);
    then_train(made, 0, 2, twos);
    then_export(made, 0);
    run_world(out, &made->job, mesh);
}

/* NaN beyond the rank changes nothing elsewhere, and stays; the bytes of the rows beyond are never written. */
static void expect_no_trace(struct optimizer optimizer, struct mesh mesh) {
    struct made_job a, b;
    struct run zero = {0}, nan = {0};
    int64_t kept_rows = 0, finite = 0;
    beyond(false, optimizer, mesh, &zero, &a);
    beyond(true, optimizer, mesh, &nan, &b);
    for (int rank = 0; rank < mesh_world(&mesh); rank++) {
        const struct kept *y = nan.kept[rank];
        for (const struct kept *x = zero.kept[rank]; x; x = x->next, y = y->next) {
            if (!shows_slot_rows(&x->point)) {
                cr_expect(same_bits(&x->tensor, &y->tensor), "%s", x->name);
                finite += nans(&y->tensor) == 0;
            } else if (x->point.phase == PHASE_UPDATE && x->point.step == 1) {
                kept_rows += nans(&y->tensor);
                cr_expect_eq(nans(&x->tensor), 0);
            }
        }
    }
    /* bob: q, k, v, o (24, 12, 12, 20 by 20, 20, 20, 24) and both expert tensors (28 by 20, 20 by 14) of two layers,
     * three rows of A and three columns of B each */
    cr_expect_eq(kept_rows, 2 * 3 * (24 + 20 + 12 + 20 + 12 + 20 + 20 + 24 + 12 * (28 + 20 + 20 + 14)));
    cr_expect_gt(finite, 1000);
    run_done(&nan);
    run_done(&zero);
    job_done(&b);
    job_done(&a);
}

Test(windows, rows_beyond_the_rank_stay) {
    const struct optimizer adamw = {
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    const struct optimizer nesterov = {
        .kind = OPTIMIZER_SGD, .lr = 0.05, .weight_decay = 0.3, .momentum = 0.9, .nesterov = true};
    const struct optimizer plain = {.kind = OPTIMIZER_SGD, .lr = 0.05, .weight_decay = 0.3};
    expect_no_trace(adamw, mesh_of("ep", 2, "fsdp", 2));
    expect_no_trace(nesterov, mesh_of("fsdp", 3, "ep", 2));
    expect_no_trace(plain, mesh_of("ep", 1, "fsdp", 1));
}
