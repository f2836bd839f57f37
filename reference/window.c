#include "reference/window.h"

#include <stdlib.h>

enum status window_add(struct window *window, int64_t counted, struct value *sum) {
    struct value *grown = realloc(window->sums, ((size_t)window->micros + 1) * sizeof *grown);
    if (!grown) {
        value_free(sum);
        return status_fail(STATUS_MEMORY, "out of memory in the reference");
    }
    window->sums = grown;
    window->sums[window->micros++] = *sum;
    window->counted += counted;
    *sum = (struct value){0};
    return STATUS_OK;
}

enum status window_count(const struct arithmetic *m, struct window *window) {
    return value_scalar(m, &window->count, (double)window->counted, 0);
}

struct num window_divisor(const struct arithmetic *m, const struct window *window) {
    struct num count = num_at(&window->count, 0);
    return (struct num){arithmetic_constant(m, count.x), count.e};
}

/* The sum over ranks and micro-batches in any nesting: a rank's partials meet micros - 1 roundings more than the ranks
 * - 1 that the hook put into e, on magnitudes of the ranks' own partials. (1 + gamma_a)(1 + gamma_b) - 1 >= (1 +
 * u)^(a+b) - 1. */
enum status window_loss(const struct arithmetic *m, const struct window *window, struct value *out) {
    if (m->dry)
        return value_scalar(m, out, 0, 0);
    struct sum sum = {0};
    for (int i = 0; i < window->micros; i++) {
        const struct value *part = &window->sums[i];
        struct num term = num_at(part, 0);
        sum_term(&sum, term);
        if (part->mag)
            sum.s += part->mag[0] - fabs(term.x);
    }
    struct num loss = num_divide(m, sum_close(m, &sum, window->micros - 1), window_divisor(m, window));
    return value_scalar(m, out, loss.x, loss.e);
}

void window_free(struct window *window) {
    for (int i = 0; i < window->micros; i++)
        value_free(&window->sums[i]);
    free(window->sums);
    value_free(&window->count);
    *window = (struct window){0};
}
