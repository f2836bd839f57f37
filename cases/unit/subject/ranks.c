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

void run_ranks(int world, rank_test main, void *context) {
    size_t bytes = comm_local_bytes(world);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct rank_thread ranks[16] = {0};
    cr_assert(memory != MAP_FAILED && world <= 16);
    comm_local_init(memory, world);
    for (int rank = 0; rank < world; rank++) {
        ranks[rank] = (struct rank_thread){.memory = memory, .rank = rank, .main = main, .context = context};
        cr_assert_eq(pthread_create(&ranks[rank].thread, NULL, rank_run, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < world; rank++)
        pthread_join(ranks[rank].thread, NULL);
    for (int rank = 0; rank < world; rank++)
        cr_expect_eq(ranks[rank].status, STATUS_OK, "rank %d of %d: %s", rank, world, ranks[rank].note);
    munmap(memory, bytes);
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
    };
}
