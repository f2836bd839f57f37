/* The folder in which checkpoints stand while cases run: below TMPDIR, gone with the harness, however it ends. */
#ifndef HARNESS_SAVES_H
#define HARNESS_SAVES_H

#include "core/status.h"

#include <sys/types.h>

struct saves {
    char *folder; /* NULL: none was made */
    pid_t keeper; /* the process that removes the folder when the harness is gone */
    int pipe;     /* closed with the harness: the keeper's sign */
};

enum status saves_make(struct saves *out);
void saves_remove(struct saves *saves); /* accepts {0} */

#endif
