#include "harness/trace.h"

#include "core/random.h"

#include <stdlib.h>
#include <string.h>

enum status trace_make(struct trace *out, int ranks) {
    *out = (struct trace){.ranks = ranks, .rank = calloc((size_t)ranks, sizeof *out->rank)};
    return out->rank == NULL ? status_fail(STATUS_MEMORY, "out of memory for a trace of %d ranks", ranks) : STATUS_OK;
}

void trace_free(struct trace *trace) {
    for (int r = 0; r < trace->ranks && trace->rank != NULL; r++) {
        free(trace->rank[r].record);
        free(trace->rank[r].slot);
    }
    for (int r = 0; r < trace->ranks && trace->files != NULL; r++)
        safetensors_close(&trace->files[r]);
    free(trace->rank);
    free(trace->files);
    *trace = (struct trace){0};
}

/* The slot of a name: its record number + 1, or 0 where it would go. The table is a power of two, at most half full. */
static int *slot_of(const struct trace_rank *rank, const char *name) {
    int mask = rank->slots - 1;
    for (int i = (int)(random_stream(name) & (uint64_t)mask);; i = (i + 1) & mask)
        if (rank->slot[i] == 0 || strcmp(rank->record[rank->slot[i] - 1].name, name) == 0)
            return &rank->slot[i];
}

static enum status grow(struct trace_rank *rank) {
    int slots = rank->slots == 0 ? 64 : 2 * rank->slots;
    struct trace_record *record = realloc(rank->record, (size_t)slots / 2 * sizeof *record);
    if (record != NULL)
        rank->record = record;
    int *slot = calloc((size_t)slots, sizeof *slot);
    if (record == NULL || slot == NULL) {
        free(slot);
        return status_fail(STATUS_MEMORY, "out of memory for a trace of %d records", rank->count);
    }
    free(rank->slot);
    rank->slot = slot;
    rank->slots = slots;
    for (int i = 0; i < rank->count; i++)
        *slot_of(rank, rank->record[i].name) = i + 1;
    return STATUS_OK;
}

enum status trace_add(struct trace *trace, int rank, const char *name, const struct tensor *view) {
    struct trace_rank *to = &trace->rank[rank];
    if (to->count == to->slots / 2)
        TRY(grow(to));
    int *slot = slot_of(to, name);
    if (*slot != 0)
        return status_fail(STATUS_INPUT, "rank %d: %s stands twice in the trace, expected once", rank, name);
    to->record[to->count] = (struct trace_record){.name = name, .tensor = *view};
    to->record[to->count].tensor.owns = false;
    *slot = ++to->count;
    return STATUS_OK;
}

const struct trace_record *trace_find(const struct trace *trace, int rank, const char *name) {
    const struct trace_rank *from = &trace->rank[rank];
    if (from->slots == 0)
        return NULL;
    int number = *slot_of(from, name);
    return number == 0 ? NULL : &from->record[number - 1];
}
