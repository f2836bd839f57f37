#include "cases/unit/core_io/scratch.h"
#include "core/yaml.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct yaml parse(const char *text) {
    struct yaml yaml;
    cr_assert_eq(yaml_parse(&yaml, "a.yaml", text, strlen(text)), STATUS_OK, "%s", status_note());
    return yaml;
}

Test(core_yaml_read, a_case_file) {
    struct yaml yaml = parse("# a comment\n"
                             "name: tiny\n"
                             "mesh: {dp: 2, ep: 3}\n"
                             "\n"
                             "tenants:\n"
                             "  - ada\n"
                             "  - \"bob\"\n"
                             "  - 'it''s'\n"
                             "line: q_proj [S(0), R]\n");
    const struct yaml_node *root = yaml.root;
    cr_assert_eq(root->kind, YAML_MAP);
    cr_assert_eq(root->count, 4);
    cr_assert_eq(root->line, 2);
    cr_assert_str_eq(root->keys[1], "mesh");
    cr_assert_eq(root->key_lines[1], 3);
    cr_assert_eq(root->key_lines[3], 9);
    cr_assert_str_eq(yaml_get(root, "name")->text, "tiny");
    cr_assert_str_eq(yaml_get(yaml_get(root, "mesh"), "ep")->text, "3");
    cr_assert_str_eq(yaml_get(root, "line")->text, "q_proj [S(0), R]");
    cr_assert_null(yaml_get(root, "nam"));
    cr_assert_null(yaml_get(yaml_get(root, "name"), "x"), "a value has no keys");
    const struct yaml_node *tenants = yaml_get(root, "tenants");
    cr_assert_eq(tenants->kind, YAML_LIST);
    cr_assert_eq(tenants->count, 3);
    cr_assert_eq(tenants->items[2]->line, 8);
    cr_assert_not(tenants->items[0]->quoted);
    cr_assert(tenants->items[1]->quoted);
    cr_assert(tenants->items[2]->quoted);
    cr_assert_str_eq(tenants->items[2]->text, "it's");
    yaml_close(&yaml);
    cr_assert_null(yaml.root);
    yaml_close(&yaml);
}

Test(core_yaml_read, json) {
    struct yaml yaml = parse("{\n\t\"eps\": 1e-08,\n\t\"none\":null, \"empty\": {}, \"list\":[],\n"
                             "\t\"path\": \"a\\/b\\u00e9\\n\",\"on\":true,\"layers\":[1,\n2]\n}\n");
    double eps = 0;
    bool on = false;
    cr_assert_eq(yaml.root->count, 7);
    cr_assert_eq(yaml_number(&yaml, yaml_get(yaml.root, "eps"), &eps), STATUS_OK);
    cr_assert_eq(eps, 1e-08);
    cr_assert_eq(yaml_boolean(&yaml, yaml_get(yaml.root, "on"), &on), STATUS_OK);
    cr_assert(on);
    cr_assert_str_eq(yaml_get(yaml.root, "none")->text, "null");
    cr_assert_not(yaml_get(yaml.root, "none")->quoted);
    cr_assert_eq(yaml_get(yaml.root, "empty")->kind, YAML_MAP);
    cr_assert_eq(yaml_get(yaml.root, "empty")->count, 0);
    cr_assert_eq(yaml_get(yaml.root, "list")->kind, YAML_LIST);
    cr_assert_eq(yaml_get(yaml.root, "list")->count, 0);
    cr_assert_str_eq(yaml_get(yaml.root, "path")->text, "a/b\xc3\xa9\n");
    cr_assert_eq(yaml_get(yaml.root, "layers")->items[1]->line, 5);
    yaml_close(&yaml);
}

Test(core_yaml_read, what_hugging_face_and_peft_wrote) {
    struct yaml yaml;
    int64_t rank = 0;
    cr_assert_eq(yaml_open(&yaml, "fixtures/golden/qwen3_moe_tiny/adapters/ada/adapter_config.json"), STATUS_OK, "%s",
                 status_note());
    cr_assert_eq(yaml_integer(&yaml, yaml_get(yaml.root, "r"), 1, 64, &rank), STATUS_OK, "%s", status_note());
    cr_assert_gt(rank, 0);
    yaml_close(&yaml);
    cr_assert_eq(yaml_open(&yaml, "fixtures/golden/qwen3_moe_tiny/model/config.json"), STATUS_OK, "%s", status_note());
    cr_assert_str_eq(yaml_get(yaml.root, "model_type")->text, "qwen3_moe");
    yaml_close(&yaml);
}

Test(core_yaml_read, many_entries_keep_their_order) {
    static char text[40000];
    size_t used = 0;
    for (int i = 0; i < 1000; i++)
        used += (size_t)sprintf(text + used, "key%03d: %d\n", 999 - i, i);
    struct yaml yaml = parse(text);
    cr_assert_eq(yaml.root->count, 1000);
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(atoi(yaml.root->keys[i] + 3), 999 - i);
        cr_assert_eq(atoi(yaml.root->items[i]->text), i);
        cr_assert_eq(yaml.root->key_lines[i], i + 1);
    }
    yaml_close(&yaml);
}

