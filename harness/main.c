/* shardproof: the command line. */
#include "harness/run.h"
#include "harness/show.h"

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SOURCE_CASES
#define SOURCE_CASES "cases"
#endif

static const char usage_text[] =
    "usage: shardproof run [CASE|DIR ...] [options]   check sharded training against one device\n"
    "       shardproof show trace FILE | layout FILE [--rank N] | case FILE | model DIR | faults\n"
    "       shardproof agree A.json B.json            two reports of the same cases: the same bits?\n"
    "       shardproof --help | --version\n"
    "\n"
    "run options\n"
    "  --engine local|mpi|nccl   who carries the bytes (default local: forked processes, shared memory)\n"
    "  --threads                 local ranks as threads (for sanitizers)\n"
    "  --device cpu|cuda         where the arithmetic runs (default cpu)\n"
    "  --ranks N                 only cases of world N\n"
    "  --filter GLOB             only cases whose name matches\n"
    "  --dtype float64|float32|bfloat16  replaces the cases' dtype\n"
    "  --keep DIR                write every case's dump to DIR/CASE\n"
    "  --json FILE --junit FILE  machine-readable reports\n"
    "  --quiet                   print failing cases and the last line only\n"
    "\n"
    "exit codes: 0 all passed, 1 a mismatch, 2 bad usage or input, 3 a world failed, 77 no hardware\n";

static enum status usage(const char *format, const char *word) {
    char text[512];
    snprintf(text, sizeof text, format, word);
    return status_fail(STATUS_INPUT, "%s, expected what `shardproof --help` lists", text);
}

static int finish(enum status status) {
    return status == STATUS_OK ? 0 : run_failure(status);
}

/* ---- run */

static enum status read_count(const char *option, const char *text, int high, int *out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < 0 || value > high)
        return status_fail(STATUS_INPUT, "%s %s: not a number in range, expected 0 to %d", option, text, high);
    *out = (int)value;
    return STATUS_OK;
}

static enum status read_dtype(const char *text, struct case_options *out) {
    out->replace_dtype = true;
    if (strcmp(text, "float64") == 0)
        out->dtype = DTYPE_F64;
    else if (strcmp(text, "float32") == 0)
        out->dtype = DTYPE_F32;
    else if (strcmp(text, "bfloat16") == 0)
        out->dtype = DTYPE_BF16;
    else
        return status_fail(STATUS_INPUT, "--dtype %s: unknown, expected float64, float32 or bfloat16", text);
    return STATUS_OK;
}

static enum status read_engine(const char *text, struct run_options *out) {
    out->engine_name = text;
    if (strcmp(text, "local") == 0)
        out->engine = ENGINE_LOCAL;
    else if (strcmp(text, "mpi") == 0)
        out->engine = ENGINE_MPI;
    else if (strcmp(text, "nccl") != 0)
        return status_fail(STATUS_INPUT, "--engine %s: unknown, expected local, mpi or nccl", text);
    return STATUS_OK;
}

enum {
    OPTION_ENGINE = 256,
    OPTION_THREADS,
    OPTION_DEVICE,
    OPTION_RANKS,
    OPTION_LAUNCHED, /* the two between harness and mpi ranks alone */
    OPTION_SAVES,
    OPTION_FILTER,
    OPTION_DTYPE,
    OPTION_KEEP,
    OPTION_JSON,
    OPTION_JUNIT,
    OPTION_QUIET
};

static enum status take_option(int option, struct run_options *out) {
    switch (option) {
    case OPTION_ENGINE:
        return read_engine(optarg, out);
    case OPTION_THREADS:
        out->engine = ENGINE_THREADS;
        return STATUS_OK;
    case OPTION_DEVICE:
        out->device = optarg;
        if (strcmp(optarg, "cpu") != 0 && strcmp(optarg, "cuda") != 0)
            return status_fail(STATUS_INPUT, "--device %s: unknown, expected cpu or cuda", optarg);
        return STATUS_OK;
    case OPTION_RANKS:
        TRY(read_count("--ranks", optarg, 1024, &out->cases.world));
        if (out->cases.world == 0)
            return status_fail(STATUS_INPUT, "--ranks 0: no world is empty, expected 1 to 1024");
        return STATUS_OK;
    case OPTION_LAUNCHED:
        return read_count("--launched", optarg, 1024, &out->cases.launched);
    case OPTION_SAVES:
        out->saves = optarg;
        return STATUS_OK;
    case OPTION_FILTER:
        out->cases.filter = optarg;
        return STATUS_OK;
    case OPTION_DTYPE:
        return read_dtype(optarg, &out->cases);
    case OPTION_KEEP:
        out->keep = optarg;
        return STATUS_OK;
    case OPTION_JSON:
        out->json = optarg;
        return STATUS_OK;
    case OPTION_JUNIT:
        out->junit = optarg;
        return STATUS_OK;
    case OPTION_QUIET:
        out->quiet = true;
        return STATUS_OK;
    default:
        return usage("%s", "an option is unknown or lacks its value");
    }
}

/* getopt has stopped at an option that it does not know, or that takes no value. */
static enum status refuse_option(char **words) {
    char letter[] = {'-', (char)optopt, '\0'};
    bool is_letter = optopt > 0 && optopt < OPTION_ENGINE;
    if (optopt >= OPTION_ENGINE)
        return usage("%s: takes no value", words[optind - 1]);
    return usage("%s: unknown option", is_letter ? letter : words[optind - 1]);
}

