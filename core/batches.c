#include "core/job.h"

#include "core/random.h"
#include "core/safetensors.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_LABEL (-100)
#define NAME_MAX_LENGTH 64

static const char *const leaves[] = {"input_ids", "labels"};

/* "micro.N/LEAF" with N in plain decimal; -1 if the name is none. */
static int micro_number(const char *name, const char **leaf) {
    if (strncmp(name, "micro.", 6) != 0 || name[6] < '0' || name[6] > '9' || (name[6] == '0' && name[7] != '/'))
        return -1;
    char *end;
    long number = strtol(name + 6, &end, 10);
    if (*end != '/' || number >= INT_MAX)
        return -1;
    *leaf = end + 1;
    return (int)number;
}

static int64_t count_labels(const struct micro_batch *micro) {
    const int64_t *labels = micro->labels.data;
    int64_t counted = 0;
    for (int64_t b = 0; b < micro->sequences; b++)
        for (int64_t t = 1; t < micro->tokens; t++)
            counted += labels[b * micro->tokens + t] != NO_LABEL;
    return counted;
}

static int compare_micros(const void *a, const void *b) {
    int left = ((const struct micro_batch *)a)->number, right = ((const struct micro_batch *)b)->number;
    return (left > right) - (left < right);
}

/* Every tensor of the file is one of a micro-batch; `out` gets one micro-batch per input_ids, in ascending number. */
static enum status list_micros(struct micro_batch **out, int *count, const struct safetensors *file) {
    *out = calloc((size_t)file->count + 1, sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "%s: out of memory", file->path);
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        const char *leaf = "";
        int number = micro_number(entry->name, &leaf);
        bool whole = strlen(entry->name) == entry->name_length;
        if (number < 0 || !whole || (strcmp(leaf, leaves[0]) != 0 && strcmp(leaf, leaves[1]) != 0))
            return status_fail(STATUS_INPUT, "%s: tensor '%s', expected only micro.N/input_ids and micro.N/labels",
                               file->path, entry->name);
        if (strcmp(leaf, leaves[0]) == 0)
            (*out)[(*count)++].number = number;
    }
    if (*count == 0)
        return status_fail(STATUS_INPUT, "%s: no micro-batch, expected micro.0/input_ids", file->path);
    if (file->count != 2 * *count)
        for (int i = 0; i < file->count; i++) {
            const char *leaf;
            char name[NAME_MAX_LENGTH];
            int number = micro_number(file->entries[i].name, &leaf);
            snprintf(name, sizeof name, "micro.%d/input_ids", number);
            if (!safetensors_find(file, name))
                return status_fail(STATUS_INPUT, "%s: no tensor '%s', expected beside 'micro.%d/labels'", file->path,
                                   name, number);
        }
    qsort(*out, (size_t)*count, sizeof **out, compare_micros);
    return STATUS_OK;
}

/* A copy of one tensor: [B,T] I64, every element in [0, vocab) or `also`. */
static enum status take_ids(struct tensor *out, const struct safetensors *file, int number, const char *leaf,
                            int64_t vocab, int64_t also) {
    char name[NAME_MAX_LENGTH], shape[192];
    snprintf(name, sizeof name, "micro.%d/%s", number, leaf);
    const struct safetensors_entry *entry = safetensors_find(file, name);
    if (!entry)
        return status_fail(STATUS_INPUT, "%s: no tensor '%s', expected input_ids and labels of each micro-batch",
                           file->path, name);
    const struct tensor *from = &entry->tensor;
    if (from->dtype != DTYPE_I64)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has type %s, expected I64", file->path, name,
                           dtype_name(from->dtype));
    if (entry->ndim != 2)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has %d dims, expected [sequences,tokens]", file->path, name,
                           entry->ndim);
    if (from->shape[0] < 1 || from->shape[1] < 1)
        return status_fail(STATUS_INPUT, "%s: tensor '%s' has shape %s, expected at least one token", file->path, name,
                           shape_text(shape, sizeof shape, 2, from->shape));
    TRY(tensor_make(out, DTYPE_I64, 2, from->shape));
    memcpy(out->data, from->data, tensor_bytes(out));
    const int64_t *ids = out->data;
    for (int64_t i = 0; i < tensor_elements(out); i++)
        if ((ids[i] < 0 || ids[i] >= vocab) && ids[i] != also)
            return status_fail(
                STATUS_INPUT, "%s: %s[%" PRId64 ",%" PRId64 "] is %" PRId64 ", expected 0 to %" PRId64 "%s", file->path,
                name, i / out->shape[1], i % out->shape[1], ids[i], vocab - 1, also < 0 ? " or -100" : "");
    return STATUS_OK;
}

