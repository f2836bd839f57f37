/* The tensors of a checkpoint, by name, in inventory order: `base/PARAM` where it trains, `slot.N/PARAM.lora_A` and
 * `.lora_B` of every slot, and the states `slot.N/STATE/PARAM...` of all that the slot's tenant trains. */
#ifndef SHARDED_CHECKPOINT_LIST_H
#define SHARDED_CHECKPOINT_LIST_H

#include "core/inventory.h"
#include "sharded/place.h"

struct subject;

#define SAVED_NAME_MAX (PARAM_NAME_MAX + 64)

struct saved_tensor {
    char name[SAVED_NAME_MAX];
    const struct place *place;
    struct tensor *value; /* where this rank's shard stands, or will stand */
    const struct param *param;
    bool state;
};

struct saved_list {
    int count, room;
    struct saved_tensor *item;
};

/* `tenant` [job->slots]: who holds each slot, -1: free. `reversed`: A and B carry the slots' numbers in falling order.
 */
enum status saved_list_make(struct saved_list *out, struct subject *subject, const int *tenant, bool reversed);
void saved_list_free(struct saved_list *list); /* accepts {0} */

#endif
