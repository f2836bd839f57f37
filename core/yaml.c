#include "core/yaml.h"

#include "core/files.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* deeper than any document of ours; bounds the recursion on a hostile one */
enum {
    MAX_DEPTH = 64
};

struct reader {
    yaml_parser_t parser;
    const struct yaml *yaml;
    const char *text;
    size_t length;
    int depth;
};

static int mark_line(yaml_mark_t mark) {
    return (int)mark.line + 1;
}

static enum status fail_at(const struct reader *reader, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum status fail_at(const struct reader *reader, int line, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status_fail(STATUS_INPUT, "%s:%d: %s", reader->yaml->path, line, message);
}

static enum status fail_memory(const struct reader *reader) {
    return status_fail(STATUS_MEMORY, "%s: out of memory", reader->yaml->path);
}

/* libyaml marks the place of an error, except of a bad byte: there only an offset is known. */
static int problem_line(const struct reader *reader) {
    if (reader->parser.error != YAML_READER_ERROR)
        return mark_line(reader->parser.problem_mark);
    int line = 1;
    for (size_t i = 0; i < reader->length && i < reader->parser.problem_offset; i++)
        line += reader->text[i] == '\n';
    return line;
}

static enum status next_event(struct reader *reader, yaml_event_t *event) {
    if (yaml_parser_parse(&reader->parser, event))
        return STATUS_OK;
    if (reader->parser.error == YAML_MEMORY_ERROR)
        return fail_memory(reader);
    const char *problem = reader->parser.problem == NULL ? "unreadable" : reader->parser.problem;
    const char *context = reader->parser.context;
    if (context == NULL)
        return fail_at(reader, problem_line(reader), "%s, expected well-formed YAML", problem);
    return fail_at(reader, problem_line(reader), "%s (%s), expected well-formed YAML", problem, context);
}

static void free_node(struct yaml_node *node) {
    if (node == NULL)
        return;
    for (int i = 0; i < node->count; i++) {
        free_node(node->items[i]);
        if (node->kind == YAML_MAP)
            free(node->keys[i]);
    }
    free(node->items);
    free(node->keys);
    free(node->key_lines);
    free(node->text);
    free(node);
}

/* Room for one entry more: the arrays double whenever their count is a power of two. */
static bool grow(struct yaml_node *node) {
    size_t count = (size_t)node->count;
    if (count & (count - 1))
        return true;
    size_t room = count == 0 ? 1 : 2 * count;
    struct yaml_node **items = realloc(node->items, room * sizeof *items);
    if (items == NULL)
        return false;
    node->items = items;
    if (node->kind != YAML_MAP)
        return true;
    char **keys = realloc(node->keys, room * sizeof *keys);
    if (keys == NULL)
        return false;
    node->keys = keys;
    int *lines = realloc(node->key_lines, room * sizeof *lines);
    if (lines == NULL)
        return false;
    node->key_lines = lines;
    return true;
}

static enum status refuse_anchor_and_tag(const struct reader *reader, int line, const yaml_char_t *anchor,
                                         const yaml_char_t *tag) {
    if (anchor != NULL)
        return fail_at(reader, line, "anchor '&%s', expected a value without an anchor", (const char *)anchor);
    if (tag != NULL)
        return fail_at(reader, line, "tag '%s', expected a value without a tag", (const char *)tag);
    return STATUS_OK;
}

static int count_of(const char *text, char wanted) {
    int count = 0;
    for (; *text != '\0'; text++)
        count += *text == wanted;
    return count;
}

/* `[_StridedShard(dim=0, sf=2)]` is two entries to YAML: an entry that opens a bracket and leaves it open was cut. */
static bool is_cut(const struct yaml_node *node) {
    return !node->quoted && count_of(node->text, '(') > count_of(node->text, ')');
}

static enum status read_scalar(struct reader *reader, const yaml_event_t *event, bool flow, struct yaml_node *node) {
    int line = node->line;
    TRY(refuse_anchor_and_tag(reader, line, event->data.scalar.anchor, event->data.scalar.tag));
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(value, '\0', length) != NULL)
        return fail_at(reader, line, "a NUL character in a value, expected text");
    node->text = strndup(value, length);
    if (node->text == NULL)
        return fail_memory(reader);
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (flow && is_cut(node))
        return fail_at(reader, line, "'%.200s' is cut at its comma, expected quotes around the whole entry",
                       node->text);
    return STATUS_OK;
}

