#include "processes.h"

#include "command.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of /proc/PID/NAME, NULs made spaces. */
static void proc_text(pid_t pid, const char *name, char *out, size_t size) {
    char path[64];
    size_t used = 0;
    ssize_t got = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int file = open(path, O_RDONLY);
    while (file >= 0 && used + 1 < size && (got = read(file, out + used, size - used - 1)) > 0)
        used += (size_t)got;
    if (file >= 0)
        close(file);
    for (size_t i = 0; i < used; i++)
        if (out[i] == '\0')
            out[i] = ' ';
    out[used] = '\0';
}

/* State and parent stand behind the last parenthesis. */
static void proc_state(pid_t pid, char *state, pid_t *parent) {
    char text[1024];
    int number = 0;
    proc_text(pid, "stat", text, sizeof text);
    const char *behind = strrchr(text, ')');
    *state = 'X';
    if (behind && sscanf(behind + 1, " %c %d", state, &number) != 2)
        *state = 'X';
    *parent = number;
}

static int by_number(const void *a, const void *b) {
    return *(const pid_t *)a - *(const pid_t *)b;
}

static struct processes select_processes(bool (*wanted)(const void *with, pid_t pid, pid_t parent), const void *with) {
    struct processes out = {0};
    DIR *all = opendir("/proc");
    for (const struct dirent *entry; (entry = readdir(all)) && out.count < MAX_PROCESSES;) {
        pid_t pid = atoi(entry->d_name), parent;
        char state = 'X';
        if (pid <= 0 || pid == getpid())
            continue;
        proc_state(pid, &state, &parent);
        if (state != 'Z' && state != 'X' && wanted(with, pid, parent))
            out.pid[out.count++] = pid;
    }
    closedir(all);
    qsort(out.pid, (size_t)out.count, sizeof *out.pid, by_number);
    return out;
}

static bool has_word(const void *with, pid_t pid, pid_t parent) {
    char line[16384];
    (void)parent;
    proc_text(pid, "cmdline", line, sizeof line);
    return strstr(line, with) != NULL;
}

struct processes processes_with(const char *word) {
    return select_processes(has_word, word);
}

static bool is_child(const void *with, pid_t pid, pid_t parent) {
    (void)pid;
    return parent == *(const pid_t *)with;
}

static int rank_of(pid_t pid) {
    static const char variable[] = "OMPI_COMM_WORLD_RANK=";
    static char text[1 << 17];
    proc_text(pid, "environ", text, sizeof text);
    const char *at = strstr(text, variable);
    return at ? atoi(at + sizeof variable - 1) : -1;
}

struct processes rank_processes(const struct scratch *scratch, pid_t harness, bool mpi, int ranks) {
    struct processes found = mpi ? processes_with(scratch->folder) : select_processes(is_child, &harness);
    struct processes out = {0};
    int seen = 0;
    if (!mpi)
        return found.count == ranks ? found : out;
    for (int i = 0; i < found.count; i++) {
        int rank = rank_of(found.pid[i]);
        if (rank < 0 || rank >= ranks || out.pid[rank] != 0)
            continue;
        out.pid[rank] = found.pid[i];
        seen++;
    }
    out.count = seen == ranks ? ranks : 0;
    return out;
}

int shared_segments(void) {
    int count = 0;
    DIR *entries = opendir("/dev/shm");
    for (const struct dirent *entry; entries && (entry = readdir(entries));)
        count += strstr(entry->d_name, "vader_segment") != NULL;
    if (entries)
        closedir(entries);
    return count;
}

void expect_nothing_left(const struct scratch *scratch, const char *what) {
    struct processes left = processes_with(scratch->folder);
    cr_expect_eq(left.count, 0, "%s: %d processes are left", what, left.count);
    cr_expect_eq(scratch_entries(scratch->tmp), 0, "%s: TMPDIR is not empty", what);
}

void expect_all_gone(const struct scratch *scratch, double seconds, const char *what) {
    double start = now();
    while ((processes_with(scratch->folder).count > 0 || scratch_entries(scratch->tmp) > 0) && now() - start < seconds)
        pause_ms(20);
    expect_nothing_left(scratch, what);
}
