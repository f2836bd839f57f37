#include "layout/sharding.h"

#include <stdio.h>
#include <string.h>

#define WHERE_MAX 4608

/* Packed experts hold gate and up one behind the other: where the model writes `half`, it is 2. */
static const struct axis_size halves = {"half", 2};

/* The tensor's own axes, sized. */
static enum status model_line(struct line *out, const struct mesh *mesh, const char *tensor, int ndim,
                              const int64_t *shape, const char *axes) {
    TRY(line_parse(out, axes, mesh, tensor));
    return line_bind(out, ndim, shape, &halves, 1, tensor);
}

/* Where a cut of the whole dim stands. */
static struct line_cuts *cuts_of_dim(struct line_dim *dim) {
    return dim->parenthesis ? &dim->cuts : &dim->axis[0].cuts;
}

static void add_cut(struct line_cuts *cuts, int mesh_axis) {
    if (mesh_axis >= 0)
        cuts->cut[cuts->count++] = (struct line_cut){.axes = 1, .axis = {mesh_axis}};
}

/* expert[ep] (half inter)[fsdp] hidden; expert[ep,fsdp] ... where fsdp does not divide dim 1, or dim 0 is asked for. */
static enum status cut_experts(struct line *line, const struct mesh *mesh, enum expert_dim dim, const char *tensor,
                               int ndim, const int64_t *shape) {
    struct line_cuts *experts = &line->dim[0].axis[0].cuts;
    int fsdp = mesh_axis_size(mesh, "fsdp");
    bool divides = ndim > 1 && shape[1] % fsdp == 0;
    if (dim == EXPERT_DIM_1 && !divides)
        return status_fail(STATUS_INPUT, "%s: fsdp = %d does not divide dim 1 of size %lld", tensor, fsdp,
                           ndim > 1 ? (long long)shape[1] : 0);
    add_cut(experts, mesh_axis(mesh, "ep"));
    add_cut(divides && dim != EXPERT_DIM_0 ? cuts_of_dim(&line->dim[1]) : experts, mesh_axis(mesh, "fsdp"));
    return STATUS_OK;
}

/* out[ep*fsdp] in: one cut over the whole world in mesh order; replicas hold the same. */
static void cut_by_world(struct line *line, const struct mesh *mesh) {
    struct line_cut world = {0};
    for (int axis = 0; axis < mesh->axes; axis++)
        if (axis != mesh_axis(mesh, "replicate"))
            world.axis[world.axes++] = axis;
    if (line->dims > 0 && world.axes > 0)
        *cuts_of_dim(&line->dim[0]) = (struct line_cuts){.count = 1, .cut = {world}};
}

static int64_t size_in_file(const struct layout_file *file, const char *name) {
    for (int i = 0; i < file->sizes; i++)
        if (strcmp(file->size[i].name, name) == 0)
            return file->size[i].size;
    return -1;
}

static int64_t size_in_model(const struct line *model, const char *name) {
    int dim, position;
    return line_find_axis(model, name, &dim, &position) ? model->dim[dim].axis[position].size : -1;
}

/* Sizes for the axes of a file's line: the file's; inside a parenthesis that leaves two or more open, the model's. */
static int sizes_for(struct axis_size *out, const struct line *line, const struct layout_file *file,
                     const struct line *model) {
    int count = 0;
    for (int d = 0; d < line->dims; d++) {
        const struct line_dim *dim = &line->dim[d];
        int open = 0;
        for (int a = 0; a < dim->axes; a++)
            open += size_in_file(file, dim->axis[a].name) < 0;
        for (int a = 0; a < dim->axes; a++) {
            int64_t size = size_in_file(file, dim->axis[a].name);
            if (size < 0 && open > 1)
                size = size_in_model(model, dim->axis[a].name);
            memcpy(out[count].name, dim->axis[a].name, LINE_AXIS_MAX);
            out[count].size = size;
            count += size >= 0;
        }
    }
    return count;
}

