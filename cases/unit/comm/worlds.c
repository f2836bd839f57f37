#include "cases/unit/comm/help.h"

#include "core/files.h"
#include "harness/world_private.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/wait.h>

/* ---- a rank goes wrong */

static void expect_crash(enum world_engine engine, enum scenario scenario, const char *words) {
    struct world_spec spec = help_spec(engine, 4);
    struct outcome outcome;
    help_run(&spec, (int)scenario, 20, &outcome);
    cr_expect(outcome.kind == OUTCOME_CRASH && outcome.rank == 2, "engine %d: %s", engine, outcome.text);
    cr_expect(strstr(outcome.text, words) != NULL, "%s", outcome.text);
    cr_expect(strstr(outcome.text, "all_reduce(ep*fsdp, first, 8 x float64) at script/first") != NULL, "%s",
              outcome.text);
    cr_expect(outcome.seconds < (engine == ENGINE_MPI ? 4 : 2), "%g s", outcome.seconds);
    outcome_free(&outcome);
}

Test(worlds, a_killed_rank, .timeout = 30) {
    expect_crash(ENGINE_LOCAL, SCENARIO_KILL, "rank 2 was killed by signal 9");
    expect_crash(ENGINE_MPI, SCENARIO_KILL, "rank 2 was killed by signal 9");
}

Test(worlds, an_exiting_rank, .timeout = 30) {
    expect_crash(ENGINE_LOCAL, SCENARIO_EXIT, "rank 2 exited with code 7");
    expect_crash(ENGINE_MPI, SCENARIO_EXIT, "rank 2 exited with code 7");
}

Test(worlds, a_failing_rank, .timeout = 30) {
    for (enum world_engine engine = ENGINE_LOCAL; engine <= ENGINE_MPI; engine++)
        expect_crash(engine, SCENARIO_STATUS, "somefile:17: a planted failure");
}

Test(worlds, threads_die_together, .timeout = 30) {
    struct world_spec spec = help_spec(ENGINE_THREADS, 4);
    struct outcome outcome;
    help_run(&spec, SCENARIO_KILL, 20, &outcome);
    cr_expect(outcome.kind == OUTCOME_CRASH && outcome.rank == -1 && outcome.seconds < 2, "%s", outcome.text);
}

Test(worlds, a_hanging_rank, .timeout = 30) {
    for (enum world_engine engine = ENGINE_LOCAL; engine <= ENGINE_MPI; engine++) {
        struct world_spec spec = help_spec(engine, 4);
        struct outcome outcome;
        help_run(&spec, SCENARIO_HANG, 0.5, &outcome);
        cr_expect(outcome.kind == OUTCOME_HANG && outcome.rank == 1 && outcome.ranks == 4, "%s", outcome.text);
        cr_expect(strstr(outcome.text, "rank 1 hangs after all_reduce(ep*fsdp, first") != NULL, "%s", outcome.text);
        cr_expect(strstr(outcome.text, "ranks 0, 2, 3 wait in all_reduce(ep*fsdp, second") != NULL, "%s", outcome.text);
        cr_expect(outcome.stands[1].sequence == 1 && outcome.stands[3].sequence == 2);
        outcome_free(&outcome);
    }
}

Test(worlds, the_next_world_goes_on, .timeout = 30) {
    struct world_spec spec = help_spec(ENGINE_LOCAL, 4);
    const char *tmpdir = help_tmpdir();
    for (int i = 0; i < 3; i++) {
        struct world *world;
        struct outcome outcome;
        cr_assert(world_launch(&world, &spec) == STATUS_OK);
        world_run(world, SCENARIO_CLEAN, 10, &outcome);
        cr_expect(outcome.kind == OUTCOME_DONE, "%s", outcome.text);
        world_run(world, SCENARIO_KILL, 10, &outcome);
        cr_expect(outcome.kind == OUTCOME_CRASH, "%s", outcome.text);
        world_run(world, SCENARIO_CLEAN, 10, &outcome);
        cr_expect(outcome.kind == OUTCOME_CRASH, "a dead world ran a case");
        world_end(world);
    }
    help_nothing_left(tmpdir);
}

/* ---- the launch fails */

