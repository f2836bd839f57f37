/* What the ranks of the communicator tests do, by case number: the same on forked ranks, threads and MPI processes.
 *
 * Every answer is checked in the rank against plain arithmetic; a wrong one is a status with a note, so that the test
 * sees rank and place. */
#ifndef CASES_COMM_SCRIPT_H
#define CASES_COMM_SCRIPT_H

#include "cases/unit/comm/scenario.h"
#include "harness/world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- data: not representable sums, so that another order of adding gives other bits */

static double value(int rank, int64_t k) {
    return (double)((rank * 7919 + k * 104729) % 2003 - 1001) / 3.0;
}

static enum status wrong(const char *what, int rank, int64_t k, double want, double got) {
    return status_fail(STATUS_INTERNAL, "%s on rank %d: element %lld is %.17g, expected %.17g", what, rank,
                       (long long)k, got, want);
}

struct axes { /* a mesh of 2 x n/2, or 1 x n */
    struct comm_group *ep, *fsdp, *world;
};

static enum status make_axes(struct comm *comm, bool other_members, struct axes *out) {
    int world = comm_world(comm), rank = comm_rank(comm), members[1024];
    int ep = world % 2 == 0 ? 2 : 1, fsdp = world / ep;
    for (int i = 0; i < ep; i++)
        members[i] = i * fsdp + rank % fsdp;
    TRY(comm_group_make(comm, members, ep, "ep", &out->ep));
    for (int i = 0; i < fsdp; i++)
        members[i] = rank / fsdp * fsdp + i;
    if (other_members)
        members[0] = 1;
    TRY(comm_group_make(comm, members, fsdp, "fsdp", &out->fsdp));
    for (int i = 0; i < world; i++)
        members[i] = i;
    return comm_group_make(comm, members, world, "ep*fsdp", &out->world);
}

/* ---- answers */

static enum status keep(const char *name, double *data, int64_t count,
                        enum status (*record)(void *, const struct point *, const struct tensor *), void *sink) {
    struct point point = POINT_NONE;
    point.phase = PHASE_LOSS;
    point.scalar = name;
    struct tensor view = tensor_view(DTYPE_F64, 1, &count, data);
    return record(sink, &point, &view);
}

static enum status check_gather(struct comm *comm, struct comm_group *group, double *send, double *recv,
                                int64_t count) {
    struct comm_call call = {COMM_SITE, "gathered", DTYPE_F64};
    for (int64_t k = 0; k < count; k++)
        send[k] = value(comm_rank(comm), k);
    memset(recv, 0xff, (size_t)(comm_group_size(group) * count) * sizeof *recv);
    TRY(comm_all_gather(comm, group, &call, send, recv, count));
    for (int i = 0; i < comm_group_size(group); i++)
        for (int64_t k = 0; k < count; k++)
            if (!(recv[i * count + k] == value(comm_group_member(group, i), k)))
                return wrong("all_gather", comm_rank(comm), k, value(comm_group_member(group, i), k),
                             recv[i * count + k]);
    return STATUS_OK;
}

static enum status check_scatter(struct comm *comm, struct comm_group *group, double *send, double *recv,
                                 int64_t count) {
    struct comm_call call = {COMM_SITE, "scattered", DTYPE_F64};
    int size = comm_group_size(group);
    for (int64_t k = 0; k < size * count; k++)
        send[k] = value(comm_rank(comm), k);
    memset(recv, 0xff, (size_t)count * sizeof *recv);
    TRY(comm_reduce_scatter(comm, group, &call, send, recv, count));
    for (int64_t k = 0; k < count; k++) {
        double want = value(comm_group_member(group, 0), comm_group_self(group) * count + k);
        for (int i = 1; i < size; i++)
            want += value(comm_group_member(group, i), comm_group_self(group) * count + k);
        if (!(recv[k] == want))
            return wrong("reduce_scatter", comm_rank(comm), k, want, recv[k]);
    }
    return STATUS_OK;
}

static enum status check_reduce(struct comm *comm, struct comm_group *group, double *data, int64_t count) {
    struct comm_call call = {COMM_SITE, "reduced", DTYPE_F64};
    for (int64_t k = 0; k < count; k++)
        data[k] = value(comm_rank(comm), k);
    TRY(comm_all_reduce(comm, group, &call, data, count));
    for (int64_t k = 0; k < count; k++) {
        double want = value(comm_group_member(group, 0), k);
        for (int i = 1; i < comm_group_size(group); i++)
            want += value(comm_group_member(group, i), k);
        if (!(data[k] == want))
            return wrong("all_reduce", comm_rank(comm), k, want, data[k]);
    }
    return STATUS_OK;
}

