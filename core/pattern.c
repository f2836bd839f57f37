#include "core/pattern.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer texts and larger repeats are refused: regcomp unrolls repeats, and a small text could ask for gigabytes. */
#define MAX_LENGTH 4096
#define MAX_REPEATS 2
#define MAX_REPEAT 99

struct translation {
    const char *in; /* the next character */
    char *out;
    int depth;         /* open parentheses */
    int repeats;       /* {m,n} seen */
    bool after_repeat; /* the last thing read was a repeat: * + ? {m,n} */
    const char *why;   /* not NULL: refused */
};

static void put(struct translation *t, const char *text) {
    size_t length = strlen(text);
    memcpy(t->out, text, length);
    t->out += length;
}

static void put_char(struct translation *t, char c) {
    *t->out++ = c;
}

/* Inside brackets a class stands without brackets of its own; ASCII, as names are. NULL if there is none. */
static const char *escape_class(char c) {
    switch (c) {
    case 'd':
        return "0-9";
    case 'w':
        return "a-zA-Z0-9_";
    case 's':
        return " \t\n\r\f\v";
    default:
        return NULL;
    }
}

static void translate_escape(struct translation *t) {
    char c = t->in[1];
    const char *class = escape_class(c);
    if (class) {
        put_char(t, '[');
        put(t, class);
        put_char(t, ']');
    } else if (c == '\0' || isalnum((unsigned char)c)) {
        t->why = "an escape that is not \\d, \\w, \\s or a punctuation mark";
    } else if (strchr(".[]{}()*+?|^$\\", c)) {
        put_char(t, '\\');
        put_char(t, c);
    } else {
        put_char(t, c);
    }
    t->in += 2;
}

/* [...]: a backslash escapes in Python and stands for itself in POSIX. */
static void translate_bracket(struct translation *t) {
    put_char(t, *t->in++);
    if (*t->in == '^')
        put_char(t, *t->in++);
    bool first = true;
    for (; !t->why && *t->in != '\0' && (*t->in != ']' || first); first = false) {
        if (*t->in == '\\') {
            char c = t->in[1];
            const char *class = escape_class(c);
            if (class)
                put(t, class);
            else if (c != '\0' && strchr("./_: ", c))
                put_char(t, c);
            else
                t->why = "an escape inside brackets that is not \\d, \\w, \\s or \\.";
            t->in += 2;
        } else if (*t->in == '[' || (*t->in == '&' && t->in[1] == '&')) {
            t->why = "a '[' inside brackets";
        } else {
            put_char(t, *t->in++);
        }
    }
    if (!t->why && *t->in != ']')
        t->why = "brackets without an end";
    if (!t->why)
        put_char(t, *t->in++);
}

static void translate_open(struct translation *t) {
    t->depth++;
    put_char(t, '(');
    t->in++;
    if (*t->in != '?')
        return;
    if (t->in[1] == ':')
        t->in += 2;
    else
        t->why = "a '(?' group other than '(?:'";
}

static void translate_close(struct translation *t) {
    if (--t->depth < 0)
        t->why = "a ')' without its '('";
    put_char(t, *t->in++);
}

static void translate_count(struct translation *t) {
    int low = 0, high = 0, length = 0;
    if (sscanf(t->in, "{%2d}%n", &low, &length) < 1 || length == 0)
        if (sscanf(t->in, "{%2d,%2d}%n", &low, &high, &length) < 2 || length == 0)
            t->why = "a '{' that is not {m} or {m,n} below 100";
    if (++t->repeats > MAX_REPEATS)
        t->why = "more than two counted repeats";
    for (int i = 0; i < length && !t->why; i++)
        put_char(t, *t->in++);
}

/* A repeat of a repeat: in Python '?' makes it lazy (no difference on whole names), '+' possessive, the rest is an
 * error. */
static void translate_repeat(struct translation *t) {
    if (t->after_repeat && *t->in == '?')
        t->in++;
    else if (t->after_repeat)
        t->why = "a repeat of a repeat";
    else if (*t->in == '{')
        translate_count(t);
    else
        put_char(t, *t->in++);
}

static void translate(struct translation *t) {
    while (!t->why && *t->in != '\0') {
        bool repeat = strchr("*+?{", *t->in) != NULL;
        bool lazy = repeat && t->after_repeat;
        if (repeat)
            translate_repeat(t);
        else if (*t->in == '\\')
            translate_escape(t);
        else if (*t->in == '[')
            translate_bracket(t);
        else if (*t->in == '(')
            translate_open(t);
        else if (*t->in == ')')
            translate_close(t);
        else
            put_char(t, *t->in++);
        t->after_repeat = repeat && !lazy;
    }
    if (!t->why && t->depth != 0)
        t->why = "a '(' without its ')'";
    *t->out = '\0';
}

bool pattern_compile(struct pattern *out, const char *text, enum pattern_rule rule, char why[PATTERN_WHY_MAX]) {
    *out = (struct pattern){0};
    size_t length = strlen(text);
    if (length > MAX_LENGTH) {
        snprintf(why, PATTERN_WHY_MAX, "it is longer than %d characters", MAX_LENGTH);
        return false;
    }
    /* the longest translation of one character is that of half an escape: "[a-zA-Z0-9_]" for "\w" */
    char *buffer = malloc(length * 6 + 32);
    if (!buffer) {
        snprintf(why, PATTERN_WHY_MAX, "out of memory");
        return false;
    }
    struct translation t = {.in = text, .out = buffer};
    put(&t, rule == PATTERN_WHOLE ? "^(" : "^(.*\\.)?(");
    translate(&t);
    put(&t, ")$");
    put_char(&t, '\0');
    if (t.why) {
        snprintf(why, PATTERN_WHY_MAX, "it holds %s", t.why);
    } else {
        int error = regcomp(&out->regex, buffer, REG_EXTENDED | REG_NOSUB);
        out->compiled = error == 0;
        if (error != 0)
            regerror(error, &out->regex, why, PATTERN_WHY_MAX);
    }
    free(buffer);
    return out->compiled;
}

bool pattern_matches(const struct pattern *pattern, const char *name) {
    return pattern->compiled && regexec(&pattern->regex, name, 0, NULL, 0) == 0;
}

void pattern_free(struct pattern *pattern) {
    if (pattern->compiled)
        regfree(&pattern->regex);
    *pattern = (struct pattern){0};
}
