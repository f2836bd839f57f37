/* PEFT's flat tensors against the worked vectors of the format: E=2, r=2, I=3, O=2 and the column maps of E=4, ep=2. */
#include "sharded/flat.h"

#include "ranks.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct param packed = {.name = "experts.w", .ndim = 3, .expert = true, .linear = true, .alias = -1};

struct vector {
    const char *import_b;
    int ep;
    int64_t experts, rank, max_rank, in, out;
    double *a, *b;         /* flat, whole */
    const double *a3, *b3; /* whole slots [E,R,in], [E,out,R] */
};

static enum status import(struct comm *comm, void *context) {
    const struct vector *v = context;
    const struct mesh mesh = mesh_of("ep", v->ep, "fsdp", 1);
    const struct job job = {.max_rank = v->max_rank};
    struct rules rules = rules_right;
    struct subject subject = bare_subject(comm, &mesh, DTYPE_F64, &job);
    int64_t a_shape[] = {v->experts * v->rank, v->in}, b_shape[] = {v->out, v->rank * v->experts};
    struct adapter_target target = {.experts = v->experts, .in = v->in, .out = v->out, .lora_rank = v->rank};
    int64_t local = v->experts / v->ep;
    target.a = tensor_view(DTYPE_F64, 2, a_shape, v->a);
    target.b = tensor_view(DTYPE_F64, 2, b_shape, v->b);
    strcpy(target.key_a, "a");
    strcpy(target.key_b, "b");
    rules.import_b = v->import_b;
    subject.rules = &rules;
    for (int which = 0; which < FACTORS; which++) {
        struct shard used = {
            .ndim = 3,
            .shape = {local, which == FACTOR_A ? v->max_rank : v->out, which == FACTOR_A ? v->in : v->max_rank}};
        int64_t elements = local * used.shape[1] * used.shape[2];
        const double *want = (which == FACTOR_A ? v->a3 : v->b3) + comm_rank(comm) * elements;
        struct tensor got = {0};
        TRY(flat_import(&subject, &packed, &target, FACTOR_PART(which), &used, &got));
        for (int64_t i = 0; i < elements; i++)
            cr_expect_eq(tensor_get(&got, i), want[i], "rank %d factor %d element %d: %g, not %g", comm_rank(comm),
                         which, (int)i, tensor_get(&got, i), want[i]);
        tensor_free(&got);
    }
    return STATUS_OK;
}

static double a_flat[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static double b_flat[] = {1, 2, 3, 4, 5, 6, 7, 8};

Test(flat, import_of_the_worked_vector) {
    static const double b3[] = {1, 3, 5, 7, 2, 4, 6, 8};
    for (int ep = 1; ep <= 2; ep++) {
        struct vector v = {rules_right.import_b, ep, 2, 2, 2, 3, 2, a_flat, b_flat, a_flat, b3};
        run_ranks(ep, import, &v);
    }
}

/* Rows beyond r are 0. */
Test(flat, import_into_a_wider_slot) {
    static const double a3[] = {1, 2, 3, 4, 5, 6, 0, 0, 0, 7, 8, 9, 10, 11, 12, 0, 0, 0};
    static const double b3[] = {1, 3, 0, 5, 7, 0, 2, 4, 0, 6, 8, 0};
    struct vector v = {rules_right.import_b, 2, 2, 2, 3, 3, 2, a_flat, b_flat, a3, b3};
    run_ranks(2, import, &v);
}

/* The misreading of the same file: expert slow, rank fast. */
Test(flat, import_expert_major) {
    static const double b3[] = {1, 2, 5, 6, 3, 4, 7, 8};
    for (int ep = 1; ep <= 2; ep++) {
        struct vector v = {rule_faults[0].name, ep, 2, 2, 2, 3, 2, a_flat, b_flat, a_flat, b3};
        struct rules rules = rules_right;
        rule_fault_named("import_b_expert_major")->plant(&rules);
        v.import_b = rules.import_b;
        run_ranks(ep, import, &v);
    }
}

/* Columns of flat lora_B where (e,k) ends, E=4, r=2, ep=2, O=1: as an export puts them together. */
static void expect_columns(const char *text, const int *want) {
    const struct mesh mesh = mesh_of("ep", 2, "fsdp", 1);
    const struct flat_axes axes = {.expert = 2, .rank = 2, .width = 1};
    const int64_t shape[] = {1, 8};
    const struct axis_size sizes[] = {{"rank", 2}, {"expert", 4}};
    int64_t whole[8];
    for (int p = 0; p < 2; p++) {
        struct shard shard;
        struct line line;
        int64_t slot[4], flat[4]; /* [L, out, r] holding 10*e + k */
        for (int i = 0; i < 4; i++)
            slot[i] = 10 * (2 * p + i / 2) + i % 2;
        cr_assert_eq(line_parse(&line, text, &mesh, "b"), STATUS_OK, "%s", status_note());
        cr_assert_eq(line_bind(&line, 2, shape, sizes, 2, "b"), STATUS_OK, "%s", status_note());
        cr_assert_eq(shard_make(&shard, &line, &mesh, p), STATUS_OK);
        cr_assert_eq(shard_elements(&shard), 4);
        flat_move(&line, PART_LORA_B, &axes, 2, sizeof *slot, flat, slot, SLOT_TO_FLAT);
        shard_place(&shard, sizeof *flat, flat, whole);
        shard_free(&shard);
    }
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 2; k++)
            cr_expect_eq(whole[want[k * 4 + e]], 10 * e + k, "%s: expert %d rank %d", text, e, k);
}

Test(flat, columns_of_an_export) {
    static const int right[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int plain_concat[] = {0, 1, 4, 5, 2, 3, 6, 7};
    static const int expert_major[] = {0, 2, 4, 6, 1, 3, 5, 7};
    expect_columns("out (rank expert[ep])", right);
    expect_columns("out (rank expert)[ep]", plain_concat);
    expect_columns("out (expert[ep] rank)", expert_major);
}
