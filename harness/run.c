#include "harness/run.h"

#include "core/files.h"
#include "harness/progress.h"
#include "harness/saves.h"
#include "harness/verdict.h"
#include "sharded/subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- what a rank does */

struct rank_item { /* what one world runs: a segment of a case */
    const struct test_case *one;
    int segment;
};

struct rank_context { /* everything for one world size, in the order that harness and ranks share */
    int count;
    struct rank_item *item;
    const char *keep;  /* folder of all dumps, or NULL */
    const char *saves; /* folder of all checkpoints */
};

/* Every segment of that size. Borrows from the list. */
static enum status context_make(struct rank_context *out, const struct case_list *list, int size) {
    int room = 0;
    for (int i = 0; i < list->count; i++)
        room += case_segments(list->item[i]);
    out->item = calloc((size_t)room + 1, sizeof *out->item);
    if (!out->item)
        return status_fail(STATUS_MEMORY, "out of memory before a world of %d was launched", size);
    for (int i = 0; i < list->count; i++)
        for (int segment = 0; segment < case_segments(list->item[i]); segment++) {
            const struct case_segment part = case_segment(list->item[i], segment);
            if (mesh_world(&part.mesh) == size)
                out->item[out->count++] = (struct rank_item){list->item[i], segment};
        }
    return STATUS_OK;
}

static int context_index(const struct rank_context *context, const struct test_case *one, int segment) {
    int index = 0;
    while (context->item[index].one != one || context->item[index].segment != segment)
        index++;
    return index;
}

/* DIR/CASE. A matrix may put a path into a name: its slashes make no folders. */
static char *case_folder(const char *keep, const struct test_case *one) {
    char *name = keep ? strdup(one->name) : NULL;
    for (char *slash = name; slash && (slash = strchr(slash, '/'));)
        *slash = '%';
    char *folder = name ? path_join(keep, name) : NULL;
    free(name);
    return folder;
}

enum status run_rank(void *context, int index, struct comm *comm,
                     enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                     void *sink) {
    const struct rank_context *ranks = context;
    const struct test_case *one = ranks->item[index].one;
    const struct case_segment part = case_segment(one, ranks->item[index].segment);
    struct rules rules = rules_right;
    char *folder = case_folder(ranks->keep, one), *saves = case_folder(ranks->saves, one);
    char *export_folder = folder ? path_join(folder, "export") : NULL;
    char *save_folder = saves ? path_join(saves, "save") : NULL;
    if (one->fault)
        one->fault->plant(&rules);
    struct subject_hooks hooks = {.context = sink,
                                  .record = record,
                                  .export_folder = export_folder,
                                  .save_folder = save_folder,
                                  .first = part.first,
                                  .end = part.end};
    enum status status = subject_run(&one->job, &part.mesh, one->layout, &rules, comm, &hooks);
    free(save_folder);
    free(export_folder);
    free(saves);
    free(folder);
    return status;
}

/* ---- loading */

/* A report that could not be written must not cost the run: its place is looked at before. */
static enum status check_report(const char *path) {
    enum status status = STATUS_OK;
    if (!path)
        return STATUS_OK;
    char *folder = path_folder(path);
    if (!folder)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    if (!*path || path_is_folder(path))
        status = status_fail(STATUS_INPUT, "%s: is no file, expected the name of a report", *path ? path : "''");
    else if (!path_is_folder(folder) || access(folder, W_OK) != 0)
        status = status_fail(STATUS_INPUT, "%s: cannot be written, expected a folder %s to write in", path, folder);
    free(folder);
    return status;
}

static enum status check_outputs(const struct run_options *options) {
    TRY(check_report(options->json));
    TRY(check_report(options->junit));
    if (options->json && options->junit && strcmp(options->json, options->junit) == 0)
        return status_fail(STATUS_INPUT, "%s: is named for both reports, expected two files", options->json);
    if (options->keep && !*options->keep)
        return status_fail(STATUS_INPUT, "--keep '': names no folder, expected one");
    return options->keep ? folder_make(options->keep) : STATUS_OK;
}

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
    struct rank_context group; /* what runs at the world size at hand; borrows from list */
    struct world *world;
    struct saves saves; /* where checkpoints stand without --keep */
};

