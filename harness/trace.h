/* A trace in memory: what every rank of a world recorded in one case, by name.
 *
 * On the local engine the records lie in a shared anonymous mapping that the ranks fill; on mpi each rank writes a
 * safetensors file and the harness maps it. Either way a trace is [rank] -> ordered records with lookup by name, and
 * borrows its data from the world (or from mapped files) until trace_free. */
#ifndef HARNESS_TRACE_H
#define HARNESS_TRACE_H

#include "core/safetensors.h"

struct trace_record {
    const char *name;
    struct tensor tensor; /* a view */
};

struct trace_rank {
    int count;
    struct trace_record *record; /* in the order they were recorded */
    int slots;                   /* private: hash table of record numbers */
    int *slot;
};

struct trace {
    int ranks;
    struct trace_rank *rank;
    struct safetensors *files; /* [ranks] behind the views, or NULL */
};

enum status trace_make(struct trace *out, int ranks);
/* Names must stay valid. A name that stands twice on a rank is STATUS_INPUT. */
enum status trace_add(struct trace *trace, int rank, const char *name, const struct tensor *view);
const struct trace_record *trace_find(const struct trace *trace, int rank, const char *name); /* NULL if absent */
void trace_free(struct trace *trace);
/* Rank files of a dump: FOLDER/rank00000.safetensors ... (docs/formats.md): records as tensors, metadata schema,
 * rank, world, mesh, and `layout`, one JSON object in recorded order. `layout_of` gives a record's layout line. */
enum status trace_write_rank(const char *path, const struct trace_rank *rank, const struct safetensors_pair *metadata,
                             int pairs);
enum status trace_open(struct trace *out, const char *folder, int ranks);

/* One rank's sink in a shared mapping. Records of all ranks share the arena; memory is touched only as it is used. */
struct arena;
enum status arena_make(struct arena **out, size_t bytes,
                       int ranks); /* before the ranks are forked; bytes are virtual */
void arena_free(struct arena *arena);
void arena_reset(struct arena *arena); /* forget all records and give the pages back; no rank may be writing */
enum status arena_record(struct arena *arena, int rank, const char *name, const struct tensor *data); /* copies */
enum status arena_trace(struct arena *arena, struct trace *out); /* views of all records */

/* A digest of a trace's bits (names, shapes, bytes; ranks in order): equal traces, equal digest. 32 hex digits. */
void trace_digest(const struct trace *trace, char out[33]);
/* Of several traces in their order; of one, its own. */
void traces_digest(const struct trace *trace, int count, char out[33]);

#endif
