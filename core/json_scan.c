#include "core/json_scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* serde_json's recursion limit */
enum {
    DEPTH_LIMIT = 128
};

const char json_out_of_memory[] = "out of memory";

/* Lead bytes of UTF-8: how many follow and the range of the first that does (Unicode 15.0, table 3-7). */
static const struct {
    unsigned char from, to, low, high;
    int follow;
} utf8_forms[] = {
    {0x00, 0x7f, 0, 0, 0},       {0xc2, 0xdf, 0x80, 0xbf, 1}, {0xe0, 0xe0, 0xa0, 0xbf, 2},
    {0xe1, 0xec, 0x80, 0xbf, 2}, {0xed, 0xed, 0x80, 0x9f, 2}, {0xee, 0xef, 0x80, 0xbf, 2},
    {0xf0, 0xf0, 0x90, 0xbf, 3}, {0xf1, 0xf3, 0x80, 0xbf, 3}, {0xf4, 0xf4, 0x80, 0x8f, 3},
};

/* Bytes of the character at `text`, 0 if it is not one. */
static size_t utf8_character(const unsigned char *text, size_t length) {
    for (size_t f = 0; f < sizeof utf8_forms / sizeof *utf8_forms; f++) {
        if (text[0] < utf8_forms[f].from || text[0] > utf8_forms[f].to)
            continue;
        size_t size = (size_t)utf8_forms[f].follow + 1;
        if (size > length)
            return 0;
        if (size > 1 && (text[1] < utf8_forms[f].low || text[1] > utf8_forms[f].high))
            return 0;
        for (size_t i = 2; i < size; i++) {
            if (text[i] < 0x80 || text[i] > 0xbf)
                return 0;
        }
        return size;
    }
    return 0;
}

size_t json_utf8_length(const char *text, size_t length) {
    size_t at = 0;
    while (at < length) {
        size_t size = utf8_character((const unsigned char *)text + at, length - at);
        if (size == 0)
            break;
        at += size;
    }
    return at;
}

bool json_fail(struct json_scan *scan, const char *problem) {
    if (scan->problem == NULL)
        scan->problem = problem;
    return false;
}

/* The byte at `at`, '\0' beyond the end. */
static char here(const struct json_scan *scan) {
    return scan->at < scan->length ? scan->text[scan->at] : '\0';
}

char json_peek(struct json_scan *scan) {
    while (here(scan) == ' ' || here(scan) == '\n' || here(scan) == '\t' || here(scan) == '\r')
        scan->at++;
    return here(scan);
}

bool json_take(struct json_scan *scan, char wanted, const char *problem) {
    if (json_peek(scan) != wanted)
        return json_fail(scan, problem);
    scan->at++;
    return true;
}

bool json_open(struct json_scan *scan, char bracket, const char *problem) {
    if (!json_take(scan, bracket, problem))
        return false;
    scan->depth++;
    return scan->depth < DEPTH_LIMIT || json_fail(scan, "nesting deeper than 127, expected less");
}

bool json_more(struct json_scan *scan, char bracket, bool first) {
    if (scan->problem != NULL)
        return false;
    if (json_peek(scan) == bracket) {
        scan->at++;
        scan->depth--;
        return false;
    }
    if (first)
        return true;
    if (!json_take(scan, ',', bracket == '}' ? "expected ',' or '}'" : "expected ',' or ']'"))
        return false;
    return json_peek(scan) != bracket || json_fail(scan, "a trailing comma, expected an entry");
}

/* Four hexadecimal digits, -1 if they are not. */
static int hex4(struct json_scan *scan) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = here(scan);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
        scan->at++;
    }
    return value;
}