Test(core_yaml_read, sixty_four_levels_but_no_more) {
    char text[200];
    struct yaml yaml;
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    cr_assert_eq(yaml_parse(&yaml, "a.yaml", text, 128), STATUS_OK, "%s", status_note());
    yaml_close(&yaml);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    cr_assert_eq(yaml_parse(&yaml, "a.yaml", text, 130), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:1: nesting deeper than 64, expected less");
    cr_assert_null(yaml.root);
}

struct bad {
    const char *text, *note;
};

/* Lines are counted by hand. */
static const struct bad bad[] = {
    {"", "a.yaml:1: the document is empty, expected a map, a list or a value"},
    {"# only\n# this\n", "a.yaml:3: the document is empty, expected a map, a list or a value"},
    {"---\n", "a.yaml:2: the document is empty, expected a map, a list or a value"},
    {"a: 1\nb: 2\na: 3\n", "a.yaml:3: key 'a' stands twice (first on line 1), expected each key once"},
    {"x:\n  {b: 1,\n   'b': 2}\n", "a.yaml:3: key 'b' stands twice (first on line 2), expected each key once"},
    {"d: 1\nc: 1\nc: 1\nd: 1\n", "a.yaml:3: key 'c' stands twice (first on line 2), expected each key once"},
    {"{\"a\": 1, \"\\u0061\": 2}", "a.yaml:1: key 'a' stands twice (first on line 1), expected each key once"},
    {"a: 1\nb: &x 2\n", "a.yaml:2: anchor '&x', expected a value without an anchor"},
    {"a: &x [1]\n", "a.yaml:1: anchor '&x', expected a value without an anchor"},
    {"a: 1\n&x b: 2\n", "a.yaml:2: anchor '&x', expected a value without an anchor"},
    {"a: 1\nb: *x\n", "a.yaml:2: alias '*x', expected the value itself"},
    {"a: 1\n*x : 2\n", "a.yaml:2: alias '*x', expected the key itself"},
    {"a: !!int 1\n", "a.yaml:1: tag 'tag:yaml.org,2002:int', expected a value without a tag"},
    {"a: !mine {b: 1}\n", "a.yaml:1: tag '!mine', expected a value without a tag"},
    {"a: ! [b]\n", "a.yaml:1: tag '!', expected a value without a tag"},
    {"a: 1\n---\nb: 2\n", "a.yaml:2: a second document, expected one"},
    {"a: 1\n? [b]\n: 2\n", "a.yaml:2: a key that is a list or a map, expected a word"},
    {"a: 1\n{b: 1}: 2\n", "a.yaml:2: a key that is a list or a map, expected a word"},
    {"a: \"x\\0y\"\n", "a.yaml:1: a NUL character in a value, expected text"},
    {"\n\"x\\0y\": 1\n", "a.yaml:2: a NUL character in a key, expected text"},
    {"p:\n  [_StridedShard(dim=0, sf=2), R]\n",
     "a.yaml:2: '_StridedShard(dim=0' is cut at its comma, expected quotes around the whole entry"},
    {"a: 1\nb: [1, 2\n", "a.yaml:3: did not find expected ',' or ']' (while parsing a flow sequence), "
                         "expected well-formed YAML"},
    {"a: 1\n b: 2\n", "a.yaml:2: mapping values are not allowed in this context, expected well-formed YAML"},
    {"a:\n\t- 1\n", "a.yaml:2: found character that cannot start any token (while scanning for the next token), "
                    "expected well-formed YAML"},
    {"a: 1\nb: \xff\n", "a.yaml:2: invalid leading UTF-8 octet, expected well-formed YAML"},
    {"a: \"x\n", "a.yaml:2: found unexpected end of stream (while scanning a quoted scalar), "
                 "expected well-formed YAML"},
    {"{\"a\": 1} x\n", "a.yaml:1: did not find expected <document start>, expected well-formed YAML"},
};

Test(core_yaml_read, bad_documents_are_refused_where_they_are_bad) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct yaml yaml;
        status_clear();
        cr_expect_eq(yaml_parse(&yaml, "a.yaml", bad[i].text, strlen(bad[i].text)), STATUS_INPUT, "%s", bad[i].text);
        cr_expect_str_eq(status_note(), bad[i].note);
        cr_expect_null(yaml.root);
        cr_expect_null(yaml.path);
    }
}

Test(core_yaml_read, a_raw_nul_is_refused) {
    struct yaml yaml;
    cr_assert_eq(yaml_parse(&yaml, "a.yaml", "a: 1\nb: \0c\n", 11), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:2: control characters are not allowed, expected well-formed YAML");
}

/* The billion laughs: nine levels of nine aliases. */
Test(core_yaml_read, aliases_do_not_blow_up) {
    struct yaml yaml;
    const char text[] = "a: &a [x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n";
    cr_assert_eq(yaml_parse(&yaml, "a.yaml", text, sizeof text - 1), STATUS_INPUT);
    cr_assert_str_eq(status_note(), "a.yaml:1: anchor '&a', expected a value without an anchor");
}

Test(core_yaml_read, every_cut_of_a_document_ends_in_a_verdict) {
    const char text[] = "{\"a\": [1, {\"b\": \"c\\u00e9\"}], 'd': {e: f, g: [h]}}\n# end\n";
    int refused = 0;
    for (size_t length = 0; length < sizeof text; length++) {
        struct yaml yaml;
        status_clear();
        refused += yaml_parse(&yaml, "a.yaml", text, length) != STATUS_OK;
        yaml_close(&yaml);
    }
    cr_assert_eq(refused, (int)(strchr(text, '\n') - text), "all that end before the map does");
}

Test(core_yaml_read, a_missing_file_is_named) {
    struct yaml yaml;
    cr_assert_eq(yaml_open(&yaml, "no/such.yaml"), STATUS_IO);
    cr_assert_str_eq(status_note(), "no/such.yaml: cannot be opened: No such file or directory");
    yaml_close(&yaml);
}
