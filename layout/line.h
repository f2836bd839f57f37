/* One layout line: how a tensor is laid out and who owns what.
 *
 *     line = { dim } { "+[" item { "," item } "]" }          the empty line is a scalar
 *     dim  = axis [cut] | "(" axis [cut] { axis [cut] } ")" [cut]
 *     cut  = "[" item { "," item } "]"        item = mesh axis { "*" mesh axis } [":balanced"]
 *
 * `x[a,b]` splits by a first, then each piece by b; `x[a*b]` is one cut over the flattened axes, row-major in the order
 * written. Splitting is torch.chunk's: piece = ceil(n/k), the last pieces short or empty; `:balanced`: the first n mod
 * k pieces one longer. Cuts inside a parenthesis split first, those behind it split what is left of the flattened dim
 * as it lies in memory. A mesh axis that is not named replicates; `+[axis]` is a sum still owed. */
#ifndef LAYOUT_LINE_H
#define LAYOUT_LINE_H

#include "layout/mesh.h"

#include <stddef.h>

#define LINE_MAX_DIMS 8
#define LINE_MAX_AXES 4 /* of one dim */
#define LINE_MAX_CUTS 6 /* items of one bracket */
#define LINE_AXIS_MAX 32

struct line_cut { /* one item */
    int axes;     /* mesh axes multiplied, in the order written */
    int axis[MESH_MAX_AXES];
    bool balanced;
};

struct line_cuts {
    int count;
    struct line_cut cut[LINE_MAX_CUTS];
};

struct line_axis {
    char name[LINE_AXIS_MAX];
    struct line_cuts cuts;
    int64_t size; /* -1 until bound */
};

struct line_dim {
    int axes;
    bool parenthesis;
    struct line_axis axis[LINE_MAX_AXES];
    struct line_cuts cuts; /* behind the parenthesis */
};

struct line {
    int dims;
    struct line_dim dim[LINE_MAX_DIMS];
    struct line_cuts owed; /* +[...] */
};

struct axis_size { /* default sizes, from a layout file's `axes` */
    char name[LINE_AXIS_MAX];
    int64_t size;
};

/* `where` ("FILE:LINE", or the tensor's name) stands before the message. Unknown or repeated mesh axis, repeated axis
 * name, nested parenthesis, stray characters: STATUS_INPUT with column and what was expected. */
enum status line_parse(struct line *out, const char *text, const struct mesh *mesh, const char *where);
/* Gives every axis its size from the tensor's shape, then from `sizes`: at most one unknown per parenthesis. `shape`
 * may be NULL (sizes alone). A conflict, a wrong number of dims: STATUS_INPUT. */
enum status line_bind(struct line *line, int ndim, const int64_t *shape, const struct axis_size *sizes, int count,
                      const char *where);
/* The global shape of a bound line. */
void line_shape(const struct line *line, int64_t *shape);
/* Prints it back in the notation above. */
char *line_text(char *out, size_t size, const struct line *line, const struct mesh *mesh);

unsigned line_cut_axes(const struct line *line);  /* bit mask of mesh axes that cut */
unsigned line_owed_axes(const struct line *line); /* bit mask of `+[...]` */
/* The same line with every cut dropped that uses a mesh axis of the mask (what a gather over those axes undoes). */
struct line line_gathered(const struct line *line, unsigned axes);
/* The bound axis called `name` ("expert"): its dim and position; false if the line has none. */
bool line_find_axis(const struct line *line, const char *name, int *dim, int *position);
/* Text with every `[world` / `world` item replaced by the mesh's axes in mesh order: `batch[world]` ->
 * `batch[ep*fsdp]`. */
char *line_with_world(char *out, size_t size, const char *text, const struct mesh *mesh);

/* torch.chunk's rule: piece `index` of `pieces` of n elements; *begin and *count. balanced: the other rule. */
void chunk_range(int64_t n, int64_t pieces, int64_t index, bool balanced, int64_t *begin, int64_t *count);

#endif
