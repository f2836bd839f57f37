/* When a pass gathers its units and when it lets them go, by job->fsdp. */
#include "sharded/fsdp.h"
#include "sharded/pass.h"
#include "sharded/state.h"

struct unit pass_unit(const struct pass *pass, int layer, enum unit_part part) {
    bool apart = layer != OUTSIDE && pass->subject->job->fsdp.experts_apart && pass->subject->config->sparse[layer];
    return (struct unit){layer == OUTSIDE ? 0 : layer + 1, apart ? part : UNIT_WHOLE};
}

static bool *open_flag(const struct pass *pass, struct unit unit) {
    return &pass_tape(pass, unit.number == 0 ? OUTSIDE : unit.number - 1)->open[unit.part];
}

enum status pass_open(struct pass *pass, struct unit unit, enum phase phase) {
    bool *open = open_flag(pass, unit);
    if (*open)
        return STATUS_OK;
    *open = true;
    TRY(fsdp_unit_gather(pass->subject, unit, phase, pass->micro));
    return linear_merge_unit(pass->subject, unit, phase == PHASE_GATHER ? PART_MERGED : PART_REMERGED, pass->micro);
}

enum status pass_leave(struct pass *pass, struct unit unit) {
    struct subject *subject = pass->subject;
    bool *open = open_flag(pass, unit);
    if (!*open || pass->recomputing || (pass->trains && subject->job->fsdp.keep_gathered))
        return STATUS_OK;
    *open = false;
    if (pass->trains)
        return fsdp_unit_narrow(subject, unit);
    fsdp_unit_reshard(subject, unit);
    return STATUS_OK;
}

enum status pass_close(struct pass *pass, struct unit unit) {
    bool *open = open_flag(pass, unit);
    if (!*open)
        return STATUS_OK;
    *open = false;
    fsdp_unit_reshard(pass->subject, unit);
    return fsdp_unit_reduce(pass->subject, unit, pass->micro);
}
