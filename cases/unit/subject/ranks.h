/* Worlds of threads for tests, and subjects made by hand around them. */
#ifndef CASES_UNIT_SUBJECT_RANKS_H
#define CASES_UNIT_SUBJECT_RANKS_H

#include "sharded/state.h"

/* Runs `main` as every rank of a world of `world` threads; the test fails if a rank returns a failure. */
typedef enum status (*rank_test)(struct comm *comm, void *context);
void run_ranks(int world, rank_test main, void *context);

/* The same where every rank must fail; `fault` is what the board says. */
void run_failing_ranks(int world, rank_test main, void *context, struct board_fault *fault);

struct mesh mesh_of(const char *first, int first_size, const char *second, int second_size);
/* A subject without a model: enough for placing, gathering and exchanging. The job has max_rank alone. */
struct subject bare_subject(struct comm *comm, const struct mesh *mesh, enum dtype dtype, const struct job *job);

#endif
