/* A fixture's recipe, from its fixture.json. */
#include "study.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct yaml_node *need(const struct yaml_node *map, const char *key) {
    const struct yaml_node *node = yaml_get(map, key);
    cr_assert(node, "no key %s", key);
    return node;
}

static double number(const struct yaml_node *map, const char *key) {
    return strtod(need(map, key)->text, NULL);
}

static void read_optimizer(const struct yaml_node *recipe, struct optimizer *out) {
    *out = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = number(recipe, "lr")};
    if (strcmp(need(recipe, "optimizer")->text, "sgd") == 0) {
        out->momentum = number(recipe, "momentum");
        return;
    }
    cr_assert_str_eq(need(recipe, "optimizer")->text, "adamw");
    out->kind = OPTIMIZER_ADAMW;
    out->weight_decay = number(recipe, "weight_decay");
    out->eps = number(recipe, "eps");
    out->beta1 = strtod(need(recipe, "betas")->items[0]->text, NULL);
    out->beta2 = strtod(need(recipe, "betas")->items[1]->text, NULL);
}

static void read_windows(struct study *study, const struct yaml_node *accumulation) {
    cr_assert_eq(accumulation->count, STUDY_STEPS);
    for (int step = 0; step < STUDY_STEPS; step++) {
        const struct yaml_node *window = accumulation->items[step];
        study->micros[step] = window->count;
        for (int i = 0; i < window->count; i++)
            study->window[step][i] = atoi(window->items[i]->text);
    }
}

void study_recipe(struct study *study, const char *fixture, const char *name) {
    struct yaml yaml = {0};
    char path[256];
    snprintf(path, sizeof path, "fixtures/golden/%s/fixture.json", fixture);
    cr_assert_eq(yaml_open(&yaml, path), STATUS_OK, "%s", status_note());
    const struct yaml_node *recipe = need(need(need(yaml.root, "description"), "recipes"), name);
    const struct yaml_node *clip = yaml_get(recipe, "clip"), *base = yaml_get(recipe, "base");
    read_optimizer(recipe, &study->job.optimizer);
    read_windows(study, need(recipe, "accumulation"));
    if (clip)
        study->job.clip = (struct clip){
            .present = true, .infinity = strcmp(need(clip, "norm")->text, "inf") == 0, .max = number(clip, "max")};
    for (int i = 0; base && i < base->count; i++)
        study_trains(study, base->items[i]->text);
    yaml_close(&yaml);
}