Test(worlds, no_mpirun, .timeout = 30) {
    struct world_spec spec = help_spec(ENGINE_MPI, 2);
    struct outcome outcome;
    setenv("PATH", "/nowhere", 1);
    help_run(&spec, SCENARIO_CLEAN, 10, &outcome);
    cr_expect(outcome.kind == OUTCOME_LAUNCH, "%d: %s", outcome.kind, outcome.text);
    cr_expect(strstr(outcome.text, "mpirun cannot be run") != NULL, "%s", outcome.text);
}

Test(worlds, ranks_that_never_come_up, .timeout = 30) {
    static const char *const programs[] = {"/nowhere/ranks", "/bin/false"};
    for (int i = 0; i < 2; i++) {
        struct world_spec spec = help_spec(ENGINE_MPI, 2);
        struct outcome outcome;
        spec.program = programs[i];
        help_run(&spec, SCENARIO_CLEAN, 10, &outcome);
        cr_expect(outcome.kind == OUTCOME_LAUNCH, "%d: %s", outcome.kind, outcome.text);
        cr_expect(strstr(outcome.text, programs[i]) != NULL || i == 1, "%s", outcome.text);
    }
}

Test(worlds, a_tmpdir_that_is_none, .timeout = 30) {
    struct world_spec spec = help_spec(ENGINE_MPI, 2);
    struct world *world;
    setenv("TMPDIR", "/nowhere/at/all", 1);
    cr_expect(world_launch(&world, &spec) == STATUS_IO);
    cr_expect(strstr(status_note(), "/nowhere/at/all") != NULL, "%s", status_note());
}

/* ---- the harness goes */

struct seen { /* what the small harness shows its parent */
    _Atomic int ready;
    int pids[4];
};

static void harness_body(enum world_engine engine, struct seen *seen) {
    struct world_spec spec = help_spec(engine, 4);
    struct world *world;
    struct outcome outcome;
    world_handle_signals();
    if (world_launch(&world, &spec) != STATUS_OK)
        _exit(4);
    world_run(world, SCENARIO_CLEAN, 10, &outcome);
    for (int r = 0; r < 4; r++)
        seen->pids[r] = atomic_load(&world->board->rank[r].pid);
    atomic_store(&seen->ready, 1);
    world_run(world, SCENARIO_HANG, 25, &outcome);
    world_end(world);
    _exit(outcome.kind == OUTCOME_STOPPED ? 0 : 5);
}

static int alive(const struct seen *seen) {
    int count = 0;
    for (int r = 0; r < 4; r++)
        count += process_alive(seen->pids[r]);
    return count;
}

/* Returns the harness's wait status; checks that its ranks and files go within `seconds`. */
static int end_harness(enum world_engine engine, int signal_number, double seconds) {
    const char *tmpdir = help_tmpdir();
    int status = 0, segments = help_segments();
    struct seen *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();
    if (pid == 0)
        harness_body(engine, seen);
    for (int i = 0; i < 2000 && !atomic_load(&seen->ready); i++)
        world_pause(5000);
    cr_assert(atomic_load(&seen->ready) && alive(seen) > 0);
    world_pause(100000); /* into the hanging case */
    double start = world_seconds();
    kill(pid, signal_number);
    cr_expect(waitpid(pid, &status, 0) == pid);
    while ((alive(seen) > 0 || help_entries(tmpdir) > 0) && world_seconds() - start < seconds)
        world_pause(5000);
    cr_expect(alive(seen) == 0, "engine %d, signal %d: %d ranks live", engine, signal_number, alive(seen));
    cr_expect(help_segments() <= segments);
    help_nothing_left(tmpdir);
    munmap(seen, sizeof *seen);
    return status;
}

Test(worlds, sigkill_of_the_harness, .timeout = 30) {
    end_harness(ENGINE_LOCAL, SIGKILL, 1);
    end_harness(ENGINE_THREADS, SIGKILL, 1);
    end_harness(ENGINE_MPI, SIGKILL, 3);
}

Test(worlds, ctrl_c_and_sigterm, .timeout = 30) {
    static const int signals[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        int local = end_harness(ENGINE_LOCAL, signals[i], 1), mpi = end_harness(ENGINE_MPI, signals[i], 3);
        cr_expect(WIFEXITED(local) && WEXITSTATUS(local) == 0, "local: status %x", (unsigned)local);
        cr_expect(WIFEXITED(mpi) && WEXITSTATUS(mpi) == 0, "mpi: status %x", (unsigned)mpi);
    }
}
