#include "cases/unit/core_io/scratch.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void scratch_make(struct scratch *scratch) {
    snprintf(scratch->folder, sizeof scratch->folder, "/tmp/core_io.XXXXXX");
    cr_assert_not_null(mkdtemp(scratch->folder));
}

static int remove_one(const char *path, const struct stat *information, int kind, struct FTW *place) {
    (void)information, (void)kind, (void)place;
    return remove(path);
}

void scratch_remove(struct scratch *scratch) {
    cr_assert_eq(nftw(scratch->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

const char *scratch_path(struct scratch *scratch, const char *name) {
    snprintf(scratch->path, sizeof scratch->path, "%s/%s", scratch->folder, name);
    return scratch->path;
}

int scratch_count(const struct scratch *scratch) {
    DIR *entries = opendir(scratch->folder);
    cr_assert_not_null(entries);
    int count = 0;
    while (readdir(entries) != NULL)
        count++;
    closedir(entries);
    return count - 2;
}

const char *scratch_put(struct scratch *scratch, const char *name, const void *data, size_t length) {
    const char *path = scratch_path(scratch, name);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(data, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
    return path;
}

char *scratch_read(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    cr_assert_not_null(data);
    cr_assert_eq(fread(data, 1, (size_t)size, file), (size_t)size);
    data[size] = '\0';
    *length = (size_t)size;
    fclose(file);
    return data;
}
