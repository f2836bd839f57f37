#include "harness/world_private.h"

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEAVE_SECONDS 5.0  /* for MPI_Finalize */
#define REASON_SECONDS 1.5 /* for mpirun to say how a rank died */

/* What OpenMPI 4.1 needs: root is allowed, more ranks than cores, no binding, waiting ranks yield (spinning ones are a
 * hundred times slower than the work), shared memory and TCP only, no ptrace, no ssh for a local run. */
static const char *const settings[] = {
    "OMPI_ALLOW_RUN_AS_ROOT=1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1",
    "OMPI_MCA_hwloc_base_binding_policy=none",
    "OMPI_MCA_mpi_yield_when_idle=1",
    "OMPI_MCA_pml=ob1",
    "OMPI_MCA_btl=self,vader,tcp",
    "OMPI_MCA_btl_vader_single_copy_mechanism=none",
    "OMPI_MCA_orte_base_help_aggregate=0",
    "OMPI_MCA_plm_rsh_agent=/bin/false",
};

/* ---- the folder and the board */

/* A name that nobody has: the janitor knows it before the folder is there, so no moment leaves one behind. */
static enum status name_folder(struct world *world) {
    const char *base = getenv("TMPDIR");
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return status_fail(STATUS_IO, "no random name for the world's folder: %s", strerror(errno));
    char *absolute = realpath(base != NULL && base[0] != '\0' ? base : "/tmp", NULL);
    if (absolute == NULL)
        return status_fail(STATUS_IO, "TMPDIR %s: %s", base == NULL ? "/tmp" : base, strerror(errno));
    int length = asprintf(&world->folder, "%s/shardproof.%016" PRIx64, absolute, random);
    free(absolute);
    if (length >= 0)
        return STATUS_OK;
    world->folder = NULL;
    return status_fail(STATUS_MEMORY, "out of memory for the world's folder");
}

static enum status make_folder(const struct world *world) {
    if (mkdir(world->folder, 0700) != 0)
        return status_fail(STATUS_IO, "%s: cannot be made: %s", world->folder, strerror(errno));
    return STATUS_OK;
}

