#include "harness/golden_answers.h"

#include <stdlib.h>
#include <string.h>

bool answer_wanted(const struct point *point, bool clips) {
    switch (point->phase) {
    case PHASE_FORWARD:
        return point->activation == ACT_HEAD || point->activation == ACT_TOKEN_LOSS || point->activation == ACT_LAYER ||
               point->activation == ACT_ROUTER_LOGITS || point->activation == ACT_TOPK_INDEX ||
               point->activation == ACT_TOPK_WEIGHT;
    case PHASE_GRAD:
        return point->micro < 0;
    case PHASE_CLIP: /* a job that does not clip has none, whatever golden files want of the reference */
        return clips;
    case PHASE_DELTA:
    case PHASE_LOSS:
    case PHASE_OPTIMIZER:
    case PHASE_UPDATE:
        return true;
    default:
        return false;
    }
}

static enum status room_for_one(struct answers *answers) {
    if (answers->count < answers->room)
        return STATUS_OK;
    int room = answers->room ? 2 * answers->room : 256;
    struct answer *larger = realloc(answers->item, (size_t)room * sizeof *larger);
    if (!larger)
        return status_fail(STATUS_MEMORY, "out of memory");
    answers->item = larger;
    answers->room = room;
    return STATUS_OK;
}

enum status answers_add(struct answers *answers, const struct point *point, int updates, const struct value *value) {
    char name[POINT_NAME_MAX];
    size_t elements = 1;
    TRY(room_for_one(answers));
    struct answer *answer = &answers->item[answers->count];
    *answer = (struct answer){.point = *point, .updates = updates, .value = {.ndim = value->ndim}};
    for (int d = 0; d < value->ndim; d++) {
        answer->value.shape[d] = value->shape[d];
        elements *= (size_t)value->shape[d];
    }
    answer->name = strdup(point_name(name, point));
    answer->value.x = malloc((elements + 1) * sizeof *answer->value.x);
    answers->count++;
    if (!answer->name || !answer->value.x)
        return status_fail(STATUS_MEMORY, "out of memory");
    memcpy(answer->value.x, value->x, elements * sizeof *answer->value.x);
    return STATUS_OK;
}

void answers_free(struct answers *answers) {
    for (int i = 0; answers && i < answers->count; i++) {
        free(answers->item[i].name);
        free(answers->item[i].value.x);
    }
    if (answers)
        free(answers->item);
    free(answers);
}

const struct value *answers_find(const struct answers *answers, const char *trace_name) {
    for (int i = 0; i < answers->count; i++)
        if (strcmp(answers->item[i].name, trace_name) == 0)
            return &answers->item[i].value;
    return NULL;
}
