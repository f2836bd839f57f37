/* Recursive descent over the grammar of line.h. Spaces may stand between any two tokens. */
#include "layout/line.h"

#include "core/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct parser {
    const char *text, *at, *where;
    const struct mesh *mesh;
    struct line *line;
    unsigned used; /* mesh axes that stood already */
};

__attribute__((format(printf, 3, 4))) static enum status fail_at(const struct parser *parser, const char *at,
                                                                 const char *format, ...) {
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return status_fail(STATUS_INPUT, "%s: column %d of '%s': %s", parser->where, (int)(at - parser->text) + 1,
                       parser->text, what);
}

static enum status fail_expected(const struct parser *parser, const char *expected) {
    if (*parser->at == '\0')
        return fail_at(parser, parser->at, "the line ends, expected %s", expected);
    return fail_at(parser, parser->at, "'%c', expected %s", *parser->at, expected);
}

static char peek(struct parser *parser) {
    while (*parser->at == ' ' || *parser->at == '\t')
        parser->at++;
    return *parser->at;
}

static bool take(struct parser *parser, char token) {
    if (peek(parser) != token)
        return false;
    parser->at++;
    return true;
}

static bool begins_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool continues_name(char c) {
    return begins_name(c) || (c >= '0' && c <= '9');
}

/* A name into `out`; *at is where it stood. */
static enum status take_name(struct parser *parser, char *out, size_t size, const char *expected, const char **at) {
    if (!begins_name(peek(parser)))
        return fail_expected(parser, expected);
    *at = parser->at;
    while (continues_name(*parser->at))
        parser->at++;
    size_t length = (size_t)(parser->at - *at);
    if (length >= size)
        return fail_at(parser, *at, "the name '%.*s' is too long, expected %zu characters at most", (int)length, *at,
                       size - 1);
    memcpy(out, *at, length);
    out[length] = '\0';
    return STATUS_OK;
}

static enum status fail_mesh_axis(const struct parser *parser, const char *at, const char *name) {
    const char *known[MESH_MAX_AXES + 1] = {0};
    char text[256];
    for (int axis = 0; axis < parser->mesh->axes; axis++)
        known[axis] = parser->mesh->name[axis];
    const char *nearest = nearest_word(name, known);
    if (nearest)
        return fail_at(parser, at, "unknown mesh axis '%s', did you mean '%s'?", name, nearest);
    return fail_at(parser, at, "unknown mesh axis '%s', expected one of the mesh %s", name,
                   mesh_text(text, sizeof text, parser->mesh));
}

static enum status parse_mesh_axis(struct parser *parser, int *axis) {
    char name[MESH_NAME_MAX + LINE_AXIS_MAX];
    const char *at;
    TRY(take_name(parser, name, sizeof name, "a mesh axis", &at));
    *axis = mesh_axis(parser->mesh, name);
    if (*axis < 0)
        return fail_mesh_axis(parser, at, name);
    if (parser->used >> *axis & 1)
        return fail_at(parser, at, "mesh axis '%s' stands twice, expected once in a line", name);
    parser->used |= 1U << *axis;
    return STATUS_OK;
}

static enum status parse_item(struct parser *parser, struct line_cut *cut) {
    char word[LINE_AXIS_MAX];
    const char *at;
    do {
        TRY(parse_mesh_axis(parser, &cut->axis[cut->axes]));
        cut->axes++;
    } while (take(parser, '*'));
    if (!take(parser, ':'))
        return STATUS_OK;
    TRY(take_name(parser, word, sizeof word, "'balanced'", &at));
    if (strcmp(word, "balanced") != 0)
        return fail_at(parser, at, "':%s', expected ':balanced'", word);
    cut->balanced = true;
    return STATUS_OK;
}

/* What stands behind `[`. A mesh axis stands once in a line and each item has one at least, so the arrays suffice. */
static enum status parse_items(struct parser *parser, struct line_cuts *cuts) {
    _Static_assert(LINE_MAX_CUTS >= MESH_MAX_AXES, "every mesh axis may be an item of its own");
    do {
        TRY(parse_item(parser, &cuts->cut[cuts->count]));
        cuts->count++;
    } while (take(parser, ','));
    return take(parser, ']') ? STATUS_OK : fail_expected(parser, "',', '*', ':balanced' or ']'");
}

static enum status parse_cut(struct parser *parser, struct line_cuts *cuts) {
    return take(parser, '[') ? parse_items(parser, cuts) : STATUS_OK;
}

static enum status parse_axis(struct parser *parser, struct line_dim *dim, const char *expected) {
    struct line_axis *axis = &dim->axis[dim->axes];
    const char *at;
    int found, position;
    peek(parser);
    if (dim->axes == LINE_MAX_AXES)
        return fail_at(parser, parser->at, "too many axes, expected %d in a parenthesis at most", LINE_MAX_AXES);
    char name[LINE_AXIS_MAX];
    TRY(take_name(parser, name, sizeof name, expected, &at));
    if (line_find_axis(parser->line, name, &found, &position))
        return fail_at(parser, at, "axis '%s' stands twice, expected once in a line", name);
    memcpy(axis->name, name, sizeof name);
    axis->size = -1;
    dim->axes++;
    return parse_cut(parser, &axis->cuts);
}

static enum status parse_parenthesis(struct parser *parser, struct line_dim *dim) {
    dim->parenthesis = true;
    do {
        if (peek(parser) == '(')
            return fail_at(parser, parser->at, "'(' inside a parenthesis, expected an axis: parentheses do not nest");
        TRY(parse_axis(parser, dim, dim->axes ? "an axis or ')'" : "an axis"));
    } while (!take(parser, ')'));
    return parse_cut(parser, &dim->cuts);
}

static enum status parse_dim(struct parser *parser) {
    if (parser->line->dims == LINE_MAX_DIMS)
        return fail_at(parser, parser->at, "too many dims, expected %d at most", LINE_MAX_DIMS);
    /* counted first, so that a name that stands twice inside this very parenthesis is found */
    struct line_dim *dim = &parser->line->dim[parser->line->dims++];
    if (take(parser, '('))
        return parse_parenthesis(parser, dim);
    return parse_axis(parser, dim, "an axis, '(' or '+['");
}

static enum status parse_line(struct parser *parser) {
    while (peek(parser) != '\0' && *parser->at != '+')
        TRY(parse_dim(parser));
    while (take(parser, '+')) {
        if (*parser->at != '[')
            return fail_expected(parser, "'[' behind '+'");
        parser->at++;
        TRY(parse_items(parser, &parser->line->owed));
    }
    return peek(parser) == '\0' ? STATUS_OK : fail_expected(parser, "'+[' or the end: sums come last");
}

enum status line_parse(struct line *out, const char *text, const struct mesh *mesh, const char *where) {
    struct parser parser = {.text = text, .at = text, .where = where, .mesh = mesh, .line = out};
    *out = (struct line){0};
    return parse_line(&parser);
}
