#include "ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct rank_thread {
    pthread_t thread;
    void *memory;
    int rank;
    rank_test main;
    void *context;
    enum status status;
    char note[256];
};

static void *rank_run(void *argument) {
    struct rank_thread *self = argument;
    struct comm *comm = NULL;
    status_clear();
    self->status = comm_local_attach(self->memory, self->rank, ops_cpu(), &comm);
    if (self->status == STATUS_OK)
        self->status = self->main(comm, self->context);
    snprintf(self->note, sizeof self->note, "%s", status_note());
    if (comm)
        comm_close(comm);
    return NULL;
}

struct world {
    void *memory;
    size_t bytes;
    struct rank_thread ranks[16];
};

static void run_threads(struct world *world, int size, rank_test main, void *context) {
    cr_assert(size <= 16);
    *world = (struct world){.bytes = comm_local_bytes(size)};
    world->memory = mmap(NULL, world->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(world->memory != MAP_FAILED);
    comm_local_init(world->memory, size);
    for (int rank = 0; rank < size; rank++) {
        struct rank_thread *self = &world->ranks[rank];
        *self = (struct rank_thread){.memory = world->memory, .rank = rank, .main = main, .context = context};
        cr_assert_eq(pthread_create(&self->thread, NULL, rank_run, self), 0);
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(world->ranks[rank].thread, NULL);
}

void run_ranks(int size, rank_test main, void *context) {
    struct world world;
    run_threads(&world, size, main, context);
    for (int rank = 0; rank < size; rank++)
        cr_expect_eq(world.ranks[rank].status, STATUS_OK, "rank %d of %d: %s", rank, size, world.ranks[rank].note);
    munmap(world.memory, world.bytes);
}

void run_failing_ranks(int size, rank_test main, void *context, struct board_fault *fault) {
    struct world world;
    run_threads(&world, size, main, context);
    for (int rank = 0; rank < size; rank++)
        cr_expect_neq(world.ranks[rank].status, STATUS_OK, "rank %d of %d", rank, size);
    *fault = comm_local_board(world.memory)->fault;
    munmap(world.memory, world.bytes);
}

struct mesh mesh_of(const char *first, int first_size, const char *second, int second_size) {
    struct mesh mesh = {.axes = 2, .size = {first_size, second_size}};
    snprintf(mesh.name[0], sizeof mesh.name[0], "%s", first);
    snprintf(mesh.name[1], sizeof mesh.name[1], "%s", second);
    return mesh;
}

struct subject bare_subject(struct comm *comm, const struct mesh *mesh, enum dtype dtype, const struct job *job) {
    static const struct subject_hooks no_hooks;
    return (struct subject){
        .job = job,
        .mesh = *mesh,
        .rules = &rules_right,
        .comm = comm,
        .ops = comm_ops(comm),
        .hooks = &no_hooks,
        .dtype = dtype,
        .rank = comm_rank(comm),
        .world = comm_world(comm),
        .slots.acting = -1,
        .sum_divisor = 1,
    };
}
