#include "reference/linear.h"

#include "reference/bound.h"

#define MAX_MAPS 3

struct factor factor_of(const struct value *value, int64_t at, int64_t n, int64_t row, int64_t column) {
    const double *e = value->e ? value->e + at : NULL;
    bool exact = true;
    for (int64_t i = 0; e && exact && i < n; i++)
        exact = e[i] == 0;
    return (struct factor){value->x + at, exact ? NULL : e, row, column};
}

static void add_values(const struct product *p, int64_t i, int64_t j, struct sum *sum) {
    const double *a = p->a.x + i * p->a.row;
    const double *b = p->b.x + j * p->b.row;
    for (int64_t l = 0; l < p->k; l++)
        sum->x += a[l * p->a.column] * b[l * p->b.column];
}

static void add_exact(const struct product *p, int64_t i, int64_t j, struct sum *sum) {
    const double *a = p->a.x + i * p->a.row;
    const double *b = p->b.x + j * p->b.row;
    for (int64_t l = 0; l < p->k; l++) {
        double term = a[l * p->a.column] * b[l * p->b.column];
        sum->x += term;
        sum->s += fabs(term);
    }
}

static struct num factor_at(const struct factor *f, int64_t i, int64_t l) {
    int64_t at = i * f->row + l * f->column;
    return (struct num){f->x[at], f->e ? f->e[at] : 0};
}

static void add_bounded(const struct product *p, int64_t i, int64_t j, struct sum *sum) {
    for (int64_t l = 0; l < p->k; l++)
        sum_product(sum, factor_at(&p->a, i, l), factor_at(&p->b, j, l));
}

static void add_product(const struct product *p, bool bounds, int64_t i, int64_t j, struct sum *sum) {
    if (!bounds)
        add_values(p, i, j, sum);
    else if (!p->a.e && !p->b.e)
        add_exact(p, i, j, sum);
    else
        add_bounded(p, i, j, sum);
}

void value_products(const struct arithmetic *m, int count, const struct product *products, int64_t rows,
                    int64_t columns, struct value *out, int64_t at) {
    int64_t terms = 0;
    for (int c = 0; c < count; c++)
        terms += products[c].k;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            struct sum sum = {0};
            for (int c = 0; c < count; c++)
                add_product(&products[c], out->e != NULL, i, j, &sum);
            num_set(out, at + i * columns + j, sum_close(m, &sum, terms));
        }
    }
}

static enum status make_with_last(const struct arithmetic *m, const struct value *model, int64_t last,
                                  struct value *out) {
    struct value shape = *model;
    shape.shape[shape.ndim - 1] = last;
    return value_new(m, out, shape.ndim, shape.shape);
}

enum status value_linear(const struct arithmetic *m, const struct value *x, const struct value *weight,
                         const struct value *bias, struct value *out) {
    int64_t outs = weight->shape[0], ins = weight->shape[1], rows = value_rows(x);
    TRY(make_with_last(m, x, outs, out));
    if (m->dry)
        return STATUS_OK;
    struct product product = {ins, factor_of(x, 0, rows * ins, ins, 1), factor_of(weight, 0, outs * ins, ins, 1)};
    value_products(m, 1, &product, rows, outs, out, 0);
    for (int64_t i = 0; bias && i < rows * outs; i++)
        num_set(out, i, num_add(m, num_at(out, i), num_at(bias, i % outs)));
    return STATUS_OK;
}

enum status value_linear_input_gradient(const struct arithmetic *m, int maps, const struct value *const *dy,
                                        const struct value *const *weight, struct value *out) {
    int64_t ins = weight[0]->shape[1], rows = value_rows(dy[0]);
    TRY(make_with_last(m, dy[0], ins, out));
    if (m->dry)
        return STATUS_OK;
    struct product products[MAX_MAPS];
    for (int i = 0; i < maps; i++) {
        int64_t outs = weight[i]->shape[0];
        products[i] = (struct product){outs, factor_of(dy[i], 0, rows * outs, outs, 1),
                                       factor_of(weight[i], 0, outs * ins, 1, ins)};
    }
    value_products(m, maps, products, rows, ins, out, 0);
    return STATUS_OK;
}

enum status value_linear_weight_gradient(const struct arithmetic *m, const struct value *dy, const struct value *x,
                                         struct value *out) {
    int64_t outs = value_last(dy), ins = value_last(x), rows = value_rows(x);
    TRY(value_new(m, out, 2, (const int64_t[]){outs, ins}));
    if (m->dry)
        return STATUS_OK;
    struct product product = {rows, factor_of(dy, 0, rows * outs, 1, outs), factor_of(x, 0, rows * ins, 1, ins)};
    value_products(m, 1, &product, outs, ins, out, 0);
    return STATUS_OK;
}

enum status value_linear_bias_gradient(const struct arithmetic *m, const struct value *dy, struct value *out) {
    int64_t outs = value_last(dy), rows = value_rows(dy);
    TRY(value_new(m, out, 1, &outs));
    for (int64_t o = 0; o < (m->dry ? 0 : outs); o++) {
        struct sum sum = {0};
        for (int64_t row = 0; row < rows; row++)
            sum_term(&sum, num_at(dy, row * outs + o));
        num_set(out, o, sum_close(m, &sum, rows - 1));
    }
    return STATUS_OK;
}

enum status value_add(const struct arithmetic *m, const struct value *a, const struct value *b, struct value *out) {
    TRY(value_like(m, out, a));
    for (int64_t i = 0, n = m->dry ? 0 : value_elements(a); i < n; i++)
        num_set(out, i, num_add(m, num_at(a, i), num_at(b, i)));
    return STATUS_OK;
}