static enum status fill_micro(struct micro_batch *micro, const struct safetensors *file, int64_t vocab) {
    char ids[192], labels[192];
    TRY(take_ids(&micro->input_ids, file, micro->number, leaves[0], vocab, 0));
    TRY(take_ids(&micro->labels, file, micro->number, leaves[1], vocab, NO_LABEL));
    if (!tensor_same_shape(&micro->input_ids, &micro->labels))
        return status_fail(STATUS_INPUT, "%s: tensor 'micro.%d/labels' has shape %s, expected %s as input_ids",
                           file->path, micro->number, shape_text(labels, sizeof labels, 2, micro->labels.shape),
                           shape_text(ids, sizeof ids, 2, micro->input_ids.shape));
    micro->sequences = micro->input_ids.shape[0];
    micro->tokens = micro->input_ids.shape[1];
    micro->counted = count_labels(micro);
    return STATUS_OK;
}

enum status batches_open(struct micro_batch **out, int *count, const char *path, int64_t vocab) {
    struct safetensors file = {0};
    enum status status;
    *out = NULL;
    *count = 0;
    TRY_DONE(safetensors_open(&file, path));
    TRY_DONE(list_micros(out, count, &file));
    for (int i = 0; i < *count; i++)
        TRY_DONE(fill_micro(&(*out)[i], &file, vocab));
done:
    safetensors_close(&file);
    if (status != STATUS_OK) {
        batches_free(*out, *count);
        *out = NULL;
        *count = 0;
    }
    return status;
}

/* Labels are the ids, about a third of them (by hash) none; where none would be counted, that of sequence 0, token 1
 * is. */
static enum status make_micro(struct micro_batch *micro, uint64_t seed, enum data_kind data, int64_t vocab) {
    char name[NAME_MAX_LENGTH];
    const int64_t shape[] = {micro->sequences, micro->tokens};
    snprintf(name, sizeof name, "micro.%d/input_ids", micro->number);
    uint64_t id_stream = random_stream(name);
    snprintf(name, sizeof name, "micro.%d/labels", micro->number);
    uint64_t label_stream = random_stream(name);
    if (micro->sequences < 1 || micro->tokens < 2)
        return status_fail(STATUS_INPUT,
                           "micro-batch %d: %" PRId64 " sequences of %" PRId64 " tokens, expected at least 1 of 2",
                           micro->number, micro->sequences, micro->tokens);
    TRY(tensor_make(&micro->input_ids, DTYPE_I64, 2, shape));
    TRY(tensor_make(&micro->labels, DTYPE_I64, 2, shape));
    int64_t *ids = micro->input_ids.data, *labels = micro->labels.data;
    for (int64_t i = 0; i < tensor_elements(&micro->input_ids); i++) {
        bool none = random_below(seed, label_stream, (uint64_t)i, 3) == 0;
        ids[i] = data == DATA_INDEX ? i % vocab : random_below(seed, id_stream, (uint64_t)i, vocab);
        labels[i] = none ? NO_LABEL : ids[i];
    }
    if (count_labels(micro) == 0)
        labels[1] = ids[1];
    micro->counted = count_labels(micro);
    return STATUS_OK;
}

enum status batches_make(struct micro_batch **out, int count, const int64_t *sequences, const int64_t *tokens,
                         uint64_t seed, enum data_kind data, int64_t vocab) {
    *out = calloc((size_t)count + 1, sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "out of memory for %d micro-batches", count);
    for (int i = 0; i < count; i++) {
        struct micro_batch *micro = &(*out)[i];
        micro->number = i;
        micro->sequences = sequences[i];
        micro->tokens = tokens[i];
        enum status status = make_micro(micro, seed, data, vocab);
        if (status != STATUS_OK) {
            batches_free(*out, count);
            *out = NULL;
            return status;
        }
    }
    return STATUS_OK;
}

void batches_free(struct micro_batch *micros, int count) {
    for (int i = 0; micros && i < count; i++) {
        tensor_free(&micros[i].labels);
        tensor_free(&micros[i].input_ids);
    }
    free(micros);
}
