#include "written.h"

#include "core/safetensors.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY "fixtures/golden/qwen3_moe_tiny"

static char folder[64], path[96];

static char head[4096];

static const char *usual_head(void) {
    static const char *const names[] = {"ada", "bob", "cyd"};
    char root[1024];
    cr_assert(getcwd(root, sizeof root));
    int used = snprintf(head, sizeof head, "case: written\nmodel: %s/" TINY "/model\ntenants: {", root);
    for (int i = 0; i < 3; i++)
        used += snprintf(head + used, sizeof head - (size_t)used, "%s: {adapter: %s/" TINY "/adapters/%s}, ", names[i],
                         root, names[i]);
    snprintf(head + used, sizeof head - (size_t)used, "}\nbatches: %s/" TINY "/batches.safetensors\n", root);
    return head;
}

static void write_batches(const char *name) {
    const int64_t shape[] = {1, 2};
    int64_t ids[] = {3, 4}, one[] = {-100, 5}, none[] = {6, -100};
    struct tensor tensor[] = {tensor_view(DTYPE_I64, 2, shape, ids), tensor_view(DTYPE_I64, 2, shape, one),
                              tensor_view(DTYPE_I64, 2, shape, none)};
    const struct safetensors_item items[] = {{"micro.0/input_ids", &tensor[0]},
                                             {"micro.0/labels", &tensor[1]},
                                             {"micro.1/input_ids", &tensor[0]},
                                             {"micro.1/labels", &tensor[2]}};
    cr_assert_eq(safetensors_write(name, items, 4, NULL, 0), STATUS_OK, "%s", status_note());
}

static enum status load(struct case_list *out, const char *start, const char *rest) {
    const struct case_options options = {0};
    char batches[128];
    strcpy(folder, "/tmp/shardproof-script-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/case.yaml", folder);
    snprintf(batches, sizeof batches, "%s/few.safetensors", folder);
    write_batches(batches);
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fprintf(file, "%s%s\n", start, rest);
    cr_assert_eq(fclose(file), 0);
    *out = (struct case_list){0};
    enum status status = cases_load(out, path, &options);
    unlink(path);
    unlink(batches);
    rmdir(folder);
    return status;
}

void written_load(struct case_list *out, const char *rest) {
    cr_assert_eq(load(out, usual_head(), rest), STATUS_OK, "%s: %s", rest, status_note());
    cr_assert_eq(out->count, 1);
}

static void refused(const char *start, const char *rest, int line, const char *message) {
    struct case_list list;
    char want[1024];
    enum status status = load(&list, start, rest);
    snprintf(want, sizeof want, "%s:%d: %s", path, line, message);
    cr_expect_eq(status, STATUS_INPUT, "read without complaint: %s", rest);
    cr_expect_str_eq(status_note(), want);
    status_clear();
    cases_free(&list);
}

void written_refused(const char *rest, int line, const char *message) {
    refused(usual_head(), rest, line, message);
}

void whole_refused(const char *text, int line, const char *message) {
    refused("", text, line, message);
}

char *written_actions(char *out, size_t size, const struct job *job) {
    static const char *const words[] = {
        [ACTION_ACQUIRE] = "acquire", [ACTION_TRAIN] = "train",     [ACTION_ACCUMULATE] = "accumulate",
        [ACTION_STEP] = "step",       [ACTION_RELEASE] = "release", [ACTION_EVALUATE] = "evaluate",
        [ACTION_ENTER] = "enter",     [ACTION_LEAVE] = "leave",     [ACTION_EXPORT] = "export"};
    size_t used = 0;
    out[0] = '\0';
    for (int a = 0; a < job->actions; a++) {
        const struct action *action = &job->action[a];
        used += (size_t)snprintf(out + used, size - used, "%s%s %s", a ? "; " : "", words[action->kind],
                                 action->tenant >= 0 ? job->tenant[action->tenant].name : "none");
        for (int i = 0; i < action->micros; i++)
            used += (size_t)snprintf(out + used, size - used, " %d", job->micro[action->micro[i]].number);
        used += (size_t)snprintf(out + used, size - used, " s%d o%d%s", action->step, action->own_step,
                                 action->opens ? " opens" : "");
        cr_assert_lt(used, size);
    }
    return out;
}