static enum status read_node(struct reader *reader, const yaml_event_t *event, bool flow, struct yaml_node **out);

/* The node that `event` begins becomes the last entry of `parent`, which owns it from its birth. */
static enum status read_entry(struct reader *reader, const yaml_event_t *event, bool flow, struct yaml_node *parent) {
    parent->items[parent->count] = NULL;
    return read_node(reader, event, flow, &parent->items[parent->count++]);
}

static enum status read_list(struct reader *reader, bool flow, struct yaml_node *node) {
    for (;;) {
        yaml_event_t event;
        enum status status = STATUS_OK;
        TRY(next_event(reader, &event));
        bool end = event.type == YAML_SEQUENCE_END_EVENT;
        if (!end)
            status = grow(node) ? read_entry(reader, &event, flow, node) : fail_memory(reader);
        yaml_event_delete(&event);
        if (end || status != STATUS_OK)
            return status;
    }
}

static enum status read_key(struct reader *reader, const yaml_event_t *event, char **out, int *line) {
    *line = mark_line(event->start_mark);
    if (event->type == YAML_ALIAS_EVENT)
        return fail_at(reader, *line, "alias '*%s', expected the key itself", (const char *)event->data.alias.anchor);
    if (event->type != YAML_SCALAR_EVENT)
        return fail_at(reader, *line, "a key that is a list or a map, expected a word");
    TRY(refuse_anchor_and_tag(reader, *line, event->data.scalar.anchor, event->data.scalar.tag));
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(value, '\0', length) != NULL)
        return fail_at(reader, *line, "a NUL character in a key, expected text");
    *out = strndup(value, length);
    return *out == NULL ? fail_memory(reader) : STATUS_OK;
}

/* One key and its value. */
static enum status read_pair(struct reader *reader, const yaml_event_t *key_event, struct yaml_node *map) {
    char *key = NULL;
    int line = 0;
    yaml_event_t event = {0};
    enum status status = STATUS_OK;
    TRY_DONE(read_key(reader, key_event, &key, &line));
    TRY_DONE(next_event(reader, &event));
    if (!grow(map)) {
        status = fail_memory(reader);
        goto done;
    }
    map->keys[map->count] = key;
    map->key_lines[map->count] = line;
    key = NULL;
    TRY_DONE(read_entry(reader, &event, false, map));
done:
    yaml_event_delete(&event);
    free(key);
    return status;
}

struct key_place {
    const char *key;
    int place;
};

static int by_key_and_place(const void *left, const void *right) {
    const struct key_place *a = left, *b = right;
    int order = strcmp(a->key, b->key);
    return order != 0 ? order : (a->place > b->place) - (a->place < b->place);
}

/* Sorted, equal keys are neighbours; the message names the first repetition in the file. */
static enum status refuse_twins(const struct reader *reader, const struct yaml_node *map) {
    size_t count = (size_t)map->count;
    if (count < 2)
        return STATUS_OK;
    struct key_place *places = malloc(count * sizeof *places);
    if (places == NULL)
        return fail_memory(reader);
    for (size_t i = 0; i < count; i++)
        places[i] = (struct key_place){map->keys[i], (int)i};
    qsort(places, count, sizeof *places, by_key_and_place);
    int first = 0, again = map->count;
    for (size_t i = 1; i < count; i++) {
        if (strcmp(places[i - 1].key, places[i].key) == 0 && places[i].place < again) {
            first = places[i - 1].place;
            again = places[i].place;
        }
    }
    free(places);
    if (again == map->count)
        return STATUS_OK;
    return fail_at(reader, map->key_lines[again], "key '%s' stands twice (first on line %d), expected each key once",
                   map->keys[again], map->key_lines[first]);
}

static enum status read_map(struct reader *reader, struct yaml_node *node) {
    for (;;) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        bool end = event.type == YAML_MAPPING_END_EVENT;
        enum status status = end ? refuse_twins(reader, node) : read_pair(reader, &event, node);
        yaml_event_delete(&event);
        if (end || status != STATUS_OK)
            return status;
    }
}

