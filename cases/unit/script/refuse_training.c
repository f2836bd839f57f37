/* Optimizer, clip, trainable, slots: what they become, and what is refused. */
#include "written.h"

#include <criterion/criterion.h>
#include <string.h>

static void refused(const char *rest, const char *message) {
    written_refused(rest, REST_LINE, message);
}

static struct optimizer optimizer_of(const char *rest) {
    struct case_list list;
    written_load(&list, rest);
    struct optimizer out = list.item[0]->job.optimizer;
    cases_free(&list);
    return out;
}

Test(training, optimizer_defaults) {
    struct optimizer none = optimizer_of("");
    cr_assert(none.kind == OPTIMIZER_SGD && none.lr == 0.1 && none.momentum == 0.9 && none.weight_decay == 0);
    cr_assert(!none.nesterov);
    struct optimizer sgd = optimizer_of("optimizer: {name: sgd, lr: 0.5}");
    cr_assert(sgd.kind == OPTIMIZER_SGD && sgd.lr == 0.5 && sgd.momentum == 0 && sgd.weight_decay == 0);
    /* torch.optim.AdamW(params, lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01) */
    struct optimizer adamw = optimizer_of("optimizer: {name: adamw}");
    cr_assert(adamw.kind == OPTIMIZER_ADAMW && adamw.lr == 1e-3 && adamw.beta1 == 0.9 && adamw.beta2 == 0.999);
    cr_assert(adamw.eps == 1e-8 && adamw.weight_decay == 0.01);
}

Test(training, optimizer_values) {
    struct optimizer sgd =
        optimizer_of("optimizer: {name: sgd, lr: 0.5, momentum: 0.25, weight_decay: 2, nesterov: true}");
    cr_assert(sgd.lr == 0.5 && sgd.momentum == 0.25 && sgd.weight_decay == 2 && sgd.nesterov);
    struct optimizer adamw = optimizer_of("optimizer: {name: adamw, lr: 2, betas: [0, 0.5], eps: 0, weight_decay: 0}");
    cr_assert(adamw.lr == 2 && adamw.beta1 == 0 && adamw.beta2 == 0.5 && adamw.eps == 0 && adamw.weight_decay == 0);
}

Test(training, optimizers_refused) {
    refused("optimizer: {lr: 1}", "optimizer has no 'name', expected sgd or adamw");
    refused("optimizer: {name: adam, lr: 1}", "optimizer 'adam' is unknown, expected sgd or adamw");
    refused("optimizer: {name: sgd}", "optimizer has no 'lr', expected the learning rate");
    refused("optimizer: {name: sgd, lr: -0.5}", "lr -0.5, expected 0 or more");
    refused("optimizer: {name: sgd, lr: 1, nesterov: true}", "nesterov without momentum, expected momentum above 0");
    refused("optimizer: {name: sgd, lr: 1, momentum: 0, nesterov: true}",
            "nesterov without momentum, expected momentum above 0");
    refused("optimizer: {name: sgd, lr: 1, weight_decay: -1}", "weight_decay -1, expected 0 or more");
    refused("optimizer: {name: sgd, lr: 1, betas: [0.9, 0.99]}",
            "optimizer sgd: unknown key 'betas', expected one of: name, lr, momentum, weight_decay, nesterov");
    refused("optimizer: {name: adamw, momentum: 0.9}",
            "optimizer adamw: unknown key 'momentum', expected one of: name, lr, betas, eps, weight_decay");
    refused("optimizer: {name: adamw, betas: [0.9]}", "betas has 1 numbers, expected two");
    refused("optimizer: {name: adamw, betas: [0.9, 1]}", "beta 1, expected 0 <= beta < 1");
    refused("optimizer: {name: adamw, eps: -1}", "eps -1, expected 0 or more");
}

Test(training, clip) {
    struct case_list list;
    written_load(&list, "clip: {norm: 2, max: 0.5}");
    struct clip clip = list.item[0]->job.clip;
    cr_assert(clip.present && !clip.infinity && clip.max == 0.5);
    cases_free(&list);
    written_load(&list, "clip: {norm: inf, max: 3}");
    clip = list.item[0]->job.clip;
    cr_assert(clip.present && clip.infinity && clip.max == 3);
    cases_free(&list);
    written_load(&list, "");
    cr_assert_not(list.item[0]->job.clip.present);
    cases_free(&list);
}

Test(training, clips_refused) {
    refused("clip: {norm: 1, max: 1}", "norm '1' is unknown, expected 2 or inf");
    refused("clip: {norm: 2}", "clip lacks a key, expected {norm: 2 or inf, max: x}");
    refused("clip: {max: 2}", "clip lacks a key, expected {norm: 2 or inf, max: x}");
    refused("clip: {norm: 2, max: 0}", "max 0, expected a norm above 0");
    refused("clip: {norm: 2, max: 1, min: 0}", "clip: unknown key 'min', expected one of: norm, max");
}

Test(training, trainable) {
    struct case_list list;
    written_load(&list, "trainable: ['*.mlp.gate.weight', model.norm.weight]");
    const struct job *job = &list.item[0]->job;
    const struct inventory *inventory = checkpoint_inventory(job->model);
    int trains = 0;
    for (int i = 0; i < inventory->count; i++) {
        const char *name = inventory->params[i].name;
        bool want = strcmp(name, "model.norm.weight") == 0 || strcmp(name, "model.layers.0.mlp.gate.weight") == 0 ||
                    strcmp(name, "model.layers.1.mlp.gate.weight") == 0;
        cr_expect_eq(job_trains(job, &inventory->params[i]), want, "%s", name);
        trains += want;
    }
    cr_assert_eq(trains, 3);
    cases_free(&list);
    written_load(&list, "trainable: []");
    cr_assert_null(list.item[0]->job.trains);
    cases_free(&list);
}

Test(training, trainables_refused) {
    refused("trainable: [model.norm.weight, '*.mlp.router.weight']",
            "trainable '*.mlp.router.weight' matches no parameter, expected names as in `show model`");
    refused("trainable: '*'", "trainable is the string '*', expected a list");
}

/* A tied head has no memory of its own. */
Test(training, a_tied_head_is_its_embedding) {
    whole_refused("case: written\n"
                  "model: {config: {model_type: qwen3_moe, vocab_size: 7, hidden_size: 4, num_hidden_layers: 1, "
                  "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 2, num_experts: 2, "
                  "num_experts_per_tok: 1, moe_intermediate_size: 3, intermediate_size: 5, "
                  "tie_word_embeddings: true}}\n"
                  "batches: few.safetensors\n"
                  "trainable: [lm_head.weight]",
                  4, "trainable 'lm_head.weight' matches a head that is tied, expected model.embed_tokens.weight");
}

Test(training, slots) {
    struct case_list list;
    written_load(&list, "slots: {count: 4, max_rank: 9, beyond: nan}");
    const struct job *job = &list.item[0]->job;
    cr_assert(job->slots == 4 && job->max_rank == 9 && job->beyond_nan);
    cases_free(&list);
    written_load(&list, "slots: {beyond: zero}");
    job = &list.item[0]->job;
    cr_assert(job->slots == 3 && job->max_rank == 5 && !job->beyond_nan);
    cases_free(&list);
    refused("slots: {beyond: 7}", "beyond '7' is unknown, expected zero or nan");
    refused("slots: {max_rank: 4}", "tenant bob has rank 5, expected at most max_rank 4");
}
