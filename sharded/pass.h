/* One micro-batch on one rank: its sequences, its activations and their gradients, by the names of core/points.h.
 *
 * Sequences are split over the world in rank order by torch.chunk's rule; a rank may have none. */
#ifndef SHARDED_PASS_H
#define SHARDED_PASS_H

#include "core/job.h"
#include "core/points.h"
#include "sharded/exchange.h"
#include "sharded/linear.h"

struct subject;

#define OUTSIDE (-1) /* the layer of what lies outside the layers */

enum extent { /* the sizes that activations are made of, on this rank */
    EXTENT_NONE,
    EXTENT_B,    /* own sequences */
    EXTENT_T,    /* tokens of a sequence */
    EXTENT_NEXT, /* T - 1 */
    EXTENT_N,    /* B*T */
    EXTENT_H,    /* hidden */
    EXTENT_Q,    /* heads * head_dim */
    EXTENT_KV,   /* kv_heads * head_dim */
    EXTENT_HEADS,
    EXTENT_KV_HEADS,
    EXTENT_D,     /* head_dim */
    EXTENT_PAIRS, /* head_dim / 2 */
    EXTENT_E,     /* experts */
    EXTENT_K,     /* experts a token */
    EXTENT_ROWS,  /* exchanged rows that arrived; of the layer's route */
    EXTENT_I,     /* expert width */
    EXTENT_2I,
    EXTENT_F, /* dense width */
    EXTENT_V, /* vocabulary */
    EXTENTS
};

struct tape { /* of one layer, or of what lies outside the layers */
    struct tensor value[ACT_COUNT];
    struct tensor gradient[ACT_COUNT];
    struct route route;
    bool open[UNIT_PARTS]; /* units of the layer that are gathered */
};

struct pass {
    struct subject *subject;
    int micro;        /* M */
    bool trains;      /* backward follows */
    bool recomputing; /* forward runs again for backward: its values are recorded already */
    int64_t extent[EXTENTS];
    int64_t whole[2];   /* {0, N}: all rows in one block */
    int64_t counted;    /* own labels that count */
    struct tape *tape;  /* [layers + 1], the last for OUTSIDE */
    struct tensor loss; /* scalar: the sum of the own token losses */
};

/* `trains`: backward follows. Takes this rank's ids and labels. The caller calls pass_free also after a failure. */
enum status pass_make(struct pass *out, struct subject *subject, const struct micro_batch *batch, bool trains);
void pass_free(struct pass *pass);
struct tape *pass_tape(const struct pass *pass, int layer);
void pass_free_layer(struct pass *pass, int layer);
/* Everything but what goes into the next layer. */
void pass_drop_layer(struct pass *pass, int layer);

/* A layer's unit (OUTSIDE: the root); where experts are no unit of their own, that is the whole layer's. */
struct unit pass_unit(const struct pass *pass, int layer, enum unit_part part);
/* Collective, unless the unit is open: gathers it (phase GATHER or REGATHER) and merges the acting tenant's deltas. */
enum status pass_open(struct pass *pass, struct unit unit, enum phase phase);
/* Forward has done with it: as job->fsdp says, it is resharded, kept by a smaller group, or stays. */
enum status pass_leave(struct pass *pass, struct unit unit);
/* Collective. Backward has done with it: resharded, its gradients reduced. A unit that is not open is closed. */
enum status pass_close(struct pass *pass, struct unit unit);

/* The forward pass with all its records. Collective. */
enum status pass_forward(struct pass *pass);
/* What forward makes of a layer, but for its output, again for backward, without a record; the layer's units are left
 * open. Collective. */
enum status pass_recompute(struct pass *pass, int layer);
/* The backward pass of the sum of token losses, partial and reduced gradients included. Collective. */
enum status pass_backward(struct pass *pass);

/* Shared by forward and backward. */
void *value_of(const struct pass *pass, int layer, enum activation activation);
void *gradient_of(const struct pass *pass, int layer, enum activation activation);
/* New memory for an activation, or for its gradient, in its local shape. */
enum status value_make(struct pass *pass, int layer, enum activation activation, void **out);
enum status gradient_make(struct pass *pass, int layer, enum activation activation, void **out);
enum status value_record(const struct pass *pass, int layer, enum activation activation);
enum status gradient_record(const struct pass *pass, int layer, enum activation activation);
/* The parameter of a layer and its base values (gathered). */
const struct param *pass_param(const struct pass *pass, enum param_kind kind, int layer);
const void *pass_weight(const struct pass *pass, enum param_kind kind, int layer);
/* What the logits are compared with. */
const int64_t *pass_labels(const struct pass *pass);
/* Where gate and up begin in a row of gate_up. */
struct halves {
    size_t gate, up; /* bytes */
};
struct halves pass_halves(const struct pass *pass);
/* All rows in one block; the layer's rows by local expert. */
struct blocks pass_rows(const struct pass *pass);
struct blocks pass_experts(const struct pass *pass, int layer);
/* "model.layers.3.mlp.experts", for the ledger. */
const char *pass_experts_name(const struct pass *pass, int layer);

#endif
