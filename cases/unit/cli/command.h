/* The program as its users see it: words in; streams, exit code and what is left behind out. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "scratch.h"

#include <sys/types.h>

struct command { /* one that was started */
    pid_t pid;
    char *out_path, *err_path;
    double start;
};

struct result {
    int code; /* exit code; -SIGNAL if a signal ended it */
    char *out, *err;
    double seconds;
};

/* Words up to NULL behind the program's name. TMPDIR is the scratch folder's. */
struct command command_start(const struct scratch *scratch, const char *const *words);
/* Waits; after `limit` seconds kills it and fails the test. Frees the command. */
struct result command_wait(struct command *command, double limit);
/* Both; and TMPDIR is empty afterwards, and no process is left that works in the scratch folder. */
struct result command_run(const struct scratch *scratch, const char *const *words);
#define RUN(scratch, ...) command_run(scratch, (const char *const[]){__VA_ARGS__, NULL})
void result_free(struct result *result);

const char *command_program(void);
double now(void); /* seconds, monotonic */
void pause_ms(int milliseconds);
const char *last_line(const struct result *result); /* of stdout, without its newline; cuts `out` */
int line_count(const char *text);

/* For commands that this test starts from here on. A rank that loses its mpirun is ended by OpenMPI from a thread of
 * its own, where LeakSanitizer cannot work; the same worlds are watched for leaks on local ranks. */
void command_leaks_unwatched(void);

#endif