static enum status read_inside(struct reader *reader, const yaml_event_t *event, struct yaml_node *node) {
    bool list = event->type == YAML_SEQUENCE_START_EVENT;
    const yaml_char_t *anchor = list ? event->data.sequence_start.anchor : event->data.mapping_start.anchor;
    const yaml_char_t *tag = list ? event->data.sequence_start.tag : event->data.mapping_start.tag;
    TRY(refuse_anchor_and_tag(reader, node->line, anchor, tag));
    if (reader->depth == MAX_DEPTH)
        return fail_at(reader, node->line, "nesting deeper than %d, expected less", MAX_DEPTH);
    reader->depth++;
    if (list)
        TRY(read_list(reader, event->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE, node));
    else
        TRY(read_map(reader, node));
    reader->depth--;
    return STATUS_OK;
}

/* `flow`: the node is an entry of a list in square brackets. */
static enum status read_node(struct reader *reader, const yaml_event_t *event, bool flow, struct yaml_node **out) {
    int line = mark_line(event->start_mark);
    if (event->type == YAML_ALIAS_EVENT)
        return fail_at(reader, line, "alias '*%s', expected the value itself", (const char *)event->data.alias.anchor);
    struct yaml_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return fail_memory(reader);
    *out = node;
    node->line = line;
    if (event->type == YAML_SCALAR_EVENT) {
        node->kind = YAML_SCALAR;
        return read_scalar(reader, event, flow, node);
    }
    node->kind = event->type == YAML_SEQUENCE_START_EVENT ? YAML_LIST : YAML_MAP;
    return read_inside(reader, event, node);
}

/* The next event must be of `type`; it is left in `event` either way. */
static enum status expect_event(struct reader *reader, yaml_event_t *event, yaml_event_type_t type, const char *what) {
    yaml_event_delete(event);
    TRY(next_event(reader, event));
    if (event->type != type)
        return fail_at(reader, mark_line(event->start_mark), "%s", what);
    return STATUS_OK;
}

static enum status read_document(struct reader *reader, struct yaml *out) {
    static const char nothing[] = "the document is empty, expected a map, a list or a value";
    yaml_event_t event = {0};
    enum status status = STATUS_OK;
    TRY_DONE(expect_event(reader, &event, YAML_STREAM_START_EVENT, nothing));
    TRY_DONE(expect_event(reader, &event, YAML_DOCUMENT_START_EVENT, nothing));
    yaml_event_delete(&event);
    TRY_DONE(next_event(reader, &event));
    TRY_DONE(read_node(reader, &event, false, &out->root));
    if (out->root->kind == YAML_SCALAR && !out->root->quoted && out->root->text[0] == '\0') {
        status = fail_at(reader, out->root->line, "%s", nothing);
        goto done;
    }
    TRY_DONE(expect_event(reader, &event, YAML_DOCUMENT_END_EVENT, "more than one value, expected one"));
    TRY_DONE(expect_event(reader, &event, YAML_STREAM_END_EVENT, "a second document, expected one"));
done:
    yaml_event_delete(&event);
    return status;
}

enum status yaml_parse(struct yaml *out, const char *path, const char *text, size_t length) {
    *out = (struct yaml){.path = strdup(path)};
    struct reader reader = {.yaml = out, .text = text, .length = length};
    if (out->path == NULL || !yaml_parser_initialize(&reader.parser)) {
        yaml_close(out);
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    }
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
    enum status status = read_document(&reader, out);
    yaml_parser_delete(&reader.parser);
    if (status != STATUS_OK)
        yaml_close(out);
    return status;
}

enum status yaml_open(struct yaml *out, const char *path) {
    *out = (struct yaml){0};
    char *text = NULL;
    size_t length = 0;
    TRY(file_read(path, &text, &length));
    enum status status = yaml_parse(out, path, text, length);
    free(text);
    return status;
}

void yaml_close(struct yaml *yaml) {
    free_node(yaml->root);
    free(yaml->path);
    *yaml = (struct yaml){0};
}
