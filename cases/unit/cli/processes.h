/* The processes of a command, seen through /proc. */
#ifndef CLI_PROCESSES_H
#define CLI_PROCESSES_H

#include "scratch.h"

#include <sys/types.h>

#define MAX_PROCESSES 256

struct processes {
    int count;
    pid_t pid[MAX_PROCESSES]; /* ascending */
};

/* Living processes (no zombies) in whose command line `word` stands. */
struct processes processes_with(const char *word);
/* The rank processes of the command `harness`, by rank: its children on the local engine; on mpi the workers whose
 * command line holds the scratch folder. Count 0 while they are not yet `ranks`. */
struct processes rank_processes(const struct scratch *scratch, pid_t harness, bool mpi, int ranks);

/* At once, after a command: TMPDIR is empty and nobody works in the scratch folder. */
void expect_nothing_left(const struct scratch *scratch, const char *what);
/* The same within `seconds`: for a command that was killed. */
void expect_all_gone(const struct scratch *scratch, double seconds, const char *what);
int shared_segments(void); /* OpenMPI's in /dev/shm */

#endif
