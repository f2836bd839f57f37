#include "command.h"

#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORDS 32
#define LIMIT 120.0 /* seconds for a command under a sanitizer on a busy machine */

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void pause_ms(int milliseconds) {
    struct timespec time = {milliseconds / 1000, 1000000L * (milliseconds % 1000)};
    nanosleep(&time, NULL);
}

const char *command_program(void) {
    static char path[4096];
    const char *build = getenv("SHARDPROOF_BUILD");
    snprintf(path, sizeof path, "%s/shardproof", build ? build : "build");
    cr_assert_eq(access(path, X_OK), 0, "%s is not there", path);
    return path;
}

/* environ with TMPDIR replaced; the array is the caller's, its first string too. */
static char **environment(const struct scratch *scratch) {
    size_t count = 0, used = 1;
    while (environ[count])
        count++;
    char **out = calloc(count + 2, sizeof *out);
    cr_assert(asprintf(&out[0], "TMPDIR=%s", scratch->tmp) > 0);
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "TMPDIR=", 7) != 0)
            out[used++] = environ[i];
    return out;
}

static char *stream_path(const struct scratch *scratch, const char *name) {
    static int number;
    char text[64];
    snprintf(text, sizeof text, "%s.%d", name, number++);
    return scratch_path(scratch, text);
}

struct command command_start(const struct scratch *scratch, const char *const *words) {
    struct command out = {.start = now()};
    char *arguments[MAX_WORDS] = {(char *)command_program()};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    for (int i = 0; words[i]; i++) {
        cr_assert_lt(i + 2, MAX_WORDS);
        arguments[i + 1] = (char *)words[i];
    }
    out.out_path = stream_path(scratch, "stdout");
    out.err_path = stream_path(scratch, "stderr");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, out.out_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_addopen(&actions, 2, out.err_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawnattr_init(&attributes); /* a group of its own, so that Ctrl-C can be sent to all of it */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    char **variables = environment(scratch);
    int error = posix_spawn(&out.pid, arguments[0], &actions, &attributes, arguments, variables);
    cr_assert_eq(error, 0, "%s: %s", arguments[0], strerror(error));
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(variables[0]);
    free(variables);
    return out;
}

struct result command_wait(struct command *command, double limit) {
    struct result out = {0};
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(command->pid, &status, WNOHANG)) == 0 && now() - command->start < limit)
        pause_ms(1);
    if (ended == 0) {
        kill(-command->pid, SIGKILL);
        waitpid(command->pid, &status, 0);
    }
    cr_expect_neq(ended, 0, "the command ran for more than %g s", limit);
    out.seconds = now() - command->start;
    out.code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    out.out = read_text(command->out_path);
    out.err = read_text(command->err_path);
    unlink(command->out_path);
    unlink(command->err_path);
    free(command->out_path);
    free(command->err_path);
    return out;
}

struct result command_run(const struct scratch *scratch, const char *const *words) {
    struct command command = command_start(scratch, words);
    struct result result = command_wait(&command, LIMIT);
    expect_nothing_left(scratch, words[0]);
    return result;
}

void result_free(struct result *result) {
    free(result->out);
    free(result->err);
    *result = (struct result){0};
}

const char *last_line(const struct result *result) {
    size_t length = strlen(result->out);
    if (length > 0 && result->out[length - 1] == '\n')
        result->out[length - 1] = '\0';
    const char *newline = strrchr(result->out, '\n');
    return newline ? newline + 1 : result->out;
}

int line_count(const char *text) {
    int count = 0;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

void command_leaks_unwatched(void) {
    char text[4096];
    const char *options = getenv("ASAN_OPTIONS");
    snprintf(text, sizeof text, "%s%sdetect_leaks=0", options ? options : "", options ? ":" : "");
    setenv("ASAN_OPTIONS", text, 1);
}
