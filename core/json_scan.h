/* A scanner for the JSON of a safetensors header, as strict as serde_json: it takes one token at a time from memory
 * that ends without a NUL. A failure is a plain false; `problem` then says what, `at` where.
 *
 * Private to core. */
#ifndef CORE_JSON_SCAN_H
#define CORE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_scan {
    const char *text; /* valid UTF-8: json_utf8_length(text, length) == length */
    size_t length, at;
    int depth;           /* open brackets */
    const char *problem; /* the first one: "a trailing comma, expected a value" */
};

/* Bytes of `text` before the first that is not UTF-8 (no overlong forms, no surrogates); `length` if there is none. */
size_t json_utf8_length(const char *text, size_t length);

extern const char json_out_of_memory[]; /* the one problem that is not the text's */
bool json_fail(struct json_scan *scan, const char *problem);
/* The next byte that is not white space; '\0' at the end (and for a NUL, which no token begins with). */
char json_peek(struct json_scan *scan);
/* Takes `wanted` if it is next, else fails with `problem`. */
bool json_take(struct json_scan *scan, char wanted, const char *problem);
/* Opens a list or a map: takes `bracket`, and fails at the 128th that is open at once. */
bool json_open(struct json_scan *scan, char bracket, const char *problem);
/* Is there another entry before `bracket` closes? `first` is true before the first entry. Takes the comma or the
 * closing bracket; false also on failure, so look at `problem`. */
bool json_more(struct json_scan *scan, char bracket, bool first);
/* A string, decoded into fresh memory with a NUL behind it; it may hold NULs. */
bool json_text(struct json_scan *scan, char **out, size_t *length);
/* A key and its colon. */
bool json_key(struct json_scan *scan, char **out, size_t *length);
/* A whole number of 64 bits without a sign: 1.0, 1e0 and -0 are none. */
bool json_unsigned(struct json_scan *scan, uint64_t *out);
bool json_nothing(struct json_scan *scan);
/* Any value, checked and dropped. */
bool json_skip(struct json_scan *scan);
/* Nothing but white space is left. */
bool json_end(struct json_scan *scan);

#endif
