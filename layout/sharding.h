/* How every parameter of a run is laid out: the built-in rule of EP + FSDP2, or a layout file.
 *
 * Built in: EP cuts packed experts (and their slots) into contiguous blocks, FSDP2 the local experts over `fsdp`: on
 * dim 1 where that dim divides, else on dim 0 (`expert[ep,fsdp]`, pieces may be empty), tensor by tensor; everything
 * else on dim 0 over the whole world in mesh order (`out[ep*fsdp] in`). A mesh axis `replicate` cuts nothing. Slot
 * tensors are [E,R,in] and [E,out,R], or [R,in] and [out,R].
 *
 * A layout file may say otherwise as long as experts are cut by `ep` first and every other cut is undone by a gather
 * before use; else STATUS_INPUT with the line. */
#ifndef LAYOUT_SHARDING_H
#define LAYOUT_SHARDING_H

#include "core/fsdp.h"
#include "core/yaml.h"
#include "layout/shard.h"

struct layout_rule {
    char *glob;
    char *line;
    int at; /* line of the file */
};

/* A layout file (docs/formats.md). This version keeps mesh, axes and tensors; the other sections are checked
 * for their names only. */
struct layout_file {
    char *path;
    struct mesh mesh; /* axes 0 if the file names none */
    int sizes;
    struct axis_size *size;
    int rules;
    struct layout_rule *rule; /* the first glob that matches wins */
};

enum status layout_file_open(struct layout_file *out, const char *path);
void layout_file_close(struct layout_file *file);
const struct layout_rule *layout_file_rule(const struct layout_file *file,
                                           const char *tensor); /* NULL if none matches */

/* One tensor's place in a run. */
struct placed {
    struct line line;     /* as it is stored: shards of parameters, slots, gradients, state */
    struct line gathered; /* as it is used: every cut undone but the experts' `ep` */
    unsigned gather_axes; /* mesh axes of the gather (mask); 0: nothing to gather */
    unsigned owed_axes;   /* mesh axes over which a partial gradient is owed: all but the experts' `ep` */
};

/* `file` NULL: the built-in rule, with `dim` for the experts (STATUS_INPUT where EXPERT_DIM_1 does not divide). `axes`
 * are the tensor's logical axes without cuts ("expert (half inter) hidden"), `expert` whether dim 0 is the expert axis
 * of a packed tensor. */
enum status sharding_place(struct placed *out, const struct mesh *mesh, const struct layout_file *file,
                           enum expert_dim expert_dim, const char *tensor, int ndim, const int64_t *shape,
                           const char *axes, bool expert);

#endif
