#include "harness/trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_ALIGN ((size_t)64)
#define ARENA_PAGE ((size_t)4096)

struct arena_record { /* in the mapping; name and data follow */
    size_t next;      /* offset of the rank's next record, 0: none */
    size_t name, data;
    struct tensor tensor; /* its data pointer is not used: processes map alike, but an offset says so */
};

struct arena_list { /* one rank's records; written by that rank alone */
    _Alignas(64) size_t first;
    size_t last;
};

struct arena_shared {
    _Atomic size_t used; /* offset of the next free byte */
    struct arena_list list[];
};

struct arena {
    struct arena_shared *shared;
    size_t bytes, start; /* records begin at `start`, on a page */
    int ranks;
};

static size_t align(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

enum status arena_make(struct arena **out, size_t bytes, int ranks) {
    struct arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for the records of %d ranks", ranks);
    arena->ranks = ranks;
    arena->start = align(sizeof *arena->shared + (size_t)ranks * sizeof *arena->shared->list, ARENA_PAGE);
    arena->bytes = align(arena->start + bytes, ARENA_PAGE);
    arena->shared = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena->shared == MAP_FAILED) {
        free(arena);
        return status_fail(STATUS_MEMORY, "no address space for records of %zu bytes", bytes);
    }
    atomic_store(&arena->shared->used, arena->start);
    *out = arena;
    return STATUS_OK;
}

void arena_free(struct arena *arena) {
    if (arena == NULL)
        return;
    munmap(arena->shared, arena->bytes);
    free(arena);
}

void arena_reset(struct arena *arena) {
    size_t used = atomic_load(&arena->shared->used);
    if (used > arena->bytes)
        used = arena->bytes;
    if (used > arena->start)
        madvise((char *)arena->shared + arena->start, align(used - arena->start, ARENA_PAGE), MADV_REMOVE);
    memset(arena->shared->list, 0, (size_t)arena->ranks * sizeof *arena->shared->list);
    atomic_store(&arena->shared->used, arena->start);
}

static struct arena_record *record_at(const struct arena *arena, size_t offset) {
    return (void *)((char *)arena->shared + offset);
}

static void list_append(struct arena *arena, int rank, size_t offset) {
    struct arena_list *list = &arena->shared->list[rank];
    if (list->last == 0)
        list->first = offset;
    else
        record_at(arena, list->last)->next = offset;
    list->last = offset;
}

enum status arena_record(struct arena *arena, int rank, const char *name, const struct tensor *data) {
    size_t name_bytes = strlen(name) + 1, bytes = tensor_bytes(data);
    size_t name_at = sizeof(struct arena_record), data_at = align(name_at + name_bytes, ARENA_ALIGN);
    size_t need = align(data_at + bytes, ARENA_ALIGN);
    size_t offset = atomic_fetch_add(&arena->shared->used, need);
    if (need < bytes || offset + need > arena->bytes || offset + need < offset)
        return status_fail(STATUS_MEMORY, "%s: the records of this world need more than %zu bytes", name, arena->bytes);
    struct arena_record *record = record_at(arena, offset);
    *record = (struct arena_record){.name = offset + name_at, .data = offset + data_at, .tensor = *data};
    record->tensor.data = NULL;
    record->tensor.owns = false;
    char *base = (char *)arena->shared;
    memcpy(base + record->name, name, name_bytes);
    if (bytes > 0)
        memcpy(base + record->data, data->data, bytes);
    list_append(arena, rank, offset);
    return STATUS_OK;
}

enum status arena_trace(struct arena *arena, struct trace *out) {
    TRY(trace_make(out, arena->ranks));
    char *base = (char *)arena->shared;
    for (int r = 0; r < arena->ranks; r++)
        for (size_t at = arena->shared->list[r].first; at != 0; at = record_at(arena, at)->next) {
            struct tensor view = record_at(arena, at)->tensor;
            view.data = base + record_at(arena, at)->data;
            enum status status = trace_add(out, r, base + record_at(arena, at)->name, &view);
            if (status != STATUS_OK) {
                trace_free(out);
                return status;
            }
        }
    return STATUS_OK;
}
