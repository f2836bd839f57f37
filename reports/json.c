/* The report as one JSON object, schema shardproof.report/1 (docs/formats.md). */
#include "core/files.h"
#include "reports/report.h"
#include "reports/utf8.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* jansson takes well-formed UTF-8 only: other bytes become U+FFFD. */
static json_t *mended(const char *value) {
    char *copy = malloc(3 * strlen(value) + 1);
    size_t used = 0;
    if (!copy)
        return NULL;
    for (const unsigned char *s = (const unsigned char *)value; *s;) {
        int length = utf8_length(s);
        memcpy(copy + used, length ? (const char *)s : UTF8_REPLACEMENT, length ? (size_t)length : 3);
        used += length ? (size_t)length : 3;
        s += length ? length : 1;
    }
    json_t *out = json_stringn(copy, used);
    free(copy);
    return out;
}

static json_t *text(const char *value) {
    if (!value)
        return json_null();
    json_t *out = json_string(value);
    return out ? out : mended(value);
}

/* A number that is not finite is the string "nan", "inf" or "-inf". */
static json_t *number(double value) {
    if (isnan(value))
        return json_string("nan");
    if (isinf(value))
        return json_string(value > 0 ? "inf" : "-inf");
    return json_real(value);
}

static json_t *number_or_null(double value, bool present) {
    return present ? number(value) : json_null();
}

static json_t *integer_or_null(int64_t value) {
    return value >= 0 ? json_integer(value) : json_null();
}

static json_t *strings(const struct report_strings *list) {
    json_t *array = json_array();
    for (int i = 0; i < list->count; i++)
        json_array_append_new(array, text(list->item[i]));
    return array;
}

static json_t *counts(int64_t records, int64_t elements) {
    return json_pack("{sIsI}", "records", (json_int_t)records, "elements", (json_int_t)elements);
}

static json_t *collective(const struct report_collective *from) {
    if (!from->present)
        return json_null();
    return json_pack("{sososIso}", "operation", text(from->operation), "group", text(from->group), "sequence",
                     (json_int_t)from->sequence, "site", text(from->site));
}

static json_t *finding(const struct report_finding *from) {
    if (!from->present)
        return json_null();
    json_t *ranks = json_array();
    for (int i = 0; i < from->ranks; i++)
        json_array_append_new(ranks, json_integer(from->rank_list[i]));
    json_t *index = from->dims ? json_array() : json_null();
    for (int i = 0; i < from->dims; i++)
        json_array_append_new(index, json_integer(from->index[i]));
    json_t *out = json_object();
    json_object_set_new(out, "tensor", text(from->tensor));
    json_object_set_new(out, "phase", text(from->phase));
    json_object_set_new(out, "step", integer_or_null(from->step));
    json_object_set_new(out, "micro", integer_or_null(from->micro));
    json_object_set_new(out, "tenant", text(from->tenant));
    json_object_set_new(out, "slot", integer_or_null(from->slot));
    json_object_set_new(out, "rank", integer_or_null(from->rank));
    json_object_set_new(out, "ranks", ranks);
    json_object_set_new(out, "kind", text(finding_kind_name(from->kind)));
    json_object_set_new(out, "index", index);
    json_object_set_new(out, "axis", text(from->axis));
    json_object_set_new(out, "expert", integer_or_null(from->expert));
    json_object_set_new(out, "want", number_or_null(from->want, from->numbers));
    json_object_set_new(out, "got", number_or_null(from->got, from->numbers));
    json_object_set_new(out, "error", number_or_null(from->error, from->numbers));
    json_object_set_new(out, "bar", number_or_null(from->bar, from->numbers));
    json_object_set_new(out, "collective", collective(&from->collective));
    json_object_set_new(out, "text", text(from->text));
    return out;
}

static json_t *golden(const struct report_case *one) {
    if (!one->golden)
        return json_null();
    return json_pack("{sIsoso}", "compared", (json_int_t)one->golden_compared, "unreached",
                     strings(&one->golden_unreached), "worst", number(one->golden_worst));
}

static json_t *one_case(const struct report_case *one) {
    static const char *const verdicts[] = {
        [VERDICT_PASS] = "pass", [VERDICT_FAIL] = "fail", [VERDICT_SKIP] = "skip", [VERDICT_ERROR] = "error"};
    json_t *out = json_object();
    json_object_set_new(out, "name", text(one->name));
    json_object_set_new(out, "file", text(one->file));
    json_object_set_new(out, "verdict", text(verdicts[one->verdict]));
    json_object_set_new(out, "reason", text(one->reason));
    json_object_set_new(out, "mesh", text(one->mesh));
    json_object_set_new(out, "world", json_integer(one->world));
    json_object_set_new(out, "dtype", text(one->dtype));
    json_object_set_new(out, "engine", text(one->engine));
    json_object_set_new(out, "seconds", number(one->seconds));
    json_object_set_new(out, "compared", counts(one->compared_records, one->compared_elements));
    json_object_set_new(out, "owed", counts(one->owed_records, one->owed_elements));
    json_object_set_new(out, "golden", golden(one));
    json_object_set_new(
        out, "worst",
        json_pack("{soso}", "tensor", text(one->worst_tensor), "error_over_bar", number(one->worst_error_over_bar)));
    json_object_set_new(
        out, "routing",
        json_pack("{sIsI}", "tokens", (json_int_t)one->routing_tokens, "ties", (json_int_t)one->routing_ties));
    json_object_set_new(out, "finding", finding(&one->finding));
    json_object_set_new(out, "consequences", strings(&one->consequences));
    json_object_set_new(out, "repeat", text(one->repeat));
    json_object_set_new(out, "digest", one->digest[0] ? json_string(one->digest) : json_null());
    return out;
}

enum status report_write_json(const struct report *report, const char *path) {
    int passed, failed, skipped;
    report_summary(report, &passed, &failed, &skipped);
    json_t *cases = json_array();
    for (int i = 0; i < report->count; i++)
        json_array_append_new(cases, one_case(&report->cases[i]));
    json_t *root = json_object();
    json_object_set_new(root, "schema", json_string("shardproof.report/1"));
    json_object_set_new(root, "command", text(report->command));
    json_object_set_new(root, "version", json_string(REPORT_VERSION));
    json_object_set_new(root, "engine", text(report->engine));
    json_object_set_new(root, "device", text(report->device));
    json_object_set_new(root, "seconds", number(report->seconds));
    json_object_set_new(root, "summary", json_pack("{sisisi}", "passed", passed, "failed", failed, "skipped", skipped));
    json_object_set_new(root, "cases", cases);
    char *dump = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (!dump)
        return status_fail(STATUS_MEMORY, "%s: the report does not fit into memory", path);
    size_t length = strlen(dump);
    dump[length] = '\n'; /* takes the terminator's place: the length is given */
    enum status status = file_write(path, dump, length + 1);
    free(dump);
    return status;
}
