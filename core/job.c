#include "core/job.h"

#include "core/random.h"

#include <math.h>

bool job_targets(const struct job *job, const struct param *param) {
    for (int i = 0; i < job->tenants; i++)
        if (adapter_find(&job->tenant[i].adapter, param))
            return true;
    return false;
}

int job_slot(const struct job *job, int tenant) {
    int slot[64]; /* slot of each tenant that holds one, as far as it matters for display */
    bool taken[64] = {false};
    for (int i = 0; i < job->actions; i++) {
        const struct action *action = &job->action[i];
        if (action->tenant < 0 || action->tenant >= 64)
            continue;
        if (action->kind == ACTION_RELEASE) {
            taken[slot[action->tenant]] = false;
        } else if (action->kind == ACTION_ACQUIRE) {
            int free_slot = 0;
            while (free_slot < 63 && taken[free_slot])
                free_slot++;
            if (action->tenant == tenant)
                return free_slot;
            taken[free_slot] = true;
            slot[action->tenant] = free_slot;
        }
    }
    return -1;
}

bool job_trains(const struct job *job, const struct param *param) {
    if (!job->trains || param->alias >= 0)
        return false;
    return job->trains[inventory_index(checkpoint_inventory(job->model), param)];
}

struct precision job_precision(const struct job *job) {
    const bool bfloat = job->dtype == DTYPE_BF16;
    return (struct precision){
        .store = job->dtype,
        .compute = job->gather_bfloat ? DTYPE_BF16 : job->dtype,
        .wide = bfloat ? DTYPE_F32 : job->dtype,
        .master = bfloat && !job->no_master,
    };
}

double slot_initial(const struct param *param, int slot, int64_t index, int64_t in) {
    uint64_t seed = 0x51075u + (uint64_t)slot;
    return (float)(random_uniform(seed, random_stream(param->name), (uint64_t)index) / sqrt((double)in));
}

const char *const *optimizer_states(const struct optimizer *optimizer) {
    static const char *const none[] = {NULL};
    static const char *const momentum[] = {"momentum_buffer", NULL};
    static const char *const moments[] = {"exp_avg", "exp_avg_sq", NULL};
    if (optimizer->kind == OPTIMIZER_ADAMW)
        return moments;
    return optimizer->momentum != 0 ? momentum : none;
}
