/* One tensor: its records from every rank, put together by the layout, compared, replicas against each other. */
#ifndef HARNESS_JUDGE_COMPARE_H
#define HARNESS_JUDGE_COMPARE_H

#include "harness/judge_inner.h"

/* Finds every rank's record of `name` into judge->record and checks presence, type and shape: *sound. A failure is
 * reported if `report`. */
enum status records_find(struct judge *judge, const struct trace *trace, const struct point *point, const char *name,
                         const struct place *place, bool report, bool *sound);
/* judge->x = the whole tensor, from the lowest holders' pieces; the pieces of a sum added in rank order, with
 * magnitude += |piece| (may be NULL). An element that nobody holds is NaN. */
enum status records_assemble(struct judge *judge, const struct place *place, double *magnitude);
/* The same bytes in one tensor of the records' type (not for sums); the caller frees it. */
enum status records_whole(struct judge *judge, const struct place *place, struct tensor *out);

/* Whether a record has the shape of a piece. */
bool record_shape_fits(const struct tensor *tensor, const struct shard *piece);

enum compare_rule {
    RULE_EXACT, /* equal bits */
    RULE_BAR    /* |got - want| <= bar */
};

/* judge->x against value->x (bars value->e times `factor`): not finite, replicas, values. *right, and *finite. Elements
 * compared are counted in the report. */
enum status records_compare(struct judge *judge, const struct owed_point *owed, const struct place *place,
                            const struct value *value, enum compare_rule rule, double factor, bool *finite,
                            bool *right);

/* The ranks whose own pieces hold a global element that `wrong` says of, ascending into judge->rank_scratch; returns
 * how many, and the first rank's first such element. */
typedef bool (*wrong_element)(const void *context, int64_t global, double got);
enum status ranks_wrong(struct judge *judge, const struct place *place, wrong_element wrong, const void *context,
                        int *ranks, int64_t *at);

/* The first rank whose piece of a wrong sum is not what its own rows give. */
struct alone {
    int ranks;         /* that differ, ascending in judge->rank_scratch; 0: none does */
    int64_t at;        /* the first rank's first such element */
    int64_t differ;    /* how many such elements it has */
    struct value want; /* what its rows give, in whole form */
    double *got;       /* what it holds, in whole form; NaN elsewhere */
    double bar;        /* at `at` */
};
/* Repeats the one operation of a partial point (value->repeat) with each rank's rows alone, for the `ranks` in
 * judge->rank_scratch; bars are the repeated values' own, times `factor`. If no rank differs, judge->rank_scratch is
 * left as it was. */
enum status records_alone(struct judge *judge, const struct owed_point *owed, const struct place *place,
                          const struct value *value, double factor, int ranks, struct alone *out);
void alone_free(struct alone *alone); /* accepts {0} */

#endif