/* A later segment's own world. */
struct stage {
    struct rank_context ranks;
    struct world *world;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static enum status launch(const struct run *run, int size, struct rank_context *ranks, struct world **out) {
    const struct run_options *options = run->options;
    char launched[16];
    snprintf(launched, sizeof launched, "%d", size);
    char **arguments = calloc((size_t)options->argument_count + 6, sizeof *arguments);
    if (!arguments)
        return status_fail(STATUS_MEMORY, "out of memory before a world of %d was launched", size);
    int count = 0;
    arguments[count++] = (char *)"worker";
    arguments[count++] = (char *)"--launched"; /* first: a word `--` of the user's ends the options */
    arguments[count++] = launched;
    if (ranks->saves) {
        arguments[count++] = (char *)"--saves";
        arguments[count++] = (char *)(uintptr_t)ranks->saves;
    }
    for (int i = 0; i < options->argument_count; i++)
        arguments[count++] = options->arguments[i];
    struct world_spec spec = {.engine = options->engine,
                              .size = size,
                              .run = run_rank,
                              .context = ranks,
                              .program = options->program,
                              .arguments = arguments};
    enum status status = world_launch(out, &spec);
    free(arguments);
    return status;
}

/* As a shell reads it: in quotes unless it is plain. */
static void print_word(FILE *out, const char *word) {
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-:,@%=";
    if (*word && !word[strspn(word, plain)]) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    fputc('\'', out);
}

/* The command that runs this case alone. */
static enum status repeat_command(const struct run *run, const struct test_case *one, struct report_case *out) {
    const struct run_options *options = run->options;
    size_t length;
    FILE *text = open_memstream(&out->repeat, &length);
    if (!text)
        return status_fail(STATUS_MEMORY, "out of memory while a report was filled");
    print_word(text, options->program);
    fputs(" run ", text);
    print_word(text, one->file);
    fputs(" --filter ", text);
    print_word(text, one->name);
    if (options->engine != ENGINE_LOCAL)
        fputs(options->engine == ENGINE_MPI ? " --engine mpi" : " --threads", text);
    if (options->cases.replace_dtype)
        fprintf(text, " --dtype %s", dtype_word(options->cases.dtype));
    return fclose(text) == 0 ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory while a report was filled");
}

/* The traces of all segments, the first from the group's world. */
static enum status take_traces(struct run *run, const struct stage *stages, int segments, struct trace *trace) {
    TRY(world_trace(run->world, &trace[0]));
    for (int i = 1; i < segments; i++)
        TRY(world_trace(stages[i].world, &trace[i]));
    return STATUS_OK;
}

static enum status judge_outcome(struct run *run, const struct test_case *one, const struct stage *stages,
                                 const struct outcome *outcome, struct report_case *out) {
    bool done = outcome->kind == OUTCOME_DONE;
    int segments = case_segments(one);
    char *keep = case_folder(run->options->keep, one), *saves = case_folder(run->group.saves, one), *twin = NULL;
    struct trace *trace = calloc((size_t)segments, sizeof *trace);
    enum status status = trace ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory before a case was judged");
    if (status == STATUS_OK && saves && !(twin = path_join(saves, "twin")))
        status = status_fail(STATUS_MEMORY, "out of memory before a case was judged");
    if (status == STATUS_OK && done)
        status = take_traces(run, stages, segments, trace);
    if (status == STATUS_OK) {
        struct verdict_input input = {one, outcome, done ? trace : NULL, keep, one->job.saves > 0 ? twin : NULL};
        status = verdict_make(&input, run->options->engine_name, out);
    }
    for (int i = 0; trace && i < segments; i++)
        trace_free(&trace[i]);
    free(trace);
    if (twin && one->job.saves > 0)
        folder_remove(twin);
    if (saves && one->job.saves > 0 && !run->options->keep)
        folder_remove(saves);
    free(twin);
    free(saves);
    free(keep);
    return status;
}

/* In a world that is launched if it is not there. */
static void run_segment(const struct run *run, const struct test_case *one, int segment, struct rank_context *ranks,
                        struct world **world, struct outcome *out) {
    const struct case_segment part = case_segment(one, segment);
    if (!*world && launch(run, mesh_world(&part.mesh), ranks, world) != STATUS_OK) {
        *out = (struct outcome){.kind = OUTCOME_LAUNCH, .rank = -1};
        snprintf(out->text, sizeof out->text, "%s", status_note());
        status_clear();
    } else {
        world_run(*world, context_index(ranks, one, segment), one->limit, out);
    }
}

/* The later segments in turn; each world stays until the case is judged. */
static enum status run_stages(const struct run *run, const struct test_case *one, struct stage *stages,
                              struct outcome *outcome) {
    for (int i = 1; i < case_segments(one) && outcome->kind == OUTCOME_DONE; i++) {
        const struct case_segment part = case_segment(one, i);
        struct stage *stage = &stages[i];
        stage->ranks = (struct rank_context){.keep = run->group.keep, .saves = run->group.saves};
        TRY(context_make(&stage->ranks, &run->list, mesh_world(&part.mesh)));
        outcome_free(outcome);
        run_segment(run, one, i, &stage->ranks, &stage->world, outcome);
    }
    return STATUS_OK;
}

static enum status run_one(struct run *run, const struct test_case *one) {
    struct outcome outcome = {0};
    struct report_case *report;
    double start = now();
    progress_show(&run->progress, run->report.count, one->name);
    struct stage *stages = calloc((size_t)case_segments(one), sizeof *stages);
    enum status status = stages ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory before a case was run");
    TRY_DONE(status);
    run_segment(run, one, 0, &run->group, &run->world, &outcome);
    bool dead = outcome.kind != OUTCOME_DONE;
    TRY_DONE(run_stages(run, one, stages, &outcome));
    TRY_DONE(report_add(&run->report, &report));
    status = judge_outcome(run, one, stages, &outcome, report);
    if (status == STATUS_INPUT ||
        status == STATUS_INTERNAL) /* records that nothing can be computed from: this case's fault */
        status = verdict_unusable(report);
    if (dead) {
        world_end(run->world);
        run->world = NULL;
    }
    TRY_DONE(status);
    TRY_DONE(repeat_command(run, one, report));
    report->seconds = now() - start;
    progress_case(&run->progress, report);
done:
    outcome_free(&outcome);
    for (int i = 1; stages && i < case_segments(one); i++) {
        world_end(stages[i].world);
        free(stages[i].ranks.item);
    }
    free(stages);
    return status;
}

/* All cases that begin in one world size, in one world. */
static enum status run_size(struct run *run, int size) {
    enum status status;
    run->group = (struct rank_context){.keep = run->options->keep,
                                       .saves = run->options->keep ? run->options->keep : run->saves.folder};
    TRY(context_make(&run->group, &run->list, size));
    status = STATUS_OK;
    for (int i = 0; i < run->group.count && status == STATUS_OK && !world_stopped(); i++)
        if (run->group.item[i].segment == 0)
            status = run_one(run, run->group.item[i].one);
    world_end(run->world);
    run->world = NULL;
    free(run->group.item);
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

int run_failure(enum status status) {
    char line[4096];
    size_t used = 0;
    for (const char *c = status_note(); *c && used + 1 < sizeof line; c++)
        line[used++] = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    line[used] = '\0';
    fprintf(stderr, "shardproof: %s\n", line);
    return status == STATUS_INPUT || status == STATUS_IO ? 2 : 3;
}

static bool any_saves(const struct case_list *list) {
    for (int i = 0; i < list->count; i++)
        if (list->item[i]->job.saves > 0)
            return true;
    return false;
}

int run_cases(const struct run_options *options) {
    struct run run = {.options = options};
    double start = now();
    enum status status;
    int code;
    bool gpu = strcmp(options->engine_name, "nccl") == 0 || strcmp(options->device, "cuda") == 0;
    TRY_DONE(load(options, &run.list));
    TRY_DONE(check_outputs(options));
    run.report = (struct report){.command = "run", .engine = options->engine_name, .device = options->device};
    if (any_saves(&run.list) && !options->keep)
        TRY_DONE(saves_make(&run.saves));
    progress_start(&run.progress, run.list.count, options->quiet);
    world_handle_signals();
    TRY_DONE(gpu ? skip_all(&run, "this build has no GPU back end") : run_all(&run));
    progress_end(&run.progress);
    run.report.seconds = now() - start;
    TRY_DONE(write_reports(&run));
done:
    code = status == STATUS_OK ? report_exit_code(&run.report) : run_failure(status);
    if (status == STATUS_OK) {
        report_print_summary(stdout, &run.report);
        if (world_stopped()) {
            fprintf(stderr, "shardproof: stopped by a signal after %d of %d cases\n", run.report.count, run.list.count);
            code = 3;
        }
    }
    saves_remove(&run.saves);
    report_free(&run.report);
    cases_free(&run.list);
    return code;
}

int run_worker(const struct run_options *options, const char *folder) {
    struct rank_context ranks = {.keep = options->keep, .saves = options->saves};
    struct case_list list = {0};
    enum status status = load(options, &list);
    if (status == STATUS_OK)
        status = context_make(&ranks, &list, options->cases.launched);
    int code = status == STATUS_OK ? world_worker(folder, run_rank, &ranks) : run_failure(status);
    free(ranks.item);
    cases_free(&list);
    return code;
}
