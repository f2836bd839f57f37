/* YAML (and so JSON) documents under strict rules: a tree of nodes with their lines.
 *
 * libyaml parses; we refuse what it lets pass: duplicate keys, anchors, aliases, tags, several documents, keys that are
 * not scalars. Every message reads `PATH:LINE: what, what was expected`. The schema layer (yaml_take_*) refuses unknown
 * keys with the nearest known one. */
#ifndef CORE_YAML_H
#define CORE_YAML_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum yaml_kind {
    YAML_SCALAR,
    YAML_LIST,
    YAML_MAP
};

struct yaml_node {
    enum yaml_kind kind;
    int line;                 /* from 1 */
    char *text;               /* scalar: its text */
    bool quoted;              /* scalar: it stood in quotes, so it is a string whatever it looks like */
    int count;                /* list, map: entries */
    struct yaml_node **items; /* list: entries; map: values */
    char **keys;              /* map: keys, in file order */
    int *key_lines;
};

struct yaml {
    char *path;
    struct yaml_node *root; /* an empty file is refused */
};

enum status yaml_open(struct yaml *out, const char *path);
/* The same from memory; `path` is only used in messages. */
enum status yaml_parse(struct yaml *out, const char *path, const char *text, size_t length);
void yaml_close(struct yaml *yaml); /* accepts {0} */

/* A failure at a node: `PATH:LINE: ` and the message. */
enum status yaml_fail(const struct yaml *yaml, const struct yaml_node *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key); /* NULL if absent */
/* Every key of `map` must be one of `known` (NULL-terminated), else STATUS_INPUT: `unknown key 'modle', did you mean
 * 'model'?`. `what` names the map ("case", "tenant ada"). */
enum status yaml_known(const struct yaml *yaml, const struct yaml_node *map, const char *what,
                       const char *const *known);
/* Typed reads; a wrong kind or text is STATUS_INPUT with what was expected. */
enum status yaml_string(const struct yaml *yaml, const struct yaml_node *node, const char **out);
enum status yaml_integer(const struct yaml *yaml, const struct yaml_node *node, int64_t low, int64_t high,
                         int64_t *out);
enum status yaml_number(const struct yaml *yaml, const struct yaml_node *node,
                        double *out); /* finite; as strtod reads */
enum status yaml_boolean(const struct yaml *yaml, const struct yaml_node *node, bool *out); /* true | false */
enum status yaml_expect(const struct yaml *yaml, const struct yaml_node *node, enum yaml_kind kind, const char *what);
/* The entry of `known` (NULL-terminated) that is nearest to `word` in edit distance; NULL if none is near. */
const char *nearest_word(const char *word, const char *const *known);
/* `*` any characters, `?` one, nothing else is special. */
bool glob_match(const char *glob, const char *text);

#endif
