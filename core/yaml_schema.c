/* The typed reads of a document: what a value must be, and what a map may hold. */
#include "core/yaml.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MESSAGE_SIZE = 2048
};

enum status yaml_fail(const struct yaml *yaml, const struct yaml_node *node, const char *format, ...) {
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (node == NULL)
        return status_fail(STATUS_INPUT, "%s: %s", yaml->path, message);
    return status_fail(STATUS_INPUT, "%s:%d: %s", yaml->path, node->line, message);
}

const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key) {
    if (map == NULL || map->kind != YAML_MAP)
        return NULL;
    for (int i = 0; i < map->count; i++) {
        if (strcmp(map->keys[i], key) == 0)
            return map->items[i];
    }
    return NULL;
}

static bool is_known(const char *key, const char *const *known) {
    for (; *known != NULL; known++) {
        if (strcmp(*known, key) == 0)
            return true;
    }
    return false;
}

static void join(char *out, size_t size, const char *const *words) {
    size_t used = 0;
    out[0] = '\0';
    for (; *words != NULL && used < size; words++)
        used += (size_t)snprintf(out + used, size - used, used == 0 ? "%s" : ", %s", *words);
}

enum status yaml_known(const struct yaml *yaml, const struct yaml_node *map, const char *what,
                       const char *const *known) {
    TRY(yaml_expect(yaml, map, YAML_MAP, what));
    for (int i = 0; i < map->count; i++) {
        const char *key = map->keys[i];
        if (is_known(key, known))
            continue;
        struct yaml_node at = {.line = map->key_lines[i]};
        const char *near = nearest_word(key, known);
        if (near != NULL)
            return yaml_fail(yaml, &at, "%s: unknown key '%.100s', did you mean '%s'?", what, key, near);
        char list[MESSAGE_SIZE / 2];
        join(list, sizeof list, known);
        return yaml_fail(yaml, &at, "%s: unknown key '%.100s', expected one of: %s", what, key, list);
    }
    return STATUS_OK;
}

/* What stands at the node, in words for a message. */
static const char *describe(const struct yaml_node *node, char *out, size_t size) {
    if (node->kind == YAML_LIST)
        return "a list";
    if (node->kind == YAML_MAP)
        return "a map";
    if (!node->quoted && node->text[0] == '\0')
        return "nothing";
    snprintf(out, size, node->quoted ? "the string '%.100s'" : "'%.100s'", node->text);
    return out;
}

static enum status refuse(const struct yaml *yaml, const struct yaml_node *node, const char *expected) {
    char text[128];
    return yaml_fail(yaml, node, "%s, expected %s", describe(node, text, sizeof text), expected);
}

enum status yaml_expect(const struct yaml *yaml, const struct yaml_node *node, enum yaml_kind kind, const char *what) {
    static const char *const kinds[] = {[YAML_SCALAR] = "a value", [YAML_LIST] = "a list", [YAML_MAP] = "a map"};
    if (node->kind == kind)
        return STATUS_OK;
    char text[128];
    return yaml_fail(yaml, node, "%s is %s, expected %s", what, describe(node, text, sizeof text), kinds[kind]);
}

enum status yaml_string(const struct yaml *yaml, const struct yaml_node *node, const char **out) {
    if (node->kind != YAML_SCALAR || (!node->quoted && node->text[0] == '\0'))
        return refuse(yaml, node, "a string");
    *out = node->text;
    return STATUS_OK;
}

/* -?(0|[1-9][0-9]*): no sign on zero, no plus, no leading zeros, which YAML 1.1 reads as octal. */
static bool is_integer_text(const char *text) {
    const char *digits = text[0] == '-' ? text + 1 : text;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || digits[count] != '\0')
        return false;
    return digits[0] != '0' || (count == 1 && digits == text);
}

enum status yaml_integer(const struct yaml *yaml, const struct yaml_node *node, int64_t low, int64_t high,
                         int64_t *out) {
    char expected[96];
    if (low == INT64_MIN && high == INT64_MAX)
        snprintf(expected, sizeof expected, "an integer");
    else if (high == INT64_MAX)
        snprintf(expected, sizeof expected, "an integer of at least %" PRId64, low);
    else
        snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, low, high);
    if (node->kind != YAML_SCALAR || node->quoted || !is_integer_text(node->text))
        return refuse(yaml, node, expected);
    errno = 0;
    long long value = strtoll(node->text, NULL, 10);
    if (errno != 0 || value < low || value > high)
        return refuse(yaml, node, expected);
    *out = value;
    return STATUS_OK;
}

enum status yaml_number(const struct yaml *yaml, const struct yaml_node *node, double *out) {
    if (node->kind != YAML_SCALAR || node->quoted || node->text[0] == '\0')
        return refuse(yaml, node, "a number");
    char *end = NULL;
    double value = strtod(node->text, &end);
    if (*end != '\0' || !isfinite(value))
        return refuse(yaml, node, "a finite number");
    *out = value;
    return STATUS_OK;
}

enum status yaml_boolean(const struct yaml *yaml, const struct yaml_node *node, bool *out) {
    bool plain = node->kind == YAML_SCALAR && !node->quoted;
    if (plain && (strcmp(node->text, "true") == 0 || strcmp(node->text, "false") == 0)) {
        *out = node->text[0] == 't';
        return STATUS_OK;
    }
    return refuse(yaml, node, "true or false");
}
