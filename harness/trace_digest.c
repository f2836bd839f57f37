#include "harness/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two 64-bit lanes, mixed as MurmurHash3 x64_128 (public domain) mixes its blocks; not a cryptographic hash. */
struct lanes {
    uint64_t a, b;
};

static uint64_t rotate(uint64_t x, int by) {
    return x << by | x >> (64 - by);
}

static void mix(struct lanes *lanes, uint64_t x, uint64_t y) {
    const uint64_t c1 = UINT64_C(0x87c37b91114253d5), c2 = UINT64_C(0x4cf5ad432745937f);
    lanes->a ^= rotate(x * c1, 31) * c2;
    lanes->a = (rotate(lanes->a, 27) + lanes->b) * 5 + 0x52dce729;
    lanes->b ^= rotate(y * c2, 33) * c1;
    lanes->b = (rotate(lanes->b, 31) + lanes->a) * 5 + 0x38495ab5;
}

static void mix_bytes(struct lanes *lanes, const void *data, size_t bytes) {
    const char *from = data;
    uint64_t block[2];
    mix(lanes, bytes, 0);
    for (; bytes >= sizeof block; bytes -= sizeof block, from += sizeof block) {
        memcpy(block, from, sizeof block);
        mix(lanes, block[0], block[1]);
    }
    if (bytes > 0) {
        memset(block, 0, sizeof block);
        memcpy(block, from, bytes);
        mix(lanes, block[0], block[1]);
    }
}

static uint64_t finish(uint64_t x) {
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static int by_name(const void *a, const void *b) {
    const struct trace_record *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void mix_record(struct lanes *lanes, const struct trace_record *record) {
    const struct tensor *tensor = &record->tensor;
    mix_bytes(lanes, record->name, strlen(record->name));
    mix(lanes, (uint64_t)tensor->dtype, (uint64_t)tensor->ndim);
    mix_bytes(lanes, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
    mix_bytes(lanes, tensor->data, tensor_bytes(tensor));
}

static void mix_trace(struct lanes *lanes, const struct trace *trace) {
    for (int r = 0; r < trace->ranks; r++) {
        const struct trace_rank *rank = &trace->rank[r];
        const struct trace_record **sorted = malloc(((size_t)rank->count + 1) * sizeof *sorted);
        if (sorted == NULL)
            abort(); /* a digest of less than all would be a lie */
        for (int i = 0; i < rank->count; i++)
            sorted[i] = &rank->record[i];
        qsort(sorted, (size_t)rank->count, sizeof *sorted, by_name);
        mix(lanes, (uint64_t)r, (uint64_t)rank->count);
        for (int i = 0; i < rank->count; i++)
            mix_record(lanes, sorted[i]);
        free(sorted);
    }
}

void traces_digest(const struct trace *trace, int count, char out[33]) {
    struct lanes lanes = {UINT64_C(0x9e3779b97f4a7c15), (uint64_t)trace->ranks};
    for (int i = 0; i < count; i++) {
        if (i > 0)
            mix(&lanes, (uint64_t)i, (uint64_t)trace[i].ranks);
        mix_trace(&lanes, &trace[i]);
    }
    uint64_t a = finish(lanes.a + lanes.b), b = finish(lanes.b ^ rotate(lanes.a, 32));
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, a, b);
}

void trace_digest(const struct trace *trace, char out[33]) {
    traces_digest(trace, 1, out);
}
