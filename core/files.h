/* Small helpers around paths and files. Strings returned are the caller's to free; NULL means out of memory. */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

char *path_join(const char *folder, const char *name); /* `name` as it is if it is absolute */
char *path_folder(const char *path);                   /* "." if there is none */
bool path_exists(const char *path);
bool path_is_folder(const char *path);
/* Whole file into memory, terminated by a NUL that is not counted. STATUS_IO `PATH: ...`. */
enum status file_read(const char *path, char **out, size_t *length);
/* Through a temporary file in the same folder and rename. */
enum status file_write(const char *path, const void *data, size_t length);
enum status folder_make(const char *path);   /* with its parents; fine if it exists */
enum status folder_remove(const char *path); /* with all below it; fine if it does not exist */

#endif
