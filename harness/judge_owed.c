/* What is owed: counted from the names and whole shapes that the reference announces in a dry run, before any record of
 * the subject is seen. */
#include "harness/judge_inner.h"

#include <stdlib.h>
#include <string.h>

static enum status owed_add(struct judge *judge, struct owed_point **out) {
    if (judge->owed_count == judge->owed_room) {
        int room = judge->owed_room ? 2 * judge->owed_room : 1024;
        struct owed_point *larger = realloc(judge->owed, (size_t)room * sizeof *larger);
        if (!larger)
            return status_fail(STATUS_MEMORY, "out of memory");
        judge->owed = larger;
        judge->owed_room = room;
    }
    *out = &judge->owed[judge->owed_count++];
    **out = (struct owed_point){0};
    return STATUS_OK;
}

static enum status announce(void *context, const struct point *point, struct value *value) {
    struct judge *judge = context;
    struct owed_point *owed = NULL;
    char name[POINT_NAME_MAX];
    bool fresh;
    int64_t elements = 1;
    TRY(owed_add(judge, &owed));
    owed->point = *point;
    owed->name = strdup(point_name(name, point));
    if (!owed->name)
        return status_fail(STATUS_MEMORY, "out of memory");
    owed->ndim = value->ndim;
    for (int d = 0; d < value->ndim; d++) {
        owed->shape[d] = value->shape[d];
        elements *= value->shape[d];
    }
    owed->segment = judge->segment;
    TRY(name_set_add(&judge->names, owed->name, &fresh));
    if (!fresh)
        return status_fail(STATUS_INTERNAL, "the reference emits %s twice", name);
    TRY(name_set_add(&judge->part[judge->segment].names, owed->name, &fresh));
    if (point_kind(point) != POINT_EXCHANGED) {
        TRY(place_find(&judge->places, point, owed->ndim, owed->shape, &owed->place));
        elements = owed->place->held;
    }
    judge->report->owed_records += judge->world;
    judge->report->owed_elements += elements;
    return STATUS_OK;
}

enum status judge_owed(struct judge *judge) {
    struct reference_options options = {.dry = true};
    struct reference_hooks hooks = {.context = judge, .emit = announce, .at_action = judge_at_action};
    if (judge->counted)
        return STATUS_OK;
    judge->counted = true;
    return reference_run(judge->job, &options, &hooks);
}

enum status judge_count_once(struct judge *judge) {
    return judge->counted ? STATUS_OK : judge_owed(judge);
}

enum status judge_next(struct judge *judge, const struct point *point, struct owed_point **out) {
    char name[POINT_NAME_MAX];
    point_name(name, point);
    if (judge->at >= judge->owed_count || strcmp(judge->owed[judge->at].name, name) != 0)
        return status_fail(STATUS_INTERNAL, "the reference emits %s, which its dry run did not announce here", name);
    *out = &judge->owed[judge->at++];
    return STATUS_OK;
}
