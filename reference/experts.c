#include "reference/experts.h"

#include "reference/bound.h"
#include "reference/linear.h"

static enum status make_rows(const struct arithmetic *m, const struct routing *r, int64_t columns, struct value *out) {
    return value_new(m, out, 2, (const int64_t[]){r->tokens * r->choices, columns});
}

static void move_row(const struct value *from, int64_t from_row, struct value *to, int64_t to_row, int64_t columns) {
    for (int64_t j = 0; j < columns; j++)
        num_set(to, to_row * columns + j, num_at(from, from_row * columns + j));
}

enum status value_dispatch_tokens(const struct arithmetic *m, const struct routing *r, const struct value *x,
                                  struct value *out) {
    TRY(make_rows(m, r, value_last(x), out));
    for (int64_t row = 0, rows = m->dry ? 0 : out->shape[0]; row < rows; row++)
        move_row(x, r->origin[row] / r->choices, out, row, value_last(x));
    return STATUS_OK;
}

enum status value_to_rows(const struct arithmetic *m, const struct routing *r, const struct value *by_choice,
                          struct value *out) {
    TRY(make_rows(m, r, value_last(by_choice), out));
    for (int64_t row = 0, rows = m->dry ? 0 : out->shape[0]; row < rows; row++)
        move_row(by_choice, r->origin[row], out, row, value_last(by_choice));
    return STATUS_OK;
}

enum status value_to_choices(const struct arithmetic *m, const struct routing *r, const struct value *rows,
                             struct value *out) {
    TRY(value_new(m, out, 3, (const int64_t[]){r->tokens, r->choices, value_last(rows)}));
    for (int64_t i = 0, n = m->dry ? 0 : r->tokens * r->choices; i < n; i++)
        move_row(rows, r->row[i], out, i, value_last(rows));
    return STATUS_OK;
}

enum status value_expert_linear(const struct arithmetic *m, const struct routing *r, const struct value *x,
                                const struct value *weight, struct value *out) {
    int64_t outs = weight->shape[1], ins = weight->shape[2];
    TRY(make_rows(m, r, outs, out));
    for (int64_t e = 0; e < (m->dry ? 0 : r->experts); e++) {
        int64_t first = r->start[e], rows = r->start[e + 1] - first;
        struct product product = {ins, factor_of(x, first * ins, rows * ins, ins, 1),
                                  factor_of(weight, e * outs * ins, outs * ins, ins, 1)};
        value_products(m, 1, &product, rows, outs, out, first * outs);
    }
    return STATUS_OK;
}

enum status value_expert_input_gradient(const struct arithmetic *m, const struct routing *r, const struct value *dy,
                                        const struct value *weight, struct value *out) {
    int64_t outs = weight->shape[1], ins = weight->shape[2];
    TRY(make_rows(m, r, ins, out));
    for (int64_t e = 0; e < (m->dry ? 0 : r->experts); e++) {
        int64_t first = r->start[e], rows = r->start[e + 1] - first;
        struct product product = {outs, factor_of(dy, first * outs, rows * outs, outs, 1),
                                  factor_of(weight, e * outs * ins, outs * ins, 1, ins)};
        value_products(m, 1, &product, rows, ins, out, first * ins);
    }
    return STATUS_OK;
}

enum status value_expert_weight_gradient(const struct arithmetic *m, const struct routing *r, const struct value *dy,
                                         const struct value *x, struct value *out) {
    int64_t outs = value_last(dy), ins = value_last(x);
    TRY(value_new(m, out, 3, (const int64_t[]){r->experts, outs, ins}));
    for (int64_t e = 0; e < (m->dry ? 0 : r->experts); e++) {
        int64_t first = r->start[e], rows = r->start[e + 1] - first;
        struct product product = {rows, factor_of(dy, first * outs, rows * outs, 1, outs),
                                  factor_of(x, first * ins, rows * ins, 1, ins)};
        value_products(m, 1, &product, outs, ins, out, e * outs * ins);
    }
    return STATUS_OK;
}

/* silu(g)*u, silu(g) = g/(1+exp(-g)). */
static struct num swiglu(const struct arithmetic *m, struct num g, struct num u) {
    struct num below = num_add(m, num_exact(1), num_exp(m, num_negate(g)));
    return num_multiply(m, num_divide(m, g, below), u);
}

/* s = sigmoid(g): dh*u*(s*(1 + g*(1-s))). */
static struct num swiglu_d_gate(const struct arithmetic *m, struct num g, struct num u, struct num dh) {
    struct num s = num_sigmoid(m, g);
    struct num rest = num_multiply(m, g, num_subtract(m, num_exact(1), s));
    struct num slope = num_multiply(m, s, num_add(m, num_exact(1), rest));
    return num_multiply(m, num_multiply(m, dh, u), slope);
}

