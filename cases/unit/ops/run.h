/* Runs one operation of the table on data made from a global index, on all rows or on a piece of them, so that the same
 * call can be repeated with another instruction set or another split and its outputs compared bit for bit. */
#ifndef CASES_UNIT_OPS_RUN_H
#define CASES_UNIT_OPS_RUN_H

#include "sharded/ops.h"

enum {
    RUN_MOST = 16
};

struct shape { /* "row": a token, a sequence or an element, as the operation has it */
    int64_t rows, n, k, tokens, heads, kv_heads, head_dim;
};

struct output {
    void *data;
    int64_t per_row; /* elements */
    size_t element;  /* bytes */
};

struct run {
    const struct ops *ops;
    enum dtype dtype;
    struct shape shape;
    int64_t first, rows; /* the piece */
    int inputs, outputs, owned;
    struct output output[RUN_MOST];
    void *own[2 * RUN_MOST];
};

struct operation {
    const char *name;
    void (*run)(struct run *run);
    bool whole; /* cannot be cut by rows */
};
extern const struct operation operations[];
extern const int operation_count;

/* Rows [first, first + rows) of the operation; run_free afterwards. Fails the test if a byte behind an output changed,
 * or if an element of an output was left unwritten. */
struct run run_piece(const struct operation *operation, const struct ops *ops, enum dtype dtype, struct shape shape,
                     int64_t first, int64_t rows);
void run_free(struct run *run);

/* A number in [-2, 2) of stream `stream`, the same for the same index whatever the dtype or the split. */
double number_at(int stream, int64_t index);

/* Instruction sets of this CPU, "plain" first. */
int isa_count(void);
const struct ops *isa_at(int i);

#endif
