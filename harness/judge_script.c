/* The script as the judge reads it: who acts in step S, who holds which slot there, how often it was updated. */
#include "harness/judge_inner.h"

#include <string.h>

#define SLOTS_MAX 4096 /* of a case */

static bool is_update(const struct action *action) {
    return action->kind == ACTION_TRAIN || action->kind == ACTION_STEP;
}

const struct action *step_action(const struct job *job, int step) {
    for (int i = 0; i < job->actions; i++) {
        const struct action *action = &job->action[i];
        if ((is_update(action) || action->kind == ACTION_EVALUATE) && action->step == step)
            return action;
    }
    return NULL;
}

int step_tenant(const struct job *job, int step) {
    const struct action *action = step_action(job, step);
    return action && !action->disabled ? action->tenant : -1;
}

/* Number of the action that saved what a load brings back. */
static int save_of(const struct job *job, int load) {
    int i = load;
    while (i > 0 && (job->action[i].kind != ACTION_SAVE || job->action[i].save != job->action[load].save))
        i--;
    return i;
}

/* Updates that the state behind the first `actions` actions has seen. */
static int64_t updates_before(const struct job *job, int actions) {
    int64_t updates = 0;
    for (int i = 0; i < actions; i++) {
        if (job->action[i].kind == ACTION_LOAD)
            updates = updates_before(job, save_of(job, i));
        updates += is_update(&job->action[i]);
    }
    return updates;
}

int64_t step_updates(const struct job *job, int step) {
    const struct action *last = step_action(job, step);
    if (!job->trains)
        return last && !last->disabled && last->tenant >= 0 ? last->own_step : 0;
    return updates_before(job, last ? (int)(last - job->action) : job->actions);
}

/* ---- slots */

/* holder[n]: the tenant in slot n behind the first `actions` actions, -1: free. */
static void replay(const struct job *job, int slots, int actions, int *holder) {
    for (int n = 0; n < slots; n++)
        holder[n] = -1;
    for (int i = 0; i < actions; i++) {
        const struct action *action = &job->action[i];
        bool acquire = action->kind == ACTION_ACQUIRE;
        if (action->kind == ACTION_LOAD)
            replay(job, slots, save_of(job, i), holder);
        for (int n = 0; n < slots && (acquire || action->kind == ACTION_RELEASE); n++)
            if (holder[n] == (acquire ? -1 : action->tenant)) {
                holder[n] = acquire ? action->tenant : -1;
                break;
            }
    }
}

/* The same when step S is opened (S = job->steps: at the end). */
static void holders(const struct job *job, int step, int *holder) {
    int actions = 0;
    while (actions < job->actions && !(job->action[actions].opens && job->action[actions].step == step))
        actions++;
    replay(job, job->slots < SLOTS_MAX ? job->slots : SLOTS_MAX, actions, holder);
}

int slot_tenant(const struct job *job, int step, int slot) {
    int holder[SLOTS_MAX];
    holders(job, step, holder);
    return slot >= 0 && slot < job->slots && slot < SLOTS_MAX ? holder[slot] : -1;
}

int tenant_slot(const struct job *job, int step, int tenant) {
    int holder[SLOTS_MAX];
    holders(job, step, holder);
    for (int n = 0; n < job->slots && n < SLOTS_MAX; n++)
        if (holder[n] == tenant)
            return n;
    return -1;
}

int64_t point_rank(const struct job *job, const struct point *point) {
    if (!point->param || point->state || (point->part != PART_LORA_A && point->part != PART_LORA_B))
        return -1;
    int tenant = point->slot >= 0 ? slot_tenant(job, point->step, point->slot) : step_tenant(job, point->step);
    const struct adapter_target *target = tenant < 0 ? NULL : adapter_find(&job->tenant[tenant].adapter, point->param);
    return target ? target->lora_rank : -1;
}

bool point_holds_beyond(const struct point *point) {
    return point->phase == PHASE_PARAM || point->phase == PHASE_GATHER || point->phase == PHASE_REGATHER ||
           point->phase == PHASE_UPDATE;
}

/* ---- interrupted windows */

static bool takes_micro(const struct job *job, const struct action *action, int number) {
    for (int i = 0; i < action->micros; i++)
        if (job->micro[action->micro[i]].number == number)
            return true;
    return false;
}

bool window_drifted(const struct job *job, const struct point *point) {
    bool open = false, drifted = false;
    for (int i = 0; i < job->actions && job->trains; i++) {
        const struct action *action = &job->action[i];
        bool mine = action->step == point->step && (action->micros > 0 || action->kind == ACTION_STEP);
        open = open || (mine && action->opens);
        drifted = drifted || (open && !mine && is_update(action));
        if (mine && (point->micro < 0 ? action->kind != ACTION_ACCUMULATE : takes_micro(job, action, point->micro)))
            return drifted && point->phase != PHASE_PARAM;
    }
    return false;
}