static enum status read_options(int count, char **words, struct run_options *out) {
    static const struct option options[] = {{"engine", required_argument, NULL, OPTION_ENGINE},
                                            {"threads", no_argument, NULL, OPTION_THREADS},
                                            {"device", required_argument, NULL, OPTION_DEVICE},
                                            {"ranks", required_argument, NULL, OPTION_RANKS},
                                            {"launched", required_argument, NULL, OPTION_LAUNCHED},
                                            {"saves", required_argument, NULL, OPTION_SAVES},
                                            {"filter", required_argument, NULL, OPTION_FILTER},
                                            {"dtype", required_argument, NULL, OPTION_DTYPE},
                                            {"keep", required_argument, NULL, OPTION_KEEP},
                                            {"json", required_argument, NULL, OPTION_JSON},
                                            {"junit", required_argument, NULL, OPTION_JUNIT},
                                            {"quiet", no_argument, NULL, OPTION_QUIET},
                                            {NULL, 0, NULL, 0}};
    int option;
    opterr = 0;
    optind = 0;
    while ((option = getopt_long(count, words, ":", options, NULL)) != -1) {
        if (option == ':')
            return usage("%s: its value is missing", words[optind - 1]);
        if (option == '?')
            return refuse_option(words);
        TRY(take_option(option, out));
    }
    out->path = words + optind;
    out->paths = count - optind;
    return STATUS_OK;
}

/* ../cases beside the folder of the binary (build/shardproof); else the tree it was built in. */
static char *default_cases(void) {
    char binary[4096];
    ssize_t length = readlink("/proc/self/exe", binary, sizeof binary - 1);
    char *found = NULL;
    if (length > 0) {
        binary[length] = '\0';
        char *folder = path_folder(binary);
        found = folder ? path_join(folder, "../cases") : NULL;
        free(folder);
    }
    if (found && path_exists(found))
        return found;
    free(found);
    return strdup(SOURCE_CASES);
}

/* `worker` is the same command line with the world's folder behind it. */
static int command_run(int count, char **words, bool worker) {
    struct run_options options = {.engine = ENGINE_LOCAL, .engine_name = "local", .device = "cpu"};
    char *folder = worker && count > 1 ? words[--count] : NULL;
    options.arguments = words + 1;
    char **kept = calloc((size_t)count + 1, sizeof *kept); /* getopt permutes `words` */
    if (!kept)
        return finish(status_fail(STATUS_MEMORY, "out of memory"));
    memcpy(kept, words + 1, (size_t)(count - 1) * sizeof *kept);
    options.arguments = kept;
    options.argument_count = count - 1;
    options.program = "/proc/self/exe";
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = '\0';
        options.program = program;
    }
    char *cases = NULL;
    enum status status = read_options(count, words, &options);
    if (status == STATUS_OK && options.paths == 0) {
        cases = default_cases();
        options.path = &cases;
        options.paths = 1;
    }
    int code = status != STATUS_OK ? finish(status)
               : worker            ? run_worker(&options, folder ? folder : "")
                                   : run_cases(&options);
    free(cases);
    free(kept);
    return code;
}

/* ---- show, agree */

static int command_show(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    const char *path = count > 2 ? words[2] : NULL;
    int rank = -1;
    if (strcmp(what, "faults") == 0 && count == 2)
        return finish(show_faults());
    if (!path)
        return finish(usage("show %s: a word is missing", what));
    if (strcmp(what, "layout") == 0) {
        if (count == 5 && strcmp(words[3], "--rank") == 0) {
            enum status status = read_count("--rank", words[4], 1 << 30, &rank);
            return status == STATUS_OK ? finish(show_layout(path, rank)) : finish(status);
        }
        return count == 3 ? finish(show_layout(path, rank)) : finish(usage("show layout: '%s' is unknown", words[3]));
    }
    if (count != 3)
        return finish(usage("show: '%s' is too much", words[3]));
    if (strcmp(what, "trace") == 0)
        return finish(show_trace(path));
    if (strcmp(what, "case") == 0)
        return finish(show_case(path));
    if (strcmp(what, "model") == 0)
        return finish(show_model(path));
    return finish(usage("show %s: unknown", what));
}

static int command_agree(int count, char **words) {
    bool same;
    if (count != 3)
        return finish(usage("agree: %s", "two reports are needed"));
    enum status status = show_agreement(words[1], words[2], &same);
    return status == STATUS_OK ? !same : finish(status);
}

/* A file that takes the place of a closed stream would receive what is meant for the terminal. */
static void open_streams(void) {
    int file = open("/dev/null", O_RDWR);
    while (file >= 0 && file <= STDERR_FILENO)
        file = dup(file);
    if (file > STDERR_FILENO)
        close(file);
}

static int command_named(int count, char **words) {
    const char *command = count > 1 ? words[1] : "";
    const char *first = count > 2 ? words[2] : "";
    if (strcmp(command, "--help") == 0 || strcmp(command, "help") == 0 || strcmp(first, "--help") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    if (strcmp(command, "run") == 0)
        return command_run(count - 1, words + 1, false);
    if (strcmp(command, "worker") == 0)
        return command_run(count - 1, words + 1, true);
    if (strcmp(command, "show") == 0)
        return command_show(count - 1, words + 1);
    if (strcmp(command, "agree") == 0)
        return command_agree(count - 1, words + 1);
    if (strcmp(command, "--version") == 0) {
        puts("shardproof " REPORT_VERSION);
        return 0;
    }
    return finish(*command ? usage("'%s' is no command", command) : usage("%s", "no command was given"));
}

int main(int count, char **words) {
    open_streams();
    int code = command_named(count, words);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    status_clear();
    return finish(status_fail(STATUS_IO, "standard output: cannot be written: %s", strerror(errno)));
}
