#include "cases/unit/comm/help.h"

#include "sharded/ledger.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

/* In layer 1 (collectives 4 to 6) rank 3 of 4 does something else; what the ledger must say. */
struct deviation {
    enum scenario scenario;
    enum collective operation, expected;
    int64_t sequence;
    char site[32], expected_site[32]; /* "": the harness's own */
    char words[48];
};

static const struct deviation deviations[] = {
    {SCENARIO_SKIP, COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER, 6, "script/gather", "script/scatter", "left a"},
    {SCENARIO_SKIP_LAST, COLLECTIVE_BARRIER, COLLECTIVE_REDUCE_SCATTER, 9, "", "script/scatter", "left a"},
    {SCENARIO_OPERATION, COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, 6, "script/other", "script/scatter", ""},
    {SCENARIO_COUNT, COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_GATHER, 4, "script/gather", "script/gather",
     "another count"},
    {SCENARIO_DTYPE, COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_GATHER, 4, "script/other", "script/gather", "another type"},
    {SCENARIO_GROUP, COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_GATHER, 4, "script/gather", "script/gather",
     "another group"},
    {SCENARIO_MEMBERS, COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_GATHER, 1, "script/gather", "script/gather", "members"},
    {SCENARIO_WHAT, COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_GATHER, 4, "script/other", "script/gather", "another"},
    {SCENARIO_SPLIT, COLLECTIVE_ALL_TO_ALL, COLLECTIVE_ALL_TO_ALL, 5, "script/exchange", "script/exchange",
     "another split"},
    {SCENARIO_EXTRA, COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, 6, "script/other", "script/scatter",
     "one too many"},
};

static void check(enum world_engine engine, const struct deviation *want) {
    struct world_spec spec = help_spec(engine, 4);
    struct outcome outcome;
    help_run(&spec, (int)want->scenario, 10, &outcome);
    const struct board_fault *fault = &outcome.fault;
    cr_assert(outcome.kind == OUTCOME_ORDER, "scenario %d: kind %d, %s", want->scenario, outcome.kind, outcome.text);
    cr_expect(fault->kind == FAULT_ORDER && fault->rank == 3 && fault->ranks == 1 && fault->deviating[0] == 3,
              "scenario %d: %s", want->scenario, outcome.text);
    cr_expect(fault->entry.operation == want->operation && fault->expected.operation == want->expected,
              "scenario %d: %s", want->scenario, outcome.text);
    cr_expect(fault->entry.sequence == want->sequence, "scenario %d: %s", want->scenario, outcome.text);
    cr_expect(want->site[0] == '\0' || strcmp(fault->entry.site, want->site) == 0, "scenario %d: %s", want->scenario,
              outcome.text);
    cr_expect(strcmp(fault->expected.site, want->expected_site) == 0, "scenario %d: %s", want->scenario, outcome.text);
    cr_expect(strstr(outcome.text, "rank 3 ") != NULL && strstr(outcome.text, want->words) != NULL, "scenario %d: %s",
              want->scenario, outcome.text);
    /* an mpirun takes its time to start; from there on the same second holds */
    cr_expect(outcome.seconds < (engine == ENGINE_MPI ? 3 : 1), "scenario %d: %g s", want->scenario, outcome.seconds);
    outcome_free(&outcome);
}

Test(ledger, every_deviation_on_local, .timeout = 60) {
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++)
        check(ENGINE_LOCAL, &deviations[i]);
}

Test(ledger, every_deviation_on_threads, .timeout = 60) {
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++)
        check(ENGINE_THREADS, &deviations[i]);
}

Test(ledger, every_deviation_on_mpi, .timeout = 60) {
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++)
        check(ENGINE_MPI, &deviations[i]);
}

Test(ledger, nobody_deviates, .timeout = 60) {
    for (enum world_engine engine = ENGINE_LOCAL; engine <= ENGINE_MPI; engine++) {
        struct world_spec spec = help_spec(engine, 4);
        struct outcome outcome;
        help_run(&spec, SCENARIO_CLEAN, 10, &outcome);
        cr_expect(outcome.kind == OUTCOME_DONE, "engine %d: %s", engine, outcome.text);
        outcome_free(&outcome);
    }
}

