/* A folder of a test's own, with a TMPDIR beside it, and the case and tensor files that tests write there. */
#ifndef CLI_SCRATCH_H
#define CLI_SCRATCH_H

#include "core/tensor.h"

#include <criterion/criterion.h>
#include <stdbool.h>

#define TINY "fixtures/golden/qwen3_moe_tiny"
#define UNEVEN "fixtures/golden/qwen3_moe_uneven"

#define DONE(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())

struct scratch {
    char *folder;
    char *tmp;  /* TMPDIR of every command: must be empty when it ends */
    char *root; /* of the repository */
    char *tiny; /* TINY, absolute */
};

struct scratch scratch_make(void);
void scratch_free(struct scratch *scratch); /* removes the folder */

/* Strings are the caller's. `@` in a text stands for TINY, absolute; `#` for the scratch folder. */
char *scratch_path(const struct scratch *scratch, const char *name);
char *scratch_text(const struct scratch *scratch, const char *text);
char *scratch_write(const struct scratch *scratch, const char *name, const char *text); /* returns its path */
void scratch_copy(const struct scratch *scratch, const char *from, const char *name);
void scratch_mkdir(const struct scratch *scratch, const char *name);
int scratch_entries(const char *folder); /* files and folders in it */
char *read_text(const char *path);

/* A valid case on four ranks, one key a line: case, model, mesh, tenants ada and dov, optimizer, batches, script.
 * `line` is replaced by `text` (several lines are fine); line 0 replaces nothing. Returns its path. */
char *scratch_case(const struct scratch *scratch, const char *name, int line, const char *text);

/* A safetensors file as a list that a test changes before it is written again. */
struct tensor_list {
    int count, room;
    struct listed_tensor {
        char *name;
        struct tensor tensor; /* owned */
    } * item;
};
struct listed_tensor *listed(struct tensor_list *list, const char *name); /* fails the test if absent */
void list_rename(struct listed_tensor *item, const char *name);
void list_drop(struct tensor_list *list, const char *name);
void list_add(struct tensor_list *list, const char *name, enum dtype dtype, int64_t elements);
/* Reads FROM, lets `change` work on it, writes NAME in the scratch folder. Returns its path. */
char *scratch_tensors(const struct scratch *scratch, const char *from, const char *name,
                      void (*change)(struct tensor_list *list));

#endif
