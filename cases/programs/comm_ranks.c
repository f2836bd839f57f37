/* The MPI ranks of the communicator tests: comm_ranks WORLD_FOLDER, started by mpirun. */
#include "cases/unit/comm/script.h"

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "comm_ranks: expected WORLD_FOLDER\n");
        return 2;
    }
    return world_worker(arguments[1], script, NULL);
}
