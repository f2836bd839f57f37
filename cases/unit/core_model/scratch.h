/* Scratch folders for bad and odd input: files made by the test, removed by it. */
#ifndef CORE_MODEL_SCRATCH_H
#define CORE_MODEL_SCRATCH_H

#include "core/inventory.h"
#include "core/tensor.h"

#include <criterion/criterion.h>

/* A new folder below TMPDIR; scratch_remove frees the string. */
char *scratch_folder(void);
void scratch_remove(char *folder);
void scratch_text(const char *folder, const char *name, const char *text);

/* A small model: E 3, k 2, H 4, I 2, heads 2, kv 1, d 2, V 7, layer 0 dense (F 5), layer 1 with experts, tied or not.
 */
extern const char small_config[];
struct inventory small_inventory(void);

struct scratch_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t shape[3];
};

/* Writes tensors; element i of tensor t is (t + 1) * 1000 + i, as far as the type holds it. */
void scratch_tensors(const char *folder, const char *name, const struct scratch_tensor *tensors, int count);

/* The last call failed with STATUS_INPUT and its note holds each text (NULL-terminated list); clears the note. */
void expect_refusal(enum status status, const char *const *texts);
#define REFUSED(status, ...) expect_refusal(status, (const char *const[]){__VA_ARGS__, NULL})
#define DONE(call) cr_assert((call) == STATUS_OK, "%s", status_note())

#endif