static size_t put_utf8(char *out, uint32_t point) {
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    size_t follow = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const unsigned char leads[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(leads[follow] | point >> (6 * follow));
    for (size_t i = 1; i <= follow; i++)
        out[i] = (char)(0x80 | (point >> (6 * (follow - i)) & 0x3f));
    return follow + 1;
}

/* The four digits behind \u, and the second half of a surrogate pair. */
static bool take_unicode(struct json_scan *scan, uint32_t *point) {
    int first = hex4(scan);
    if (first < 0)
        return json_fail(scan, "a broken \\u escape, expected four hexadecimal digits");
    *point = (uint32_t)first;
    if (first < 0xd800 || first > 0xdfff)
        return true;
    bool pair = first < 0xdc00 && scan->length - scan->at >= 6 && memcmp(scan->text + scan->at, "\\u", 2) == 0;
    if (!pair)
        return json_fail(scan, "a lone surrogate, expected a pair");
    scan->at += 2;
    int second = hex4(scan);
    if (second < 0xdc00 || second > 0xdfff)
        return json_fail(scan, "a lone surrogate, expected a pair");
    *point = 0x10000 + (((uint32_t)first & 0x3ff) << 10) + ((uint32_t)second & 0x3ff);
    return true;
}

/* What stands behind a backslash, decoded to `out` (room for 4 bytes). */
static bool take_escape(struct json_scan *scan, char *out, size_t *used) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char letter = here(scan);
    if (scan->at < scan->length)
        scan->at++;
    uint32_t point = 0;
    if (letter == 'u') {
        if (!take_unicode(scan, &point))
            return false;
        *used += put_utf8(out, point);
        return true;
    }
    const char *found = letter == '\0' ? NULL : strchr(letters, letter);
    if (found == NULL)
        return json_fail(scan, "an unknown escape, expected one of JSON's");
    *out = values[found - letters];
    *used += 1;
    return true;
}

/* Where the closing quote is: an upper bound of the decoded length, for every escape is longer than what it means. */
static size_t raw_length(const struct json_scan *scan) {
    size_t end = scan->at;
    while (end < scan->length && scan->text[end] != '"')
        end += scan->text[end] == '\\' ? 2 : 1;
    return (end < scan->length ? end : scan->length) - scan->at;
}

static bool decode(struct json_scan *scan, char *out, size_t *length) {
    size_t used = 0;
    for (;;) {
        if (scan->at >= scan->length)
            return json_fail(scan, "the header ends within a string, expected '\"'");
        char c = scan->text[scan->at++];
        if (c == '"')
            break;
        if ((unsigned char)c < 0x20)
            return json_fail(scan, "a raw control character in a string, expected its escape");
        if (c != '\\')
            out[used++] = c;
        else if (!take_escape(scan, out + used, &used))
            return false;
    }
    out[used] = '\0';
    *length = used;
    return true;
}

bool json_text(struct json_scan *scan, char **out, size_t *length) {
    *out = NULL;
    if (!json_take(scan, '"', "expected a string"))
        return false;
    char *decoded = malloc(raw_length(scan) + 1);
    if (decoded == NULL)
        return json_fail(scan, json_out_of_memory);
    if (!decode(scan, decoded, length)) {
        free(decoded);
        return false;
    }
    *out = decoded;
    return true;
}

bool json_key(struct json_scan *scan, char **out, size_t *length) {
    *out = NULL;
    if (json_peek(scan) != '"')
        return json_fail(scan, "a key that is not a string, expected '\"'");
    if (!json_text(scan, out, length))
        return false;
    if (json_take(scan, ':', "expected ':' behind a key"))
        return true;
    free(*out);
    *out = NULL;
    return false;
}

static size_t take_digits(struct json_scan *scan) {
    size_t start = scan->at;
    while (here(scan) >= '0' && here(scan) <= '9')
        scan->at++;
    return scan->at - start;
}

/* Is the number at text[0..length) finite as a double? serde_json refuses others. DBL_MAX has 309 digits. */
static bool is_finite(const char *text, size_t length, bool exponent) {
    if (!exponent && length < 309)
        return true;
    char *copy = strndup(text, length);
    bool finite = copy != NULL && isfinite(strtod(copy, NULL));
    free(copy);
    return finite;
}

