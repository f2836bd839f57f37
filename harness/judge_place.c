#include "harness/judge_place.h"

#include "harness/judge_route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum form {
    FORM_STORED,
    FORM_GATHERED,
    FORM_OWED,
    FORMS
};
enum {
    TENSOR_WEIGHT,
    TENSOR_A,
    TENSOR_B,
    TENSORS
};

static const struct inventory *inventory_of(const struct places *places) {
    return checkpoint_inventory(places->job->model);
}

enum status places_make(struct places *out, const struct job *job, const struct mesh *mesh,
                        const struct layout_file *layout) {
    *out = (struct places){.job = job, .mesh = mesh, .layout = layout, .world = mesh_world(mesh)};
    size_t count = (size_t)inventory_of(out)->count * TENSORS * FORMS;
    out->param = calloc(count ? count : 1, sizeof *out->param);
    return out->param ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

void judge_place_free(struct place *place) {
    for (int rank = 0; place->shard && rank < place->world; rank++)
        shard_free(&place->shard[rank]);
    free(place->shard);
    free(place->first);
    free(place->turn);
    place->shard = NULL;
    place->first = place->turn = NULL;
}

static void place_release(struct place *place) {
    if (place)
        judge_place_free(place);
    free(place);
}

void places_free(struct places *places) {
    if (places->param)
        for (int i = 0; i < inventory_of(places)->count * TENSORS * FORMS; i++)
            place_release(places->param[i]);
    free(places->param);
    for (struct place *at = places->others, *next; at; at = next) {
        next = at->next;
        place_release(at);
    }
    *places = (struct places){0};
}

const struct shard *place_shard(const struct place *place, int rank) {
    return &place->shard[place->first[rank]];
}

const struct adapter_target *export_target(const struct job *job, const struct point *point, bool *b) {
    for (int t = 0; t < job->tenants; t++) {
        if (!point->tenant || strcmp(job->tenant[t].name, point->tenant) != 0)
            continue;
        const struct adapter *adapter = &job->tenant[t].adapter;
        for (int i = 0; i < adapter->count; i++) {
            *b = strcmp(adapter->targets[i].key_b, point->scalar) == 0;
            if (*b || strcmp(adapter->targets[i].key_a, point->scalar) == 0)
                return &adapter->targets[i];
        }
    }
    return NULL;
}

int slot_shape(const struct param *param, bool b, int64_t max_rank, int64_t *shape) {
    int ndim = param->ndim;
    for (int d = 0; d < ndim; d++)
        shape[d] = param->shape[d];
    shape[b ? ndim - 1 : ndim - 2] = max_rank;
    return ndim;
}

/* Splits "expert (half inter) hidden" into its dims; returns how many. */
static int split_dims(const char *axes, char dims[LINE_MAX_DIMS][64]) {
    int count = 0;
    while (*axes && count < LINE_MAX_DIMS) {
        while (*axes == ' ')
            axes++;
        if (!*axes)
            break;
        size_t length = *axes == '(' ? strcspn(axes, ")") + 1 : strcspn(axes, " ");
        snprintf(dims[count++], 64, "%.*s", (int)length, axes);
        axes += length;
    }
    return count;
}

/* Logical axes of a slot tensor, from its parameter's: [.., OUT, IN] -> A [.., rank, IN], B [.., OUT, rank]. */
static void slot_axes(const struct param *param, bool b, char *out, size_t size) {
    char dims[LINE_MAX_DIMS][64];
    int count = split_dims(param->axes, dims);
    snprintf(dims[b ? count - 1 : count - 2], 64, "rank");
    size_t used = 0;
    for (int d = 0; d < count && used < size; d++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", d ? " " : "", dims[d]);
}

/* The flat form of PEFT: expert slow in A, expert fast in B. */
static void flat_axes(const struct adapter_target *target, bool b, char *out, size_t size) {
    char dims[LINE_MAX_DIMS][64];
    int count = split_dims(target->param->axes, dims);
    const char *rank = !target->param->expert ? "rank" : b ? "(rank expert)" : "(expert rank)";
    if (b)
        snprintf(out, size, "%s %s", dims[count - 2], rank);
    else
        snprintf(out, size, "%s %s", rank, dims[count - 1]);
}

/* Who holds the same piece, whose pieces add up, and every distinct piece. */
static enum status place_pieces(struct place *place, const struct mesh *mesh) {
    size_t world = (size_t)place->world;
    unsigned all = (1u << mesh->axes) - 1;
    unsigned copies = all & ~line_cut_axes(&place->line) & ~place->owed;
    int *members = malloc(world * sizeof *members);
    place->first = malloc(world * sizeof *place->first);
    place->turn = malloc(world * sizeof *place->turn);
    place->shard = calloc(world, sizeof *place->shard);
    enum status status = STATUS_OK;
    if (!members || !place->first || !place->turn || !place->shard) {
        status = status_fail(STATUS_MEMORY, "out of memory");
        goto done;
    }
    place->turns = 1;
    for (int rank = 0; rank < place->world; rank++) {
        mesh_group(mesh, copies, rank, members);
        place->first[rank] = members[0];
        place->turn[rank] = 0;
        int group = mesh_group(mesh, place->owed, rank, members);
        while (members[place->turn[rank]] != rank)
            place->turn[rank]++;
        place->turns = group > place->turns ? group : place->turns;
        if (place->first[rank] == rank)
            TRY_DONE(shard_make(&place->shard[rank], &place->line, mesh, rank));
        place->held += shard_elements(place_shard(place, rank));
    }
done:
    free(members);
    return status;
}

static enum status place_finish(struct place *place, const struct places *places, int ndim, const int64_t *shape) {
    place->world = places->world;
    place->ndim = ndim;
    place->elements = 1;
    for (int d = 0; d < ndim; d++) {
        place->shape[d] = shape[d];
        place->elements *= shape[d];
    }
    place->owed = line_owed_axes(&place->line);
    line_text(place->text, sizeof place->text, &place->line, places->mesh);
    return STATUS_OK;
}

static void owe(struct line *line, unsigned axes, const struct mesh *mesh) {
    for (int axis = 0; axis < mesh->axes; axis++)
        if (axes & (1u << axis))
            line->owed.cut[line->owed.count++] = (struct line_cut){.axes = 1, .axis = {axis}};
}

static int param_tensor(const struct point *point) {
    return point->part == PART_LORA_A ? TENSOR_A : point->part == PART_LORA_B ? TENSOR_B : TENSOR_WEIGHT;
}

static enum form param_form(const struct point *point) {
    switch (point->phase) {
    case PHASE_GATHER:
    case PHASE_REGATHER:
    case PHASE_DELTA:
        return FORM_GATHERED;
    case PHASE_BACKWARD:
        return FORM_OWED;
    default:
        return FORM_STORED;
    }
}

static enum status param_placed(struct placed *out, const struct places *places, const struct param *param,
                                int tensor) {
    char name[PARAM_NAME_MAX + 16], axes[PLACE_TEXT];
    int64_t shape[LINE_MAX_DIMS] = {0};
    int ndim = param->ndim;
    snprintf(name, sizeof name, "%s%s", param->name,
             tensor == TENSOR_A   ? ".lora_A"
             : tensor == TENSOR_B ? ".lora_B"
                                  : "");
    if (tensor == TENSOR_WEIGHT) {
        snprintf(axes, sizeof axes, "%s", param->axes);
        for (int d = 0; d < ndim; d++)
            shape[d] = param->shape[d];
    } else {
        slot_axes(param, tensor == TENSOR_B, axes, sizeof axes);
        slot_shape(param, tensor == TENSOR_B, places->job->max_rank, shape);
    }
    return sharding_place(out, places->mesh, places->layout, places->job->fsdp.expert_dim, name, ndim, shape, axes,
                          param->expert);
}

static enum status param_line(struct line *out, const struct places *places, const struct param *param, int tensor,
                              enum form form) {
    struct placed placed = {0};
    TRY(param_placed(&placed, places, param, tensor));
    *out = form == FORM_STORED ? placed.line : placed.gathered;
    if (form == FORM_OWED)
        owe(out, placed.owed_axes, places->mesh);
    return STATUS_OK;
}

/* Ranks of the gather; a mesh axis of size 1 is not among its axes. */
static int gather_size(const struct placed *placed, const struct mesh *mesh) {
    int size = 1;
    for (int axis = 0; axis < mesh->axes; axis++)
        if (placed->gather_axes >> axis & 1)
            size *= mesh->size[axis];
    return size;
}

enum status places_check(const struct places *places) {
    const struct inventory *inventory = inventory_of(places);
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        bool slots = job_targets(places->job, param);
        int block = places->job->fsdp.reshard_group;
        for (int tensor = TENSOR_WEIGHT; tensor < TENSORS; tensor++) {
            struct placed placed;
            if (tensor == TENSOR_WEIGHT ? param->alias >= 0 : !slots)
                continue;
            TRY(param_placed(&placed, places, param, tensor));
            int size = gather_size(&placed, places->mesh);
            if (block > 0 && size > 1 && size % block != 0)
                return status_fail(STATUS_INPUT, "reshard_after_forward %d does not divide the %d ranks that gather %s",
                                   block, size, param->name);
        }
    }
    return STATUS_OK;
}

static enum status place_param(struct places *places, const struct point *point, int ndim, const int64_t *shape,
                               const struct place **out) {
    int tensor = param_tensor(point);
    enum form form = param_form(point);
    int index = inventory_index(inventory_of(places), point->param);
    struct place **entry = &places->param[(index * TENSORS + tensor) * FORMS + (int)form];
    if (!*entry) {
        *entry = calloc(1, sizeof **entry);
        if (!*entry)
            return status_fail(STATUS_MEMORY, "out of memory");
        TRY(param_line(&(*entry)->line, places, point->param, tensor, form));
        TRY(place_finish(*entry, places, ndim, shape));
        TRY(place_pieces(*entry, places->mesh));
    }
    *out = *entry;
    if (ndim != (*out)->ndim || (ndim && memcmp(shape, (*out)->shape, (size_t)ndim * sizeof *shape) != 0))
        return status_fail(STATUS_INTERNAL, "%s: announced in two shapes", point->param->name);
    return STATUS_OK;
}

static int64_t sequences_of(const struct places *places, const struct point *point) {
    for (int m = 0; m < places->job->micros; m++)
        if (places->job->micro[m].number == point->micro)
            return places->job->micro[m].sequences;
    return -1;
}

/* Text of the line of anything but a parameter, and the sizes that its shape alone does not give. */
static enum status other_text(const struct places *places, const struct point *point, char *out, size_t size,
                              struct axis_size *known, int *count) {
    *count = 0;
    if (point->activation != ACT_NONE) {
        line_with_world(out, size, activation_table[point->activation].line, places->mesh);
        if (strstr(out, "(batch"))
            known[(*count)++] = (struct axis_size){"batch", sequences_of(places, point)};
        if (strstr(out, "half"))
            known[(*count)++] = (struct axis_size){"half", 2};
        return STATUS_OK;
    }
    if (point->phase == PHASE_EXPORT) {
        bool b;
        const struct adapter_target *target = export_target(places->job, point, &b);
        if (!target)
            return status_fail(STATUS_INTERNAL, "%s: an export of no target", point->scalar);
        flat_axes(target, b, out, size);
        if (target->param->expert)
            known[(*count)++] = (struct axis_size){"expert", target->experts};
        if (strstr(out, "half"))
            known[(*count)++] = (struct axis_size){"half", 2};
        return STATUS_OK;
    }
    out[0] = '\0';
    if (point->phase == PHASE_LOSS_SUM) {
        struct line line = {0};
        owe(&line, (1u << places->mesh->axes) - 1, places->mesh);
        line_text(out, size, &line, places->mesh);
    }
    return STATUS_OK;
}

static enum status other_line(struct place *out, const struct places *places, const struct point *point, int ndim,
                              const int64_t *shape) {
    struct axis_size known[4];
    int count;
    char text[PLACE_TEXT], tensor[POINT_NAME_MAX];
    TRY(other_text(places, point, text, sizeof text, known, &count));
    point_tensor(tensor, point);
    TRY(line_parse(&out->line, text, places->mesh, tensor));
    TRY(line_bind(&out->line, ndim, shape, known, count, tensor));
    return place_finish(out, places, ndim, shape);
}

/* What tells two points without activation apart that may have one shape: the export's key in its own adapter, else the
 * phase. */
static const char *other_key(const struct places *places, const struct point *point) {
    if (point->activation != ACT_NONE)
        return NULL;
    if (point->phase != PHASE_EXPORT)
        return phase_name(point->phase);
    bool b;
    const struct adapter_target *target = export_target(places->job, point, &b);
    return !target ? NULL : b ? target->key_b : target->key_a;
}

static bool other_matches(const struct place *place, const struct place *wanted) {
    return place->activation == wanted->activation && place->key == wanted->key && place->batch == wanted->batch &&
           place->ndim == wanted->ndim && memcmp(place->shape, wanted->shape, sizeof place->shape) == 0;
}

enum status place_find(struct places *places, const struct point *point, int ndim, const int64_t *shape,
                       const struct place **out) {
    if (point->activation == ACT_NONE && point->param)
        return place_param(places, point, ndim, shape, out);
    struct place wanted = {.activation = point->activation,
                           .key = other_key(places, point),
                           .batch = sequences_of(places, point),
                           .ndim = ndim};
    memcpy(wanted.shape, shape, (size_t)ndim * sizeof *shape);
    for (const struct place *at = places->others; at; at = at->next)
        if (other_matches(at, &wanted)) {
            *out = at;
            return STATUS_OK;
        }
    struct place *made = malloc(sizeof *made);
    if (!made)
        return status_fail(STATUS_MEMORY, "out of memory");
    *made = wanted;
    made->next = places->others;
    places->others = made;
    TRY(other_line(made, places, point, ndim, shape));
    *out = made;
    return place_pieces(made, places->mesh);
}

enum status place_rows(struct place *out, const struct places *places, const struct point *point, int ndim,
                       const int64_t *shape, const struct route *route) {
    *out = (struct place){.activation = point->activation, .route = route};
    TRY(other_line(out, places, point, ndim, shape));
    size_t world = (size_t)places->world;
    out->first = malloc(world * sizeof *out->first);
    out->turn = calloc(world, sizeof *out->turn);
    out->shard = calloc(world, sizeof *out->shard);
    out->turns = 1;
    if (!out->first || !out->turn || !out->shard) {
        judge_place_free(out);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    for (int rank = 0; rank < places->world; rank++) {
        out->first[rank] = rank;
        enum status status = shard_of_rows(&out->shard[rank], ndim, shape, route->own + route->begin[rank],
                                           route->begin[rank + 1] - route->begin[rank]);
        if (status != STATUS_OK) {
            judge_place_free(out);
            return status;
        }
    }
    out->held = out->elements;
    return STATUS_OK;
}

enum status place_line(struct places *places, const struct point *point, char *out, size_t size) {
    if (point->activation == ACT_NONE && point->param) {
        struct line line;
        TRY(param_line(&line, places, point->param, param_tensor(point), param_form(point)));
        line_text(out, size, &line, places->mesh);
        return STATUS_OK;
    }
    struct axis_size known[4];
    int count;
    return other_text(places, point, out, size, known, &count);
}
