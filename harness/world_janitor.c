#include "harness/world_private.h"

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GONE_SECONDS 3.0   /* for killed processes to go */
#define REMOVE_SECONDS 2.0 /* for a folder in which somebody still wrote */

static char *process_file(pid_t pid, const char *name, size_t *length) {
    char path[64], *text = NULL;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL; /* gone: no failure to note */
    size_t room = 4096, used = 0;
    ssize_t got = 0;
    text = malloc(room);
    while (text != NULL && (got = read(file, text + used, room - used - 1)) > 0) {
        used += (size_t)got;
        if (used + 1 < room)
            continue;
        char *more = realloc(text, room *= 2);
        if (more == NULL)
            free(text);
        text = more;
    }
    close(file);
    if (text != NULL)
        text[ *length = used] = '\0';
    return text;
}

/* The letter of /proc/PID/stat; 'X' if there is no such process. */
static char process_state(pid_t pid) {
    size_t length;
    char *stat = pid > 0 ? process_file(pid, "stat", &length) : NULL;
    const char *behind = stat == NULL ? NULL : strrchr(stat, ')'); /* the name before it may hold anything */
    char state = behind != NULL && behind[1] == ' ' && behind[2] != '\0' ? behind[2] : 'X';
    free(stat);
    return state;
}

bool process_alive(pid_t pid) {
    return strchr("ZXx", process_state(pid)) == NULL;
}

bool process_stopped(pid_t pid) {
    return strchr("Tt", process_state(pid)) != NULL;
}

/* A process of this world has the world's folder as its last argument; another that got its number has not. */
static bool belongs(pid_t pid, const char *folder) {
    size_t length = 0, want = strlen(folder) + 1;
    char *line = pid > 0 ? process_file(pid, "cmdline", &length) : NULL;
    bool same = line != NULL && length > want && line[length - want - 1] == '\0' &&
                memcmp(line + length - want, folder, want) == 0;
    free(line);
    return same && process_alive(pid);
}

static int kill_round(const char *folder, struct mpi_processes *processes, const struct board *board) {
    int left = 0, ranks = board == NULL ? 0 : board->world;
    for (int r = -1; r < ranks; r++) {
        pid_t pid = r < 0 ? atomic_load(&processes->mpirun) : atomic_load(&board->rank[r].pid);
        if (!belongs(pid, folder))
            continue;
        kill(pid, SIGKILL);
        left++;
    }
    return left;
}

void world_mpi_kill(const char *folder, struct mpi_processes *processes, const struct board *board) {
    double deadline = world_seconds() + GONE_SECONDS;
    while (kill_round(folder, processes, board) > 0 && world_seconds() < deadline)
        world_pause(2000);
}

static void remove_folder(const char *folder) {
    double deadline = world_seconds() + REMOVE_SECONDS;
    folder_remove(folder);
    while (path_exists(folder) && world_seconds() < deadline) {
        world_pause(10000);
        status_clear();
        folder_remove(folder);
    }
}

/* Holds nothing of the harness open but its pipe, and is out of reach of the terminal's signals. */
static void stand_alone(int pipe_end) {
    setsid();
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3 && null >= 0; i++)
        dup2(null, i);
    if (pipe_end > 3)
        close_range(3, (unsigned)pipe_end - 1, 0);
    close_range((unsigned)pipe_end + 1, ~0U, 0);
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
}

static _Noreturn void janitor(const char *folder, struct mpi_processes *processes, int pipe_end) {
    stand_alone(pipe_end);
    char byte;
    while (read(pipe_end, &byte, 1) < 0 && errno == EINTR)
        continue; /* a byte: the world has ended; the end of file: the harness is dead */
    world_mpi_kill(folder, processes, world_board_map(folder));
    remove_folder(folder);
    _exit(0);
}

enum status janitor_start(const char *folder, struct mpi_processes *processes, int *out) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return status_fail(STATUS_RANK, "no pipe for the janitor: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        janitor(folder, processes, ends[0]);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return status_fail(STATUS_RANK, "no process for the janitor: %s", strerror(errno));
    }
    atomic_store(&processes->janitor, pid);
    *out = ends[1];
    return STATUS_OK;
}
