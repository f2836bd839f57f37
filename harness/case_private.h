/* Inside the case reader: one variant of a case file while it is read. */
#ifndef HARNESS_CASE_PRIVATE_H
#define HARNESS_CASE_PRIVATE_H

#include "core/yaml.h"
#include "harness/case.h"

#define MATRIX_MAX_KEYS 8

/* The matrix puts one of its values in the place of a key of the file. */
struct variant {
    int keys;
    const char *key[MATRIX_MAX_KEYS];
    const struct yaml_node *value[MATRIX_MAX_KEYS];
};

struct case_reader {
    const struct yaml *yaml;
    const struct yaml_node *root;
    struct variant variant;
    const struct case_options *options;
    char *folder; /* of the file: relative paths start there */
    struct model_shelf *shelf;
    struct test_case *one; /* being filled */
    bool unwanted;         /* the options leave this variant out: it is read no further than its mesh */
};

/* The node behind a top-level key in this variant; NULL if absent. */
const struct yaml_node *case_field(const struct case_reader *reader, const char *key);
/* A path of the file, relative to its folder. */
enum status case_path(const struct case_reader *reader, const struct yaml_node *node, char **out);
enum status case_copy(const char *text, char **out);

/* `data: random | index` and `seed: N` of a map; random and 0 if absent. */
enum status case_read_data(const struct case_reader *reader, const struct yaml_node *map, enum data_kind *out);
enum status case_read_seed(const struct case_reader *reader, const struct yaml_node *map, uint64_t *out);

/* Index-coded values (i + 1) * 2^-k of `elements` elements are exact in 8 bits below 2^8: a bfloat16 case refuses more.
 */
enum status case_check_index(const struct case_reader *reader, const struct yaml_node *node, enum data_kind data,
                             const char *tensor, int64_t elements);

enum status case_read_model(struct case_reader *reader);
enum status case_read_tenants(struct case_reader *reader);
enum status case_read_batches(struct case_reader *reader);
enum status case_read_optimizer(struct case_reader *reader);
enum status case_read_clip(struct case_reader *reader);
enum status case_read_trainable(struct case_reader *reader);
/* After the tenants: job.max_rank; job.slots as far as the case gives it, else 0. */
enum status case_read_slots(struct case_reader *reader);
/* Flattens the script (or the default one), numbers the steps, and checks tenants, slots, windows and micro-batches;
 * job.slots, if it is still 0, becomes the largest number of tenants that live at once. */
enum status case_read_script(struct case_reader *reader);
enum status case_read_golden(struct case_reader *reader);
/* mesh and layout, held against the model. */
enum status case_read_mesh(struct case_reader *reader);
/* The same of a mesh elsewhere in the file. */
enum status case_mesh(const struct case_reader *reader, const struct yaml_node *node, struct mesh *out);
enum status case_read_layout(struct case_reader *reader);
/* After the layout. */
enum status case_read_fsdp(struct case_reader *reader);
/* After the slots: every tensor has a place; a refusal stands at the layout's line, or at the key of `fsdp`. */
enum status case_check_places(const struct case_reader *reader);
enum status case_read_expect(struct case_reader *reader);

/* Fills reader->one from the variant, or finds it unwanted. */
enum status case_read(struct case_reader *reader, const char *name);
void case_free(struct test_case *one);

enum status case_shelf_make(struct model_shelf **out);
void case_shelf_free(struct model_shelf *shelf);

#endif
