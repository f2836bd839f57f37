/* One element of one golden tensor changed by 1e-6 relative turns its case red, and the finding names it. */
#include "report.h"

#include "core/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADA TINY "/golden/sgd/ada.safetensors"
#define B "base_model.model.model.layers.1.mlp.experts.lora_B.weight"

static const char *changed_name;
static int64_t changed_element;

/* An element behind the middle of the tensor that is not small beside the largest: there the error of the rule
 * |got - want| / max(|want|, 1e-3 max|want|) is the change itself. */
static void change_one(struct tensor_list *list) {
    struct tensor *tensor = &listed(list, changed_name)->tensor;
    int64_t n = tensor_elements(tensor), at = n / 2;
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(tensor_get(tensor, i)));
    while (at < n && fabs(tensor_get(tensor, at)) < 1e-3 * largest)
        at++;
    cr_assert_lt(at, n, "%s", changed_name);
    tensor_set(tensor, at, tensor_get(tensor, at) * (1 + 1e-6));
    changed_element = at;
}

static void expect_index(const json_t *one, const char *name) {
    struct safetensors file = {0};
    DONE(safetensors_open(&file, ADA));
    const struct safetensors_entry *entry = safetensors_find(&file, name);
    json_t *index = json_at(one, "finding.index");
    int64_t rest = changed_element;
    if (entry->ndim == 0)
        cr_expect(json_is_null(index), "%s", name);
    else
        cr_expect_eq(json_array_size(index), (size_t)entry->ndim, "%s", name);
    for (int d = entry->ndim - 1; d >= 0; d--) {
        cr_expect_eq(json_integer_value(json_array_get(index, (size_t)d)), rest % entry->tensor.shape[d], "%s, dim %d",
                     name, d);
        rest /= entry->tensor.shape[d];
    }
    safetensors_close(&file);
}

static void change_and_run(const char *name) {
    struct scratch scratch = scratch_make();
    changed_name = name;
    free(scratch_tensors(&scratch, ADA, "g.safetensors", change_one));
    char *path = scratch_write(&scratch, "case.yaml",
                               "case: base\nmodel: @/model\nmesh: {ep: 2}\ntenants: {ada: {adapter: @/adapters/ada}}\n"
                               "batches: @/batches.safetensors\ngolden: {ada: g.safetensors}\n"
                               "script: [{acquire: ada}, {train: {tenant: ada, micro: [0]}},"
                               " {train: {tenant: ada, micro: [1]}}, {train: {tenant: ada, micro: [2]}}]\n");
    char *json = scratch_path(&scratch, "report.json");
    struct result result = RUN(&scratch, "run", path, "--json", json);
    cr_expect_eq(result.code, 1, "%s: exit %d", name, result.code);
    cr_expect(strstr(result.out, name), "%s: %s", name, result.out);
    json_t *report = report_load(&scratch, "report.json");
    json_t *one = report_case_of(report, "base");
    cr_expect_str_eq(text_of(one, "verdict"), "fail", "%s", name);
    cr_expect_str_eq(text_of(one, "finding.kind"), "golden", "%s", name);
    cr_expect_str_eq(text_of(one, "finding.tensor"), name);
    double error = json_number_value(json_at(one, "finding.error"));
    cr_expect(fabs(error - 1e-6) < 1e-8, "%s: %g", name, error);
    expect_index(one, name);
    json_decref(report);
    result_free(&result);
    free(json);
    free(path);
    scratch_free(&scratch);
}

Test(cli, changed_golden_answer_is_found) {
    static const char *const names[] = {"delta/model.layers.0.mlp.experts.gate_up_proj",
                                        "merged/model.layers.1.mlp.experts.down_proj",
                                        "base_forward/micro.0/logits",
                                        "peft_forward/micro.0/logits",
                                        "step.0/micro.0/logits",
                                        "step.1/micro.1/token_loss",
                                        "step.0/micro.0/hidden.0",
                                        "step.0/micro.0/router.1/logits",
                                        "step.0/micro.0/router.0/topk_weight",
                                        "step.2/loss",
                                        "step.0/grad/" B,
                                        "step.1/grad_norm",
                                        "step.2/param/" B,
                                        "step.2/optim/momentum_buffer/" B};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        change_and_run(names[i]);
}

/* A choice of the router is an integer: any other is wrong. */
static void change_choice(struct tensor_list *list) {
    struct tensor *choice = &listed(list, "step.0/micro.0/router.0/topk_index")->tensor;
    int64_t *index = choice->data;
    index[3] = (index[3] + 1) % 12;
}

Test(cli, changed_golden_choice_is_found) {
    struct scratch scratch = scratch_make();
    free(scratch_tensors(&scratch, ADA, "g.safetensors", change_choice));
    char *path = scratch_case(&scratch, "case.yaml", 3, "golden: {ada: g.safetensors}");
    struct result result = RUN(&scratch, "run", path);
    cr_expect_eq(result.code, 1);
    cr_expect(strstr(result.out, "step.0/micro.0/router.0/topk_index"), "%s", result.out);
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}
