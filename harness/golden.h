/* Golden answers: what real PyTorch + PEFT computed, and the free-running reference held against it, every tensor of
 * every file compared exactly once or listed as unreached. */
#ifndef HARNESS_GOLDEN_H
#define HARNESS_GOLDEN_H

#include "core/job.h"
#include "core/points.h"
#include "core/safetensors.h"
#include "reference/reference.h"
#include "reports/report.h"

/* A tenant that is acquired again walks through its answers again: every time is compared, a tensor counts once. */
enum golden_reached {
    GOLDEN_UNREACHED,
    GOLDEN_RIGHT,
    GOLDEN_WRONG
};

struct golden {
    int tenant; /* index into job.tenant */
    struct safetensors file;
    unsigned char *reached; /* [file.count] enum golden_reached */
};

/* Opens and checks: a tensor that is not a golden name (docs/formats.md) is STATUS_INPUT with file and tensor.
 */
enum status golden_open(struct golden *out, const char *path, int tenant, const struct job *job);
void golden_close(struct golden *golden);

/* |got-want| / max(|want|, 1e-3 max|want|), or |got-want| where the tensor is zero; 1e-10 before the first
 * update has acted on the answer, 1e-9 after. */
double golden_bound(int updates);
/* The largest error of a tensor and where; NaN anywhere gives infinity. */
double golden_error(int64_t n, const double *got, const double *want, int64_t *at);

/* A free run's answers: the reference's value at every point that a golden file or the subject is held against
 * (forward activations named in golden files, loss, grad, update, optimizer state), kept by trace name. */
struct answers;
void answers_free(struct answers *answers);
const struct value *answers_find(const struct answers *answers, const char *trace_name);

/* Runs the reference free over the whole script and compares every golden tensor it reaches; a mismatch becomes
 * one->finding (kind golden) if none stands there. Fills one->golden*. `answers` may be NULL; else the caller frees it.
 */
enum status golden_check(const struct job *job, struct golden *golden, int goldens, struct report_case *one,
                         struct answers **answers);

#endif
