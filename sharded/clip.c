#include "sharded/clip.h"

#include "sharded/record.h"
#include "sharded/state.h"

#include <math.h>
#include <stdlib.h>

/* Of the ranks that hold the same piece, the one at coordinate 0 of every mesh axis that does not cut it. */
static bool counts_here(const struct subject *subject, const struct training *training) {
    const struct mesh *mesh = &subject->mesh;
    const unsigned cuts = line_cut_axes(&training->place->placed.line);
    for (int axis = 0; axis < mesh->axes && !subject->rules->norm.replicas; axis++)
        if (!(cuts >> axis & 1) && mesh_coordinate(mesh, axis, subject->rank) != 0)
            return false;
    if (subject->rules->norm.one_ep_rank && training->param->expert)
        return mesh_coordinate(mesh, mesh_axis(mesh, "ep"), subject->rank) == 0;
    return true;
}

/* NaN beats every number. */
static double larger(double a, double b) {
    return !(a >= b) && !isnan(a) ? b : a;
}

/* This rank's share of slot `slot`: the sum of squares, or the largest. */
static double share_of_slot(const struct subject *subject, int slot, double share) {
    const struct ops *ops = subject->ops;
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    while (training_next(&walk, &training)) {
        const struct tensor *sum = &training.trained->progress[slot].sum;
        if (!sum->data || !counts_here(subject, &training))
            continue;
        if (subject->job->clip.infinity)
            share = larger(share, ops->max_abs(subject->wide, tensor_elements(sum), sum->data));
        else
            share += ops->sum_squares(subject->wide, tensor_elements(sum), sum->data);
    }
    return share;
}

static double share_of_rank(const struct subject *subject) {
    double share = 0;
    for (int slot = 0; slot < subject->job->slots; slot++)
        if (slot == subject->slots.acting || subject->rules->norm.all_tenants)
            share = share_of_slot(subject, slot, share);
    return share;
}

/* Everybody's shares, added or compared in rank order. */
static enum status join_shares(struct subject *subject, double own, double *out) {
    enum status status = STATUS_OK;
    const struct comm_call call = {COMM_SITE, "norm", DTYPE_F64};
    const int64_t one = 1, world = subject->world;
    struct tensor host = tensor_view(DTYPE_F64, 1, &one, &own), send = {0}, receive = {0}, shares = {0};
    struct comm_group *group;
    TRY_DONE(groups_get(subject, (1u << subject->mesh.axes) - 1, &group));
    TRY_DONE(device_upload(subject->ops, &send, &host));
    TRY_DONE(device_make(subject->ops, &receive, DTYPE_F64, 1, &world));
    TRY_DONE(comm_all_gather(subject->comm, group, &call, send.data, receive.data, one));
    TRY_DONE(device_download(subject->ops, &shares, &receive));
    *out = 0;
    for (int64_t rank = 0; rank < world; rank++) {
        double share = tensor_get(&shares, rank);
        *out = subject->job->clip.infinity ? larger(*out, share) : *out + share;
    }
done:
    tensor_free(&shares);
    device_free(subject->ops, &receive);
    device_free(subject->ops, &send);
    return status;
}

static enum status norm_of_acting(struct subject *subject, double *out) {
    double own = share_of_rank(subject), all = own;
    TRY(join_shares(subject, own, &all));
    if (subject->rules->norm.per_rank)
        all = own;
    *out = dtype_round(subject->wide, subject->job->clip.infinity ? all : sqrt(all));
    return STATUS_OK;
}

static enum status record_norm(struct subject *subject, double norm) {
    struct tensor host = {0}, device = {0};
    TRY(tensor_make(&host, subject->wide, 0, NULL));
    tensor_set(&host, 0, norm);
    enum status status = device_upload(subject->ops, &device, &host);
    if (status == STATUS_OK)
        status = record_scalar(subject, PHASE_CLIP, -1, "norm", &device);
    device_free(subject->ops, &device);
    tensor_free(&host);
    return status;
}

enum status clip_acting(struct subject *subject) {
    int slot = subject->slots.acting;
    struct training_walk walk = training_of(subject, slot, -1);
    struct training training;
    double norm;
    TRY(norm_of_acting(subject, &norm));
    TRY(record_norm(subject, norm));
    const double ratio = subject->job->clip.max / (norm + 1e-6);
    const double factor = dtype_round(subject->wide, ratio >= 1 ? 1 : ratio); /* NaN stays */
    while (training_next(&walk, &training)) {
        const struct tensor *sum = &training.trained->progress[slot].sum;
        subject->ops->scale(subject->wide, tensor_elements(sum), sum->data, factor);
        TRY(record_param(subject, PHASE_CLIP, -1, training.param, training.part, sum));
    }
    return STATUS_OK;
}
