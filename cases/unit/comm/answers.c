#include "cases/unit/comm/help.h"

#include <criterion/criterion.h>

#include <string.h>

/* Runs the answers twice in one world and returns the digest of the records; both runs must give the same bits. */
static void digest_of(enum world_engine engine, int size, char out[33]) {
    const char *tmpdir = help_tmpdir();
    struct world_spec spec = help_spec(engine, size);
    struct world *world;
    char digest[2][33];
    cr_assert(world_launch(&world, &spec) == STATUS_OK, "%s", status_note());
    for (int i = 0; i < 2; i++) {
        struct outcome outcome;
        struct trace trace;
        world_run(world, SCENARIO_ANSWERS, 60, &outcome);
        cr_assert(outcome.kind == OUTCOME_DONE, "world of %d: %s", size, outcome.text);
        cr_assert(world_trace(world, &trace) == STATUS_OK, "%s", status_note());
        for (int r = 0; r < size; r++)
            cr_expect(trace.rank[r].count == 2, "rank %d has %d records, expected 2", r, trace.rank[r].count);
        trace_digest(&trace, digest[i]);
        trace_free(&trace);
        outcome_free(&outcome);
    }
    world_end(world);
    help_nothing_left(tmpdir);
    cr_expect(strcmp(digest[0], digest[1]) == 0, "%s and %s", digest[0], digest[1]);
    memcpy(out, digest[0], sizeof digest[0]);
}

Test(answers, local_worlds, .timeout = 60) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    char digest[33];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        digest_of(ENGINE_LOCAL, sizes[i], digest);
}

Test(answers, threads_give_the_bits_of_processes, .timeout = 60) {
    char processes[33], threads[33];
    digest_of(ENGINE_LOCAL, 6, processes);
    digest_of(ENGINE_THREADS, 6, threads);
    cr_expect(strcmp(processes, threads) == 0);
}

Test(answers, mpi_gives_the_bits_of_local, .timeout = 60) {
    static const int sizes[] = {1, 3, 6};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char local[33], mpi[33];
        digest_of(ENGINE_LOCAL, sizes[i], local);
        digest_of(ENGINE_MPI, sizes[i], mpi);
        cr_expect(strcmp(local, mpi) == 0, "world of %d: local %s, mpi %s", sizes[i], local, mpi);
    }
}

/* 200 collectives of 64 ranks: 40 ms here on two idle cores. */
Test(answers, many_ranks_are_quick, .timeout = 60) {
    struct world_spec spec = help_spec(ENGINE_LOCAL, 64);
    struct outcome outcome;
    help_run(&spec, SCENARIO_SPEED, 30, &outcome);
    cr_expect(outcome.kind == OUTCOME_DONE, "%s", outcome.text);
    cr_expect(outcome.seconds < 2, "%g s", outcome.seconds);
}
