#include "harness/run.h"

#include "core/files.h"
#include "harness/progress.h"
#include "harness/verdict.h"
#include "sharded/subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- what a rank does */

struct rank_context {
    struct case_list list; /* of one world size, in the order that harness and ranks share */
    const char *keep;      /* folder of all dumps, or NULL */
};

static char *case_folder(const char *keep, const struct test_case *one) {
    return keep ? path_join(keep, one->name) : NULL;
}

enum status run_rank(void *context, int index, struct comm *comm,
                     enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                     void *sink) {
    const struct rank_context *ranks = context;
    const struct test_case *one = ranks->list.item[index];
    struct rules rules = rules_right;
    char *folder = case_folder(ranks->keep, one);
    char *export_folder = folder ? path_join(folder, "export") : NULL;
    if (one->fault)
        one->fault->plant(&rules);
    struct subject_hooks hooks = {.context = sink, .record = record, .export_folder = export_folder};
    enum status status = subject_run(&one->job, &one->mesh, one->layout, &rules, comm, &hooks);
    free(export_folder);
    free(folder);
    return status;
}

/* ---- loading */

static enum status load(const struct run_options *options, struct case_list *list) {
    for (int i = 0; i < options->paths; i++) {
        if (!path_exists(options->path[i]))
            return status_fail(STATUS_INPUT, "%s: does not exist, expected a case file or a folder", options->path[i]);
        TRY(cases_load(list, options->path[i], &options->cases));
    }
    if (list->count > 0)
        return STATUS_OK;
    if (options->cases.filter)
        return status_fail(STATUS_INPUT, "--filter %s: no case has such a name, expected at least one",
                           options->cases.filter);
    if (options->cases.world)
        return status_fail(STATUS_INPUT, "--ranks %d: no case has a world of this size, expected at least one",
                           options->cases.world);
    return status_fail(STATUS_INPUT, "%s: holds no case, expected *.yaml files", options->path[0]);
}

/* ---- running */