/* dh*(g*s). */
static struct num swiglu_d_up(const struct arithmetic *m, struct num g, struct num dh) {
    return num_multiply(m, dh, num_multiply(m, g, num_sigmoid(m, g)));
}

enum status value_swiglu_packed(const struct arithmetic *m, const struct value *gate_up, struct value *out) {
    int64_t width = value_last(gate_up) / 2;
    TRY(value_new(m, out, 2, (const int64_t[]){gate_up->shape[0], width}));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        num_set(out, i, swiglu(m, num_at(gate_up, gate), num_at(gate_up, gate + width)));
    }
    return STATUS_OK;
}

enum status value_swiglu_packed_gradient(const struct arithmetic *m, const struct value *gate_up,
                                         const struct value *dh, struct value *out) {
    TRY(value_like(m, out, gate_up));
    int64_t width = value_last(dh);
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(dh); i < n; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        struct num g = num_at(gate_up, gate), u = num_at(gate_up, gate + width);
        num_set(out, gate, swiglu_d_gate(m, g, u, num_at(dh, i)));
        num_set(out, gate + width, swiglu_d_up(m, g, num_at(dh, i)));
    }
    return STATUS_OK;
}

enum status value_swiglu(const struct arithmetic *m, const struct value *gate, const struct value *up,
                         struct value *out) {
    TRY(value_like(m, out, gate));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(gate); i < n; i++)
        num_set(out, i, swiglu(m, num_at(gate, i), num_at(up, i)));
    return STATUS_OK;
}

enum status value_swiglu_gradient(const struct arithmetic *m, const struct value *gate, const struct value *up,
                                  const struct value *dh, struct value *d_gate, struct value *d_up) {
    TRY(value_like(m, d_gate, gate));
    TRY(value_like(m, d_up, gate));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(gate); i < n; i++) {
        num_set(d_gate, i, swiglu_d_gate(m, num_at(gate, i), num_at(up, i), num_at(dh, i)));
        num_set(d_up, i, swiglu_d_up(m, num_at(gate, i), num_at(dh, i)));
    }
    return STATUS_OK;
}

enum status value_combine(const struct arithmetic *m, const struct routing *r, const struct value *weight,
                          const struct value *output, const struct value *like, struct value *out) {
    TRY(value_like(m, out, like));
    int64_t columns = value_last(like), k = r->choices;
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        struct sum sum = {0};
        for (int64_t place = 0; place < k; place++) {
            int64_t copy = i / columns * k + r->ascending[i / columns * k + place];
            sum_product(&sum, num_at(weight, copy), num_at(output, copy * columns + i % columns));
        }
        num_set(out, i, sum_close(m, &sum, k));
    }
    return STATUS_OK;
}

enum status value_combine_d_output(const struct arithmetic *m, const struct routing *r, const struct value *weight,
                                   const struct value *dy, struct value *out) {
    int64_t columns = value_last(dy), k = r->choices;
    TRY(value_new(m, out, 3, (const int64_t[]){r->tokens, k, columns}));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++)
        num_set(out, i,
                num_multiply(m, num_at(weight, i / columns), num_at(dy, i / columns / k * columns + i % columns)));
    return STATUS_OK;
}

enum status value_combine_d_weight(const struct arithmetic *m, const struct routing *r, const struct value *output,
                                   const struct value *dy, struct value *out) {
    int64_t columns = value_last(dy), k = r->choices;
    TRY(value_new(m, out, 2, (const int64_t[]){r->tokens, k}));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        struct sum sum = {0};
        for (int64_t j = 0; j < columns; j++)
            sum_product(&sum, num_at(dy, i / k * columns + j), num_at(output, i * columns + j));
        num_set(out, i, sum_close(m, &sum, columns));
    }
    return STATUS_OK;
}

/* A plain sum of k copies and the rest: k roundings. */
enum status value_collect(const struct arithmetic *m, const struct routing *r, const struct value *copies,
                          const struct value *rest, const struct value *like, struct value *out) {
    TRY(value_like(m, out, like));
    int64_t columns = value_last(like), k = r->choices;
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(out); i < n; i++) {
        struct sum sum = {0};
        for (int64_t place = 0; place < k; place++) {
            int64_t copy = i / columns * k + r->ascending[i / columns * k + place];
            sum_term(&sum, num_at(copies, copy * columns + i % columns));
        }
        sum_term(&sum, num_at(rest, i));
        num_set(out, i, sum_close(m, &sum, k));
    }
    return STATUS_OK;
}
