#include "harness/world_private.h"

#include "core/files.h"
#include "sharded/ops.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The process is the rank, and a signal handler has no other way to it. */
static struct board_rank *signalled;

/* mpirun ends the survivors after one rank has died. */
static void told(int signal) {
    (void)signal;
    if (signalled != NULL)
        atomic_store(&signalled->told, 1);
    world_leave(3);
}

struct worker {
    const char *folder;
    struct board *board;
};

struct board *world_board_map(const char *folder) {
    struct stat information;
    char *path = path_join(folder, WORLD_BOARD_FILE);
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    free(path);
    if (file < 0)
        return NULL;
    void *memory = MAP_FAILED;
    if (fstat(file, &information) == 0 && (size_t)information.st_size >= sizeof(struct board))
        memory = mmap(NULL, (size_t)information.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct board *give_board(void *context, int world) {
    const struct worker *worker = context;
    return worker->board->world == world ? worker->board : NULL;
}

/* Shows the pid before MPI_Init, so that a rank that is only starting can be ended too. */
static int join_board(struct worker *worker) {
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    int rank = number == NULL ? -1 : atoi(number);
    worker->board = world_board_map(worker->folder); /* NULL if the folder is gone: the harness has died */
    if (worker->board == NULL || rank < 0 || rank >= worker->board->world)
        return -1;
    signalled = &worker->board->rank[rank];
    atomic_store(&signalled->pid, getpid());
    return rank;
}

/* The names in the order in which they were recorded; the lines are the harness's to give. */
static char *order_text(const struct trace_rank *rank) {
    json_t *layout = json_object();
    for (int i = 0; i < rank->count; i++)
        json_object_set_new(layout, rank->record[i].name, json_string(""));
    char *text = json_dumps(layout, JSON_COMPACT);
    json_decref(layout);
    return text;
}

static enum status write_records(const struct worker *worker, const struct trace *trace, struct comm *comm) {
    char name[32], rank[16], world[16];
    snprintf(name, sizeof name, "rank%05d.safetensors", comm_rank(comm));
    snprintf(rank, sizeof rank, "%d", comm_rank(comm));
    snprintf(world, sizeof world, "%d", comm_world(comm));
    char *path = path_join(worker->folder, name), *order = order_text(&trace->rank[0]);
    enum status status = STATUS_MEMORY;
    if (path == NULL || order == NULL) {
        status_fail(status, "%s: out of memory", name);
        goto done;
    }
    struct safetensors_pair metadata[] = {{(char *)(uintptr_t) "rank", rank},
                                          {(char *)(uintptr_t) "world", world},
                                          {(char *)(uintptr_t) "layout", order}};
    status = trace_write_rank(path, &trace->rank[0], metadata, sizeof metadata / sizeof *metadata);
done:
    free(path);
    free(order);
    return status;
}

static enum status finish_case(void *context, struct arena *arena, struct comm *comm) {
    struct trace trace;
    TRY(arena_trace(arena, &trace));
    enum status status = write_records(context, &trace, comm);
    trace_free(&trace);
    arena_reset(arena);
    return status;
}

static enum status open_rank(struct worker *worker, struct world_rank *self) {
    const struct ops *ops = ops_cpu();
    if (ops == NULL)
        return status_fail(STATUS_INPUT, "SHARDPROOF_ISA asks for what this CPU lacks");
    TRY(world_arena(&self->arena, 1));
    return comm_mpi_open(give_board, worker, ops, &self->comm);
}

int world_worker(const char *folder, rank_main run, void *context) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* of mpirun */
    pid_t parent = getppid();
    struct worker worker = {.folder = folder};
    int rank = join_board(&worker);
    if (rank < 0) {
        fprintf(stderr, "shardproof: %s: not the folder of a world that this process is a rank of\n", folder);
        return 3;
    }
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, told);
    struct world_rank self = {.run = run, .context = context, .parent = parent};
    self.finish = finish_case;
    self.finish_context = &worker;
    if (open_rank(&worker, &self) != STATUS_OK) {
        world_fault_write(worker.board, rank, status_note());
        return 3;
    }
    atomic_store(&signalled->ready, 1);
    world_serve(&self);
    comm_close(self.comm);
    arena_free(self.arena);
    return 0;
}
