/* Cases: what a user wrote in a case file, validated and ready to run (docs/cases.md).
 *
 * One file holds one case or a matrix of them. Everything is checked here, before anything runs or is written: schema,
 * paths, model, adapters, ids, golden names, mesh against model, script. Each refusal is one line with FILE:LINE. */
#ifndef HARNESS_CASE_H
#define HARNESS_CASE_H

#include "core/job.h"
#include "harness/golden.h"
#include "layout/sharding.h"
#include "sharded/rules.h"

struct expected_field { /* `finding: {tensor: ..., rank: 1}` */
    char *key, *value;
};

/* A script is cut at every load that names a mesh; each piece runs in a world of its own. */
struct case_segment {
    struct mesh mesh;
    int first, end; /* actions [first, end) */
};

struct test_case {
    char *name, *about, *file; /* file as the user named it */
    int line;
    struct mesh mesh;           /* axes ep and fsdp */
    struct layout_file *layout; /* NULL: built in */
    struct job job;
    int goldens;
    struct golden *golden; /* one per tenant that has one */
    int zeros;
    char **zero;
    const struct rule_fault *fault; /* NULL: expect pass */
    int fields;
    struct expected_field *field;
    double limit; /* seconds */
    int segments;
    struct case_segment *segment; /* the first has `mesh` */
};

struct model_shelf; /* private: checkpoints that several cases share */

struct case_list {
    int count, room;
    struct test_case **item;
    struct model_shelf *shelf;
};

struct case_options {
    const char *filter; /* glob on names, NULL: all */
    int world;          /* only cases of this world, 0: all */
    int launched;       /* only cases of which a segment has this world, 0: all */
    bool replace_dtype; /* --dtype: replaces the case's; a dtype matrix collapses */
    enum dtype dtype;
};

/* Adds the cases of a file, or of every *.yaml below a folder (sorted by path). A name that stands twice in the list is
 * STATUS_INPUT. */
enum status cases_load(struct case_list *list, const char *path, const struct case_options *options);
void cases_free(struct case_list *list);

/* How many segments a case has (1 if none were made), and number `index`. */
int case_segments(const struct test_case *one);
struct case_segment case_segment(const struct test_case *one, int index);

#endif
