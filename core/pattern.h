/* Python regular expressions on module names, as PEFT uses them, matched by POSIX extended ones.
 *
 * Only whole names are matched, so greedy, lazy and the order of alternatives make no difference. What the two dialects
 * read differently is translated ((?:...), \d, \w, \s, escapes in brackets) or refused (look-around, back-references,
 * possessive repeats, ...), never guessed. */
#ifndef CORE_PATTERN_H
#define CORE_PATTERN_H

#include <regex.h>
#include <stdbool.h>

enum pattern_rule {
    PATTERN_WHOLE, /* re.fullmatch(text, name) */
    PATTERN_END    /* re.match("(.*\.)?(text)$", name): rank_pattern, alpha_pattern */
};

struct pattern {
    regex_t regex;
    bool compiled;
};

#define PATTERN_WHY_MAX 160

/* false with the reason in `why` if the text cannot be read. */
bool pattern_compile(struct pattern *out, const char *text, enum pattern_rule rule, char why[PATTERN_WHY_MAX]);
bool pattern_matches(const struct pattern *pattern, const char *name);
void pattern_free(struct pattern *pattern); /* accepts {0} */

#endif
