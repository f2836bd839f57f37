#include "core/yaml.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

/* One document of one key for each kind of text; the value is what a case looks at. */
static struct yaml yaml;

static const struct yaml_node *value(const char *text) {
    char document[256];
    snprintf(document, sizeof document, "# first line\nkey: %s\n", text);
    yaml_close(&yaml);
    status_clear();
    cr_assert_eq(yaml_parse(&yaml, "a.yaml", document, strlen(document)), STATUS_OK, "%s", status_note());
    return yaml.root->items[0];
}

static void end(void) {
    yaml_close(&yaml);
}

Test(core_yaml_schema, integers, .fini = end) {
    const struct {
        const char *text;
        int64_t expected;
    } good[] = {
        {"0", 0}, {"-17", -17}, {"64", 64}, {"9223372036854775807", INT64_MAX}, {"-9223372036854775808", INT64_MIN}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t out = 99;
        cr_expect_eq(yaml_integer(&yaml, value(good[i].text), INT64_MIN, INT64_MAX, &out), STATUS_OK);
        cr_expect_eq(out, good[i].expected, "%s", good[i].text);
    }
    const char *const bad[] = {
        "1.0", "1e3", "+1", "010", "-0", "0x10", "1_000", "one", "'1'", "1-", "9223372036854775808"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t out = 99;
        cr_expect_eq(yaml_integer(&yaml, value(bad[i]), INT64_MIN, INT64_MAX, &out), STATUS_INPUT, "%s", bad[i]);
        cr_expect_eq(out, 99);
    }
}

