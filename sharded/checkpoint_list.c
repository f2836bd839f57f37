#include "sharded/checkpoint_list.h"

#include "sharded/state.h"

#include <stdio.h>
#include <stdlib.h>

static enum status add(struct saved_list *list, const struct param *param, const struct place *place,
                       struct tensor *value, struct saved_tensor **out) {
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 64;
        struct saved_tensor *grown = realloc(list->item, (size_t)room * sizeof *grown);
        if (!grown)
            return status_fail(STATUS_MEMORY, "out of memory for a checkpoint of %d tensors", room);
        list->item = grown;
        list->room = room;
    }
    *out = &list->item[list->count++];
    **out = (struct saved_tensor){.place = place, .value = value, .param = param};
    return STATUS_OK;
}

static const char *const suffix[] = {[PART_WEIGHT] = "", [PART_LORA_A] = ".lora_A", [PART_LORA_B] = ".lora_B"};

static enum status add_states(struct saved_list *list, const struct subject *subject, const struct param *param,
                              enum part part, const struct place *place, struct trained *trained, int slot) {
    const char *const *states = optimizer_states(&subject->job->optimizer);
    struct saved_tensor *item;
    for (int i = 0; states[i]; i++) {
        TRY(add(list, param, place, &trained->progress[slot].state[i], &item));
        item->state = true;
        snprintf(item->name, sizeof item->name, "slot.%d/%s/%s%s", slot, states[i], param->name, suffix[part]);
    }
    return STATUS_OK;
}

static enum status add_weight(struct saved_list *list, const struct subject *subject, const struct param *param,
                              struct weight *weight, const int *tenant) {
    struct saved_tensor *item;
    TRY(add(list, param, &weight->place, &weight->shard, &item));
    snprintf(item->name, sizeof item->name, "base/%s", param->name);
    for (int slot = 0; slot < subject->job->slots; slot++)
        if (tenant[slot] >= 0)
            TRY(add_states(list, subject, param, PART_WEIGHT, &weight->place, &weight->trained, slot));
    return STATUS_OK;
}

static enum status add_slot(struct saved_list *list, const struct subject *subject, struct target *target, int slot,
                            int tenant, int number) {
    bool adapts = tenant >= 0 && adapter_find(&subject->job->tenant[tenant].adapter, target->param);
    for (int which = 0; which < FACTORS; which++) {
        struct factor *factor = &target->factor[which];
        enum part part = FACTOR_PART(which);
        struct saved_tensor *item;
        TRY(add(list, target->param, &factor->place, &factor->slot[slot], &item));
        snprintf(item->name, sizeof item->name, "slot.%d/%s%s", number, target->param->name, suffix[part]);
        if (adapts)
            TRY(add_states(list, subject, target->param, part, &factor->place, &factor->trained, slot));
    }
    return STATUS_OK;
}

enum status saved_list_make(struct saved_list *out, struct subject *subject, const int *tenant, bool reversed) {
    int slots = subject->job->slots;
    const struct inventory *inventory = subject->inventory;
    *out = (struct saved_list){0};
    for (int i = 0; i < inventory->count; i++) {
        const struct param *param = &inventory->params[i];
        struct weight *weight = &subject->store.weight[i];
        if (job_trains(subject->job, param))
            TRY(add_weight(out, subject, param, weight, tenant));
        for (int slot = 0; weight->target && slot < slots; slot++)
            TRY(add_slot(out, subject, weight->target, slot, tenant[slot], reversed ? slots - 1 - slot : slot));
    }
    return STATUS_OK;
}

void saved_list_free(struct saved_list *list) {
    free(list->item);
    *list = (struct saved_list){0};
}
