#include "cases/unit/comm/help.h"

#include "cases/unit/comm/script.h"
#include "core/files.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>

const char *help_tmpdir(void) {
    static char base[128], folder[256];
    if (base[0] == '\0') /* later calls find TMPDIR at the folder before */
        snprintf(base, sizeof base, "%s", getenv("TMPDIR") == NULL ? "/tmp" : getenv("TMPDIR"));
    snprintf(folder, sizeof folder, "%s/commtest.XXXXXX", base);
    cr_assert(mkdtemp(folder) != NULL);
    setenv("TMPDIR", folder, 1);
    return folder;
}

static int count_entries(const char *folder, const char *prefix) {
    DIR *stream = opendir(folder);
    int count = 0;
    if (stream == NULL)
        return -1;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(stream);
    return count;
}

int help_entries(const char *folder) {
    return count_entries(folder, "");
}

int help_segments(void) {
    return count_entries("/dev/shm", "vader_segment");
}

void help_nothing_left(const char *tmpdir) {
    cr_expect(help_entries(tmpdir) == 0, "%s holds %d entries", tmpdir, help_entries(tmpdir));
    errno = 0;
    cr_expect(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "a child process is left");
    cr_expect(folder_remove(tmpdir) == STATUS_OK);
}

struct world_spec help_spec(enum world_engine engine, int size) {
    static char program[512];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 16);
    cr_assert(length > 0);
    program[length] = '\0';
    strcpy(strrchr(program, '/') + 1, "comm_ranks"); /* built beside the tests */
    return (struct world_spec){.engine = engine, .size = size, .run = script, .program = program};
}

void help_run(const struct world_spec *spec, int index, double limit, struct outcome *out) {
    const char *tmpdir = help_tmpdir();
    int segments = help_segments();
    struct world *world;
    cr_assert(world_launch(&world, spec) == STATUS_OK, "%s", status_note());
    world_run(world, index, limit, out);
    world_end(world);
    cr_expect(help_segments() <= segments, "shared segments are left");
    help_nothing_left(tmpdir);
}
