#include "reference/loss.h"

#include "reference/bound.h"

#define NO_LABEL (-100)

enum status value_logsumexp(const struct arithmetic *m, const struct value *logits, struct value *out) {
    int64_t tokens = logits->shape[1], vocab = logits->shape[2];
    TRY(value_new(m, out, 2, (const int64_t[]){logits->shape[0], tokens - 1}));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        int64_t at = (i / (tokens - 1) * tokens + i % (tokens - 1)) * vocab;
        double largest = -INFINITY;
        for (int64_t v = 0; v < vocab; v++)
            largest = fmax(largest, logits->x[at + v]);
        struct sum sum = {0};
        for (int64_t v = 0; v < vocab; v++)
            sum_term(&sum, num_exp(m, num_subtract(m, num_at(logits, at + v), num_exact(largest))));
        num_set(out, i, num_add(m, num_exact(largest), num_log(m, sum_close(m, &sum, vocab - 1))));
    }
    return STATUS_OK;
}

/* The label that meets logits (b, t), -1 if none. */
static enum status label_of(const struct value *labels, int64_t sequence, int64_t t, int64_t vocab, int64_t *out) {
    int64_t tokens = labels->shape[1];
    double label = t + 1 < tokens ? labels->x[sequence * tokens + t + 1] : NO_LABEL;
    *out = -1;
    if (label == NO_LABEL)
        return STATUS_OK;
    if (!(label >= 0 && label < (double)vocab && label == floor(label)))
        return status_fail(STATUS_INTERNAL, "label %g is not one of %lld words", label, (long long)vocab);
    *out = (int64_t)label;
    return STATUS_OK;
}

enum status value_token_loss(const struct arithmetic *m, const struct value *logits, const struct value *logsumexp,
                             const struct value *labels, struct value *out) {
    TRY(value_like(m, out, logsumexp));
    int64_t tokens = logits->shape[1], vocab = logits->shape[2], places = tokens - 1;
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        int64_t label;
        TRY(label_of(labels, i / places, i % places, vocab, &label));
        int64_t at = (i / places * tokens + i % places) * vocab;
        num_set(out, i, label < 0 ? num_exact(0) : num_subtract(m, num_at(logsumexp, i), num_at(logits, at + label)));
    }
    return STATUS_OK;
}

enum status value_loss_sum(const struct arithmetic *m, const struct value *token_loss, struct value *out) {
    TRY(value_new(m, out, 0, NULL));
    if (m->dry)
        return STATUS_OK;
    struct sum sum = {0};
    int64_t n = value_elements(token_loss);
    for (int64_t i = 0; i < n; i++)
        sum_term(&sum, num_at(token_loss, i));
    num_set(out, 0, sum_close(m, &sum, n - 1));
    return STATUS_OK;
}

enum status value_loss_gradient(const struct arithmetic *m, const struct value *logits, const struct value *logsumexp,
                                const struct value *labels, struct value *out) {
    TRY(value_like(m, out, logits));
    value_zero(out);
    int64_t tokens = logits->shape[1], vocab = logits->shape[2];
    for (int64_t row = 0, rows = m->dry ? 0 : value_rows(logits); row < rows; row++) {
        int64_t sequence = row / tokens, t = row % tokens, label;
        TRY(label_of(labels, sequence, t, vocab, &label));
        if (label < 0)
            continue;
        struct num whole = num_at(logsumexp, sequence * (tokens - 1) + t);
        for (int64_t v = 0; v < vocab; v++) {
            struct num share = num_exp(m, num_subtract(m, num_at(logits, row * vocab + v), whole));
            num_set(out, row * vocab + v, v == label ? num_subtract(m, share, num_exact(1)) : share);
        }
    }
    return STATUS_OK;
}
