#include "reference/saved.h"

#include <stdlib.h>

static void free_parts(struct parts *parts, int count) {
    for (int i = 0; parts && i < count; i++)
        for (int part = 0; part < PARTS; part++)
            value_free(&parts[i].part[part]);
    free(parts);
}

void saved_free(struct saved *saved, int params, int slots) {
    for (int i = 0; saved->weight && i < params; i++)
        value_free(&saved->weight[i]);
    free(saved->weight);
    for (int slot = 0; saved->holding && slot < slots; slot++) {
        free_parts(saved->holding[slot].slot, params);
        for (int state = 0; state < STATES; state++)
            free_parts(saved->holding[slot].state[state], params);
    }
    free(saved->holding);
    *saved = (struct saved){0};
}

static enum status replace(const struct arithmetic *m, struct value *to, const struct value *from) {
    if (from->ndim == 0)
        return STATUS_OK;
    value_free(to);
    return value_copy(m, to, from);
}

static enum status replace_parts(const struct reference *r, struct parts *to, const struct parts *from) {
    for (int i = 0; i < r->inventory->count; i++)
        for (int part = 0; part < PARTS; part++)
            TRY(replace(&r->arithmetic, &to[i].part[part], &from[i].part[part]));
    return STATUS_OK;
}

static enum status replace_holding(const struct reference *r, struct holding *to, const struct holding *from) {
    to->tenant = from->tenant;
    to->updates = from->updates;
    TRY(replace_parts(r, to->slot, from->slot));
    for (int state = 0; state < STATES; state++)
        TRY(replace_parts(r, to->state[state], from->state[state]));
    return STATUS_OK;
}

static enum status replace_weights(const struct reference *r, struct value *to, const struct value *from) {
    for (int i = 0; i < r->inventory->count; i++)
        if (job_trains(r->job, &r->inventory->params[i]))
            TRY(replace(&r->arithmetic, &to[i], &from[i]));
    return STATUS_OK;
}

static enum status allocate(const struct reference *r, struct saved *saved) {
    size_t params = (size_t)r->inventory->count + 1;
    saved->weight = calloc(params, sizeof *saved->weight);
    saved->holding = calloc((size_t)r->job->slots + 1, sizeof *saved->holding);
    bool complete = saved->weight && saved->holding;
    for (int slot = 0; complete && slot < r->job->slots; slot++) {
        struct holding *holding = &saved->holding[slot];
        holding->slot = calloc(params, sizeof *holding->slot);
        complete = holding->slot != NULL;
        for (int state = 0; state < STATES; state++) {
            holding->state[state] = calloc(params, sizeof *holding->state[state]);
            complete = complete && holding->state[state];
        }
    }
    return complete ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory in the reference");
}

enum status reference_save(struct reference *r, int save) {
    struct saved *saved = &r->saved[save];
    if (saved->present)
        return status_fail(STATUS_INTERNAL, "%s is saved twice", r->job->save[save].name);
    saved->present = true;
    TRY(allocate(r, saved));
    TRY(replace_weights(r, saved->weight, r->weight));
    for (int slot = 0; slot < r->job->slots; slot++)
        TRY(replace_holding(r, &saved->holding[slot], &r->holding[slot]));
    return STATUS_OK;
}

enum status reference_load(struct reference *r, int save) {
    const struct saved *saved = &r->saved[save];
    if (!saved->present)
        return status_fail(STATUS_INTERNAL, "%s is loaded before it is saved", r->job->save[save].name);
    TRY(replace_weights(r, r->weight, saved->weight));
    for (int slot = 0; slot < r->job->slots; slot++) {
        holding_close_window(&r->holding[slot], r->inventory);
        TRY(replace_holding(r, &r->holding[slot], &saved->holding[slot]));
    }
    return STATUS_OK;
}
