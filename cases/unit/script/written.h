/* Case files written to a folder of their own, and read as `run` reads them. */
#ifndef UNIT_SCRIPT_WRITTEN_H
#define UNIT_SCRIPT_WRITTEN_H

#include "harness/case.h"

/* A case of one line each: case, model (qwen3_moe_tiny), tenants ada, bob, cyd, batches (of the fixture); then `rest`
 * from line 5 on. */
#define REST_LINE 5

/* Reads the case, which must be right; cases_free. */
void written_load(struct case_list *out, const char *rest);
/* The case must be refused with exactly this message behind `FILE:LINE: `. */
void written_refused(const char *rest, int line, const char *message);
/* The same of a whole file; beside it lies few.safetensors: micro.0 with one label that counts, micro.1 with none,
 * [1,2] each. */
void whole_refused(const char *text, int line, const char *message);

/* The script flattened, an action a word: "acquire ada; train ada 0 2 s0 o0 opens; ...", s: S, o: own step. */
char *written_actions(char *out, size_t size, const struct job *job);

#endif
