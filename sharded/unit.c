#include "sharded/unit.h"

#include <stdio.h>

bool unit_holds(struct unit unit, const struct param *param) {
    if (param->unit != unit.number)
        return false;
    return unit.part == UNIT_WHOLE || param->expert == (unit.part == UNIT_EXPERTS);
}

const char *unit_name(char *out, struct unit unit) {
    if (unit.number == 0)
        snprintf(out, UNIT_NAME_MAX, "model");
    else
        snprintf(out, UNIT_NAME_MAX, "model.layers.%d%s", unit.number - 1,
                 unit.part == UNIT_EXPERTS ? ".mlp.experts" : "");
    return out;
}
