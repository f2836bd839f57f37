/* Where the pieces of a storage point lie: its layout line under this case, every rank's piece, who holds the same
 * piece and which pieces add up. All of it follows from the line; nothing here knows a shape of its own. */
#ifndef HARNESS_JUDGE_PLACE_H
#define HARNESS_JUDGE_PLACE_H

#include "core/job.h"
#include "core/points.h"
#include "layout/sharding.h"

#define PLACE_TEXT 320

struct route;

struct place {
    char text[PLACE_TEXT]; /* the line as it is printed */
    struct line line;      /* bound */
    int ndim;
    int64_t shape[LINE_MAX_DIMS]; /* whole */
    int64_t elements;
    int world;
    int *first;                 /* [world] the lowest rank that holds the same piece; several: replicas */
    struct shard *shard;        /* [world] only where first[rank] == rank; see place_shard */
    int *turn;                  /* [world] position in the group whose pieces add up (`+[...]`) */
    int turns;                  /* pieces of a sum: 1 unless the line owes one */
    unsigned owed;              /* mesh axes of the sum */
    int64_t held;               /* elements over all ranks */
    const struct route *route;  /* exchanged rows: what each row is; else NULL */
    enum activation activation; /* activation, key, batch and shape: the cache's key */
    const char *key;
    int64_t batch; /* sequences of the micro-batch */
    struct place *next;
};

struct places { /* of one case */
    const struct job *job;
    const struct mesh *mesh;
    const struct layout_file *layout;
    int world;
    struct place **param; /* [inventory][3 tensors][3 forms], made when first asked for */
    struct place *others; /* activations, scalars, exports */
};

enum status places_make(struct places *out, const struct job *job, const struct mesh *mesh,
                        const struct layout_file *layout);
void places_free(struct places *places); /* accepts {0} */

/* Every parameter and every slot tensor finds its place, and smaller groups of job->fsdp divide its gather; else
 * STATUS_INPUT (which names a layout file's line). */
enum status places_check(const struct places *places);

/* The place of a point whose whole shape is given; not for exchanged rows. Borrowed from the cache. */
enum status place_find(struct places *places, const struct point *point, int ndim, const int64_t *shape,
                       const struct place **out);
/* The place of an exchanged tensor under the choices of `route`; the caller frees it (judge_place_free). */
enum status place_rows(struct place *out, const struct places *places, const struct point *point, int ndim,
                       const int64_t *shape, const struct route *route);
void judge_place_free(struct place *place); /* what it holds, not the struct; accepts {0} */
const struct shard *place_shard(const struct place *place, int rank);

/* The line's text without a shape, for dumps. */
enum status place_line(struct places *places, const struct point *point, char *out, size_t size);

/* The adapter target behind an export's PEFT key; *b whether it is lora_B. NULL if the tenant has none of that key. */
const struct adapter_target *export_target(const struct job *job, const struct point *point, bool *b);
/* A parameter's slot shape: A [E,R,in] or [R,in], B [E,out,R] or [out,R]; returns ndim. */
int slot_shape(const struct param *param, bool b, int64_t max_rank, int64_t *shape);

#endif
