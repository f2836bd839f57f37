/* A folder of its own for a test that writes files. */
#ifndef CASES_UNIT_CORE_IO_SCRATCH_H
#define CASES_UNIT_CORE_IO_SCRATCH_H

#include <stddef.h>

struct scratch {
    char folder[64];
    char path[128]; /* of the last scratch_path */
};

void scratch_make(struct scratch *scratch);
void scratch_remove(struct scratch *scratch);
const char *scratch_path(struct scratch *scratch, const char *name);
/* Entries of the folder, "." and ".." not counted. */
int scratch_count(const struct scratch *scratch);
/* Writes with stdio, so that the code under test is not its own witness. Returns the path. */
const char *scratch_put(struct scratch *scratch, const char *name, const void *data, size_t length);
/* Reads with stdio; the caller frees. */
char *scratch_read(const char *path, size_t *length);

#endif
