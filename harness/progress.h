/* What a run shows while it goes on: a bar on a terminal, a line per case on stdout. */
#ifndef HARNESS_PROGRESS_H
#define HARNESS_PROGRESS_H

#include "reports/report.h"

struct progress {
    int total, passed, failed;
    bool bar;    /* stderr is a terminal that can redraw a line */
    bool colour; /* stdout is a terminal and NO_COLOR is not set */
    bool quiet;  /* passing cases print nothing */
};

void progress_start(struct progress *progress, int total, bool quiet);
void progress_show(const struct progress *progress, int done, const char *name);
void progress_case(struct progress *progress, const struct report_case *one);
void progress_end(const struct progress *progress); /* clears the bar */

#endif
