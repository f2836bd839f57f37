#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *report_load(const struct scratch *scratch, const char *name) {
    char *path = scratch_path(scratch, name);
    json_error_t error = {0};
    json_t *report = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(report, "%s:%d: %s", path, error.line, error.text);
    cr_assert_str_eq(text_of(report, "schema"), "shardproof.report/1");
    free(path);
    return report;
}

json_t *report_case_of(const json_t *report, const char *name) {
    size_t i;
    json_t *one, *found = NULL;
    json_array_foreach(json_object_get(report, "cases"), i, one) {
        if (strcmp(text_of(one, "name"), name) == 0)
            found = one;
    }
    cr_assert_not_null(found, "the report has no case %s", name);
    return found;
}

const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_at(object, key));
    return text ? text : "";
}

json_int_t number_of(const json_t *object, const char *key) {
    const json_t *value = json_at(object, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

json_t *json_at(const json_t *object, const char *path) {
    char key[64];
    json_t *value = NULL;
    while (*path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = value = json_object_get(object, key);
        path += length + (path[length] == '.');
    }
    return value;
}
