#include "harness/judge_finding.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 2 /* elements to each side */

void say(char *out, size_t size, const char *format, ...) {
    size_t used = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    if (used + 1 < size)
        vsnprintf(out + used, size - used, format, arguments);
    va_end(arguments);
}

void unravel(int ndim, const int64_t *shape, int64_t offset, int64_t *index) {
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t size = shape[d] > 0 ? shape[d] : 1;
        index[d] = offset % size;
        offset /= size;
    }
}

/* ---- coordinates */

static void say_axis(char *out, size_t size, const char *name, int64_t value) {
    say(out, size, "%s%s %lld", out[0] ? ", " : "", strcmp(name, "rank") == 0 ? "lora rank" : name, (long long)value);
}

static void say_row(char *out, size_t size, const struct route *route, int64_t row, int64_t *expert) {
    *expert = route->expert[row];
    say_axis(out, size, "expert", route->expert[row]);
    say_axis(out, size, "batch", route->token[row] / route->batch_tokens);
    say_axis(out, size, "token", route->token[row] % route->batch_tokens);
    say_axis(out, size, "choice", route->choice[row]);
}

static void say_dim(char *out, size_t size, const struct line_dim *dim, int64_t index, int64_t *expert) {
    int64_t inner = 1;
    for (int a = 1; a < dim->axes; a++)
        inner *= dim->axis[a].size > 0 ? dim->axis[a].size : 1;
    for (int a = 0; a < dim->axes; a++) {
        int64_t value = index / inner;
        index %= inner;
        say_axis(out, size, dim->axis[a].name, value);
        if (strcmp(dim->axis[a].name, "expert") == 0)
            *expert = value;
        if (a + 1 < dim->axes)
            inner /= dim->axis[a + 1].size > 0 ? dim->axis[a + 1].size : 1;
    }
}

char *coordinates(char *out, size_t size, const struct place *place, const int64_t *index, int64_t *expert) {
    out[0] = '\0';
    *expert = -1;
    for (int d = 0; d < place->line.dims; d++)
        if (d == 0 && place->route && place->route->made && index[0] < place->route->rows)
            say_row(out, size, place->route, index[0], expert);
        else
            say_dim(out, size, &place->line.dim[d], index[d], expert);
    return out;
}

/* ---- the paragraph */

static void say_ranks(char *out, size_t size, int ranks, const int *rank) {
    say(out, size, ranks == 1 ? " on rank " : " on ranks ");
    for (int i = 0; i < ranks; i++) {
        if (i == 12 && ranks > 13) {
            say(out, size, " and %d more", ranks - i);
            return;
        }
        say(out, size, "%s%d", i ? ", " : "", rank[i]);
    }
}

static void say_values(char *out, size_t size, const double *x, int64_t begin, int64_t count, int64_t at) {
    for (int64_t i = begin; i < begin + count; i++)
        say(out, size, i == at ? " [%.9g]" : " %.9g", x[i]);
}

void window_text(char *out, size_t size, int64_t columns, int64_t at, const double *want, const double *got) {
    columns = columns > 0 ? columns : 1;
    int64_t row = at - at % columns;
    int64_t begin = at - WINDOW > row ? at - WINDOW : row;
    int64_t end = at + WINDOW + 1 < row + columns ? at + WINDOW + 1 : row + columns;
    say(out, size, " Around it want");
    say_values(out, size, want, begin, end - begin, at);
    say(out, size, ", got");
    say_values(out, size, got, begin, end - begin, at);
    say(out, size, ".");
}

static void say_place(char *out, size_t size, const struct judge *judge, const struct failure *failure,
                      const int64_t *index, const char *axis) {
    char text[160], mesh[128];
    const struct place *place = failure->place;
    if (!place)
        return;
    if (failure->located && place->ndim > 0)
        say(out, size, " at %s (%s)", shape_text(text, sizeof text, place->ndim, index), axis);
    if (failure->numbers) {
        say(out, size, ": got %.17g, want %.17g", failure->got, failure->want);
        if (isfinite(failure->error))
            say(out, size, ", off by %.3g where %.3g is allowed", failure->error, failure->bar);
    }
    say(out, size, ".");
    if (failure->differ > 0)
        say(out, size, " %lld of %lld elements differ.", (long long)failure->differ, (long long)place->elements);
    if (failure->detail)
        say(out, size, " %s", failure->detail);
    if (failure->located && failure->window_want && failure->window_got && place->elements > 1)
        window_text(out, size, place->shape[place->ndim - 1], failure->at, failure->window_want, failure->window_got);
    mesh_text(mesh, sizeof mesh, judge->places.mesh);
    if (place->text[0])
        say(out, size, " Layout `%s` of %s on mesh %s.", place->text,
            shape_text(text, sizeof text, place->ndim, place->shape), mesh);
    else
        say(out, size, " A scalar, the same on every rank of mesh %s.", mesh);
}

