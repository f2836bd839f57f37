/* Words of a document: the nearest known one, and patterns. */
#include "core/yaml.h"

#include <string.h>

/* longer words get no suggestion */
enum {
    WORD_SIZE = 64
};

static int least(int a, int b) {
    return a < b ? a : b;
}

/* Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours each count 1.
 * Both words are shorter than WORD_SIZE. rows[0] is the present row, [1] the one before, [2] before that. */
static int distance(const char *a, const char *b) {
    int rows[3][WORD_SIZE] = {{0}};
    int width = (int)strlen(b);
    for (int j = 0; j <= width; j++)
        rows[0][j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        memcpy(rows[2], rows[1], sizeof rows[1]);
        memcpy(rows[1], rows[0], sizeof rows[0]);
        rows[0][0] = i;
        for (int j = 1; j <= width; j++) {
            int cost = least(least(rows[0][j - 1], rows[1][j]) + 1, rows[1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = least(cost, rows[2][j - 2] + 1);
            rows[0][j] = cost;
        }
    }
    return rows[0][width];
}

const char *nearest_word(const char *word, const char *const *known) {
    size_t length = strlen(word);
    if (length >= WORD_SIZE)
        return NULL;
    int limit = ((int)length + 2) / 3; /* one slip for every three letters begun */
    const char *nearest = NULL;
    for (; *known != NULL; known++) {
        if (strlen(*known) >= WORD_SIZE)
            continue;
        int apart = distance(word, *known);
        if (apart > limit || apart >= (int)strlen(*known) || (nearest != NULL && apart == limit))
            continue;
        nearest = *known;
        limit = apart;
    }
    return nearest;
}

bool glob_match(const char *glob, const char *text) {
    const char *star = NULL, *resume = NULL; /* the last star, and where its run of characters ends so far */
    while (*text != '\0') {
        if (*glob == '*') {
            star = glob++;
            resume = text;
        } else if (*glob == '?' || *glob == *text) {
            glob++;
            text++;
        } else if (star != NULL) {
            glob = star + 1;
            text = ++resume;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return *glob == '\0';
}
