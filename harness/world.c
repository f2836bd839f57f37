#include "harness/world_private.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_MS 20 /* how often the ranks' lives are looked at */

double world_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void world_pause(int microseconds) {
    nanosleep(&(struct timespec){.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000L}, NULL);
}

/* ---- signals: the one thing of the whole process */

static volatile sig_atomic_t stopped;

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

void world_handle_signals(void) {
    /* without SA_RESTART waits return early; a second Ctrl-C ends the harness, its ranks follow */
    struct sigaction action = {.sa_handler = stop, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool world_stopped(void) {
    return stopped != 0;
}

/* ---- launch and end */

enum status world_launch(struct world **out, const struct world_spec *spec) {
    struct world *world = calloc(1, sizeof *world);
    if (world == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for a world of %d ranks", spec->size);
    world->spec = *spec;
    world->kind = spec->engine == ENGINE_MPI ? &world_mpi : &world_local;
    world->pipe = -1;
    enum status status = world->kind->launch(world);
    if (status != STATUS_OK) {
        world->kind->end(world, false);
        free(world);
        return status;
    }
    *out = world;
    return STATUS_OK;
}

void world_end(struct world *world) {
    if (world == NULL)
        return;
    world->kind->end(world, world->ready && !world->dead && !world_stopped());
    free(world);
}

enum status world_trace(struct world *world, struct trace *out) {
    return world->kind->trace(world, out);
}

void outcome_free(struct outcome *outcome) {
    free(outcome->stands);
    *outcome = (struct outcome){0};
}

/* ---- a case */

static bool fault_stands(const struct world *world) {
    const struct board_fault *fault = &world->board->fault;
    for (int looks = 0; atomic_load(&fault->state) == 1 && looks < 100; looks++)
        world_pause(100); /* it is being written */
    return atomic_load(&fault->state) != 0;
}

static int count_ready(const struct world *world) {
    int count = 0;
    for (int r = 0; r < world->spec.size; r++)
        count += atomic_load(&world->board->rank[r].ready) != 0;
    return count;
}

static void fail_launch(struct outcome *out, const struct world *world, const char *why) {
    out->kind = OUTCOME_LAUNCH;
    snprintf(out->text, sizeof out->text, "the world of %d ranks could not be started: %s", world->spec.size, why);
}

/* True once every rank is at the board. */
static bool wait_ready(struct world *world, struct outcome *out) {
    double limit = 30 + world->spec.size, deadline = world_seconds() + limit;
    char why[800];
    while (count_ready(world) < world->spec.size) {
        if (world_stopped()) {
            out->kind = OUTCOME_STOPPED;
            snprintf(out->text, sizeof out->text, "stopped by a signal");
            return false;
        }
        if (world->kind->launch_failed(world, why, sizeof why)) {
            fail_launch(out, world, fault_stands(world) ? world->board->fault.text : why);
            return false;
        }
        if (!(world_seconds() < deadline)) {
            snprintf(why, sizeof why, "%d ranks are up after %g s", count_ready(world), limit);
            fail_launch(out, world, why);
            return false;
        }
        world_pause(1000);
    }
    world->ready = true;
    return true;
}

/* A rank runs a case when `go` is not its `done`: so go falls to 0 before done does. */
static void start_case(struct world *world, int index) {
    atomic_store(&world->board->go, 0);
    if (world->arena != NULL)
        arena_reset(world->arena);
    for (int r = 0; r < world->spec.size; r++)
        atomic_store(&world->board->rank[r].done, 0);
    atomic_store(&world->board->go, index + 1);
    board_wake(&world->board->go);
}

static bool all_done(const struct world *world, int index) {
    for (int r = 0; r < world->spec.size; r++)
        if (atomic_load(&world->board->rank[r].done) != index + 1)
            return false;
    return true;
}

/* True if a rank is dead or has failed; the outcome says so. */
static bool look_for_death(struct world *world, struct outcome *out) {
    struct death death;
    if (!world->kind->find_death(world, &death))
        return false;
    if (fault_stands(world))
        outcome_fault(world, out);
    else
        outcome_crash(world, &death, out);
    return true;
}

static void watch(struct world *world, int index, double limit, struct outcome *out) {
    double start = world_seconds(), look = start;
    for (;;) {
        int seen = atomic_load(&world->board->finished);
        double now = world_seconds();
        if (world_stopped()) {
            out->kind = OUTCOME_STOPPED;
            snprintf(out->text, sizeof out->text, "stopped by a signal");
            return;
        }
        if (fault_stands(world)) {
            outcome_fault(world, out);
            return;
        }
        if (all_done(world, index))
            return;
        if (now - look >= 1e-3 * LOOK_MS) {
            if (look_for_death(world, out))
                return;
            look = now;
        }
        if (!(now - start < limit)) {
            outcome_hang(world, limit, out);
            return;
        }
        board_sleep(&world->board->finished, seen, LOOK_MS);
    }
}

void world_run(struct world *world, int index, double limit, struct outcome *out) {
    double start = world_seconds();
    *out = (struct outcome){.kind = OUTCOME_DONE, .rank = -1};
    if (world->dead) {
        out->kind = OUTCOME_CRASH;
        snprintf(out->text, sizeof out->text, "the world had ended before");
    } else if (world->ready || wait_ready(world, out)) {
        start_case(world, index);
        watch(world, index, limit, out);
    }
    world->dead = out->kind != OUTCOME_DONE;
    out->seconds = world_seconds() - start;
}
