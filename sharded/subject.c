#include "sharded/subject.h"

#include "sharded/checkpoint.h"
#include "sharded/record.h"
#include "sharded/state.h"
#include "sharded/step.h"

#include <string.h>

/* The one collective that rules->skip names is left out by its rank. */
static bool leave_out(void *context, enum collective operation, const char *group, const char *what, int rank) {
    struct subject *subject = context;
    (void)group;
    (void)what;
    if (operation != subject->rules->skip.operation || rank != subject->rules->skip.rank)
        return false;
    return subject->skippable++ == subject->rules->skip.nth;
}

/* A mesh without an axis `ep` is one with ep of size 1: the ranks stay the same. */
static enum status mesh_with_ep(struct mesh *out, const struct mesh *mesh) {
    *out = *mesh;
    if (mesh_axis(mesh, "ep") >= 0)
        return STATUS_OK;
    if (mesh->axes == MESH_MAX_AXES)
        return status_fail(STATUS_INTERNAL, "the mesh has %d axes and none is ep", mesh->axes);
    strcpy(out->name[out->axes], "ep");
    out->size[out->axes++] = 1;
    return STATUS_OK;
}

static enum status run_action(struct subject *subject, const struct action *action) {
    struct slots *slots = &subject->slots;
    switch (action->kind) {
    case ACTION_ACQUIRE:
        return slots_acquire(subject, action->tenant);
    case ACTION_RELEASE:
        return slots_release(subject, action->tenant);
    case ACTION_ACCUMULATE:
        return step_accumulate(subject, action);
    case ACTION_STEP:
        return step_close(subject, action);
    case ACTION_TRAIN:
        return step_train(subject, action);
    case ACTION_EVALUATE:
        return step_evaluate(subject, action);
    case ACTION_ENTER:
        slots->outer[slots->depth++] = slots_activate(subject, action->tenant);
        return STATUS_OK;
    case ACTION_LEAVE:
        slots_restore(subject, slots->outer[--slots->depth]);
        return STATUS_OK;
    case ACTION_EXPORT:
        return export_tenant(subject, action);
    case ACTION_SAVE:
        return checkpoint_save(subject, action->save);
    case ACTION_LOAD:
        return checkpoint_load(subject, action->save);
    }
    return status_fail(STATUS_INTERNAL, "action %d is not known", (int)action->kind);
}

static enum status run_script(struct subject *subject) {
    TRY(store_open(subject));
    TRY(slots_open(subject));
    int actions = subject->job->actions, end = subject->hooks->end > 0 ? subject->hooks->end : actions;
    for (int i = subject->hooks->first; i < end; i++)
        TRY(run_action(subject, &subject->job->action[i]));
    if (end < actions)
        return STATUS_OK;
    subject->slots.acting = -1;
    subject->step = subject->job->steps;
    return record_holdings(subject);
}

enum status subject_run(const struct job *job, const struct mesh *mesh, const struct layout_file *layout,
                        const struct rules *rules, struct comm *comm, const struct subject_hooks *hooks) {
    struct subject subject = {
        .job = job,
        .layout = layout,
        .rules = rules,
        .comm = comm,
        .ops = comm_ops(comm),
        .hooks = hooks,
        .config = checkpoint_config(job->model),
        .inventory = checkpoint_inventory(job->model),
        .precision = job_precision(job),
        .dtype = job_precision(job).compute,
        .wide = job_precision(job).wide,
        .rank = comm_rank(comm),
        .world = comm_world(comm),
        .slots.acting = -1,
        .sum_divisor = 1,
    };
    TRY(mesh_with_ep(&subject.mesh, mesh));
    comm_set_intercept(comm, leave_out, &subject);
    enum status status = run_script(&subject);
    comm_set_intercept(comm, NULL, NULL);
    slots_close(&subject);
    store_close(&subject);
    comm_groups_free(comm);
    return status;
}

static struct tensor *state_held(const struct subject *subject, const struct trained *trained, int slot,
                                 const char *name) {
    const char *const *states = optimizer_states(&subject->job->optimizer);
    for (int i = 0; trained->progress && states[i]; i++)
        if (strcmp(states[i], name) == 0)
            return &trained->progress[slot].state[i];
    return NULL;
}

/* The buffer that a `param` point names; NULL if this rank holds no such tensor. */
static struct tensor *held(struct subject *subject, const struct point *point, struct place **place) {
    struct weight *weight = store_weight(subject, point->param);
    int slot = point->slot >= 0 ? point->slot : subject->slots.acting;
    bool of_slot = point->part != PART_WEIGHT || point->state;
    const bool master = point->state && strcmp(point->state, "master") == 0;
    if (master && point->part == PART_WEIGHT) {
        *place = &weight->place;
        return training_master(subject, &weight->trained, PART_WEIGHT, 0);
    }
    if (of_slot && (slot < 0 || slot >= subject->job->slots))
        return NULL;
    if (point->part == PART_WEIGHT) {
        *place = &weight->place;
        return point->state ? state_held(subject, &weight->trained, slot, point->state) : &weight->shard;
    }
    if (!weight->target)
        return NULL;
    struct factor *factor = &weight->target->factor[point->part - PART_LORA_A];
    *place = &factor->place;
    if (master)
        return training_master(subject, &factor->trained, point->part, slot);
    return point->state ? state_held(subject, &factor->trained, slot, point->state) : &factor->slot[slot];
}

enum status subject_overwrite(struct subject *subject, const struct point *point, const struct tensor *whole) {
    char name[POINT_NAME_MAX];
    struct place *place = NULL;
    struct tensor piece = {0};
    struct tensor *tensor = held(subject, point, &place);
    if (!tensor || !tensor->data || whole->dtype != tensor->dtype)
        return status_fail(STATUS_INTERNAL, "%s: no tensor of this name and type to overwrite",
                           point_name(name, point));
    TRY(tensor_make(&piece, tensor->dtype, place->shard.ndim, place->shard.shape));
    shard_cut(&place->shard, dtype_bytes(tensor->dtype), whole->data, piece.data);
    subject->ops->to_device(tensor->data, piece.data, tensor_bytes(&piece));
    tensor_free(&piece);
    return STATUS_OK;
}
