/* The worlds of a case: one per segment of its script. Points, names and places of each are its own; the reference runs
 * once over all. */
#include "harness/judge_inner.h"

#include <stdlib.h>

enum status judge_segments_make(struct judge *judge) {
    const struct test_case *one = judge->one;
    int largest = 0;
    judge->segments = case_segments(one);
    judge->part = calloc((size_t)judge->segments, sizeof *judge->part);
    if (!judge->part)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < judge->segments; i++) {
        const struct case_segment segment = case_segment(one, i);
        const struct mesh *mesh = one->segments > 0 ? &one->segment[i].mesh : &one->mesh;
        struct judge_segment *part = &judge->part[i];
        *part = (struct judge_segment){.first = segment.first, .end = segment.end, .world = mesh_world(mesh)};
        TRY(places_make(&part->places, judge->job, mesh, one->layout));
        if (i == 0)
            judge->places = part->places;
        largest = part->world > largest ? part->world : largest;
    }
    judge->record = calloc((size_t)largest, sizeof *judge->record);
    judge->rank_scratch = calloc((size_t)largest + 1, sizeof *judge->rank_scratch);
    judge->world = judge->part[0].world;
    return judge->record && judge->rank_scratch ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

void judge_segments_free(struct judge *judge) {
    if (judge->part)
        judge->part[judge->segment].places = judge->places;
    for (int i = 0; judge->part && i < judge->segments; i++) {
        if (judge->part[i].places.job)
            places_free(&judge->part[i].places);
        name_set_free(&judge->part[i].names);
    }
    free(judge->part);
    free(judge->record);
    free(judge->rank_scratch);
}

void judge_segments_trace(struct judge *judge, const struct trace *trace) {
    for (int i = 0; i < judge->segments; i++)
        judge->part[i].trace = &trace[i];
    judge->trace = judge->part[judge->segment].trace;
}

void judge_enter(struct judge *judge, int segment) {
    if (segment == judge->segment)
        return;
    judge->part[judge->segment].places = judge->places;
    judge->segment = segment;
    judge->places = judge->part[segment].places;
    judge->world = judge->part[segment].world;
    judge->trace = judge->part[segment].trace;
}

int judge_segment_of(const struct judge *judge, int index) {
    int segment = judge->segments - 1;
    while (segment > 0 && index < judge->part[segment].first)
        segment--;
    return segment;
}

enum status judge_at_action(void *context, int index) {
    struct judge *judge = context;
    judge_enter(judge, judge_segment_of(judge, index));
    return STATUS_OK;
}
