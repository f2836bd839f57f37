#include "core/files.h"

#include "core/files_temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *path_join(const char *folder, const char *name) {
    size_t length = strlen(folder);
    if (name[0] == '/' || length == 0)
        return strdup(name);
    char *path = NULL;
    const char *slash = folder[length - 1] == '/' ? "" : "/";
    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

char *path_folder(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') /* "a/b/" names b */
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    if (length == 0)
        return strdup(".");
    while (length > 1 && path[length - 1] == '/')
        length--;
    return strndup(path, length);
}

bool path_exists(const char *path) {
    struct stat information;
    return stat(path, &information) == 0;
}

bool path_is_folder(const char *path) {
    struct stat information;
    return stat(path, &information) == 0 && S_ISDIR(information.st_mode);
}

static enum status refuse(const char *path, const char *what) {
    return status_fail(STATUS_IO, "%s: cannot be %s: %s", path, what, strerror(errno));
}

/* All that the descriptor gives: a size is only a hint, for /proc says 0. */
static enum status read_all(int descriptor, const char *path, char **out, size_t *length) {
    struct stat information;
    if (fstat(descriptor, &information) != 0)
        return refuse(path, "read");
    if (S_ISDIR(information.st_mode))
        return status_fail(STATUS_IO, "%s: is a folder, expected a file", path);
    size_t room = (size_t)(information.st_size > 0 ? information.st_size : 0) + 2;
    size_t used = 0;
    enum status status = STATUS_OK;
    char *text = malloc(room);
    while (text != NULL) {
        ssize_t got = read(descriptor, text + used, room - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = refuse(path, "read");
        if (got <= 0)
            break;
        used += (size_t)got;
        if (used + 1 == room) {
            room *= 2;
            char *more = realloc(text, room);
            if (more == NULL)
                free(text);
            text = more;
        }
    }
    if (text == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    if (status != STATUS_OK) {
        free(text);
        return status;
    }
    text[used] = '\0';
    *out = text;
    *length = used;
    return STATUS_OK;
}

enum status file_read(const char *path, char **out, size_t *length) {
    *out = NULL;
    *length = 0;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return refuse(path, "opened");
    enum status status = read_all(descriptor, path, out, length);
    close(descriptor);
    return status;
}

enum status file_write(const char *path, const void *data, size_t length) {
    struct file_temporary file = {0};
    enum status status = STATUS_OK;
    TRY_DONE(file_temporary_open(&file, path));
    TRY_DONE(file_temporary_write(&file, data, length));
    TRY_DONE(file_temporary_commit(&file));
done:
    file_temporary_drop(&file);
    return status;
}

static enum status make_one(const char *path) {
    if (mkdir(path, 0777) == 0 || path_is_folder(path))
        return STATUS_OK;
    if (errno == EEXIST)
        return status_fail(STATUS_IO, "%s: is a file, expected a folder", path);
    return refuse(path, "made");
}

enum status folder_make(const char *path) {
    char *part = strdup(path);
    if (part == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    enum status status = STATUS_OK;
    for (char *slash = part; *slash != '\0'; slash++) {
        if (*slash != '/' || slash == part)
            continue;
        *slash = '\0';
        TRY_DONE(make_one(part));
        *slash = '/';
    }
    status = make_one(part);
done:
    free(part);
    return status;
}

/* Links are removed, never followed. */
static bool remove_below(int folder, const char *name) {
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT)
        return true;
    if (errno != EISDIR && errno != EPERM)
        return false;
    int descriptor = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (entries == NULL) {
        if (descriptor >= 0)
            close(descriptor);
        return false;
    }
    bool removed = true;
    const struct dirent *entry;
    while (removed && (entry = readdir(entries)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            removed = remove_below(dirfd(entries), entry->d_name);
    }
    int reason = errno;
    closedir(entries);
    errno = reason;
    return removed && (unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT);
}

enum status folder_remove(const char *path) {
    return remove_below(AT_FDCWD, path) ? STATUS_OK : refuse(path, "removed");
}
