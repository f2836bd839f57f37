/* Batch files and made batches; slots of a script. */
#include "scratch.h"

#include "core/files.h"
#include "core/job.h"
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void expect_fixture(const char *path, int64_t vocab, const int64_t *counted, const int64_t (*shape)[2],
                           const int64_t *last_id) {
    struct micro_batch *micros;
    int count;
    DONE(batches_open(&micros, &count, path, vocab));
    cr_assert_eq(count, 6);
    for (int i = 0; i < 6; i++) {
        cr_expect_eq(micros[i].number, i);
        cr_expect(micros[i].sequences == shape[i][0] && micros[i].tokens == shape[i][1]);
        cr_expect_eq(micros[i].counted, counted[i], "micro %d: %ld", i, (long)micros[i].counted);
        cr_expect_eq(((int64_t *)micros[i].input_ids.data)[shape[i][0] * shape[i][1] - 1], last_id[i]);
    }
    batches_free(micros, count);
}

/* Counts stand in fixture.json (counted_labels); last ids were decoded by a Python script. */
Test(batches, fixtures) {
    expect_fixture("fixtures/golden/qwen3_moe_tiny/batches.safetensors", 53, (int64_t[]){14, 13, 2, 10, 15, 1},
                   (const int64_t[][2]){{5, 7}, {3, 11}, {1, 4}, {8, 3}, {2, 9}, {2, 5}},
                   (int64_t[]){1, 45, 29, 48, 7, 44});
    expect_fixture("fixtures/golden/qwen3_moe_uneven/batches.safetensors", 47, (int64_t[]){12, 20, 2, 23, 4, 2},
                   (const int64_t[][2]){{4, 9}, {7, 6}, {2, 2}, {2, 13}, {1, 5}, {3, 8}},
                   (int64_t[]){19, 43, 24, 4, 44, 15});
}

/* Two tensors [2,3], the given ids and labels, under the given names. */
static enum status open_pair(const char *ids_name, const int64_t *ids, const char *labels_name, const int64_t *labels,
                             enum dtype dtype, int64_t label_rows) {
    char *folder = scratch_folder(), *path = path_join(folder, "batches.safetensors");
    struct tensor a = tensor_view(dtype, 2, (const int64_t[]){2, 3}, (void *)ids);
    struct tensor b = tensor_view(DTYPE_I64, 2, (const int64_t[]){label_rows, 6 / label_rows}, (void *)labels);
    const struct safetensors_item items[] = {{ids_name, &a}, {labels_name, &b}};
    struct micro_batch *micros;
    int count;
    DONE(safetensors_write(path, items, 2, NULL, 0));
    enum status status = batches_open(&micros, &count, path, 10);
    if (status == STATUS_OK) {
        cr_expect_eq(micros[0].number, 4);
        cr_expect_eq(micros[0].counted, 2);
        batches_free(micros, count);
    } else {
        cr_expect(!micros && count == 0);
    }
    free(path);
    scratch_remove(folder);
    return status;
}

Test(batches, bad_files) {
    const char *i = "micro.4/input_ids", *l = "micro.4/labels";
    const int64_t good[] = {0, 1, 9, 3, 4, 5},
                  labels[] = {9, -100, 0, -100, -100, 5}; /* counted: places [0,2] and [1,2] */
    const int64_t high[] = {0, 1, 2, 3, 10, 5}, low[] = {0, -1, 2, 3, 4, 5}, hole[] = {0, -100, 2, 3, 4, 5};
    DONE(open_pair(i, good, l, labels, DTYPE_I64, 2));
    REFUSED(open_pair(i, high, l, labels, DTYPE_I64, 2),
            "batches.safetensors: micro.4/input_ids[1,1] is 10, expected 0 to 9");
    REFUSED(open_pair(i, low, l, labels, DTYPE_I64, 2), "micro.4/input_ids[0,1] is -1");
    REFUSED(open_pair(i, hole, l, labels, DTYPE_I64, 2), "micro.4/input_ids[0,1] is -100");
    REFUSED(open_pair(i, good, l, high, DTYPE_I64, 2), "micro.4/labels[1,1] is 10, expected 0 to 9 or -100");
    REFUSED(open_pair(i, good, l, low, DTYPE_I64, 2), "micro.4/labels[0,1] is -1");
    REFUSED(open_pair(i, good, l, labels, DTYPE_F64, 2), "'micro.4/input_ids' has type F64, expected I64");
    REFUSED(open_pair(i, good, l, labels, DTYPE_I64, 3), "'micro.4/labels' has shape [3,2], expected [2,3]");
    REFUSED(open_pair(i, good, "micro.5/labels", labels, DTYPE_I64, 2), "no tensor 'micro.4/labels'");
    REFUSED(open_pair(i, good, "micro.4/attention_mask", labels, DTYPE_I64, 2), "'micro.4/attention_mask'");
    REFUSED(open_pair("micro.04/input_ids", good, l, labels, DTYPE_I64, 2), "'micro.04/input_ids'");
    REFUSED(open_pair("micro.99999999999/input_ids", good, l, labels, DTYPE_I64, 2), "'micro.99999999999/input_ids'");
    REFUSED(open_pair("micro.3/labels", good, l, labels, DTYPE_I64, 2), "no micro-batch");
}

