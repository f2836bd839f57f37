#include "cases/unit/core_io/scratch.h"
#include "core/files.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct scratch scratch;

static void begin(void) {
    scratch_make(&scratch);
}

static void end(void) {
    scratch_remove(&scratch);
}

static void expect_path(char *path, const char *expected) {
    cr_assert_str_eq(path, expected);
    free(path);
}

Test(core_files, paths) {
    expect_path(path_join("a/b", "c"), "a/b/c");
    expect_path(path_join("a/b/", "c"), "a/b/c");
    expect_path(path_join("a", "/c"), "/c");
    expect_path(path_join("", "c"), "c");
    expect_path(path_join("/", "c"), "/c");
    expect_path(path_folder("a/b/c.yaml"), "a/b");
    expect_path(path_folder("c.yaml"), ".");
    expect_path(path_folder("/c.yaml"), "/");
    expect_path(path_folder("a/b/"), "a");
    expect_path(path_folder("/"), "/");
    expect_path(path_folder(""), ".");
}

Test(core_files, what_is_written_is_read, .init = begin, .fini = end) {
    const char data[] = "line\n\0binary";
    char *text = NULL;
    size_t length = 0;
    const char *path = scratch_path(&scratch, "a.bin");
    cr_assert_eq(file_write(path, data, sizeof data), STATUS_OK);
    cr_assert_eq(scratch_count(&scratch), 1, "no temporary file stays behind");
    char *witness = scratch_read(path, &length);
    cr_assert(length == sizeof data && memcmp(witness, data, length) == 0);
    free(witness);
    cr_assert_eq(file_read(path, &text, &length), STATUS_OK);
    cr_assert(length == sizeof data && memcmp(text, data, length) == 0);
    cr_assert_eq(text[length], '\0');
    free(text);
    cr_assert_eq(file_write(path, "", 0), STATUS_OK, "it replaces the old one");
    cr_assert_eq(file_read(path, &text, &length), STATUS_OK);
    cr_assert_eq(length, 0);
    cr_assert_str_eq(text, "");
    free(text);
    cr_assert_eq(scratch_count(&scratch), 1);
}

Test(core_files, a_new_file_has_the_usual_mode, .init = begin, .fini = end) {
    struct stat information;
    umask(022);
    const char *path = scratch_path(&scratch, "a");
    cr_assert_eq(file_write(path, "x", 1), STATUS_OK);
    cr_assert_eq(stat(path, &information), 0);
    cr_assert_eq(information.st_mode & 0777, 0644);
}

Test(core_files, the_rest_of_a_killed_writer_is_no_hindrance, .init = begin, .fini = end) {
    char name[64];
    snprintf(name, sizeof name, "a.tmp.%ld.0", (long)getpid());
    scratch_put(&scratch, name, "half", 4);
    cr_assert_eq(file_write(scratch_path(&scratch, "a"), "x", 1), STATUS_OK);
    cr_assert_eq(scratch_count(&scratch), 2);
}

/* A limit on file sizes stands in for a full disk: the write stops half way. */
Test(core_files, a_failed_write_leaves_the_old_file, .init = begin, .fini = end) {
    struct rlimit limit = {1000, 1000};
    static char data[5000];
    size_t length = 0;
    const char *path = scratch_put(&scratch, "a", "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(file_write(path, data, sizeof data), STATUS_IO);
    cr_assert_not_null(strstr(status_note(), "/a: cannot be written: File too large"));
    char *text = scratch_read(path, &length);
    cr_assert_str_eq(text, "old");
    free(text);
    cr_assert_eq(scratch_count(&scratch), 1, "the temporary file is gone");
}

Test(core_files, a_folder_is_no_file, .init = begin, .fini = end) {
    char *text = NULL;
    size_t length = 0;
    char note[256];
    cr_assert_eq(file_read(scratch.folder, &text, &length), STATUS_IO);
    snprintf(note, sizeof note, "%s: is a folder, expected a file", scratch.folder);
    cr_assert_str_eq(status_note(), note);
    cr_assert_null(text);
    status_clear();
    cr_assert_eq(file_write(scratch.folder, "x", 1), STATUS_IO);
    snprintf(note, sizeof note, "%s: is a folder, expected a file to write", scratch.folder);
    cr_assert_str_eq(status_note(), note);
    cr_assert_eq(scratch_count(&scratch), 0);
}

Test(core_files, a_missing_file_is_named) {
    char *text = NULL;
    size_t length = 0;
    cr_assert_eq(file_read("no/such", &text, &length), STATUS_IO);
    cr_assert_str_eq(status_note(), "no/such: cannot be opened: No such file or directory");
}

Test(core_files, a_file_without_a_size_is_read_whole) {
    char *text = NULL;
    size_t length = 0;
    cr_assert_eq(file_read("/proc/self/status", &text, &length), STATUS_OK);
    cr_assert_gt(length, 500);
    cr_assert_eq(strncmp(text, "Name:", 5), 0);
    cr_assert_eq(text[length - 1], '\n');
    free(text);
}

Test(core_files, folders_are_made_with_their_parents, .init = begin, .fini = end) {
    const char *path = scratch_path(&scratch, "a/b/c");
    cr_assert_eq(folder_make(path), STATUS_OK);
    cr_assert(path_is_folder(path));
    cr_assert_eq(folder_make(path), STATUS_OK, "it may exist");
    cr_assert_eq(folder_make(scratch_path(&scratch, "a/b/c/")), STATUS_OK);
    scratch_put(&scratch, "a/file", "x", 1);
    cr_assert(path_exists(scratch.path));
    cr_assert_not(path_is_folder(scratch.path));
    cr_assert_eq(folder_make(scratch_path(&scratch, "a/file/d")), STATUS_IO);
    cr_assert_not_null(strstr(status_note(), "a/file: is a file, expected a folder"));
}

Test(core_files, folders_go_with_all_below_but_links_are_not_followed, .init = begin, .fini = end) {
    cr_assert_eq(folder_make(scratch_path(&scratch, "keep")), STATUS_OK);
    scratch_put(&scratch, "keep/file", "x", 1);
    char kept[128];
    strcpy(kept, scratch_path(&scratch, "keep"));
    cr_assert_eq(folder_make(scratch_path(&scratch, "gone/deep/er")), STATUS_OK);
    scratch_put(&scratch, "gone/deep/file", "x", 1);
    cr_assert_eq(symlink(kept, scratch_path(&scratch, "gone/deep/link")), 0);
    cr_assert_eq(folder_remove(scratch_path(&scratch, "gone")), STATUS_OK);
    cr_assert_not(path_exists(scratch.path));
    cr_assert(path_exists(scratch_path(&scratch, "keep/file")));
    cr_assert_eq(folder_remove(scratch_path(&scratch, "gone")), STATUS_OK, "it may be gone");
    cr_assert_eq(folder_remove(scratch_path(&scratch, "keep/file")), STATUS_OK, "a file goes too");
    cr_assert_eq(scratch_count(&scratch), 1);
}
