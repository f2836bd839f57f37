/* Patterns of PEFT configs: the verdicts are those of Python 3.11's re on the same names. */
#include "core/pattern.h"

#include <criterion/criterion.h>
#include <stdio.h>

static const char *const names[] = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                                    "model.layers.11.self_attn.k_proj", "model.layers.0.mlp.down_proj",
                                    "model.layers.0.mlp.experts.gate_up_proj"};

Test(pattern, agrees_with_python) {
    static const struct {
        enum pattern_rule rule;
        const char *text, *verdicts;
    } rows[] = {
        {PATTERN_WHOLE, ".*\\.(q_proj|v_proj)", "11000"},
        {PATTERN_WHOLE, ".*\\.(q_proj|v_proj)$", "11000"},
        {PATTERN_WHOLE, "(?:.*?)\\.layers\\.\\d+\\.self_attn\\.[qk]_proj", "11100"},
        {PATTERN_WHOLE, ".*layers\\.[^\\d].*", "00000"},
        {PATTERN_WHOLE, "model\\.layers\\.[0-9]{1,2}\\.mlp\\.[\\w.]+", "00011"},
        {PATTERN_WHOLE, "q_proj", "00000"},
        {PATTERN_END, "q_proj", "11000"},
        {PATTERN_END, "layers.0.*q_proj", "10000"},
        {PATTERN_END, "^model.layers.1.self_attn.q_proj", "01000"},
        {PATTERN_END, "a|.*down_proj", "00010"},
        {PATTERN_END, "proj", "00000"},
        {PATTERN_END, "self_attn\\.\\w+", "11100"},
        {PATTERN_END, "experts.gate_up_proj", "00001"},
        {PATTERN_END, "q_pro", "00000"},
        {PATTERN_WHOLE, ".*self_attn", "00000"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pattern pattern;
        char why[PATTERN_WHY_MAX] = "", got[6] = "";
        cr_assert(pattern_compile(&pattern, rows[i].text, rows[i].rule, why), "%s: %s", rows[i].text, why);
        for (int k = 0; k < 5; k++)
            got[k] = pattern_matches(&pattern, names[k]) ? '1' : '0';
        cr_expect_str_eq(got, rows[i].verdicts, "%s: %s, Python says %s", rows[i].text, got, rows[i].verdicts);
        pattern_free(&pattern);
    }
}

Test(pattern, refuses_what_it_cannot_read) {
    static const char *const texts[] = {"(",      ")",      "a)(b",        "[a",    "(?=a)",         "(?P<x>a)",
                                        "(a)\\1", "a\\",    "\\bq",        "a*+",   "a**",           "*a",
                                        "a{2",    "a{100}", "[[:alpha:]]", "[\\b]", "((a{9}){9}){9}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pattern pattern;
        char why[PATTERN_WHY_MAX] = "";
        cr_expect(!pattern_compile(&pattern, texts[i], PATTERN_WHOLE, why), "%s", texts[i]);
        cr_expect(why[0] != '\0', "%s", texts[i]);
        pattern_free(&pattern);
    }
}
