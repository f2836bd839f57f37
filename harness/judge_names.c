#include "harness/judge_inner.h"

#include "core/random.h"

#include <stdlib.h>
#include <string.h>

static const char **slot_of(const struct name_set *set, const char *name) {
    size_t mask = (size_t)set->slots - 1;
    size_t at = (size_t)random_stream(name) & mask;
    while (set->slot[at] && strcmp(set->slot[at], name) != 0)
        at = (at + 1) & mask;
    return &set->slot[at];
}

static enum status grow(struct name_set *set) {
    struct name_set larger = {.slots = set->slots ? 2 * set->slots : 1024};
    larger.slot = calloc((size_t)larger.slots, sizeof *larger.slot);
    if (!larger.slot)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < set->slots; i++)
        if (set->slot[i])
            *slot_of(&larger, set->slot[i]) = set->slot[i];
    larger.count = set->count;
    free(set->slot);
    *set = larger;
    return STATUS_OK;
}

enum status name_set_add(struct name_set *set, const char *name, bool *new_name) {
    if (2 * set->count >= set->slots)
        TRY(grow(set));
    const char **slot = slot_of(set, name);
    *new_name = !*slot;
    if (*new_name) {
        *slot = name;
        set->count++;
    }
    return STATUS_OK;
}

bool name_set_has(const struct name_set *set, const char *name) {
    return set->slots > 0 && *slot_of(set, name);
}

void name_set_free(struct name_set *set) {
    free(set->slot);
    *set = (struct name_set){0};
}
