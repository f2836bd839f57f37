/* Behind world.h: what an engine's processes must do, and what all of them share. */
#ifndef HARNESS_WORLD_PRIVATE_H
#define HARNESS_WORLD_PRIVATE_H

#include "harness/world.h"

#include <sys/types.h>

struct death { /* how a rank ended */
    int rank;  /* -1: not known which (the ranks are threads of one process, or the launcher died) */
    int signal, code;
    bool known; /* one of the two is */
};

struct world_kind {
    enum status (*launch)(struct world *world);
    /* While ranks come up: true if the launcher has died; its last words go to `text`. */
    bool (*launch_failed)(struct world *world, char *text, size_t size);
    bool (*find_death)(struct world *world, struct death *out);
    enum status (*trace)(struct world *world, struct trace *out);
    /* Ends all processes (`graceful`: they are at the board and leave by themselves) and frees what `launch` made. */
    void (*end)(struct world *world, bool graceful);
};
extern const struct world_kind world_local, world_mpi;

struct world {
    struct world_spec spec;
    const struct world_kind *kind;
    struct board *board;
    bool ready, dead;
    /* local and threads */
    void *memory;
    struct arena *arena;
    pid_t *pid; /* [pids]; 0: reaped */
    int pids;
    /* mpi */
    char *folder;
    struct mpi_processes *processes; /* shared with the janitor */
    int pipe;                        /* the janitor's end: closed or written, it cleans up and leaves */
};

double world_seconds(void); /* monotonic */
void world_pause(int microseconds);

/* The rank's side, the same for all engines. */
struct world_rank {
    rank_main run;
    void *context;
    struct comm *comm;
    struct arena *arena;
    int arena_rank;
    pid_t parent;                                                                 /* leave when it is gone */
    enum status (*finish)(void *context, struct arena *arena, struct comm *comm); /* before `done`; may be NULL */
    void *finish_context;
};
void world_serve(const struct world_rank *rank); /* until told to leave */
_Noreturn void world_leave(int code);            /* ends the process; keeps coverage counts */
/* A rank that cannot even open its comm. */
void world_fault_write(struct board *board, int rank, const char *note);
enum status world_arena(struct arena **out, int ranks); /* as large as the address space allows */

/* Sentences. */
void outcome_fault(const struct world *world, struct outcome *out);
void outcome_crash(const struct world *world, const struct death *death, struct outcome *out);
void outcome_hang(const struct world *world, double limit, struct outcome *out);

/* mpi: processes that belong to a world are known by its folder, their last argument. */
struct mpi_processes {
    _Atomic int mpirun, janitor;
};
bool process_alive(pid_t pid);   /* a zombie is dead */
bool process_stopped(pid_t pid); /* by SIGSTOP or a debugger */
/* SIGKILL for mpirun and the ranks that `board` (NULL: none yet) shows; returns when they are gone (3 s at most). */
void world_mpi_kill(const char *folder, struct mpi_processes *processes, const struct board *board);
/* The board in a world's folder, mapped; NULL if there is none. */
struct board *world_board_map(const char *folder);
/* Forks the janitor, before the folder exists; `out` becomes the writing end of its pipe. */
enum status janitor_start(const char *folder, struct mpi_processes *processes, int *out);
#define WORLD_BOARD_FILE "board"
#define WORLD_STDERR_FILE "mpirun.stderr"

#endif
