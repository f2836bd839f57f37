/* A perfect subject made of the reference's own values: run free, every value rounded to the job's type where it is
 * stored, cut into the ranks' pieces and recorded. Then one thing is broken, and the judge must name it.
 *
 * Activations and exchanged rows are cut by plain enumeration (chunks of sequences, blocks of experts), not by layout/.
 */
#ifndef UNIT_JUDGE_FAKE_H
#define UNIT_JUDGE_FAKE_H

#include "harness/judge_inner.h"

#define TINY "fixtures/golden/qwen3_moe_tiny"

struct fake {
    struct test_case one;
    struct report_case report;
    struct judge *judge;
    struct trace trace;
    struct action action[8];
    void **memory; /* behind the records */
    int count, room;
};

/* qwen3_moe_tiny, tenant ada, two train steps over micro-batches 0 and 1 (and 2), an evaluation, an export. */
void fake_make(struct fake *fake, int ep, int fsdp, enum dtype dtype);
/* The same job, changed before the judge counts what it owes. */
void fake_make_of(struct fake *fake, int ep, int fsdp, enum dtype dtype, void (*change)(struct job *job));
void fake_free(struct fake *fake);
/* Records everything but the names in `without` (rank -1: on every rank). */
void fake_record(struct fake *fake, const char *without, int rank);
/* A rank's own copy of a record, to be broken. */
struct tensor *fake_tensor(struct fake *fake, int rank, const char *name);
/* Relay, extra records, verdict; no twin: there is no program to run at world 1. */
void fake_judge(struct fake *fake);

#endif
