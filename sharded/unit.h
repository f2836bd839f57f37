/* FSDP units: the root (embedding, norm, head), and each layer, whole or as two: its packed experts, and the rest. */
#ifndef SHARDED_UNIT_H
#define SHARDED_UNIT_H

#include "core/inventory.h"

#include <stddef.h>

enum unit_part {
    UNIT_WHOLE,
    UNIT_EXPERTS, /* packed experts and their slots */
    UNIT_REST,
    UNIT_PARTS
};

struct unit {
    int number; /* 0: the root, else layer + 1 */
    enum unit_part part;
};

#define UNIT_ROOT ((struct unit){0, UNIT_WHOLE})
#define UNIT_NAME_MAX 64

bool unit_holds(struct unit unit, const struct param *param);
/* "model", "model.layers.3", "model.layers.3.mlp.experts"; returns `out` of UNIT_NAME_MAX bytes. */
const char *unit_name(char *out, struct unit unit);

#endif
