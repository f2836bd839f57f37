#include "harness/progress.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 24

static bool terminal(int descriptor) {
    const char *term = getenv("TERM");
    return isatty(descriptor) && term && strcmp(term, "dumb") != 0;
}

void progress_start(struct progress *progress, int total, bool quiet) {
    const char *no_color = getenv("NO_COLOR");
    *progress = (struct progress){.total = total, .quiet = quiet};
    progress->bar = terminal(STDERR_FILENO) && !getenv("CI") && !quiet;
    progress->colour = terminal(STDOUT_FILENO) && !(no_color && *no_color);
}

void progress_show(const struct progress *progress, int done, const char *name) {
    if (!progress->bar || progress->total == 0)
        return;
    int filled = BAR_WIDTH * done / progress->total;
    fprintf(stderr, "\r\033[K[%.*s%*s] %d/%d, %d failed  %.60s", filled, "########################", BAR_WIDTH - filled,
            "", done, progress->total, progress->failed, name);
    fflush(stderr);
}

void progress_end(const struct progress *progress) {
    if (progress->bar)
        fputs("\r\033[K", stderr);
}

void progress_case(struct progress *progress, const struct report_case *one) {
    bool passed = one->verdict == VERDICT_PASS;
    progress->passed += passed;
    progress->failed += one->verdict == VERDICT_FAIL || one->verdict == VERDICT_ERROR;
    if (progress->quiet && passed)
        return;
    progress_end(progress);
    report_print_case(stdout, one, progress->colour);
    fflush(stdout);
}