static enum status make_processes(struct world *world) {
    void *memory = mmap(NULL, sizeof *world->processes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return status_fail(STATUS_MEMORY, "out of memory for a world of %d ranks", world->spec.size);
    world->processes = memory;
    return STATUS_OK;
}

static enum status make_board(struct world *world) {
    size_t bytes = board_bytes(world->spec.size);
    char *path = path_join(world->folder, WORLD_BOARD_FILE);
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    void *memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int error = errno;
    if (file >= 0)
        close(file);
    free(path);
    if (memory == MAP_FAILED)
        return status_fail(STATUS_IO, "%s/" WORLD_BOARD_FILE ": cannot be made: %s", world->folder, strerror(error));
    world->board = memory;
    board_init(world->board, world->spec.size);
    return STATUS_OK;
}

/* ---- mpirun */

/* The variables of an mpirun around us would make ours fail. */
static bool scrubbed(const char *variable) {
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "ORTE_", "TMPDIR="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* environ without those, with the settings and all of OpenMPI's own files in the folder. */
static char **make_environment(const char *folder) {
    size_t count = 0, fixed = sizeof settings / sizeof *settings;
    while (environ[count] != NULL)
        count++;
    char **environment = calloc(count + fixed + 3, sizeof *environment);
    if (environment == NULL)
        return NULL;
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (!scrubbed(environ[i]))
            environment[used++] = environ[i];
    for (size_t i = 0; i < fixed; i++)
        environment[used++] = (char *)(uintptr_t)settings[i];
    if (asprintf(&environment[used], "TMPDIR=%s", folder) < 0 ||
        asprintf(&environment[used + 1], "OMPI_MCA_btl_vader_backing_directory=%s", folder) < 0)
        return NULL;
    return environment;
}

/* mpirun -np N PROGRAM ARGUMENT... FOLDER */
static char **make_arguments(const struct world *world, char *number) {
    int count = 0;
    while (world->spec.arguments != NULL && world->spec.arguments[count] != NULL)
        count++;
    char **arguments = calloc((size_t)count + 6, sizeof *arguments);
    if (arguments == NULL)
        return NULL;
    int used = 0;
    arguments[used++] = (char *)(uintptr_t) "mpirun";
    arguments[used++] = (char *)(uintptr_t) "-np";
    arguments[used++] = number;
    arguments[used++] = (char *)(uintptr_t)world->spec.program;
    for (int i = 0; i < count; i++)
        arguments[used++] = world->spec.arguments[i];
    arguments[used] = world->folder;
    return arguments;
}

static int open_output(const char *folder, const char *name) {
    char *path = path_join(folder, name);
    int file = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    free(path);
    return file;
}

/* In the child. Ctrl-C must not reach mpirun: its group is its own. */
static _Noreturn void become_mpirun(struct world *world, pid_t parent) {
    char number[16];
    snprintf(number, sizeof number, "%d", world->spec.size);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    setpgid(0, 0);
    atomic_store(&world->processes->mpirun, getpid());
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    char **environment = make_environment(world->folder), **arguments = make_arguments(world, number);
    int in = open("/dev/null", O_RDONLY), out = open_output(world->folder, "mpirun.stdout"),
        error = open_output(world->folder, WORLD_STDERR_FILE);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(error, 2) < 0 || environment == NULL || arguments == NULL)
        _exit(127);
    close_range(3, ~0U, 0);
    execvpe("mpirun", arguments, environment);
    dprintf(2, "mpirun cannot be run: %s (on Debian: apt-get install openmpi-bin)\n", strerror(errno));
    _exit(127);
}

static enum status start_mpirun(struct world *world) {
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return status_fail(STATUS_RANK, "no process for mpirun: %s", strerror(errno));
    if (pid == 0)
        become_mpirun(world, parent);
    world->pid[0] = pid;
    atomic_store(&world->processes->mpirun, pid);
    return STATUS_OK;
}

static enum status mpi_launch(struct world *world) {
    world->pid = calloc(1, sizeof *world->pid);
    if (world->pid == NULL)
        return status_fail(STATUS_MEMORY, "out of memory for a world of %d ranks", world->spec.size);
    TRY(name_folder(world));
    TRY(make_processes(world));
    TRY(janitor_start(world->folder, world->processes, &world->pipe));
    TRY(make_folder(world));
    TRY(make_board(world));
    return start_mpirun(world);
}

/* ---- watching */

/* mpirun's exit, if it has ended; `code` as a shell would say it. */
static bool reap_mpirun(struct world *world, int *code) {
    int status;
    if (world->pid[0] == 0 || waitpid(world->pid[0], &status, WNOHANG) != world->pid[0])
        return false;
    world->pid[0] = 0;
    atomic_store(&world->processes->mpirun, 0);
    *code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return true;
}

/* The last words of mpirun in one line. */
static void tail(const struct world *world, char *text, size_t size) {
    char *path = path_join(world->folder, WORLD_STDERR_FILE), *words = NULL;
    size_t length = 0;
    snprintf(text, size, "it said nothing");
    if (path != NULL && file_read(path, &words, &length) == STATUS_OK && length > 0) {
        const char *from = words + (length > size - 1 ? length - (size - 1) : 0);
        size_t used = 0;
        for (; *from != '\0' && used + 1 < size; from++) {
            bool blank = *from == '\n' || *from == ' ' || *from == '-';
            if (!blank || (used > 0 && text[used - 1] != ' '))
                text[used++] = *from == '\n' ? ' ' : *from;
        }
        text[used] = '\0';
    }
    status_clear();
    free(words);
    free(path);
}

static bool mpi_launch_failed(struct world *world, char *text, size_t size) {
    int code;
    if (!reap_mpirun(world, &code))
        return false;
    char words[600];
    tail(world, words, sizeof words);
    snprintf(text, size, "mpirun ended with code %d: %s", code, words);
    return true;
}

/* How the rank died is known to mpirun alone: it ends with the code of the first that failed. */
static void find_manner(struct world *world, struct death *out) {
    int code = 0;
    bool ended = false;
    double deadline = world_seconds() + REASON_SECONDS;
    while (!(ended = reap_mpirun(world, &code)) && world->pid[0] != 0 && world_seconds() < deadline)
        world_pause(2000);
    if (!ended)
        return;
    out->known = true;
    if (code > 128)
        out->signal = code - 128;
    else
        out->code = code;
}

static bool mpi_find_death(struct world *world, struct death *out) {
    const struct board *board = world->board;
    *out = (struct death){.rank = -1};
    for (int r = 0; r < world->spec.size && out->rank < 0; r++)
        if (!process_alive(atomic_load(&board->rank[r].pid)) && !atomic_load(&board->rank[r].told))
            out->rank = r;
    if (out->rank < 0 && world->pid[0] != 0 && process_alive(world->pid[0]))
        return false;
    find_manner(world, out);
    return true;
}

static enum status mpi_trace(struct world *world, struct trace *out) {
    return trace_open(out, world->folder, world->spec.size);
}

/* ---- the end */

static void wait_mpirun(struct world *world, double seconds) {
    int code;
    double deadline = world_seconds() + seconds;
    while (world->pid[0] != 0 && !reap_mpirun(world, &code) && world_seconds() < deadline)
        world_pause(500);
}

/* The janitor removes the folder, whoever ends first. */
static void wait_janitor(struct world *world) {
    if (write(world->pipe, "q", 1) < 0)
        perror("shardproof: the janitor's pipe");
    close(world->pipe);
    while (waitpid(atomic_load(&world->processes->janitor), NULL, 0) < 0 && errno == EINTR)
        continue;
}

static void mpi_end(struct world *world, bool graceful) {
    if (graceful) {
        atomic_store(&world->board->go, -1);
        board_wake(&world->board->go);
        wait_mpirun(world, LEAVE_SECONDS);
    }
    if (world->processes != NULL) {
        if (world->pid[0] != 0)
            kill(world->pid[0], SIGKILL);
        world_mpi_kill(world->folder, world->processes, world->board);
        while (world->pid[0] != 0 && waitpid(world->pid[0], NULL, 0) < 0 && errno == EINTR)
            continue;
        atomic_store(&world->processes->mpirun, 0);
    }
    if (world->pipe >= 0)
        wait_janitor(world);
    else if (world->folder != NULL)
        folder_remove(world->folder);
    if (world->processes != NULL)
        munmap(world->processes, sizeof *world->processes);
    if (world->board != NULL)
        munmap(world->board, board_bytes(world->spec.size));
    free(world->folder);
    free(world->pid);
}

const struct world_kind world_mpi = {
    .launch = mpi_launch,
    .launch_failed = mpi_launch_failed,
    .find_death = mpi_find_death,
    .trace = mpi_trace,
    .end = mpi_end,
};
