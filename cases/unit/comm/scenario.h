/* The case numbers of the communicator tests; script.h is what the ranks do in each. */
#ifndef CASES_COMM_SCENARIO_H
#define CASES_COMM_SCENARIO_H

enum scenario {
    SCENARIO_ANSWERS, /* every collective, even and uneven, empty and long */
    SCENARIO_CLEAN,   /* the ledger cases' base: nobody deviates */
    SCENARIO_SKIP,    /* from here on rank 3 of 4 deviates in layer 1 */
    SCENARIO_SKIP_LAST,
    SCENARIO_OPERATION,
    SCENARIO_COUNT,
    SCENARIO_DTYPE,
    SCENARIO_GROUP,
    SCENARIO_MEMBERS,
    SCENARIO_WHAT,
    SCENARIO_SPLIT,
    SCENARIO_EXTRA,
    SCENARIO_STATUS, /* rank 2 fails with a note */
    SCENARIO_KILL,   /* rank 2 is killed while the others wait */
    SCENARIO_EXIT,   /* rank 2 exits with code 7 */
    SCENARIO_HANG,   /* rank 1 sleeps, the others wait */
    SCENARIO_SPEED,  /* 200 small collectives */
};

#endif
