/* A rank that dies or stops: its case is an error that names it, the other cases of the run go on, nothing is left. */
#include "processes.h"
#include "report.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4
#define VICTIM 2
#define NOTICED 2.0 /* seconds: the promise */
#define SLACK 1.5   /* for a busy machine and a sanitizer */

/* Three cases: aaa_short, then bbb_long in the same world, long enough to be met at work, then one on three ranks. */
static char *make_list(const struct scratch *scratch, const char *limit) {
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    fprintf(file,
            "case: bbb_long\nmodel: @/model\nmesh: {ep: 2, fsdp: 2}\nlimit: %s\n"
            "tenants: {ada: {adapter: @/adapters/ada}}\nbatches: @/batches.safetensors\nscript:\n- acquire: ada\n",
            limit);
    for (int i = 0; i < 60; i++)
        fprintf(file, "- train: {tenant: ada, micro: [%d]}\n", i % 2);
    fclose(file);
    scratch_mkdir(scratch, "list");
    free(scratch_case(scratch, "list/a.yaml", 1, "case: aaa_short"));
    free(scratch_write(scratch, "list/b.yaml", text));
    free(scratch_case(scratch, "list/c.yaml", 3, "mesh: {ep: 3}"));
    free(text);
    return scratch_path(scratch, "list");
}

static bool has_printed(const struct command *command, const char *text) {
    char *out = read_text(command->out_path);
    bool found = strstr(out, text) != NULL;
    free(out);
    return found;
}

/* The ranks, once the short case has passed: they are up, and the long case is theirs next. */
static struct processes ranks_at_work(const struct scratch *scratch, const struct command *command, bool mpi) {
    while (!has_printed(command, "pass  aaa_short") && now() - command->start < 60)
        pause_ms(1);
    struct processes ranks = rank_processes(scratch, command->pid, mpi, RANKS);
    cr_assert_eq(ranks.count, RANKS, "the ranks were not seen at work");
    return ranks;
}

struct run {
    struct scratch scratch;
    struct command command;
    struct processes ranks;
    double met; /* when the ranks were seen and the victim stopped */
};

/* Starts both cases and stops the victim as soon as the ranks are there: so the case cannot end before it is killed. */
static struct run start_and_stop(const char *engine, const char *limit) {
    struct run run = {.scratch = scratch_make()};
    command_leaks_unwatched();
    char *list = make_list(&run.scratch, limit), *json = scratch_path(&run.scratch, "report.json");
    const char *const words[] = {"run", list, "--engine", engine, "--json", json, NULL};
    bool mpi = strcmp(engine, "mpi") == 0;
    run.command = command_start(&run.scratch, words);
    run.ranks = ranks_at_work(&run.scratch, &run.command, mpi);
    cr_assert_eq(kill(run.ranks.pid[VICTIM], SIGSTOP), 0);
    run.met = now();
    free(json);
    free(list);
    return run;
}

/* The case's line is printed when its end is known. */
static void expect_line_within(const struct run *run, double since, double limit) {
    while (!has_printed(&run->command, "ERROR bbb_long") && now() - since < limit + 30)
        pause_ms(5);
    cr_expect_leq(now() - since, limit, "noticed after %g s", now() - since);
}

static void expect_error(struct run *run, const char *reason, const char *what, double since, double limit) {
    expect_line_within(run, since, limit);
    struct result result = command_wait(&run->command, 60);
    cr_expect_eq(result.code, 3, "%s%s", result.out, result.err);
    cr_expect_str_eq(result.err, "");
    expect_nothing_left(&run->scratch, reason);
    json_t *report = report_load(&run->scratch, "report.json");
    json_t *one = report_case_of(report, "bbb_long");
    cr_expect_str_eq(text_of(one, "verdict"), "error");
    cr_expect_str_eq(text_of(one, "reason"), reason);
    cr_expect_str_eq(text_of(one, "finding.kind"), reason);
    cr_expect_eq(number_of(one, "finding.rank"), VICTIM, "%s", text_of(one, "finding.text"));
    cr_expect(strstr(text_of(one, "finding.text"), what), "%s", text_of(one, "finding.text"));
    cr_expect_str_eq(text_of(report_case_of(report, "aaa_short"), "verdict"), "pass");
    cr_expect_str_eq(text_of(report_case_of(report, "base"), "verdict"), "pass");
    cr_expect_str_eq(last_line(&result), "2 passed, 1 failed, 0 skipped");
    json_decref(report);
    result_free(&result);
    scratch_free(&run->scratch);
}