static void paragraph(char *out, size_t size, const struct judge *judge, const struct failure *failure,
                      const struct report_finding *finding, const int64_t *index) {
    out[0] = '\0';
    say(out, size, "%s: %s", failure->name, failure->what);
    if (failure->ranks > 0)
        say_ranks(out, size, failure->ranks, failure->rank);
    if (finding->tenant && finding->slot >= 0)
        say(out, size, " (tenant %s, slot %lld)", finding->tenant, (long long)finding->slot);
    else if (finding->tenant)
        say(out, size, " (tenant %s)", finding->tenant);
    else if (finding->slot >= 0)
        say(out, size, " (slot %lld, free)", (long long)finding->slot);
    say_place(out, size, judge, failure, index, finding->axis ? finding->axis : "");
    if (!failure->place)
        say(out, size, ".%s%s", failure->detail ? " " : "", failure->detail ? failure->detail : "");
}

/* ---- fields */

static char *copied(const char *text, enum status *status) {
    char *copy = strdup(text);
    if (!copy)
        *status = status_fail(STATUS_MEMORY, "out of memory");
    return copy;
}

/* The tenant in whose slot a record lies: the one that acts, or holds the slot named. */
static const char *owner_name(const struct job *job, const struct point *point, int64_t *slot) {
    bool slotted = point->param && (point->part == PART_LORA_A || point->part == PART_LORA_B || point->state);
    *slot = point->slot;
    if (point->phase == PHASE_EXPORT)
        return point->tenant;
    int owner = point->slot >= 0 ? slot_tenant(job, point->step, point->slot) : step_tenant(job, point->step);
    if (slotted && point->slot < 0 && owner >= 0)
        *slot = tenant_slot(job, point->step, owner);
    return owner >= 0 ? job->tenant[owner].name : NULL;
}

/* A name without a point: step.S/[micro.M/]PHASE/TENSOR as far as it can be read. */
static enum status fill_name(struct report_finding *out, const char *name) {
    enum status status = STATUS_OK;
    int step = -1, micro = -1, used = 0;
    const char *rest = name;
    if (sscanf(rest, "step.%d/%n", &step, &used) == 1 && used > 0)
        rest += used;
    used = 0;
    if (sscanf(rest, "micro.%d/%n", &micro, &used) == 1 && used > 0)
        rest += used;
    for (int phase = 0; step >= 0 && phase < PHASE_COUNT; phase++) {
        size_t length = strlen(phase_name((enum phase)phase));
        if (strncmp(rest, phase_name((enum phase)phase), length) == 0 && rest[length] == '/') {
            out->phase = copied(phase_name((enum phase)phase), &status);
            rest += length + 1;
            break;
        }
    }
    out->step = step;
    out->micro = micro;
    out->tensor = copied(out->phase ? rest : name, &status);
    return status;
}

static enum status fill_point(struct report_finding *out, const struct job *job, const struct failure *failure) {
    enum status status = STATUS_OK;
    char tensor[POINT_NAME_MAX];
    const struct point *point = failure->point;
    if (!point)
        return failure->no_tensor ? STATUS_OK : fill_name(out, failure->name);
    const char *tenant = owner_name(job, point, &out->slot);
    out->tensor = copied(point_tensor(tensor, point), &status);
    out->phase = copied(phase_name(point->phase), &status);
    out->tenant = tenant ? copied(tenant, &status) : NULL;
    out->step = point->step;
    out->micro = point->micro;
    return status;
}

static enum status fill_ranks(struct report_finding *out, const struct failure *failure) {
    out->rank = failure->ranks > 0 ? failure->rank[0] : -1;
    out->ranks = failure->ranks;
    out->rank_list = malloc((size_t)(failure->ranks + 1) * sizeof *out->rank_list);
    if (!out->rank_list)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < failure->ranks; i++)
        out->rank_list[i] = failure->rank[i];
    return STATUS_OK;
}

static enum status fill_coordinates(struct report_finding *out, const struct failure *failure, int64_t *index) {
    char axis[512];
    enum status status = STATUS_OK;
    if (!failure->located || !failure->place)
        return STATUS_OK;
    unravel(failure->place->ndim, failure->place->shape, failure->at, index);
    out->dims = failure->place->ndim;
    for (int d = 0; d < out->dims; d++)
        out->index[d] = index[d];
    coordinates(axis, sizeof axis, failure->place, index, &out->expert);
    out->axis = copied(axis, &status);
    if (failure->expert >= 0)
        out->expert = failure->expert;
    return status;
}

enum status finding_fill(struct report_finding *out, const struct judge *judge, const struct failure *failure) {
    enum status status = STATUS_OK;
    char text[4096];
    int64_t index[LINE_MAX_DIMS] = {0};
    *out = (struct report_finding){
        .present = true, .kind = failure->kind, .step = -1, .micro = -1, .slot = -1, .expert = -1};
    TRY(fill_point(out, judge->job, failure));
    TRY(fill_ranks(out, failure));
    TRY(fill_coordinates(out, failure, index));
    out->numbers = failure->numbers;
    out->want = failure->want;
    out->got = failure->got;
    out->error = failure->error;
    out->bar = failure->bar;
    paragraph(text, sizeof text, judge, failure, out, index);
    out->text = copied(text, &status);
    return status;
}
