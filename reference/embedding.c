#include "reference/embedding.h"

#include "reference/bound.h"

static enum status word_of(const struct value *ids, int64_t token, int64_t vocab, int64_t *out) {
    double id = ids->x[token];
    if (!(id >= 0 && id < (double)vocab && id == floor(id)))
        return status_fail(STATUS_INTERNAL, "id %g is not one of %lld words", id, (long long)vocab);
    *out = (int64_t)id;
    return STATUS_OK;
}

enum status value_embed(const struct arithmetic *m, const struct value *ids, const struct value *table,
                        struct value *out) {
    int64_t vocab = table->shape[0], hidden = table->shape[1], word = 0;
    TRY(value_new(m, out, 3, (const int64_t[]){ids->shape[0], ids->shape[1], hidden}));
    for (int64_t token = 0, tokens = m->dry ? 0 : value_elements(ids); token < tokens; token++) {
        TRY(word_of(ids, token, vocab, &word));
        for (int64_t j = 0; j < hidden; j++)
            num_set(out, token * hidden + j, num_at(table, word * hidden + j));
    }
    return STATUS_OK;
}

/* Element j of one word's row. Ranks hold start_1 + ... + start_n = start and each adds its own tokens to its own
 * partial, so the magnitudes of all of them add up; from zero the first token is moved, not added. */
static struct num gather_word(const struct arithmetic *m, const struct value *ids, const struct value *dy, int64_t word,
                              int64_t j, const struct value *start) {
    struct sum sum = {0};
    int64_t found = 0, hidden = value_last(dy), at = word * hidden + j;
    if (start) {
        sum_term(&sum, num_at(start, at));
        if (start->mag)
            sum.s += start->mag[at] - fabs(start->x[at]);
    }
    for (int64_t token = 0, tokens = value_elements(ids); token < tokens; token++) {
        if (ids->x[token] != (double)word)
            continue;
        sum_term(&sum, num_at(dy, token * hidden + j));
        found++;
    }
    return sum_close(m, &sum, start ? found : found - 1);
}

enum status value_embed_gradient(const struct arithmetic *m, const struct value *ids, const struct value *dy,
                                 int64_t vocab, const struct value *start, struct value *out) {
    int64_t hidden = value_last(dy);
    TRY(value_new(m, out, 2, (const int64_t[]){vocab, hidden}));
    for (int64_t at = 0, n = m->dry ? 0 : value_elements(out); at < n; at++)
        num_set(out, at, gather_word(m, ids, dy, at / hidden, at % hidden, start));
    return STATUS_OK;
}