Test(batches, made) {
    const int64_t sequences[] = {5, 1, 40}, tokens[] = {7, 2, 30};
    struct micro_batch *a, *b, *other;
    DONE(batches_make(&a, 3, sequences, tokens, 5, DATA_RANDOM, 11));
    DONE(batches_make(&b, 3, sequences, tokens, 5, DATA_RANDOM, 11));
    DONE(batches_make(&other, 3, sequences, tokens, 6, DATA_RANDOM, 11));
    int none = 0, seen[11] = {0};
    for (int m = 0; m < 3; m++) {
        const int64_t *ids = a[m].input_ids.data, *labels = a[m].labels.data;
        int64_t counted = 0;
        cr_assert(a[m].number == m && a[m].sequences == sequences[m] && a[m].tokens == tokens[m]);
        cr_expect_arr_eq(ids, b[m].input_ids.data, tensor_bytes(&a[m].input_ids));
        cr_expect_arr_eq(labels, b[m].labels.data, tensor_bytes(&a[m].labels));
        for (int64_t i = 0; i < sequences[m] * tokens[m]; i++) {
            cr_assert(ids[i] >= 0 && ids[i] < 11 && (labels[i] == ids[i] || labels[i] == -100));
            seen[ids[i]]++;
            none += labels[i] == -100;
            counted += labels[i] != -100 && i % tokens[m] != 0;
        }
        cr_expect(a[m].counted == counted && counted > 0);
    }
    /* 1237 draws of chance 1/3: 412 expected, standard deviation 16.6; 6 of them on either side */
    cr_expect(none > 312 && none < 512, "%d", none);
    for (int id = 0; id < 11; id++)
        cr_expect_gt(seen[id], 0);
    cr_expect(memcmp(a[2].input_ids.data, other[2].input_ids.data, tensor_bytes(&a[2].input_ids)) != 0);
    batches_free(a, 3);
    batches_free(b, 3);
    batches_free(other, 3);
}

/* [1,2] has one place that can count: about a third of the seeds would leave it empty. */
Test(batches, made_ones_always_count_a_label) {
    const int64_t sequences[] = {1}, tokens[] = {2};
    struct micro_batch *micros;
    for (uint64_t seed = 0; seed < 40; seed++) {
        DONE(batches_make(&micros, 1, sequences, tokens, seed, DATA_RANDOM, 11));
        const int64_t *ids = micros->input_ids.data, *labels = micros->labels.data;
        cr_expect(micros->counted == 1 && labels[1] == ids[1]);
        batches_free(micros, 1);
    }
    REFUSED(batches_make(&micros, 1, sequences, (const int64_t[]){1}, 0, DATA_RANDOM, 11), "1 sequences of 1 tokens");
    DONE(batches_make(&micros, 1, (const int64_t[]){2}, (const int64_t[]){3}, 0, DATA_INDEX, 4));
    const int64_t want[] = {0, 1, 2, 3, 0, 1};
    cr_expect_arr_eq(micros->input_ids.data, want, sizeof want);
    batches_free(micros, 1);
}

Test(job, slots_in_order_of_acquire) {
    struct action actions[] = {{.kind = ACTION_EVALUATE, .tenant = 1},
                               {.kind = ACTION_ACQUIRE, .tenant = 2},
                               {.kind = ACTION_TRAIN, .tenant = 2},
                               {.kind = ACTION_ACQUIRE, .tenant = 0}};
    struct job job = {.tenants = 3, .actions = 4, .action = actions};
    cr_expect_eq(job_slot(&job, 2), 0);
    cr_expect_eq(job_slot(&job, 0), 1);
    cr_expect_eq(job_slot(&job, 1), -1);
}

Test(job, targets_are_the_union_over_tenants) {
    struct inventory inventory = small_inventory();
    const struct param *q = inventory_find(&inventory, PARAM_Q, 0), *down = inventory_find(&inventory, PARAM_DOWN, 1);
    struct adapter_target one[] = {{.param = q}}, two[] = {{.param = q}, {.param = down}};
    struct tenant tenants[] = {{.adapter = {.count = 1, .targets = one}}, {.adapter = {.count = 2, .targets = two}}};
    struct job job = {.tenants = 2, .tenant = tenants};
    for (int i = 0; i < inventory.count; i++) {
        const struct param *param = &inventory.params[i];
        cr_expect_eq(job_targets(&job, param), param == q || param == down, "%s", param->name);
    }
    inventory_free(&inventory);
}
