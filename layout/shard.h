/* A rank's piece of a tensor: local shape, and the global index behind every local element.
 *
 * A mesh axis stands once in a line, so the dims of a tensor are cut independently: the local element (i, j, ...) is
 * the global element (index[0][i], index[1][j], ...). All data movement of the project follows from these tables. */
#ifndef LAYOUT_SHARD_H
#define LAYOUT_SHARD_H

#include "layout/line.h"

struct shard {
    int ndim;
    int64_t shape[LINE_MAX_DIMS];  /* local */
    int64_t global[LINE_MAX_DIMS]; /* whole */
    int64_t *index[LINE_MAX_DIMS]; /* [shape[d]] global indices, ascending inside an axis' piece */
};

/* The piece of `rank` under a bound line. The caller frees it. */
enum status shard_make(struct shard *out, const struct line *line, const struct mesh *mesh, int rank);
/* A shard over rows chosen by hand on dim 0 (exchanged rows): the other dims are whole. Takes a copy of `rows`. */
enum status shard_of_rows(struct shard *out, int ndim, const int64_t *global, const int64_t *rows, int64_t count);
void shard_free(struct shard *shard); /* accepts {0} */
int64_t shard_elements(const struct shard *shard);
/* `inner` expressed inside `outer` (every element of inner must lie in outer, else STATUS_INTERNAL): out->index are
 * positions in the outer piece, out->global is the outer's local shape. A gather places each member's piece so; a
 * reduce-scatter cuts it so. */
enum status shard_within(struct shard *out, const struct shard *inner, const struct shard *outer);
/* whole [global] -> local [shape]: contiguous blocks of `element` bytes. */
void shard_cut(const struct shard *shard, size_t element, const void *whole, void *local);
/* local -> its places in whole. */
void shard_place(const struct shard *shard, size_t element, const void *local, void *whole);
/* Row-major global offset of local element i (row-major); `where` (may be NULL) gets the global index per dim. */
int64_t shard_global(const struct shard *shard, int64_t i, int64_t *where);

#endif
