#include "core/job.h"

bool job_targets(const struct job *job, const struct param *param) {
    for (int i = 0; i < job->tenants; i++)
        if (adapter_find(&job->tenant[i].adapter, param))
            return true;
    return false;
}

int job_slot(const struct job *job, int tenant) {
    int taken = 0;
    for (int i = 0; i < job->actions; i++) {
        if (job->action[i].kind != ACTION_ACQUIRE)
            continue;
        if (job->action[i].tenant == tenant)
            return taken;
        taken++;
    }
    return -1;
}