static void kill_one(const char *engine) {
    struct run run = start_and_stop(engine, "60");
    pause_ms(300); /* the others are at work, or wait */
    double killed = now();
    cr_assert_eq(kill(run.ranks.pid[VICTIM], SIGKILL), 0);
    expect_error(&run, "crash", "rank 2 was killed by signal 9 (SIGKILL)", killed, NOTICED + SLACK);
}

Test(cli, killed_rank_local) {
    kill_one("local");
}

Test(cli, killed_rank_mpi) {
    kill_one("mpi");
}

static void stop_one(const char *engine) {
    struct run run = start_and_stop(engine, "2");
    expect_error(&run, "hang", "the case did not end within 2 s: rank 2 hangs", run.met, 2 + NOTICED + SLACK);
}

Test(cli, stopped_rank_local) {
    stop_one("local");
}

Test(cli, stopped_rank_mpi) {
    stop_one("mpi");
}

/* ---- the harness itself is ended */

static void end_harness(const char *engine, int signal, bool group, int early_ms) {
    struct scratch scratch = scratch_make();
    int segments = shared_segments();
    command_leaks_unwatched();
    char *path = make_list(&scratch, "60"), what[64];
    snprintf(what, sizeof what, "%s, signal %d", engine, signal);
    const char *const words[] = {"run", path, "--engine", engine, NULL};
    bool mpi = strcmp(engine, "mpi") == 0;
    struct command command = command_start(&scratch, words);
    struct processes ranks = {0};
    if (early_ms > 0)
        pause_ms(early_ms);
    if (early_ms == 0) {
        ranks = ranks_at_work(&scratch, &command, mpi);
        kill(ranks.pid[VICTIM], SIGSTOP); /* a rank that cannot leave by itself */
    }
    cr_assert_eq(kill(group ? -command.pid : command.pid, signal), 0);
    double sent = now();
    struct result result = command_wait(&command, 60);
    expect_all_gone(&scratch, 3.0 - (now() - sent), what);
    cr_expect_leq(now() - sent, 4, "%s: gone after %g s", what, now() - sent);
    cr_expect_leq(shared_segments(), segments, "%s: shared segments are left", what);
    if (signal == SIGKILL || early_ms > 0) {
        cr_expect(result.code == -signal || result.code == 3, "%s: exit %d", what, result.code);
    } else {
        cr_expect_eq(result.code, 3, "%s: exit %d", what, result.code);
        cr_expect_eq(line_count(result.err), 1, "%s: %s", what, result.err);
        cr_expect(strstr(result.err, "stopped by a signal"), "%s: %s", what, result.err);
    }
    result_free(&result);
    free(path);
    scratch_free(&scratch);
}

Test(cli, nothing_is_left_after_signals_local) {
    end_harness("local", SIGINT, true, 0);
    end_harness("local", SIGTERM, false, 0);
    end_harness("local", SIGKILL, false, 0);
    end_harness("local", SIGHUP, false, 30);
}

Test(cli, nothing_is_left_after_ctrl_c_mpi) {
    end_harness("mpi", SIGINT, true, 0);
    end_harness("mpi", SIGTERM, false, 0);
}

Test(cli, nothing_is_left_after_a_kill_mpi) {
    end_harness("mpi", SIGKILL, false, 0);
    end_harness("mpi", SIGHUP, false, 100);
}

/* While mpirun and its ranks come up, at any moment. */
Test(cli, nothing_is_left_after_a_kill_while_mpi_starts) {
    static const int after_ms[] = {1, 2, 3, 4, 5, 6, 8, 12, 20, 60, 150, 300};
    for (size_t i = 0; i < sizeof after_ms / sizeof *after_ms; i++)
        end_harness("mpi", SIGKILL, false, after_ms[i]);
}

/* `shardproof run | head -1`: the pipe breaks while ranks are up. */
Test(cli, nothing_is_left_after_a_broken_pipe) {
    struct scratch scratch = scratch_make();
    char command[8192],
        *path = scratch_case(&scratch, "case.yaml", 3, "matrix: {mesh: [{ep: 2}, {ep: 3}, {ep: 4}, {ep: 6}]}");
    command_leaks_unwatched();
    snprintf(command, sizeof command, "TMPDIR=%s %s run --engine mpi %s | head -n 1 >/dev/null", scratch.tmp,
             command_program(), path);
    cr_expect_eq(system(command), 0);
    expect_all_gone(&scratch, 3.0, "broken pipe");
    free(path);
    scratch_free(&scratch);
}
