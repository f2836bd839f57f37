#include "harness/golden_names.h"

#include <stdlib.h>
#include <string.h>

/* Each reader takes its words from the front of *at and says whether they stood there. */
static bool take(const char **at, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0)
        return false;
    *at += length;
    return true;
}

/* A number as it prints: no sign, no leading zero, at most 9 digits. */
static bool take_number(const char **at, int *out) {
    size_t digits = strspn(*at, "0123456789");
    if (digits < 1 || digits > 9 || (digits > 1 && **at == '0'))
        return false;
    *out = (int)strtol(*at, NULL, 10);
    *at += digits;
    return true;
}

static bool take_numbered(const char **at, const char *word, int *out) {
    const char *start = *at;
    if (take(at, word) && take_number(at, out))
        return true;
    *at = start;
    return false;
}

static bool base_parameter(struct golden_name *out, const char *name, const struct job *job) {
    out->param = inventory_named(checkpoint_inventory(job->model), name);
    return out->param != NULL;
}

static bool key(struct golden_name *out, const char *name, const struct job *job, int tenant) {
    const struct adapter *adapter = &job->tenant[tenant].adapter;
    for (int i = 0; i < adapter->count; i++) {
        out->b = strcmp(name, adapter->targets[i].key_b) == 0;
        if (out->b || strcmp(name, adapter->targets[i].key_a) == 0) {
            out->target = &adapter->targets[i];
            out->param = out->target->param;
            return true;
        }
    }
    return base_parameter(out, name, job);
}

static bool state_and_key(struct golden_name *out, const char *name, const struct job *job, int tenant) {
    static const char *const states[] = {"momentum_buffer", "exp_avg", "exp_avg_sq"};
    size_t length = strcspn(name, "/");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strlen(states[i]) == length && strncmp(name, states[i], length) == 0 && name[length] == '/') {
            strcpy(out->state, states[i]);
            return key(out, name + length + 1, job, tenant);
        }
    return false;
}

static bool ends(struct golden_name *out, const char *rest, const char *word, enum golden_kind kind) {
    if (strcmp(rest, word) != 0)
        return false;
    out->kind = kind;
    return true;
}

static bool in_micro(struct golden_name *out, const char *rest, const struct model_config *config) {
    if (ends(out, rest, "logits", GOLDEN_LOGITS) || ends(out, rest, "token_loss", GOLDEN_TOKEN_LOSS))
        return true;
    if (take_numbered(&rest, "hidden.", &out->layer)) {
        out->kind = GOLDEN_HIDDEN;
        return !*rest && out->layer < config->layers;
    }
    if (!take_numbered(&rest, "router.", &out->layer) || out->layer >= config->layers || !config->sparse[out->layer])
        return false;
    return ends(out, rest, "/logits", GOLDEN_ROUTER_LOGITS) || ends(out, rest, "/topk_index", GOLDEN_TOPK_INDEX) ||
           ends(out, rest, "/topk_weight", GOLDEN_TOPK_WEIGHT);
}

static bool in_step(struct golden_name *out, const char *rest, const struct job *job, int tenant) {
    if (take_numbered(&rest, "micro.", &out->micro))
        return take(&rest, "/") && in_micro(out, rest, checkpoint_config(job->model));
    if (ends(out, rest, "loss", GOLDEN_LOSS) || ends(out, rest, "grad_norm", GOLDEN_GRAD_NORM))
        return true;
    out->kind = GOLDEN_GRAD;
    if (take(&rest, "grad/"))
        return key(out, rest, job, tenant);
    out->kind = GOLDEN_PARAM;
    if (take(&rest, "param/"))
        return key(out, rest, job, tenant);
    out->kind = GOLDEN_OPTIM;
    return take(&rest, "optim/") && state_and_key(out, rest, job, tenant);
}

bool golden_name_parse(struct golden_name *out, const char *name, const struct job *job, int tenant) {
    const char *rest = name;
    *out = (struct golden_name){.step = -1, .micro = -1, .layer = -1};
    if (take_numbered(&rest, "step.", &out->step))
        return take(&rest, "/") && in_step(out, rest, job, tenant);
    out->kind = GOLDEN_DELTA;
    if (take(&rest, "delta/"))
        return base_parameter(out, rest, job);
    out->kind = GOLDEN_MERGED;
    if (take(&rest, "merged/"))
        return base_parameter(out, rest, job);
    out->kind = GOLDEN_BASE_FORWARD;
    if (take_numbered(&rest, "base_forward/micro.", &out->micro))
        return strcmp(rest, "/logits") == 0;
    out->kind = GOLDEN_PEFT_FORWARD;
    return take_numbered(&rest, "peft_forward/micro.", &out->micro) && strcmp(rest, "/logits") == 0;
}

/* ---- shapes */

static int give(int64_t *shape, int ndim, int64_t a, int64_t b, int64_t c) {
    shape[0] = a;
    shape[1] = b;
    shape[2] = c;
    return ndim;
}

static int micro_shape(const struct golden_name *name, const struct job *job, int64_t *shape) {
    const struct model_config *config = checkpoint_config(job->model);
    for (int m = 0; m < job->micros; m++) {
        int64_t B = job->micro[m].sequences, T = job->micro[m].tokens;
        if (job->micro[m].number != name->micro)
            continue;
        switch (name->kind) {
        case GOLDEN_TOKEN_LOSS:
            return give(shape, 2, B, T - 1, 0);
        case GOLDEN_HIDDEN:
            return give(shape, 3, B, T, config->hidden);
        case GOLDEN_ROUTER_LOGITS:
            return give(shape, 2, B * T, config->experts, 0);
        case GOLDEN_TOPK_INDEX:
        case GOLDEN_TOPK_WEIGHT:
            return give(shape, 2, B * T, config->experts_per_token, 0);
        default:
            return give(shape, 3, B, T, config->vocab);
        }
    }
    return -1;
}

static int key_shape(const struct golden_name *name, int64_t *shape) {
    if (name->target) {
        const struct tensor *tensor = name->b ? &name->target->b : &name->target->a;
        return give(shape, 2, tensor->shape[0], tensor->shape[1], 0);
    }
    return give(shape, name->param->ndim, name->param->shape[0], name->param->shape[1], name->param->shape[2]);
}

int golden_name_shape(const struct golden_name *name, const struct job *job, int64_t *shape) {
    if (name->micro >= 0)
        return micro_shape(name, job, shape);
    if (name->kind == GOLDEN_LOSS || name->kind == GOLDEN_GRAD_NORM)
        return 0;
    return key_shape(name, shape);
}

bool golden_name_whole(const struct golden_name *name) {
    return name->kind == GOLDEN_TOPK_INDEX;
}
