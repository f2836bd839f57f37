/* Golden answers: names, errors, and one element off by 1e-6. */
#include "fake.h"

#include "core/files.h"
#include "harness/golden_names.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN TINY "/golden/sgd/ada.safetensors"
#define KEY "base_model.model.model.layers.0.mlp.experts.lora_A.weight"

static struct fake fake;

static void start(void) {
    static const int micros[] = {0, 1, 2};
    fake_make(&fake, 1, 1, DTYPE_F64);
    /* the run of the golden recipe: three steps, one micro-batch each */
    for (int s = 0; s < 3; s++)
        fake.action[1 + s] = (struct action){.kind = ACTION_TRAIN,
                                             .opens = true,
                                             .tenant = 0,
                                             .micros = 1,
                                             .micro = micros + s,
                                             .step = s,
                                             .own_step = s};
    fake.one.job.actions = 4;
}

static bool parses(const char *name, struct golden_name *out) {
    return golden_name_parse(out, name, &fake.one.job, 0);
}

Test(golden, names) {
    struct golden_name name;
    start();
    cr_assert(parses("delta/model.layers.1.mlp.experts.down_proj", &name) && name.kind == GOLDEN_DELTA);
    cr_assert(parses("step.2/micro.5/router.1/topk_index", &name));
    cr_assert(name.kind == GOLDEN_TOPK_INDEX && name.step == 2 && name.micro == 5 && name.layer == 1);
    cr_assert(parses("step.0/grad/" KEY, &name) && name.target && !name.b);
    cr_assert(parses("step.0/grad/model.norm.weight", &name) && !name.target && name.param);
    cr_assert(parses("step.0/optim/momentum_buffer/" KEY, &name) && name.kind == GOLDEN_OPTIM);
    cr_assert(parses("base_forward/micro.0/logits", &name) && name.step == -1);
    cr_assert(name.kind == GOLDEN_BASE_FORWARD);
    int64_t shape[3];
    cr_assert(parses("step.1/optim/exp_avg_sq/model.layers.1.mlp.gate.weight", &name) && name.kind == GOLDEN_OPTIM);
    cr_assert(!name.target && strcmp(name.state, "exp_avg_sq") == 0);
    cr_assert(golden_name_shape(&name, &fake.one.job, shape) == 2 && shape[0] == 12 && shape[1] == 20);
    cr_assert(parses("step.0/param/model.norm.weight", &name) && name.kind == GOLDEN_PARAM);
    cr_assert(golden_name_shape(&name, &fake.one.job, shape) == 1 && shape[0] == 20);
    cr_assert(parses("step.1/grad_norm", &name) && golden_name_shape(&name, &fake.one.job, shape) == 0);
    static const char *const foreign[] = {"step.0/optim/exp/model.norm.weight",
                                          "step.0/param/model.norm",
                                          "",
                                          "step.0",
                                          "step.0/",
                                          "step.00/loss",
                                          "step.-1/loss",
                                          "step.0/losses",
                                          "step.0/micro.0",
                                          "step.0/micro.0/x",
                                          "step.0/micro.0/hidden.2",
                                          "step.0/micro.0/router.0",
                                          "step.0/micro.0/router.0/scores",
                                          "step.0/grad/nothing",
                                          "step.0/optim/momentum/" KEY,
                                          "delta/nothing",
                                          "base_forward/micro.0",
                                          "weights/model.norm.weight",
                                          "step.0/grad_norm/",
                                          "step.99999999999/loss"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        cr_expect(!parses(foreign[i], &name), "%s", foreign[i]);
    fake_free(&fake);
}

/* |got-want| / max(|want|, 1e-3 max|want|) by hand. */
Test(golden, errors) {
    const double want[] = {2, 0.001, 0, -4}, got[] = {2, 0.0011, 0.0002, -4};
    int64_t at;
    cr_assert_float_eq(golden_error(4, got, want, &at), 0.0002 / 0.004, 1e-12); /* 0.05 against 0.025 */
    cr_assert_eq(at, 2);
    const double zero[] = {0, 0}, little[] = {0, 1e-3}, nothing[] = {0, NAN};
    cr_assert_eq(golden_error(2, little, zero, &at), 1e-3);
    cr_assert(isinf(golden_error(2, nothing, zero, &at)));
    cr_assert_eq(at, 1);
    cr_assert(isinf(golden_error(2, zero, nothing, &at)));
    cr_assert_eq(golden_error(0, NULL, NULL, &at), 0);
    cr_assert_eq(golden_bound(0), 1e-10);
    cr_assert_eq(golden_bound(1), 1e-9);
}

static char *copy_with(const char *tensor, int64_t at, double factor, const char *rename_to) {
    static char path[] = "/tmp/judge_golden_XXXXXX";
    struct safetensors file;
    strcpy(path, "/tmp/judge_golden_XXXXXX");
    cr_assert_geq(close(mkstemp(path)), 0);
    cr_assert_eq(safetensors_open(&file, GOLDEN), STATUS_OK, "%s", status_note());
    struct safetensors_item *items = calloc((size_t)file.count, sizeof *items);
    struct tensor changed = {0};
    for (int i = 0; i < file.count; i++) {
        items[i] = (struct safetensors_item){file.entries[i].name, &file.entries[i].tensor};
        if (strcmp(items[i].name, tensor) != 0)
            continue;
        cr_assert_eq(tensor_convert(&changed, file.entries[i].tensor.dtype, items[i].tensor), STATUS_OK);
        tensor_set(&changed, at, tensor_get(&changed, at) * factor);
        items[i].tensor = &changed;
        if (rename_to)
            items[i].name = rename_to;
    }
    cr_assert(changed.data);
    cr_assert_eq(safetensors_write(path, items, file.count, NULL, 0), STATUS_OK, "%s", status_note());
    tensor_free(&changed);
    free(items);
    safetensors_close(&file);
    return path;
}

static void check(const char *path) {
    struct golden golden;
    struct answers *answers = NULL;
    cr_assert_eq(golden_open(&golden, path, 0, &fake.one.job), STATUS_OK, "%s", status_note());
    cr_assert_eq(golden_check(&fake.one.job, &golden, 1, &fake.report, &answers), STATUS_OK, "%s", status_note());
    cr_assert_eq(fake.report.golden_compared + fake.report.golden_unreached.count, 76);
    cr_assert_eq(fake.report.golden_unreached.count, 0, "%s", fake.report.golden_unreached.item[0]);
    const struct value *loss = answers_find(answers, "step.0/loss/loss");
    cr_assert(loss && fabs(loss->x[0] - 4.575754351624279) < 1e-9); /* fixture.json, measured */
    answers_free(answers);
    golden_close(&golden);
}

Test(golden, every_tensor_of_ada) {
    start();
    check(GOLDEN);
    cr_assert(!fake.report.finding.present, "%s", fake.report.finding.text);
    cr_assert(fake.report.golden_worst < 1e-10);
    fake_free(&fake);
}

static void turns_red(const char *tensor, int64_t at, const char *index) {
    char text[128];
    start();
    char *path = copy_with(tensor, at, 1 + 1e-6, NULL);
    check(path);
    unlink(path);
    const struct report_finding *finding = &fake.report.finding;
    cr_assert(finding->present, "%s", tensor);
    cr_assert_eq(finding->kind, FINDING_GOLDEN);
    cr_assert_str_eq(finding->tensor, tensor);
    cr_assert_str_eq(shape_text(text, sizeof text, finding->dims, finding->index), index);
    cr_assert_eq(fake.report.consequences.count, 0);
    fake_free(&fake);
}

Test(golden, one_element_of_a_gradient) {
    turns_red("step.1/grad/" KEY, 5 * 14 + 3, "[5,3]");
}

Test(golden, one_element_of_the_last_state) {
    turns_red("step.2/optim/momentum_buffer/" KEY, 7 * 14 + 2, "[7,2]");
}

Test(golden, one_element_of_a_delta) {
    turns_red("delta/model.layers.1.mlp.experts.down_proj", (4 * 20 + 3) * 14 + 2, "[4,3,2]");
}

Test(golden, one_element_of_base_logits) {
    turns_red("base_forward/micro.0/logits", 53 + 1, "[0,1,1]");
}

Test(golden, the_loss) {
    turns_red("step.2/loss", 0, "[]");
}

Test(golden, foreign_name_is_refused) {
    struct golden golden;
    start();
    char *path = copy_with("step.0/loss", 0, 1, "step.0/los");
    cr_assert_eq(golden_open(&golden, path, 0, &fake.one.job), STATUS_INPUT);
    unlink(path);
    cr_assert(strstr(status_note(), "'step.0/los' is not a golden name"), "%s", status_note());
    status_clear();
    fake_free(&fake);
}

Test(golden, wrong_shape_is_refused) {
    struct golden golden;
    start();
    char *path = copy_with("step.0/loss", 0, 1, "step.0/micro.3/token_loss");
    cr_assert_eq(golden_open(&golden, path, 0, &fake.one.job), STATUS_INPUT);
    unlink(path);
    cr_assert(strstr(status_note(), "is [], expected [8,2]"), "%s", status_note());
    status_clear();
    fake_free(&fake);
}

Test(golden, an_unreached_tensor_is_listed) {
    struct golden golden;
    start();
    fake.one.job.actions = 3; /* two of the three steps */
    cr_assert_eq(golden_open(&golden, GOLDEN, 0, &fake.one.job), STATUS_OK, "%s", status_note());
    cr_assert_eq(golden_check(&fake.one.job, &golden, 1, &fake.report, NULL), STATUS_OK, "%s", status_note());
    cr_assert_eq(fake.report.golden_unreached.count,
                 3 + 8 + 8 + 8); /* step 2: loss, grad_norm, token_loss, grad, param, optim */
    golden_close(&golden);
    fake_free(&fake);
}

/* ---- a tenant that comes again, and base tensors that train */

/* Three steps, a release, and one more step, over micro-batch `again`, after the second acquire. */
static void start_again(const int *again) {
    start();
    fake.action[4] = (struct action){.kind = ACTION_RELEASE, .tenant = 0, .step = 3};
    fake.action[5] = (struct action){.kind = ACTION_ACQUIRE, .tenant = 0, .step = 3};
    fake.action[6] =
        (struct action){.kind = ACTION_TRAIN, .opens = true, .tenant = 0, .micros = 1, .micro = again, .step = 3};
    fake.one.job.actions = 7;
    fake.one.job.steps = 4;
}

Test(golden, the_second_time_counts_once) {
    static const int first = 0;
    start_again(&first);
    check(GOLDEN);
    cr_assert_eq(fake.report.golden_compared, 76);
    cr_assert(!fake.report.finding.present, "%s", fake.report.finding.text);
    fake_free(&fake);
}

/* The right answers of the first time do not hide the wrong ones of the second. Micro-batch 1 instead of 0: there are
 * no token losses of it in step 0, but a loss, a gradient, an update. */
Test(golden, the_second_time_is_compared) {
    static const int other = 1;
    start_again(&other);
    check(GOLDEN);
    cr_assert_eq(fake.report.golden_compared, 76);
    cr_assert(fake.report.finding.present);
    cr_assert_str_eq(fake.report.finding.tensor, "step.0/loss");
    /* 8 gradients, the norm and 8 parameters follow */
    cr_assert_eq(fake.report.consequences.count, 8 + 1 + 8);
    fake_free(&fake);
}

static void start_router(bool *trains) {
    static const int micros[] = {0, 2, 3, 1};
    start();
    struct job *job = &fake.one.job;
    const struct inventory *inventory = checkpoint_inventory(job->model);
    for (int i = 0; i < inventory->count; i++) {
        const char *name = inventory->params[i].name;
        trains[i] = strstr(name, ".mlp.gate.") || strstr(name, "norm.weight") || strstr(name, ".q_proj.");
    }
    job->trains = trains;
    job->optimizer.lr = 0.05;
    job->clip = (struct clip){.present = true, .infinity = true, .max = 0.63};
    for (int s = 0; s < 3; s++) {
        fake.action[1 + s].micro = micros + (s == 0 ? 0 : s == 1 ? 1 : 3);
        fake.action[1 + s].micros = s == 1 ? 2 : 1;
    }
}

static void router(const char *path, int64_t *compared) {
    struct golden golden;
    cr_assert_eq(golden_open(&golden, path, 0, &fake.one.job), STATUS_OK, "%s", status_note());
    cr_assert_eq(golden_check(&fake.one.job, &golden, 1, &fake.report, NULL), STATUS_OK, "%s", status_note());
    *compared = fake.report.golden_compared;
    golden_close(&golden);
}

/* The fixture's recipe `router`: 136 tensors, base names among gradients, parameters and momentum. */
Test(golden, base_tensors_that_train) {
    bool trains[64];
    int64_t compared;
    start_router(trains);
    router(TINY "/golden/router/ada.safetensors", &compared);
    cr_assert_eq(compared, 136, "%lld", (long long)compared);
    cr_assert_eq(fake.report.golden_unreached.count, 0);
    cr_assert(!fake.report.finding.present, "%s", fake.report.finding.text);
    fake_free(&fake);
}

/* Without clipping the first update differs, and nothing before it. */
Test(golden, clipping_shows_in_base_tensors) {
    bool trains[64];
    int64_t compared;
    start_router(trains);
    fake.one.job.clip.present = false;
    router(TINY "/golden/router/ada.safetensors", &compared);
    cr_assert(fake.report.finding.present);
    cr_assert_str_eq(fake.report.finding.tensor, "step.0/param/model.layers.0.input_layernorm.weight");
    fake_free(&fake);
}