Test(core_yaml_schema, integers_keep_their_range, .fini = end) {
    int64_t out = 99;
    cr_assert_eq(yaml_integer(&yaml, value("1"), 1, 4, &out), STATUS_OK);
    cr_assert_eq(yaml_integer(&yaml, value("4"), 1, 4, &out), STATUS_OK);
    cr_assert_eq(yaml_integer(&yaml, value("5"), 1, 4, &out), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: '5', expected an integer from 1 to 4");
    cr_assert_eq(yaml_integer(&yaml, value("0"), 1, 4, &out), STATUS_INPUT);
    cr_assert_eq(yaml_integer(&yaml, value("-1"), 0, INT64_MAX, &out), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: '-1', expected an integer of at least 0");
    cr_assert_eq(yaml_integer(&yaml, value("x"), INT64_MIN, INT64_MAX, &out), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: 'x', expected an integer");
    cr_assert_eq(yaml_integer(&yaml, value("\"3\""), 1, 4, &out), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: the string '3', expected an integer from 1 to 4");
    cr_assert_eq(yaml_integer(&yaml, value("[3]"), 1, 4, &out), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: a list, expected an integer from 1 to 4");
    cr_assert_eq(yaml_integer(&yaml, value(""), 1, 4, &out), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: nothing, expected an integer from 1 to 4");
    cr_assert_eq(out, 4);
}

Test(core_yaml_schema, numbers, .fini = end) {
    const struct {
        const char *text;
        double expected;
    } good[] = {{"0.1", 0.1}, {"-3", -3}, {"1e-08", 1e-8}, {"1E5", 1e5}, {".5", .5}, {"0", 0}, {"1e-400", 0}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        double out = 99;
        cr_expect_eq(yaml_number(&yaml, value(good[i].text), &out), STATUS_OK, "%s", good[i].text);
        cr_expect_eq(out, good[i].expected, "%s", good[i].text);
    }
    const char *const bad[] = {"inf", "-inf", "nan", ".inf", "1e400", "1.0x", "1 2", "'1'", "", "x", "{}", "[1]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double out = 99;
        cr_expect_eq(yaml_number(&yaml, value(bad[i]), &out), STATUS_INPUT, "%s", bad[i]);
        cr_expect_eq(out, 99.0);
    }
    double out;
    yaml_number(&yaml, value("1e400"), &out);
    cr_assert_str_eq(status_note(), "a.yaml:2: '1e400', expected a finite number");
}

Test(core_yaml_schema, strings_and_booleans, .fini = end) {
    const char *text = NULL;
    bool flag = true;
    cr_assert_eq(yaml_string(&yaml, value("plain words"), &text), STATUS_OK);
    cr_assert_str_eq(text, "plain words");
    cr_assert_eq(yaml_string(&yaml, value("''"), &text), STATUS_OK);
    cr_assert_str_eq(text, "");
    cr_assert_eq(yaml_string(&yaml, value(""), &text), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: nothing, expected a string");
    cr_assert_eq(yaml_string(&yaml, value("{}"), &text), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: a map, expected a string");
    cr_assert_eq(yaml_boolean(&yaml, value("false"), &flag), STATUS_OK);
    cr_assert_not(flag);
    cr_assert_eq(yaml_boolean(&yaml, value("true"), &flag), STATUS_OK);
    cr_assert(flag);
    const char *const bad[] = {"yes", "True", "on", "1", "'true'", "", "[]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(yaml_boolean(&yaml, value(bad[i]), &flag), STATUS_INPUT, "%s", bad[i]);
    yaml_boolean(&yaml, value("no"), &flag);
    cr_assert_str_eq(status_note(), "a.yaml:2: 'no', expected true or false");
}

Test(core_yaml_schema, kinds, .fini = end) {
    cr_assert_eq(yaml_expect(&yaml, value("[1]"), YAML_LIST, "micro"), STATUS_OK);
    cr_assert_eq(yaml_expect(&yaml, value("{a: 1}"), YAML_LIST, "micro"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: micro is a map, expected a list");
    cr_assert_eq(yaml_expect(&yaml, value("word"), YAML_MAP, "mesh"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: mesh is 'word', expected a map");
    cr_assert_eq(yaml_expect(&yaml, value(""), YAML_MAP, "mesh"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: mesh is nothing, expected a map");
    cr_assert_eq(yaml_expect(&yaml, value("[1]"), YAML_SCALAR, "name"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: name is a list, expected a value");
}

Test(core_yaml_schema, unknown_keys_are_refused_with_the_nearest, .fini = end) {
    static const char *const known[] = {"model", "mesh", "tenants", NULL};
    cr_assert_eq(yaml_known(&yaml, value("{model: 1, mesh: 2}"), "case", known), STATUS_OK);
    cr_assert_eq(yaml_known(&yaml, value("{model: 1,\n modle: 2}"), "case", known), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:3: case: unknown key 'modle', did you mean 'model'?");
    cr_assert_eq(yaml_known(&yaml, value("{colour: 1}"), "tenant ada", known), STATUS_INPUT);
    cr_assert_str_eq(status_note(),
                     "a.yaml:2: tenant ada: unknown key 'colour', expected one of: model, mesh, tenants");
    cr_assert_eq(yaml_known(&yaml, value("[model]"), "case", known), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: case is a list, expected a map");
}

Test(core_yaml_schema, a_failure_names_its_place, .fini = end) {
    const struct yaml_node *node = value("3");
    cr_assert_eq(yaml_fail(&yaml, node, "ep %d does not divide %s", 3, "E"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: ep 3 does not divide E");
    status_clear();
    cr_assert_eq(yaml_fail(&yaml, NULL, "no key 'name'"), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml: no key 'name'");
}

Test(core_yaml_schema, nearest_word) {
    static const char *const known[] = {"modes", "model", "mesh", "tenants", "x", NULL};
    static const char *const none[] = {NULL};
    cr_assert_str_eq(nearest_word("modle", known), "model", "a swap counts once: nearer than 'modes'");
    cr_assert_str_eq(nearest_word("mdoes", known), "modes");
    cr_assert_str_eq(nearest_word("tenant", known), "tenants");
    cr_assert_str_eq(nearest_word("tnants", known), "tenants");
    cr_assert_str_eq(nearest_word("mash", known), "mesh");
    cr_assert_str_eq(nearest_word("mode", known), "modes", "as near as 'model': the first");
    cr_assert_null(nearest_word("optimizer", known));
    cr_assert_null(nearest_word("y", known), "a word of one letter is not near to any");
    cr_assert_null(nearest_word("", known));
    cr_assert_null(nearest_word("model", none));
    char longest[200];
    memset(longest, 'm', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    cr_assert_null(nearest_word(longest, known));
}

Test(core_yaml_schema, globs) {
    const struct {
        const char *glob, *text;
        bool expected;
    } pairs[] = {
        {"", "", true},         {"", "a", false},       {"*", "", true},
        {"*", "a.b/c", true},   {"a*c", "abbc", true},  {"a*c", "abbd", false},
        {"a*bc", "abbc", true}, {"*b*b", "abab", true}, {"*b*b", "aba", false},
        {"?", "", false},       {"?", "a", true},       {"??", "a", false},
        {"a?c", "abc", true},   {"[a]", "a", false},    {"[a]", "[a]", true},
        {"a\\*", "a*", false},  {"a**", "a", true},     {"layers.*.w", "layers.0.mlp.w", true},
        {"*.w", "w", false},    {"a*", "b", false},     {"a", "ab", false},
        {"*", "*", true},       {"*a", "aaaa", true},   {"x*?", "x", false},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        cr_expect_eq(glob_match(pairs[i].glob, pairs[i].text), pairs[i].expected, "'%s' on '%s'", pairs[i].glob,
                     pairs[i].text);
    char text[2001] = {0}, glob[61] = {0};
    memset(text, 'a', 2000);
    for (int i = 0; i < 60; i += 2)
        memcpy(glob + i, "*a", 2);
    glob[59] = 'b';
    cr_assert_not(glob_match(glob, text), "and that in no time");
}
