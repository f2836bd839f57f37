/* Layout lines as text: printing, and the word `world`. */
#include "layout/line.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct print {
    char *out;
    size_t size, length; /* length: of the whole text, also of what did not fit */
};

__attribute__((format(printf, 2, 3))) static void print(struct print *to, const char *format, ...) {
    char *at = to->length < to->size ? to->out + to->length : NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(at, at ? to->size - to->length : 0, format, arguments);
    va_end(arguments);
    to->length += (size_t)length;
}

static void print_items(struct print *to, const struct line_cuts *cuts, const struct mesh *mesh) {
    for (int i = 0; i < cuts->count; i++) {
        const struct line_cut *cut = &cuts->cut[i];
        print(to, "%s", i ? "," : "[");
        for (int k = 0; k < cut->axes; k++)
            print(to, "%s%s", k ? "*" : "", mesh->name[cut->axis[k]]);
        print(to, "%s", cut->balanced ? ":balanced" : "");
    }
    print(to, "%s", cuts->count ? "]" : "");
}

static void print_dim(struct print *to, const struct line_dim *dim, const struct mesh *mesh) {
    print(to, "%s", dim->parenthesis ? "(" : "");
    for (int a = 0; a < dim->axes; a++) {
        print(to, "%s%s", a ? " " : "", dim->axis[a].name);
        print_items(to, &dim->axis[a].cuts, mesh);
    }
    print(to, "%s", dim->parenthesis ? ")" : "");
    print_items(to, &dim->cuts, mesh);
}

char *line_text(char *out, size_t size, const struct line *line, const struct mesh *mesh) {
    struct print to = {out, size, 0};
    print(&to, "%s", ""); /* a scalar's line is the empty text */
    for (int d = 0; d < line->dims; d++) {
        print(&to, "%s", d ? " " : "");
        print_dim(&to, &line->dim[d], mesh);
    }
    if (line->owed.count) {
        print(&to, "%s+", line->dims ? " " : "");
        print_items(&to, &line->owed, mesh);
    }
    return out;
}

/* Whether the item `world` stands at text[i], between the signs of a bracket. */
static bool world_stands_at(const char *text, size_t i) {
    return i > 0 && strchr("[,*", text[i - 1]) && strncmp(text + i, "world", 5) == 0 && text[i + 5] != '\0' &&
           strchr("],*:", text[i + 5]);
}

char *line_with_world(char *out, size_t size, const char *text, const struct mesh *mesh) {
    struct print to = {out, size, 0};
    print(&to, "%s", "");
    for (size_t i = 0; text[i];) {
        if (mesh->axes == 0 && strncmp(text + i, "[world]", 7) == 0) {
            i += 7; /* a mesh without axes cuts nothing */
        } else if (world_stands_at(text, i)) {
            for (int axis = 0; axis < mesh->axes; axis++)
                print(&to, "%s%s", axis ? "*" : "", mesh->name[axis]);
            i += 5;
        } else {
            print(&to, "%c", text[i++]);
        }
    }
    if (to.length >= size) /* half a line could be a line: what does not fit must not parse */
        snprintf(out, size, "?");
    return out;
}
