/* Out of memory anywhere is a status, and whatever happens nothing stays behind: every buffer of the device is counted.
 */
#include "job_of.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define TINY "qwen3_moe_tiny"

static _Thread_local int64_t made, live,
    fails_at; /* allocations so far, not yet released, number of the one that fails */

static void *counted_allocate(size_t bytes) {
    if (++made == fails_at)
        return NULL;
    live++;
    return ops_cpu()->allocate(bytes);
}

static void counted_release(void *memory) {
    live -= memory != NULL;
    ops_cpu()->release(memory);
}

static enum status ignore(void *context, const struct point *point, const struct tensor *data) {
    (void)context;
    (void)point;
    (void)data;
    return STATUS_OK;
}

/* A world of one; the n-th allocation fails (0: none). Returns the subject's status. */
static enum status run_counted(const struct job *job, int64_t nth) {
    struct ops ops = *ops_cpu();
    const struct mesh mesh = mesh_of("ep", 1, "fsdp", 1);
    const struct subject_hooks hooks = {.record = ignore};
    struct comm *comm = NULL;
    void *memory = calloc(1, comm_local_bytes(1));
    ops.allocate = counted_allocate;
    ops.release = counted_release;
    comm_local_init(memory, 1);
    cr_assert_eq(comm_local_attach(memory, 0, &ops, &comm), STATUS_OK);
    made = live = 0;
    fails_at = nth;
    status_clear();
    enum status status = subject_run(job, &mesh, NULL, &rules_right, comm, &hooks);
    comm_close(comm);
    free(memory);
    return status;
}

Test(memory, everything_is_released) {
    struct made_job job;
    job_of(&job, TINY, "bob", "ada", DTYPE_F64, 2, 5);
    cr_expect_eq(run_counted(&job.job, 0), STATUS_OK);
    cr_expect_gt(made, 500);
    cr_expect_eq(live, 0, "%d buffers are left", (int)live);
    job_done(&job);
}

Test(memory, each_failure_is_relayed) {
    struct made_job job;
    int64_t all;
    job_of(&job, TINY, "bob", NULL, DTYPE_F64, 1, 5);
    cr_expect_eq(run_counted(&job.job, 0), STATUS_OK);
    all = made;
    for (int64_t nth = 1; nth <= all; nth += 1 + nth / 40) { /* all of loading, then ever fewer */
        cr_expect_eq(run_counted(&job.job, nth), STATUS_MEMORY, "allocation %d of %d", (int)nth, (int)all);
        cr_expect_eq(live, 0, "allocation %d of %d: %d buffers are left", (int)nth, (int)all, (int)live);
    }
    job_done(&job);
}

/* Windows, releases, every base tensor trains, clipping. */
static void training_job_of(struct made_job *out) {
    static const int both[] = {0, 1};
    biased_job_of(out, true);
    out->job.optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .weight_decay = 0.3, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-8};
    out->job.clip = (struct clip){.present = true, .max = 1};
    job_trains_base(out, "*");
    then_acquire(out, 0);
    then_accumulate(out, 0, 1, both);
    then_step(out, 0);
    then_release(out, 0);
    then_acquire(out, 0);
    then_accumulate(out, 0, 1, both); /* still open at the end */
}

Test(memory, of_training) {
    struct made_job job;
    training_job_of(&job);
    cr_expect_eq(run_counted(&job.job, 0), STATUS_OK);
    cr_expect_eq(live, 0, "%d buffers are left", (int)live);
    int64_t all = made;
    for (int64_t nth = 1; nth <= all; nth += 1 + nth / 60) {
        cr_expect_eq(run_counted(&job.job, nth), STATUS_MEMORY, "allocation %d of %d", (int)nth, (int)all);
        cr_expect_eq(live, 0, "allocation %d of %d: %d buffers are left", (int)nth, (int)all, (int)live);
    }
    job_done(&job);
}
