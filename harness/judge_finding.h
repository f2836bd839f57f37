/* A failure as the report tells it: coordinates by axis name, a window of values, one paragraph. */
#ifndef HARNESS_JUDGE_FINDING_H
#define HARNESS_JUDGE_FINDING_H

#include "harness/judge_inner.h"

/* Fills report->finding. Its strings belong to the report. */
enum status finding_fill(struct report_finding *out, const struct judge *judge, const struct failure *failure);

/* "expert 3, half 1, inter 5, hidden 2" for a global index; an exchanged row by its expert, token and choice. `expert`:
 * the coordinate of the axis so named, or of the row; -1 if there is none. Returns `out`. */
char *coordinates(char *out, size_t size, const struct place *place, const int64_t *index, int64_t *expert);
/* Row-major offset -> index per dim. */
void unravel(int ndim, const int64_t *shape, int64_t offset, int64_t *index);
/* Appends to a text of limited size. */
void say(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* "want 1 2 [3] 4 5, got ..": the row's elements around `at`. */
void window_text(char *out, size_t size, int64_t columns, int64_t at, const double *want, const double *got);

#endif
