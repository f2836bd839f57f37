/* A mesh of ranks: named axes with sizes, row-major as PyTorch's DeviceMesh ({ep: 2, fsdp: 3}: rank = ep*3 + fsdp). */
#ifndef LAYOUT_MESH_H
#define LAYOUT_MESH_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESH_MAX_AXES 6
#define MESH_NAME_MAX 24

struct mesh {
    int axes;
    char name[MESH_MAX_AXES][MESH_NAME_MAX];
    int size[MESH_MAX_AXES];
};

int mesh_world(const struct mesh *mesh);                       /* product of the sizes */
int mesh_axis(const struct mesh *mesh, const char *name);      /* -1 if there is none */
int mesh_axis_size(const struct mesh *mesh, const char *name); /* 1 if there is none */
int mesh_coordinate(const struct mesh *mesh, int axis, int rank);
/* The world ranks that agree with `rank` on every axis that is not in the bit mask `axes` (bit i = axis i), ascending.
 * `members` has room for mesh_world ranks; returns how many. */
int mesh_group(const struct mesh *mesh, unsigned axes, int rank, int *members);
/* "{ep: 2, fsdp: 3}"; returns `out`. */
char *mesh_text(char *out, size_t size, const struct mesh *mesh);

#endif
