/* The judge: does every rank hold what one device would?
 *
 * Tiers, in this order; the first failure in data-flow order of the first failing tier is the finding, everything else
 * that fails in any tier is a consequence:
 *   1. golden   reference against PyTorch + PEFT (golden.h)
 *   2. relay    the reference runs once from the subject's own records: shapes, dtype, missing, not finite, replicas
 *               bit-equal, values within the bar of one operation; router choices a top-k of the recorded scores;
 *               movement 0 ulp
 *   3. twin     world N against world 1 of the same program, bit for bit, where point_is_split_invariant
 *   4. answers  the subject against the free-running reference at the golden bounds (cases with golden files)
 * Extra records fail too. Owed is counted in a dry run of the reference before any record is read. */
#ifndef HARNESS_JUDGE_H
#define HARNESS_JUDGE_H

#include "harness/case.h"
#include "harness/trace.h"
#include "reports/report.h"

struct judge; /* of one case: caches lines, shards and owners */

enum status judge_make(struct judge **out, const struct test_case *one, struct report_case *report);
void judge_free(struct judge *judge);

/* Counts what is owed: report->owed_*. Runs the reference dry. */
enum status judge_owed(struct judge *judge);
/* Where the twin's checkpoints may stand while it runs; borrowed. NULL: nowhere, a script that saves fails. */
void judge_saves(struct judge *judge, const char *folder);
/* Tier 2. Borrows the trace; of a case with several segments, here and below, an array with one trace for each. */
enum status judge_relay(struct judge *judge, const struct trace *trace);
/* Tier 3: runs the twin (a local world of 1) from the trace's `param` records and compares. */
enum status judge_twin(struct judge *judge, const struct trace *trace);
/* Tier 4. */
enum status judge_answers(struct judge *judge, const struct trace *trace, const struct answers *answers);
/* Records nobody owed; finding and consequences into the report; verdict PASS or FAIL (also FAIL if compared != owed or
 * 0). */
enum status judge_close(struct judge *judge, const struct trace *trace);

/* Layout line of a trace point under this case (text in the layout language), for dumps and messages. */
enum status judge_line(struct judge *judge, const struct point *point, char *out, size_t size);
/* --keep: writes FOLDER/<case>/reference.safetensors with relay's values before they were replaced; call before
 * judge_relay with the folder to collect, and after it to write. NULL: nothing. */
void judge_keep(struct judge *judge, bool keep);
enum status judge_write_reference(struct judge *judge, const char *path);

/* The dump's metadata: one JSON object, trace name -> layout line, in data-flow order (after judge_owed; the caller
 * frees it); and a mesh as JSON. */
enum status judge_layout_json(struct judge *judge, char **out);
/* The same of one segment's records. */
enum status judge_segment_layout_json(struct judge *judge, int segment, char **out);
char *judge_mesh_json(char *out, size_t size, const struct mesh *mesh);

#endif