/* `ep` alone is the first item on the first axis of dim 0. */
static bool led_by_ep(const struct line *line, const struct mesh *mesh) {
    if (line->dims == 0)
        return false;
    const struct line_cuts *cuts = &line->dim[0].axis[0].cuts;
    return cuts->count > 0 && cuts->cut[0].axes == 1 && cuts->cut[0].axis[0] == mesh_axis(mesh, "ep");
}

/* What `run` asks of a file's line (see sharding.h). */
static enum status check_runnable(const struct line *line, const struct mesh *mesh, bool expert, const char *where) {
    int ep = mesh_axis_size(mesh, "ep"), dim, position;
    if (line->owed.count)
        return status_fail(STATUS_INPUT, "%s: a parameter owes no sum, expected a line without +[...]", where);
    if (!expert || ep == 1)
        return STATUS_OK;
    if (!line_find_axis(line, "expert", &dim, &position) || dim != 0 || position != 0 || !led_by_ep(line, mesh))
        return status_fail(STATUS_INPUT,
                           "%s: experts are not cut by ep first, expected dim 0 to begin with expert[ep] or "
                           "expert[ep,...]",
                           where);
    if (line->dim[0].axis[0].size % ep != 0)
        return status_fail(STATUS_INPUT, "%s: ep = %d does not divide the axis 'expert' of size %lld", where, ep,
                           (long long)line->dim[0].axis[0].size);
    return STATUS_OK;
}

static enum status place_by_file(struct line *line, const struct line *model, const struct mesh *mesh,
                                 const struct layout_file *file, const char *tensor, int ndim, const int64_t *shape,
                                 bool expert) {
    struct axis_size sizes[LINE_MAX_DIMS * LINE_MAX_AXES];
    char where[WHERE_MAX];
    const struct layout_rule *rule = layout_file_rule(file, tensor);
    if (!rule)
        return status_fail(STATUS_INPUT, "%s: no line of 'tensors' is for '%s', expected a glob that matches it",
                           file->path, tensor);
    snprintf(where, sizeof where, "%s:%d", file->path, rule->at);
    TRY(line_parse(line, rule->line, mesh, where));
    snprintf(where, sizeof where, "%s:%d: %s", file->path, rule->at, tensor);
    TRY(line_bind(line, ndim, shape, sizes, sizes_for(sizes, line, file, model), where));
    return check_runnable(line, mesh, expert, where);
}

/* The gather undoes every cut but the experts' leading `ep`; a mesh axis of size 1 has nothing to gather. */
static void derive_gather(struct placed *out, const struct mesh *mesh, bool expert) {
    int ep = mesh_axis(mesh, "ep");
    unsigned kept = expert && ep >= 0 && led_by_ep(&out->line, mesh) ? 1U << ep : 0;
    unsigned undone = line_cut_axes(&out->line) & ~kept;
    out->gathered = line_gathered(&out->line, undone);
    for (int axis = 0; axis < mesh->axes; axis++) {
        if (mesh->size[axis] > 1)
            out->gather_axes |= undone & 1U << axis;
        if (!expert || axis != ep)
            out->owed_axes |= 1U << axis;
    }
}

enum status sharding_place(struct placed *out, const struct mesh *mesh, const struct layout_file *file,
                           enum expert_dim expert_dim, const char *tensor, int ndim, const int64_t *shape,
                           const char *axes, bool expert) {
    struct line model;
    int ep = mesh_axis_size(mesh, "ep");
    *out = (struct placed){0};
    TRY(model_line(&model, mesh, tensor, ndim, shape, axes));
    if (expert && shape[0] % ep != 0)
        return status_fail(STATUS_INPUT, "%s: ep = %d does not divide %lld experts", tensor, ep, (long long)shape[0]);
    if (file) {
        TRY(place_by_file(&out->line, &model, mesh, file, tensor, ndim, shape, expert));
    } else {
        out->line = model;
        if (expert)
            TRY(cut_experts(&out->line, mesh, expert_dim, tensor, ndim, shape));
        else
            cut_by_world(&out->line, mesh);
    }
    derive_gather(out, mesh, expert);
    return STATUS_OK;
}
