/* A file that appears whole or not at all: written under another name in the same folder, then renamed.
 *
 * Private to core: file_write and the safetensors writer. */
#ifndef CORE_FILES_TEMPORARY_H
#define CORE_FILES_TEMPORARY_H

#include "core/status.h"

#include <stddef.h>

struct file_temporary {
    const char *path; /* the final one; borrowed, kept until commit or drop */
    char *name;       /* the temporary one; NULL where a link, a pipe or a device is written in place */
    int descriptor;
};

enum status file_temporary_open(struct file_temporary *out, const char *path);
enum status file_temporary_write(struct file_temporary *file, const void *data, size_t length);
enum status file_temporary_commit(struct file_temporary *file);
/* Removes what was not committed; accepts {0} and a committed one. */
void file_temporary_drop(struct file_temporary *file);

#endif
