/* From what a world left behind to the report of one case: the tiers of the judge, the outcome of the world, and what
 * the case expected. */
#ifndef HARNESS_VERDICT_H
#define HARNESS_VERDICT_H

#include "harness/case.h"
#include "harness/world.h"

struct verdict_input {
    const struct test_case *one;
    const struct outcome *outcome;
    const struct trace *trace; /* [segments of the case]; NULL unless the outcome is DONE */
    const char *keep;          /* folder of this case's dump, or NULL */
    const char *saves;         /* folder for the twin's checkpoints, or NULL */
};

/* Fills a zeroed report case but for seconds and repeat. A status is a failure of the harness itself. */
enum status verdict_make(const struct verdict_input *input, const char *engine, struct report_case *out);
/* The judge could not go on from what was recorded (a point twice, choices out of range): VERDICT_FAIL with the
 * thread's note, which is cleared. */
enum status verdict_unusable(struct report_case *out);
/* A case that nothing could run: VERDICT_SKIP. */
enum status verdict_skip(const struct test_case *one, const char *engine, const char *reason, struct report_case *out);

#endif
