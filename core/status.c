#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    NOTE_SIZE = 4096
};

static _Thread_local char note[NOTE_SIZE];

enum status status_fail(enum status code, const char *format, ...) {
    if (note[0] != '\0')
        return code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(note, sizeof note, format, arguments);
    va_end(arguments);
    return code;
}

const char *status_note(void) {
    return note;
}

void status_clear(void) {
    note[0] = '\0';
}
