#include "harness/saves.h"

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern void __gcov_dump(void) __attribute__((weak));

/* Its own session: Ctrl-C does not reach it. Its end of the pipe reads end-of-file when the harness, and all ranks that
 * inherited the other end, are gone. */
static _Noreturn void keep(const char *folder, int end) {
    char byte;
    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    while (read(end, &byte, 1) < 0 && errno == EINTR)
        continue;
    folder_remove(folder);
    if (__gcov_dump)
        __gcov_dump();
    _exit(0);
}

static enum status make_folder(struct saves *out) {
    const char *root = getenv("TMPDIR");
    out->folder = path_join(root && *root ? root : "/tmp", "shardproof-saves-XXXXXX");
    if (!out->folder)
        return status_fail(STATUS_MEMORY, "out of memory before checkpoints were written");
    if (mkdtemp(out->folder))
        return STATUS_OK;
    return status_fail(STATUS_IO, "%s: cannot be made: %s", out->folder, strerror(errno));
}

enum status saves_make(struct saves *out) {
    int ends[2];
    TRY(make_folder(out));
    if (pipe2(ends, O_CLOEXEC) != 0)
        return status_fail(STATUS_IO, "%s: no pipe for its keeper: %s", out->folder, strerror(errno));
    out->pipe = ends[1];
    out->keeper = fork();
    if (out->keeper == 0) {
        close(ends[1]);
        close(0);
        close(1);
        close(2);
        keep(out->folder, ends[0]);
    }
    close(ends[0]);
    return out->keeper > 0
               ? STATUS_OK
               : status_fail(STATUS_RANK, "%s: no process for its keeper: %s", out->folder, strerror(errno));
}

void saves_remove(struct saves *saves) {
    if (saves->keeper > 0) {
        close(saves->pipe);
        while (waitpid(saves->keeper, NULL, 0) < 0 && errno == EINTR)
            continue;
    } else if (saves->folder) {
        folder_remove(saves->folder);
    }
    free(saves->folder);
    *saves = (struct saves){0};
}
