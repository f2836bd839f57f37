/* The table's promise on bits: the same for every instruction set, and whatever rows stand around. */
#include "run.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct shape shapes[] = {
    {.rows = 0, .n = 5, .k = 3, .tokens = 2, .heads = 2, .kv_heads = 1, .head_dim = 2},
    {.rows = 1, .n = 1, .k = 1, .tokens = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.rows = 1, .n = 14, .k = 20, .tokens = 5, .heads = 6, .kv_heads = 2, .head_dim = 6},
    {.rows = 2, .n = 37, .k = 5, .tokens = 33, .heads = 4, .kv_heads = 2, .head_dim = 10},
    {.rows = 3, .n = 67, .k = 259, .tokens = 67, .heads = 3, .kv_heads = 3, .head_dim = 38},
    {.rows = 7, .n = 13, .k = 7, .tokens = 9, .heads = 4, .kv_heads = 1, .head_dim = 16},
    {.rows = 17, .n = 31, .k = 29, .tokens = 10, .heads = 2, .kv_heads = 2, .head_dim = 4},
    {.rows = 41, .n = 33, .k = 8, .tokens = 3, .heads = 2, .kv_heads = 1, .head_dim = 64},
};
enum {
    SHAPES = sizeof shapes / sizeof *shapes
};
static const enum dtype dtypes[] = {DTYPE_F64, DTYPE_F32};

/* Rows [first, first + piece->rows) of `whole` are those of `piece`, bit for bit. */
static void assert_same_rows(const struct operation *op, const struct run *whole, const struct run *piece) {
    cr_assert(whole->outputs == piece->outputs && whole->outputs > 0);
    for (int i = 0; i < whole->outputs; i++) {
        const struct output *w = &whole->output[i], *p = &piece->output[i];
        size_t row = (size_t)w->per_row * w->element;
        const char *from = (const char *)w->data + (size_t)(piece->first - whole->first) * row;
        cr_assert(memcmp(from, p->data, (size_t)piece->rows * row) == 0,
                  "%s, %s: output %d of rows [%d, %d) of %d differs from %s", op->name, piece->ops->name, i,
                  (int)piece->first, (int)(piece->first + piece->rows), (int)whole->rows, whole->ops->name);
    }
}

Test(bits, every_operation_is_covered) { /* all of the table but memory, copies, conversion and zero */
    size_t entries = (sizeof(struct ops) - sizeof(char *)) / sizeof(void (*)(void));
    size_t memory = 7 /* convert too: bfloat.c */, twice = 1 /* matmul */;
    cr_assert((size_t)operation_count == entries - memory + twice, "%d of %d", operation_count, (int)entries);
}

Test(bits, instruction_sets_agree) {
    cr_assert(isa_count() > 1, "this CPU has one instruction set only: nothing to compare");
    for (int o = 0; o < operation_count; o++)
        for (int s = 0; s < SHAPES; s++)
            for (int d = 0; d < 2; d++) {
                struct run plain = run_piece(&operations[o], isa_at(0), dtypes[d], shapes[s], 0, shapes[s].rows);
                for (int i = 1; i < isa_count(); i++) {
                    struct run other = run_piece(&operations[o], isa_at(i), dtypes[d], shapes[s], 0, shapes[s].rows);
                    assert_same_rows(&operations[o], &plain, &other);
                    run_free(&other);
                }
                run_free(&plain);
            }
}

static void check_split(const struct operation *op, const struct ops *ops, enum dtype dtype, struct shape shape) {
    struct run whole = run_piece(op, ops, dtype, shape, 0, shape.rows);
    const int64_t cuts[] = {1, shape.rows / 2, shape.rows - 1};
    for (int c = 0; c < 3; c++) {
        struct run head = run_piece(op, ops, dtype, shape, 0, cuts[c]);
        struct run tail = run_piece(op, ops, dtype, shape, cuts[c], shape.rows - cuts[c]);
        assert_same_rows(op, &whole, &head);
        assert_same_rows(op, &whole, &tail);
        run_free(&head);
        run_free(&tail);
    }
    run_free(&whole);
}

Test(bits, rows_around_do_not_matter) {
    for (int o = 0; o < operation_count; o++)
        for (int s = 0; s < SHAPES; s++)
            for (int d = 0; d < 2; d++)
                for (int i = 0; i < isa_count() && shapes[s].rows > 1 && !operations[o].whole; i++)
                    check_split(&operations[o], isa_at(i), dtypes[d], shapes[s]);
}
