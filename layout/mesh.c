#include "layout/mesh.h"

#include <stdio.h>
#include <string.h>

int mesh_world(const struct mesh *mesh) {
    int world = 1;
    for (int axis = 0; axis < mesh->axes; axis++)
        world *= mesh->size[axis];
    return world;
}

int mesh_axis(const struct mesh *mesh, const char *name) {
    for (int axis = 0; axis < mesh->axes; axis++)
        if (strcmp(mesh->name[axis], name) == 0)
            return axis;
    return -1;
}

int mesh_axis_size(const struct mesh *mesh, const char *name) {
    int axis = mesh_axis(mesh, name);
    return axis < 0 ? 1 : mesh->size[axis];
}

int mesh_coordinate(const struct mesh *mesh, int axis, int rank) {
    for (int faster = mesh->axes - 1; faster > axis; faster--)
        rank /= mesh->size[faster];
    return rank % mesh->size[axis];
}

static bool same_group(const struct mesh *mesh, unsigned axes, int a, int b) {
    for (int axis = 0; axis < mesh->axes; axis++)
        if (!(axes >> axis & 1) && mesh_coordinate(mesh, axis, a) != mesh_coordinate(mesh, axis, b))
            return false;
    return true;
}

int mesh_group(const struct mesh *mesh, unsigned axes, int rank, int *members) {
    int count = 0;
    int world = mesh_world(mesh);
    for (int other = 0; other < world; other++)
        if (same_group(mesh, axes, rank, other))
            members[count++] = other;
    return count;
}

char *mesh_text(char *out, size_t size, const struct mesh *mesh) {
    size_t length = 0;
    snprintf(out, size, "{");
    for (int axis = 0; axis < mesh->axes; axis++) {
        length = strlen(out);
        snprintf(out + length, size - length, "%s%s: %d", axis ? ", " : "", mesh->name[axis], mesh->size[axis]);
    }
    length = strlen(out);
    snprintf(out + length, size - length, "}");
    return out;
}