/* ---- the judge by hand */

static void enter(struct ledger_record *record, int leader, enum collective operation, int64_t count,
                  const char *what) {
    *record = (struct ledger_record){.leader = leader};
    record->entry = (struct ledger_entry){.sequence = 5, .operation = operation, .dtype = DTYPE_F32, .count = count};
    snprintf(record->entry.group, BOARD_TEXT, "fsdp");
    snprintf(record->entry.site, BOARD_TEXT, "a.c:%d", leader + 1);
    snprintf(record->entry.what, BOARD_TEXT, "%s", what);
    ledger_seal(record, 1);
}

Test(judge, a_tie_goes_to_the_lowest_rank) {
    struct ledger_record records[2];
    bool known[2] = {true, true};
    struct board_fault fault;
    enter(&records[0], 0, COLLECTIVE_ALL_GATHER, 4, "w");
    enter(&records[1], 0, COLLECTIVE_BARRIER, 0, "w");
    cr_expect(!ledger_agrees(records, known, 2));
    ledger_judge(records, known, 2, 0, 1, &fault);
    cr_expect(fault.rank == 1 && fault.ranks == 1, "%s", fault.text);
    cr_expect_str_eq(fault.text, "rank 1 calls barrier(fsdp, w) at a.c:1 where rank 0 calls all_gather(fsdp, w, 4 x "
                                 "float32) at a.c:1 (collective 5): rank 1 left a collective out or has one too many");
}

/* In a group of two the count that the rest of the world takes is the right one; an unknown rank has no say. */
Test(judge, counts_of_other_groups_break_a_tie) {
    struct ledger_record records[5] = {0};
    bool known[5] = {true, true, true, true, false};
    struct board_fault fault;
    enter(&records[0], 0, COLLECTIVE_ALL_GATHER, 9, "w");
    enter(&records[1], 0, COLLECTIVE_ALL_GATHER, 4, "w");
    enter(&records[2], 2, COLLECTIVE_ALL_GATHER, 4, "w");
    enter(&records[3], 2, COLLECTIVE_ALL_GATHER, 4, "w");
    cr_expect(!ledger_agrees(records, known, 5));
    ledger_judge(records, known, 5, 0, 1, &fault);
    cr_expect(fault.rank == 0 && fault.ranks == 1 && fault.entry.count == 9 && fault.expected.count == 4, "%s",
              fault.text);
}

Test(judge, other_groups_may_have_other_counts) {
    struct ledger_record records[4];
    bool known[4] = {true, true, true, true};
    for (int r = 0; r < 4; r++)
        enter(&records[r], r / 2 * 2, COLLECTIVE_ALL_GATHER, 4 + r / 2, "w");
    cr_expect(ledger_agrees(records, known, 4));
}

Test(judge, lists_of_ranks) {
    char text[64];
    cr_expect_str_eq(ledger_ranks_text(text, sizeof text, (bool[]){0, 0, 1}, 3), "rank 2");
    cr_expect_str_eq(ledger_ranks_text(text, sizeof text, (bool[]){1, 1, 1, 0, 1, 0, 1, 1}, 8), "ranks 0-2, 4, 6, 7");
}

/* Member 1 (rank 7) expects wrong counts from both others: it has the most misfits. */
Test(judge, split_with_most_misfits) {
    const int member[3] = {2, 7, 9};
    int64_t splits[3][2][3] = {{{1, 2, 3}, {1, 4, 7}}, {{4, 5, 6}, {9, 5, 9}}, {{7, 8, 9}, {3, 6, 9}}};
    struct ledger_entry entry = {.sequence = 1, .operation = COLLECTIVE_ALL_TO_ALL, .dtype = DTYPE_F64};
    struct board_fault fault;
    cr_expect(!ledger_splits_fit(&splits[0][0][0], member, 3, &entry, &fault));
    cr_expect(fault.rank == 7 && fault.entry.count == 9 && fault.expected.count == 2, "%s", fault.text);
    splits[1][1][0] = 2;
    splits[1][1][2] = 8;
    cr_expect(ledger_splits_fit(&splits[0][0][0], member, 3, &entry, &fault));
}
