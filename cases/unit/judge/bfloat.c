/* What the interval test of bfloat16 points sees: the share of random places where one ulp too much is found, and
 * tensors that are 0.4 % too large. */
#include "fake.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static struct fake fake;

/* One step over the smallest micro-batch. */
static void one_small_step(struct job *job) {
    static const int smallest[] = {2};
    job->action[1].micro = smallest;
    job->actions = 2;
    job->steps = 1;
}

static bool is_rounded(const struct owed_point *owed) {
    return owed_dtype(&fake.one.job, &owed->point) == DTYPE_BF16 && point_kind(&owed->point) != POINT_EXACT;
}

/* Number i of a fixed random sequence, below n. */
static int64_t drawn(int64_t i, int64_t n) { /* splitmix64 */
    uint64_t z = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) >> 1) % n;
}

/* Whether a judge who has seen nothing yet names this point first. */
static bool found(const char *name) {
    judge_free(fake.judge);
    report_case_free(&fake.report);
    fake.report = (struct report_case){0};
    cr_assert_eq(judge_make(&fake.judge, &fake.one, &fake.report), STATUS_OK);
    cr_assert_eq(judge_owed(fake.judge), STATUS_OK);
    fake_judge(&fake);
    return fake.report.verdict == VERDICT_FAIL && fake.judge->failed_count > 0 &&
           strcmp(fake.judge->failed[0], name) == 0;
}

static void start(void) {
    fake_make_of(&fake, 1, 1, DTYPE_BF16, one_small_step);
    fake_record(&fake, NULL, -1);
    fake_judge(&fake);
    cr_assert_eq(fake.report.verdict, VERDICT_PASS, "%s", fake.report.finding.text);
}

/* Names of the points that are rounded and hold something, in data-flow order; the caller's list of MOST. */
enum {
    MOST = 512
};

static int rounded_points(char (*name)[POINT_NAME_MAX]) {
    int count = 0;
    for (int i = 0; i < fake.judge->owed_count && count < MOST; i++) {
        const struct owed_point *owed = &fake.judge->owed[i];
        if (is_rounded(owed) && tensor_elements(fake_tensor(&fake, 0, owed->name)) > 0)
            strcpy(name[count++], owed->name);
    }
    return count;
}

static char name[MOST][POINT_NAME_MAX];

Test(judge_bfloat, one_ulp_in_one_element) {
    enum {
        TRIALS = 400
    };
    int caught = 0;
    start();
    int points = rounded_points(name);
    cr_assert(points > 50);
    for (int i = 0; i < TRIALS; i++) {
        const char *at = name[drawn(2 * i, points)];
        struct tensor *tensor = fake_tensor(&fake, 0, at);
        uint16_t *element = (uint16_t *)tensor->data + drawn(2 * i + 1, tensor_elements(tensor)), was = *element;
        *element = (uint16_t)(was + 1); /* away from zero */
        caught += found(at);
        *element = was;
    }
    cr_assert(caught >= TRIALS * 95 / 100, "%d of %d", caught, TRIALS);
    cr_log_info("one ulp caught at %d of %d places", caught, TRIALS);
    cr_assert(!found(""), "as it was, nothing is wrong");
    cr_assert_eq(fake.report.verdict, VERDICT_PASS);
    fake_free(&fake);
}

Test(judge_bfloat, scaled_by_half_an_ulp) {
    int changed = 0;
    start();
    int points = rounded_points(name);
    for (int i = 0; i < points; i++) {
        struct tensor *tensor = fake_tensor(&fake, 0, name[i]);
        int64_t n = tensor_elements(tensor), differ = 0;
        uint16_t *x = tensor->data, was[8192];
        cr_assert(n <= 8192, "%s", name[i]);
        memcpy(was, x, (size_t)n * sizeof *x);
        for (int64_t j = 0; j < n; j++) {
            tensor_set(tensor, j, tensor_get(tensor, j) * 1.004);
            differ += x[j] != was[j];
        }
        if (differ > 0) {
            changed++;
            cr_assert(found(name[i]), "%s, %d elements changed", name[i], (int)differ);
        }
        memcpy(x, was, (size_t)n * sizeof *x);
    }
    cr_assert(changed >= points * 9 / 10, "%d of %d points hold what scaling changes", changed, points);
    fake_free(&fake);
}

/* Equal bits carry no error; what is reported as the worst stems from float32 points. */
Test(judge_bfloat, worst_is_of_float32_points) {
    start();
    cr_assert(fake.report.worst_error_over_bar <= 1);
    for (int i = 0; i < fake.judge->owed_count; i++)
        if (fake.report.worst_tensor && strcmp(fake.judge->owed[i].name, fake.report.worst_tensor) == 0)
            cr_assert_eq(owed_dtype(&fake.one.job, &fake.judge->owed[i].point), DTYPE_F32);
    fake_free(&fake);
}

/* A record in float32 where bfloat16 is owed, and the other way round. */
Test(judge_bfloat, type_of_each_point) {
    const struct {
        const char *tensor;
        enum dtype dtype;
    } owed[] = {
        {"step.0/param/model.norm.weight", DTYPE_BF16},
        {"step.0/param/master/model.layers.0.mlp.experts.gate_up_proj.lora_A", DTYPE_F32},
        {"step.0/param/momentum_buffer/model.layers.0.mlp.experts.gate_up_proj.lora_A", DTYPE_F32},
        {"step.0/micro.2/forward/model.layers.0.input_layernorm.inverse_rms", DTYPE_F32},
        {"step.0/micro.2/forward/model.layers.0.input_layernorm", DTYPE_BF16},
        {"step.0/micro.2/forward/model.layers.0.mlp.router.scores", DTYPE_F32},
        {"step.0/micro.2/forward/token_loss", DTYPE_F32},
        {"step.0/micro.2/backward/model.layers.0.mlp.router.logits", DTYPE_BF16},
        {"step.0/micro.2/backward/model.layers.0.mlp.experts.gate_up_proj", DTYPE_F32},
        {"step.0/micro.2/grad/model.layers.0.mlp.experts.gate_up_proj.lora_A", DTYPE_F32},
        {"step.0/update/model.layers.0.mlp.experts.gate_up_proj.lora_A", DTYPE_BF16},
    };
    start();
    for (size_t i = 0; i < sizeof owed / sizeof *owed; i++)
        cr_assert_eq(fake_tensor(&fake, 0, owed[i].tensor)->dtype, owed[i].dtype, "%s", owed[i].tensor);
    fake_tensor(&fake, 0, owed[3].tensor)->dtype = DTYPE_BF16;
    cr_assert(found(owed[3].tensor));
    cr_assert_eq(fake.report.finding.kind, FINDING_DTYPE);
    fake_free(&fake);
}