/* Other types: the sum of float32 in float32, of int64 exactly. */
static enum status check_types(struct comm *comm, struct comm_group *group) {
    float f[3], want_f[3] = {0};
    int64_t n[3], want_n[3] = {0};
    for (int k = 0; k < 3; k++) {
        f[k] = (float)value(comm_rank(comm), k);
        n[k] = ((int64_t)1 << 60) / (comm_rank(comm) + 1) + k;
        for (int i = 0; i < comm_group_size(group); i++) {
            float x = (float)value(comm_group_member(group, i), k);
            want_f[k] = i == 0 ? x : want_f[k] + x;
            want_n[k] += ((int64_t)1 << 60) / (comm_group_member(group, i) + 1) + k;
        }
    }
    TRY(comm_all_reduce(comm, group, &(struct comm_call){COMM_SITE, "float32", DTYPE_F32}, f, 3));
    TRY(comm_all_reduce(comm, group, &(struct comm_call){COMM_SITE, "int64", DTYPE_I64}, n, 3));
    for (int k = 0; k < 3; k++)
        if (f[k] != want_f[k] || n[k] != want_n[k])
            return wrong("all_reduce of float32 or int64", comm_rank(comm), k, (double)want_f[k], (double)f[k]);
    return STATUS_OK;
}

static int64_t split(int from, int to, int64_t unit) {
    return (from * 3 + to * 5) % 4 * unit + (from == to); /* some are empty */
}

static enum status check_exchange(struct comm *comm, struct comm_group *group, double *send, double *recv,
                                  int64_t unit) {
    struct comm_call call = {COMM_SITE, "exchanged", DTYPE_F64};
    int64_t out[64], in[64], at = 0;
    int self = comm_rank(comm), size = comm_group_size(group);
    for (int j = 0; j < size; j++) {
        int to = comm_group_member(group, j);
        out[j] = split(self, to, unit);
        in[j] = split(to, self, unit);
        for (int64_t k = 0; k < out[j]; k++)
            send[at++] = value(self, 31 * to + k);
    }
    memset(recv, 0xff, (size_t)(size * 3 * unit + 1) * sizeof *recv);
    TRY(comm_all_to_all(comm, group, &call, send, out, recv, in));
    at = 0;
    for (int i = 0; i < size; i++)
        for (int64_t k = 0; k < in[i]; k++, at++)
            if (!(recv[at] == value(comm_group_member(group, i), 31 * self + k)))
                return wrong("all_to_all", self, at, value(comm_group_member(group, i), 31 * self + k), recv[at]);
    return STATUS_OK;
}

#define LONG 40009 /* doubles: 320 KB, more than a staging buffer */

static enum status check_group(struct comm *comm, struct comm_group *group, double *send, double *recv) {
    static const int64_t counts[] = {13, 0, 1, LONG, 7};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        TRY(check_gather(comm, group, send, recv, counts[i]));
        TRY(check_scatter(comm, group, send, recv, counts[i]));
        TRY(check_reduce(comm, group, send, counts[i]));
        TRY(check_exchange(comm, group, send, recv, counts[i] / 3 + 1));
    }
    return check_types(comm, group);
}

static enum status answers(struct comm *comm,
                           enum status (*record)(void *, const struct point *, const struct tensor *), void *sink) {
    struct axes axes;
    enum status status = STATUS_OK;
    size_t room = (size_t)comm_world(comm) * LONG + 64;
    double *send = malloc(room * sizeof *send), *recv = malloc(room * sizeof *recv);
    if (send == NULL || recv == NULL) {
        status = status_fail(STATUS_MEMORY, "out of memory");
        goto done;
    }
    TRY_DONE(make_axes(comm, false, &axes));
    TRY_DONE(check_group(comm, axes.world, send, recv));
    TRY_DONE(check_group(comm, axes.ep, send, recv));
    TRY_DONE(check_group(comm, axes.fsdp, send, recv));
    TRY_DONE(comm_barrier(comm, &(struct comm_call){COMM_SITE, "all", DTYPE_F64}));
    TRY_DONE(check_reduce(comm, axes.world, send, LONG));
    TRY_DONE(keep("reduced", send, LONG, record, sink));
    TRY_DONE(check_scatter(comm, axes.world, send, recv, 101));
    TRY_DONE(keep("scattered", recv, 101, record, sink));
done:
    free(send);
    free(recv);
    return status;
}

/* ---- the ledger */

struct skip {
    const char *what;
    int rank;
};

static bool leave_out(void *context, enum collective operation, const char *group, const char *what, int rank) {
    const struct skip *skip = context;
    return operation == COLLECTIVE_REDUCE_SCATTER && strcmp(group, "ep*fsdp") == 0 && strcmp(what, skip->what) == 0 &&
           rank == skip->rank;
}

