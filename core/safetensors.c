#include "core/safetensors.h"

#include "core/safetensors_header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* "Limitations" of the format's README: a header of more than 100 MB is refused */
#define HEADER_LIMIT UINT64_C(100000000)
enum {
    LENGTH_SIZE = 8
};

static enum status refuse(const char *path, const char *what) {
    return status_fail(STATUS_IO, "%s: cannot be %s: %s", path, what, strerror(errno));
}

/* O_NONBLOCK: a pipe without a writer must not hold us up before we can refuse it. */
static enum status map_file(struct safetensors *file) {
    struct stat information;
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return refuse(file->path, "opened");
    enum status status = STATUS_OK;
    if (fstat(descriptor, &information) != 0)
        status = refuse(file->path, "read");
    else if (S_ISDIR(information.st_mode))
        status = status_fail(STATUS_IO, "%s: is a folder, expected a safetensors file", file->path);
    else if (!S_ISREG(information.st_mode))
        status = status_fail(STATUS_IO, "%s: is not a regular file, expected a safetensors file", file->path);
    if (status == STATUS_OK && information.st_size > 0) {
        void *map = mmap(NULL, (size_t)information.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (map == MAP_FAILED) {
            status = refuse(file->path, "mapped");
        } else {
            file->map = map;
            file->size = (size_t)information.st_size;
        }
    }
    close(descriptor);
    return status;
}

static uint64_t read_length(const unsigned char *bytes) {
    uint64_t length = 0;
    for (int i = LENGTH_SIZE - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    return length;
}

static enum status read_file(struct safetensors *file) {
    TRY(map_file(file));
    if (file->size < LENGTH_SIZE)
        return status_fail(STATUS_INPUT, "%s: %zu bytes, expected at least the 8 of the header's length", file->path,
                           file->size);
    uint64_t length = read_length(file->map);
    if (length > HEADER_LIMIT)
        return status_fail(STATUS_INPUT, "%s: a header of %" PRIu64 " bytes, expected at most %" PRIu64, file->path,
                           length, HEADER_LIMIT);
    uint64_t rest = file->size - LENGTH_SIZE;
    if (length > rest)
        return status_fail(STATUS_INPUT, "%s: ends after %" PRIu64 " bytes of the header, expected %" PRIu64,
                           file->path, rest, length);
    char *header = (char *)file->map + LENGTH_SIZE;
    TRY(safetensors_read_header(file, header, length, rest - length));
    for (int i = 0; i < file->count; i++)
        file->entries[i].tensor.data = header + length + file->entries[i].begin;
    return STATUS_OK;
}

enum status safetensors_open(struct safetensors *out, const char *path) {
    *out = (struct safetensors){.path = strdup(path)};
    if (out->path == NULL)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    enum status status = read_file(out);
    if (status != STATUS_OK)
        safetensors_close(out);
    return status;
}

void safetensors_close(struct safetensors *file) {
    for (int i = 0; i < file->count; i++)
        free(file->entries[i].name);
    for (int i = 0; i < file->pairs; i++) {
        free(file->metadata[i].key);
        free(file->metadata[i].value);
    }
    free(file->entries);
    free(file->metadata);
    free(file->index);
    if (file->map != NULL)
        munmap(file->map, file->size);
    free(file->path);
    *file = (struct safetensors){0};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name) {
    struct safetensors_entry wanted = {.name = (char *)(uintptr_t)name, .name_length = strlen(name)};
    const struct safetensors_entry *key = &wanted;
    const struct safetensors_entry *const *found = NULL;
    if (file->index != NULL)
        found = bsearch(&key, file->index, (size_t)file->count, sizeof key, safetensors_by_name);
    return found == NULL ? NULL : *found;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    for (int i = file->pairs - 1; i >= 0; i--) { /* of a key that stands twice the last value counts, as in serde */
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    }
    return NULL;
}
