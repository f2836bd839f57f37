#include "harness/world_private.h"

#include "sharded/ops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEAVE_SECONDS 2.0 /* for ranks that leave by themselves */

/* ---- in the rank */

static void rank_body(struct world *world, int rank, pid_t parent) {
    struct world_rank self = {.run = world->spec.run, .context = world->spec.context, .parent = parent};
    self.arena = world->arena;
    self.arena_rank = rank;
    const struct ops *ops = ops_cpu();
    enum status status = ops == NULL ? status_fail(STATUS_INPUT, "SHARDPROOF_ISA asks for what this CPU lacks")
                                     : comm_local_attach(world->memory, rank, ops, &self.comm);
    if (status != STATUS_OK) {
        world_fault_write(world->board, rank, status_note());
        world_leave(3);
    }
    world_serve(&self);
    comm_close(self.comm);
}

/* The parent may have died before the request for its death took effect. */
static void follow_parent(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    signal(SIGINT, SIG_IGN); /* Ctrl-C reaches the whole group; the harness ends its ranks in order */
    signal(SIGTERM, SIG_DFL);
    status_clear();
}

struct thread_rank {
    struct world *world;
    int rank;
    pid_t parent;
};

static void *thread_body(void *argument) {
    const struct thread_rank *self = argument;
    rank_body(self->world, self->rank, self->parent);
    return NULL;
}

static void run_threads(struct world *world, pid_t parent) {
    int size = world->spec.size;
    pthread_t *thread = calloc((size_t)size, sizeof *thread);
    struct thread_rank *self = calloc((size_t)size, sizeof *self);
    if (thread == NULL || self == NULL)
        world_leave(3);
    for (int r = 0; r < size; r++) {
        self[r] = (struct thread_rank){.world = world, .rank = r, .parent = parent};
        int error = pthread_create(&thread[r], NULL, thread_body, &self[r]);
        if (error != 0) {
            status_fail(STATUS_RANK, "no thread for rank %d: %s", r, strerror(error));
            world_fault_write(world->board, r, status_note());
            world_leave(3);
        }
    }
    for (int r = 0; r < size; r++)
        pthread_join(thread[r], NULL);
    free(thread);
    free(self);
}

/* ---- in the harness */

static enum status fork_process(struct world *world, int number) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return status_fail(STATUS_RANK, "no process for rank %d: %s", number, strerror(errno));
    if (pid == 0) {
        follow_parent(parent);
        if (world->spec.engine == ENGINE_THREADS)
            run_threads(world, parent);
        else
            rank_body(world, number, parent);
        world_leave(0);
    }
    world->pid[number] = pid;
    return STATUS_OK;
}

static enum status local_launch(struct world *world) {
    int size = world->spec.size;
    TRY(world_arena(&world->arena, size));
    world->pids = world->spec.engine == ENGINE_THREADS ? 1 : size;
    world->pid = calloc((size_t)world->pids, sizeof *world->pid);
    void *memory =
        mmap(NULL, comm_local_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || world->pid == NULL) {
        if (memory != MAP_FAILED)
            munmap(memory, comm_local_bytes(size));
        return status_fail(STATUS_MEMORY, "out of memory for a world of %d ranks", size);
    }
    world->memory = memory;
    comm_local_init(memory, size);
    world->board = comm_local_board(memory);
    fflush(NULL); /* or the ranks would write it again */
    for (int i = 0; i < world->pids; i++)
        TRY(fork_process(world, i));
    return STATUS_OK;
}

/* The first process found dead. */
static bool local_find_death(struct world *world, struct death *out) {
    for (int i = 0; i < world->pids; i++) {
        int status;
        if (world->pid[i] == 0 || waitpid(world->pid[i], &status, WNOHANG) != world->pid[i])
            continue;
        world->pid[i] = 0;
        *out = (struct death){.rank = world->spec.engine == ENGINE_THREADS ? -1 : i, .known = true};
        if (WIFSIGNALED(status))
            out->signal = WTERMSIG(status);
        else
            out->code = WEXITSTATUS(status);
        return true;
    }
    return false;
}

static bool local_launch_failed(struct world *world, char *text, size_t size) {
    struct death death;
    if (!local_find_death(world, &death))
        return false;
    snprintf(text, size, "rank %d died before it was up", death.rank < 0 ? 0 : death.rank);
    return true;
}

static enum status local_trace(struct world *world, struct trace *out) {
    return arena_trace(world->arena, out);
}

static bool any_left(const struct world *world) {
    for (int i = 0; i < world->pids; i++)
        if (world->pid[i] != 0)
            return true;
    return false;
}

static void wait_all(struct world *world) {
    struct death death;
    double deadline = world_seconds() + LEAVE_SECONDS;
    while (any_left(world) && world_seconds() < deadline)
        if (!local_find_death(world, &death))
            world_pause(200);
}

static void local_end(struct world *world, bool graceful) {
    if (graceful) {
        atomic_store(&world->board->go, -1);
        board_wake(&world->board->go);
        wait_all(world);
    }
    for (int i = 0; i < world->pids && world->pid != NULL; i++)
        if (world->pid[i] != 0)
            kill(world->pid[i], SIGKILL);
    for (int i = 0; i < world->pids && world->pid != NULL; i++)
        while (world->pid[i] != 0 && waitpid(world->pid[i], NULL, 0) < 0 && errno == EINTR)
            continue;
    if (world->memory != NULL)
        munmap(world->memory, comm_local_bytes(world->spec.size));
    arena_free(world->arena);
    free(world->pid);
}

const struct world_kind world_local = {
    .launch = local_launch,
    .launch_failed = local_launch_failed,
    .find_death = local_find_death,
    .trace = local_trace,
    .end = local_end,
};