struct run {
    const struct run_options *options;
    struct case_list list;
    struct report report;
    struct progress progress;
    struct rank_context group; /* cases of the world size at hand; borrows from list */
    struct world *world;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static enum status launch(struct run *run, int size) {
    const struct run_options *options = run->options;
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", size);
    char **arguments = calloc((size_t)options->argument_count + 4, sizeof *arguments);
    if (!arguments)
        return status_fail(STATUS_MEMORY, "out of memory before a world of %d was launched", size);
    int count = 0;
    arguments[count++] = (char *)"worker";
    for (int i = 0; i < options->argument_count; i++)
        arguments[count++] = options->arguments[i];
    arguments[count++] = (char *)"--ranks";
    arguments[count++] = ranks;
    struct world_spec spec = {.engine = options->engine,
                              .size = size,
                              .run = run_rank,
                              .context = &run->group,
                              .program = options->program,
                              .arguments = arguments};
    enum status status = world_launch(&run->world, &spec);
    free(arguments);
    return status;
}

/* The command that runs this case alone. */
static enum status repeat_command(const struct run *run, const struct test_case *one, struct report_case *out) {
    const struct run_options *options = run->options;
    char text[4096], dtype[32] = "", engine[64] = "";
    if (options->cases.replace_dtype)
        snprintf(dtype, sizeof dtype, " --dtype %s", dtype_word(options->cases.dtype));
    if (options->engine != ENGINE_LOCAL)
        snprintf(engine, sizeof engine, options->engine == ENGINE_MPI ? " --engine mpi" : " --threads");
    snprintf(text, sizeof text, "%s run %s --filter '%s'%s%s", options->program, one->file, one->name, engine, dtype);
    out->repeat = strdup(text);
    return out->repeat ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory while a report was filled");
}

static enum status judge_outcome(struct run *run, int index, const struct outcome *outcome, struct report_case *out) {
    const struct test_case *one = run->group.list.item[index];
    struct trace trace = {0};
    char *keep = case_folder(run->options->keep, one);
    enum status status = outcome->kind == OUTCOME_DONE ? world_trace(run->world, &trace) : STATUS_OK;
    if (status == STATUS_OK) {
        struct verdict_input input = {one, outcome, outcome->kind == OUTCOME_DONE ? &trace : NULL, keep};
        status = verdict_make(&input, run->options->engine_name, out);
    }
    trace_free(&trace);
    free(keep);
    return status;
}

static enum status run_one(struct run *run, int index) {
    const struct test_case *one = run->group.list.item[index];
    struct outcome outcome = {0};
    struct report_case *report;
    double start = now();
    progress_show(&run->progress, run->report.count, one->name);
    if (!run->world && launch(run, mesh_world(&one->mesh)) != STATUS_OK) {
        outcome = (struct outcome){.kind = OUTCOME_LAUNCH, .rank = -1};
        snprintf(outcome.text, sizeof outcome.text, "%s", status_note());
        status_clear();
    } else {
        world_run(run->world, index, one->limit, &outcome);
    }
    TRY(report_add(&run->report, &report));
    enum status status = judge_outcome(run, index, &outcome, report);
    if (outcome.kind != OUTCOME_DONE) {
        world_end(run->world);
        run->world = NULL;
    }
    outcome_free(&outcome);
    TRY(status);
    TRY(repeat_command(run, one, report));
    report->seconds = now() - start;
    progress_case(&run->progress, report);
    return STATUS_OK;
}

/* All cases of one world size, in one world. */
static enum status run_size(struct run *run, int size) {
    enum status status = STATUS_OK;
    run->group = (struct rank_context){.keep = run->options->keep};
    run->group.list.item = calloc((size_t)run->list.count, sizeof *run->group.list.item);
    if (!run->group.list.item)
        return status_fail(STATUS_MEMORY, "out of memory before a world of %d was launched", size);
    for (int i = 0; i < run->list.count; i++)
        if (mesh_world(&run->list.item[i]->mesh) == size)
            run->group.list.item[run->group.list.count++] = run->list.item[i];
    for (int i = 0; i < run->group.list.count && status == STATUS_OK && !world_stopped(); i++)
        status = run_one(run, i);
    world_end(run->world);
    run->world = NULL;
    free(run->group.list.item);
    return status;
}

static enum status run_all(struct run *run) {
    bool done[1025] = {false}; /* sizes that have run */
    for (int i = 0; i < run->list.count && !world_stopped(); i++) {
        int size = mesh_world(&run->list.item[i]->mesh);
        if (done[size])
            continue;
        done[size] = true;
        TRY(run_size(run, size));
    }
    return STATUS_OK;
}

/* Want of hardware is a skip, never a pass. */
static enum status skip_all(struct run *run, const char *reason) {
    for (int i = 0; i < run->list.count; i++) {
        struct report_case *report;
        TRY(report_add(&run->report, &report));
        TRY(verdict_skip(run->list.item[i], run->options->engine_name, reason, report));
        progress_case(&run->progress, report);
    }
    return STATUS_OK;
}

static enum status write_reports(const struct run *run) {
    if (run->options->json)
        TRY(report_write_json(&run->report, run->options->json));
    if (run->options->junit)
        TRY(report_write_junit(&run->report, run->options->junit));
    return STATUS_OK;
}

static int exit_code_of(enum status status) {
    fprintf(stderr, "shardproof: %s\n", status_note());
    return status == STATUS_INPUT || status == STATUS_IO ? 2 : 3;
}

int run_cases(const struct run_options *options) {
    struct run run = {.options = options};
    double start = now();
    enum status status;
    int code;
    bool gpu = strcmp(options->engine_name, "nccl") == 0 || strcmp(options->device, "cuda") == 0;
    TRY_DONE(load(options, &run.list));
    run.report = (struct report){.command = "run", .engine = options->engine_name, .device = options->device};
    progress_start(&run.progress, run.list.count, options->quiet);
    world_handle_signals();
    TRY_DONE(gpu ? skip_all(&run, "this build has no GPU back end") : run_all(&run));
    progress_end(&run.progress);
    run.report.seconds = now() - start;
    TRY_DONE(write_reports(&run));
done:
    code = status == STATUS_OK ? report_exit_code(&run.report) : exit_code_of(status);
    if (status == STATUS_OK) {
        report_print_summary(stdout, &run.report);
        if (world_stopped()) {
            fprintf(stderr, "shardproof: stopped by a signal after %d of %d cases\n", run.report.count, run.list.count);
            code = 3;
        }
    }
    report_free(&run.report);
    cases_free(&run.list);
    return code;
}

int run_worker(const struct run_options *options, const char *folder) {
    struct rank_context ranks = {.keep = options->keep};
    enum status status = load(options, &ranks.list);
    int code = status == STATUS_OK ? world_worker(folder, run_rank, &ranks) : exit_code_of(status);
    cases_free(&ranks.list);
    return code;
}
