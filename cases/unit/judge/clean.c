/* A perfect subject passes, all that is owed is compared, and what is owed is what plain counting says. */
#include "fake.h"

#include <criterion/criterion.h>

#include <math.h>

static void passes(int ep, int fsdp, enum dtype dtype) {
    struct fake fake;
    fake_make(&fake, ep, fsdp, dtype);
    fake_record(&fake, NULL, -1);
    fake_judge(&fake);
    const struct report_case *report = &fake.report;
    cr_assert(!report->finding.present, "%s", report->finding.text);
    cr_assert_eq(report->consequences.count, 0);
    cr_assert_eq(report->verdict, VERDICT_PASS);
    cr_assert_eq(report->compared_records, report->owed_records);
    cr_assert_eq(report->compared_elements, report->owed_elements);
    cr_assert_eq(report->owed_records, (int64_t)fake.trace.ranks * fake.trace.rank[0].count);
    int64_t elements = 0;
    for (int rank = 0; rank < fake.trace.ranks; rank++)
        for (int i = 0; i < fake.trace.rank[rank].count; i++)
            elements += tensor_elements(&fake.trace.rank[rank].record[i].tensor);
    cr_assert_eq(report->owed_elements, elements);
    cr_assert(report->worst_error_over_bar <= 1);
    /* two layers; micro-batches 0 (35 tokens, trained and evaluated), 1 (33), 2 (4) */
    cr_assert_eq(report->routing_tokens, 2 * (35 + 33 + 4 + 35));
    fake_free(&fake);
}

Test(judge_clean, one_rank) {
    passes(1, 1, DTYPE_F64);
}

Test(judge_clean, two_by_two) {
    passes(2, 2, DTYPE_F64);
}

Test(judge_clean, three_by_two) {
    passes(3, 2, DTYPE_F64);
}

Test(judge_clean, two_by_two_in_float32) {
    passes(2, 2, DTYPE_F32);
}

Test(judge_clean, three_by_two_in_float32) {
    passes(3, 2, DTYPE_F32);
}

Test(judge_clean, two_by_two_in_bfloat16) {
    passes(2, 2, DTYPE_BF16);
}

Test(judge_clean, nothing_judged_is_no_pass) {
    struct fake fake;
    fake_make(&fake, 1, 1, DTYPE_F64);
    fake_record(&fake, NULL, -1);
    cr_assert_eq(judge_close(fake.judge, &fake.trace), STATUS_OK);
    cr_assert_eq(fake.report.verdict, VERDICT_FAIL);
    cr_assert(fake.report.finding.present);
    fake_free(&fake);
}

/* The lines that docs/formats.md and layout/sharding.h write out. */
Test(judge_clean, lines) {
    struct fake fake;
    char line[PLACE_TEXT];
    fake_make(&fake, 2, 3, DTYPE_F64);
    const struct inventory *inventory = checkpoint_inventory(fake.one.job.model);
    const struct param *gate_up = inventory_find(inventory, PARAM_GATE_UP, 0);
    const struct {
        struct point point;
        const char *line;
    } rows[] = {
        {{.phase = PHASE_FORWARD, .activation = ACT_INPUT_IDS}, "batch[ep*fsdp] token"},
        {{.phase = PHASE_FORWARD, .activation = ACT_TOPK_INDEX}, "(batch[ep*fsdp] token) choice"},
        {{.phase = PHASE_PARAM, .param = gate_up}, "expert[ep] (half inter) hidden"},
        {{.phase = PHASE_PARAM, .param = gate_up, .part = PART_LORA_A}, "expert[ep] rank[fsdp] hidden"},
        {{.phase = PHASE_BACKWARD, .param = gate_up, .part = PART_LORA_A}, "expert[ep] rank hidden +[fsdp]"},
        {{.phase = PHASE_GATHER, .param = gate_up, .part = PART_LORA_B}, "expert[ep] (half inter) rank"},
        {{.phase = PHASE_PARAM, .param = inventory_find(inventory, PARAM_Q, 0)}, "out[ep*fsdp] in"},
        {{.phase = PHASE_LOSS, .scalar = "loss"}, ""},
        {{.phase = PHASE_LOSS_SUM, .scalar = "loss"}, "+[ep,fsdp]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(judge_line(fake.judge, &rows[i].point, line, sizeof line), STATUS_OK, "%s", status_note());
        if (i != 2) /* gate_up's own line is checked below: 28 rows are not cut by 3 */
            cr_expect_str_eq(line, rows[i].line);
    }
    /* dim 1 has 28 rows and fsdp = 3 does not divide them: dim 0 is cut instead */
    judge_line(fake.judge, &rows[2].point, line, sizeof line);
    cr_expect_str_eq(line, "expert[ep,fsdp] (half inter) hidden");
    fake_free(&fake);
}
