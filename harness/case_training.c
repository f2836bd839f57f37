/* How a case trains: optimizer, clipping, base tensors that train too. */
#include "harness/case_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* `key: x` of a map, 0 <= x < below; *out keeps its default where the key is absent. */
static enum status number_key(const struct case_reader *reader, const struct yaml_node *map, const char *key,
                              double below, double *out) {
    const struct yaml_node *node = yaml_get(map, key);
    if (!node)
        return STATUS_OK;
    TRY(yaml_number(reader->yaml, node, out));
    if (*out >= 0 && *out < below)
        return STATUS_OK;
    if (isfinite(below))
        return yaml_fail(reader->yaml, node, "%s %g, expected 0 <= %s < %g", key, *out, key, below);
    return yaml_fail(reader->yaml, node, "%s %g, expected 0 or more", key, *out);
}

/* ---- optimizer */

static enum status read_sgd(const struct case_reader *reader, const struct yaml_node *map, struct optimizer *out) {
    static const char *const keys[] = {"name", "lr", "momentum", "weight_decay", "nesterov", NULL};
    const struct yaml_node *nesterov = yaml_get(map, "nesterov");
    *out = (struct optimizer){.kind = OPTIMIZER_SGD};
    TRY(yaml_known(reader->yaml, map, "optimizer sgd", keys));
    if (!yaml_get(map, "lr"))
        return yaml_fail(reader->yaml, map, "optimizer has no 'lr', expected the learning rate");
    TRY(number_key(reader, map, "lr", INFINITY, &out->lr));
    TRY(number_key(reader, map, "momentum", INFINITY, &out->momentum));
    TRY(number_key(reader, map, "weight_decay", INFINITY, &out->weight_decay));
    if (nesterov)
        TRY(yaml_boolean(reader->yaml, nesterov, &out->nesterov));
    if (out->nesterov && out->momentum == 0)
        return yaml_fail(reader->yaml, nesterov, "nesterov without momentum, expected momentum above 0");
    return STATUS_OK;
}

static enum status read_beta(const struct case_reader *reader, const struct yaml_node *node, double *out) {
    TRY(yaml_number(reader->yaml, node, out));
    if (!(*out >= 0 && *out < 1))
        return yaml_fail(reader->yaml, node, "beta %g, expected 0 <= beta < 1", *out);
    return STATUS_OK;
}

/* Defaults: torch.optim.AdamW. */
static enum status read_adamw(const struct case_reader *reader, const struct yaml_node *map, struct optimizer *out) {
    static const char *const keys[] = {"name", "lr", "betas", "eps", "weight_decay", NULL};
    const struct yaml_node *betas = yaml_get(map, "betas");
    *out = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    TRY(yaml_known(reader->yaml, map, "optimizer adamw", keys));
    TRY(number_key(reader, map, "lr", INFINITY, &out->lr));
    TRY(number_key(reader, map, "eps", INFINITY, &out->eps));
    TRY(number_key(reader, map, "weight_decay", INFINITY, &out->weight_decay));
    if (!betas)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, betas, YAML_LIST, "betas"));
    if (betas->count != 2)
        return yaml_fail(reader->yaml, betas, "betas has %d numbers, expected two", betas->count);
    TRY(read_beta(reader, betas->items[0], &out->beta1));
    return read_beta(reader, betas->items[1], &out->beta2);
}

enum status case_read_optimizer(struct case_reader *reader) {
    struct optimizer *optimizer = &reader->one->job.optimizer;
    const struct yaml_node *node = case_field(reader, "optimizer");
    const char *name;
    *optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9};
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "optimizer"));
    const struct yaml_node *name_node = yaml_get(node, "name");
    if (!name_node)
        return yaml_fail(reader->yaml, node, "optimizer has no 'name', expected sgd or adamw");
    TRY(yaml_string(reader->yaml, name_node, &name));
    if (strcmp(name, "sgd") == 0)
        return read_sgd(reader, node, optimizer);
    if (strcmp(name, "adamw") == 0)
        return read_adamw(reader, node, optimizer);
    return yaml_fail(reader->yaml, name_node, "optimizer '%s' is unknown, expected sgd or adamw", name);
}

/* ---- clip */

enum status case_read_clip(struct case_reader *reader) {
    static const char *const keys[] = {"norm", "max", NULL};
    struct clip *clip = &reader->one->job.clip;
    const struct yaml_node *node = case_field(reader, "clip");
    const char *norm;
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_MAP, "clip"));
    TRY(yaml_known(reader->yaml, node, "clip", keys));
    if (!yaml_get(node, "norm") || !yaml_get(node, "max"))
        return yaml_fail(reader->yaml, node, "clip lacks a key, expected {norm: 2 or inf, max: x}");
    TRY(yaml_string(reader->yaml, yaml_get(node, "norm"), &norm));
    clip->infinity = strcmp(norm, "inf") == 0;
    if (!clip->infinity && strcmp(norm, "2") != 0)
        return yaml_fail(reader->yaml, yaml_get(node, "norm"), "norm '%s' is unknown, expected 2 or inf", norm);
    TRY(yaml_number(reader->yaml, yaml_get(node, "max"), &clip->max));
    if (!(clip->max > 0))
        return yaml_fail(reader->yaml, yaml_get(node, "max"), "max %g, expected a norm above 0", clip->max);
    clip->present = true;
    return STATUS_OK;
}

/* ---- trainable */

static enum status trainable_glob(const struct case_reader *reader, const struct yaml_node *node, bool *trains) {
    const struct inventory *inventory = checkpoint_inventory(reader->one->job.model);
    const char *glob;
    bool found = false, tied = false;
    TRY(yaml_string(reader->yaml, node, &glob));
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        if (!glob_match(glob, param->name))
            continue;
        tied = tied || param->alias >= 0;
        found = found || param->alias < 0;
        trains[i] = trains[i] || param->alias < 0;
    }
    if (found)
        return STATUS_OK;
    if (tied)
        return yaml_fail(reader->yaml, node,
                         "trainable '%s' matches a head that is tied, expected model.embed_tokens.weight", glob);
    return yaml_fail(reader->yaml, node, "trainable '%s' matches no parameter, expected names as in `show model`",
                     glob);
}

enum status case_read_trainable(struct case_reader *reader) {
    struct job *job = &reader->one->job;
    const struct yaml_node *node = case_field(reader, "trainable");
    if (!node)
        return STATUS_OK;
    TRY(yaml_expect(reader->yaml, node, YAML_LIST, "trainable"));
    if (node->count == 0)
        return STATUS_OK;
    bool *trains = calloc((size_t)checkpoint_inventory(job->model)->count + 1, sizeof *trains);
    if (!trains)
        return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
    job->trains = trains;
    for (int i = 0; i < node->count; i++)
        TRY(trainable_glob(reader, node->items[i], trains));
    return STATUS_OK;
}
