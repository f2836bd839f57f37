/* What the tests of worlds share: fresh temp folders, and the question whether anything is left. */
#ifndef CASES_COMM_HELP_H
#define CASES_COMM_HELP_H

#include "cases/unit/comm/scenario.h"
#include "harness/world.h"

/* Makes an empty folder and lets TMPDIR point at it; the path is valid until the process ends. */
const char *help_tmpdir(void);
int help_entries(const char *folder); /* how many files and folders it holds */
int help_segments(void);              /* OpenMPI's in /dev/shm */
/* Red if TMPDIR holds anything, or if this process has a child left; removes the folder. */
void help_nothing_left(const char *tmpdir);
struct world_spec help_spec(enum world_engine engine, int size); /* of the script */
/* Launches, runs one case, ends; checks that nothing is left. */
void help_run(const struct world_spec *spec, int index, double limit, struct outcome *out);

#endif
