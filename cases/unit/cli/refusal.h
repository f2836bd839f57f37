/* What every refusal of bad input owes: one line on stderr with the place, exit 2, an empty stdout, nothing written. */
#ifndef CLI_REFUSAL_H
#define CLI_REFUSAL_H

#include "command.h"

/* Runs `run WORD...` with --json, --junit and --keep into an empty folder and expects a refusal: the line begins with
 * `shardproof: PLACE: ` (`#`, `@` as in scratch_text) and holds `what`. */
void expect_run_refused(const struct scratch *scratch, const char *place, const char *what, const char *const *words);
#define REFUSED(scratch, place, what, ...)                                                                             \
    expect_run_refused(scratch, place, what, (const char *const[]){__VA_ARGS__, NULL})
/* The same of a result at hand. `place` NULL: any. */
void expect_refusal(const struct scratch *scratch, const struct result *result, const char *place, const char *what);

#endif