static enum status layer(struct comm *comm, const struct axes *axes, const char *what, enum scenario scenario,
                         bool last) {
    double send[5 * 1024] = {0}, recv[13 * 1024] = {0};
    bool odd = scenario != SCENARIO_CLEAN && comm_rank(comm) == 3;
    int64_t out[2] = {3, 3}, in[2] = {3, 3};
    struct comm_call gather = {"script/gather", what, DTYPE_F64};
    struct comm_call exchange = {"script/exchange", what, DTYPE_F64};
    struct comm_call scatter = {"script/scatter", what, DTYPE_F64};
    struct comm_call other = {"script/other", what, DTYPE_F64};
    if (odd && scenario == SCENARIO_DTYPE)
        gather = (struct comm_call){"script/other", what, DTYPE_F32};
    if (odd && scenario == SCENARIO_WHAT)
        gather = (struct comm_call){"script/other", "another", DTYPE_F64};
    struct comm_group *across = odd && scenario == SCENARIO_GROUP ? axes->ep : axes->fsdp;
    TRY(comm_all_gather(comm, across, &gather, send, recv, odd && scenario == SCENARIO_COUNT ? 13 : 12));
    if (odd && scenario == SCENARIO_SPLIT)
        out[0] = 4;
    TRY(comm_all_to_all(comm, axes->ep, &exchange, send, out, recv, in));
    if (odd && scenario == SCENARIO_EXTRA)
        TRY(comm_all_reduce(comm, axes->fsdp, &other, send, 5));
    if (odd && scenario == SCENARIO_OPERATION)
        return comm_all_reduce(comm, axes->world, &other, send, 5);
    struct skip skip = {what, 3};
    if (scenario == SCENARIO_SKIP || (scenario == SCENARIO_SKIP_LAST && last))
        comm_set_intercept(comm, leave_out, &skip);
    enum status status = comm_reduce_scatter(comm, axes->world, &scatter, send, recv, 5);
    comm_set_intercept(comm, NULL, NULL);
    return status;
}

static enum status layers(struct comm *comm, enum scenario scenario) {
    static const char *const names[] = {"layers.0", "layers.1", "layers.2"};
    struct axes axes;
    TRY(make_axes(comm, scenario == SCENARIO_MEMBERS && comm_rank(comm) == 3, &axes));
    for (int i = 0; i < 3; i++) {
        bool here = scenario == SCENARIO_SKIP_LAST ? i == 2 : i == 1;
        TRY(layer(comm, &axes, names[i], here ? scenario : SCENARIO_CLEAN, i == 2));
    }
    return STATUS_OK;
}

/* ---- ranks that go wrong */

static enum status misbehave(struct comm *comm, enum scenario scenario) {
    struct axes axes;
    double x[8] = {0};
    struct comm_call first = {"script/first", "first", DTYPE_F64}, second = {"script/second", "second", DTYPE_F64};
    TRY(make_axes(comm, false, &axes));
    TRY(comm_all_reduce(comm, axes.world, &first, x, 8));
    if (comm_rank(comm) == 2 && scenario == SCENARIO_STATUS)
        return status_fail(STATUS_INPUT, "somefile:17: a planted failure");
    if (comm_rank(comm) == 2 && scenario == SCENARIO_KILL)
        raise(SIGKILL);
    if (comm_rank(comm) == 2 && scenario == SCENARIO_EXIT)
        _exit(7);
    while (comm_rank(comm) == 1 && scenario == SCENARIO_HANG)
        pause();
    return comm_all_reduce(comm, axes.world, &second, x, 8);
}

static enum status speed(struct comm *comm) {
    struct axes axes;
    double send[1024 * 8] = {0}, recv[1024 * 8];
    TRY(make_axes(comm, false, &axes));
    for (int i = 0; i < 50; i++) {
        TRY(comm_all_gather(comm, axes.world, &(struct comm_call){COMM_SITE, "a", DTYPE_F64}, send, recv, 8));
        TRY(comm_all_gather(comm, axes.fsdp, &(struct comm_call){COMM_SITE, "b", DTYPE_F64}, send, recv, 8));
        TRY(comm_reduce_scatter(comm, axes.world, &(struct comm_call){COMM_SITE, "c", DTYPE_F64}, send, recv, 8));
        TRY(comm_all_gather(comm, axes.ep, &(struct comm_call){COMM_SITE, "d", DTYPE_F64}, send, recv, 8));
    }
    return STATUS_OK;
}

static enum status script(void *context, int index, struct comm *comm,
                          enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                          void *sink) {
    (void)context;
    enum scenario scenario = (enum scenario)index;
    if (scenario == SCENARIO_ANSWERS)
        return answers(comm, record, sink);
    if (scenario == SCENARIO_SPEED)
        return speed(comm);
    return scenario >= SCENARIO_STATUS ? misbehave(comm, scenario) : layers(comm, scenario);
}

#endif