/* Takes one number; `whole` if it has no sign, fraction or exponent. */
static bool take_number(struct json_scan *scan, bool *whole) {
    static const char broken[] = "a broken number, expected one of JSON's";
    bool exponent = false;
    char next = json_peek(scan);
    if (next != '-' && (next < '0' || next > '9'))
        return json_fail(scan, "expected a value");
    size_t start = scan->at;
    *whole = here(scan) != '-';
    scan->at += !*whole;
    size_t lead = scan->at;
    size_t digits = take_digits(scan);
    if (digits == 0 || (digits > 1 && scan->text[lead] == '0'))
        return json_fail(scan, broken);
    if (here(scan) == '.') {
        *whole = false;
        scan->at++;
        if (take_digits(scan) == 0)
            return json_fail(scan, broken);
    }
    if (here(scan) == 'e' || here(scan) == 'E') {
        *whole = false;
        exponent = true;
        scan->at++;
        scan->at += here(scan) == '+' || here(scan) == '-';
        if (take_digits(scan) == 0)
            return json_fail(scan, broken);
    }
    return is_finite(scan->text + start, scan->at - start, exponent) || json_fail(scan, "a number out of range");
}

bool json_unsigned(struct json_scan *scan, uint64_t *out) {
    static const char expected[] = "expected a whole number from 0 to 2^64-1";
    bool whole = false;
    char next = json_peek(scan);
    if (next != '-' && (next < '0' || next > '9'))
        return json_fail(scan, expected);
    size_t start = scan->at;
    if (!take_number(scan, &whole))
        return false;
    size_t end = scan->at;
    scan->at = start; /* a failure is about the number's place */
    uint64_t value = 0;
    for (size_t i = start; whole && i < end; i++) {
        uint64_t digit = (uint64_t)(scan->text[i] - '0');
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) || __builtin_add_overflow(value, digit, &value))
            whole = false;
    }
    if (!whole)
        return json_fail(scan, expected);
    scan->at = end;
    *out = value;
    return true;
}

static bool take_word(struct json_scan *scan, const char *word) {
    size_t length = strlen(word);
    json_peek(scan);
    if (scan->length - scan->at < length || memcmp(scan->text + scan->at, word, length) != 0)
        return json_fail(scan, "expected a value");
    scan->at += length;
    return true;
}

bool json_nothing(struct json_scan *scan) {
    return take_word(scan, "null");
}

static bool skip_string(struct json_scan *scan) {
    char *text = NULL;
    size_t length = 0;
    bool ok = json_text(scan, &text, &length);
    free(text);
    return ok;
}

static bool skip_map(struct json_scan *scan) {
    if (!json_open(scan, '{', "expected '{'"))
        return false;
    for (bool first = true; json_more(scan, '}', first); first = false) {
        char *key = NULL;
        size_t length = 0;
        bool ok = json_key(scan, &key, &length);
        free(key);
        if (!ok || !json_skip(scan))
            return false;
    }
    return scan->problem == NULL;
}

static bool skip_list(struct json_scan *scan) {
    if (!json_open(scan, '[', "expected '['"))
        return false;
    for (bool first = true; json_more(scan, ']', first); first = false) {
        if (!json_skip(scan))
            return false;
    }
    return scan->problem == NULL;
}

bool json_skip(struct json_scan *scan) {
    bool whole;
    switch (json_peek(scan)) {
    case '{':
        return skip_map(scan);
    case '[':
        return skip_list(scan);
    case '"':
        return skip_string(scan);
    case 'n':
        return take_word(scan, "null");
    case 't':
        return take_word(scan, "true");
    case 'f':
        return take_word(scan, "false");
    default:
        return take_number(scan, &whole);
    }
}

bool json_end(struct json_scan *scan) {
    json_peek(scan);
    return scan->at == scan->length || json_fail(scan, "trailing characters, expected the end of the header");
}
