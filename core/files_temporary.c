#include "core/files_temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* names tried before giving up: each is taken only by a writer of the same process or by the rest of a killed one */
enum {
    ATTEMPTS = 10000
};

enum status file_temporary_open(struct file_temporary *out, const char *path) {
    *out = (struct file_temporary){.path = path, .descriptor = -1};
    struct stat information;
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return status_fail(STATUS_IO, "%s: is a folder, expected a file to write", path);
    struct stat own;
    bool link = lstat(path, &own) == 0 && S_ISLNK(own.st_mode);
    if (link || (stat(path, &information) == 0 && !S_ISREG(information.st_mode))) { /* a rename would replace it */
        out->descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        return out->descriptor >= 0 ? STATUS_OK
                                    : status_fail(STATUS_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    for (int i = 0; i < ATTEMPTS; i++) {
        if (asprintf(&out->name, "%s.tmp.%ld.%d", path, (long)getpid(), i) < 0) {
            out->name = NULL;
            return status_fail(STATUS_MEMORY, "%s: out of memory", path);
        }
        out->descriptor = open(out->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->descriptor >= 0)
            return STATUS_OK;
        int reason = errno;
        free(out->name);
        out->name = NULL;
        if (reason != EEXIST)
            return status_fail(STATUS_IO, "%s: cannot be written: %s", path, strerror(reason));
    }
    return status_fail(STATUS_IO, "%s: cannot be written: its temporary names are all taken", path);
}

enum status file_temporary_write(struct file_temporary *file, const void *data, size_t length) {
    const char *from = data;
    while (length > 0) {
        ssize_t written = write(file->descriptor, from, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return status_fail(STATUS_IO, "%s: cannot be written: %s", file->path, strerror(errno));
        from += written;
        length -= (size_t)written;
    }
    return STATUS_OK;
}

enum status file_temporary_commit(struct file_temporary *file) {
    int closed = close(file->descriptor);
    file->descriptor = -1;
    if (closed != 0 || (file->name && rename(file->name, file->path) != 0))
        return status_fail(STATUS_IO, "%s: cannot be written: %s", file->path, strerror(errno));
    free(file->name);
    file->name = NULL;
    return STATUS_OK;
}

void file_temporary_drop(struct file_temporary *file) {
    if (file->path == NULL)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    if (file->name)
        unlink(file->name);
    free(file->name);
    *file = (struct file_temporary){.descriptor = -1};
}
