/* One micro-batch through the model under one tenant (or none): what it gathers and what it keeps for backward. */
#ifndef REFERENCE_PASS_H
#define REFERENCE_PASS_H

#include "reference/router.h"
#include "reference/state.h"

struct gathered { /* copies of a parameter for the time that its unit is gathered */
    struct value weight, a, b;
    struct value merged; /* W + D where the tenant adapts the parameter */
};

struct pass {
    struct reference *reference;
    struct arithmetic arithmetic;
    bool quiet; /* an answer: nothing is emitted */
    const struct micro_batch *micro;
    int tenant;                  /* -1: none */
    struct value *root;          /* [ACT_COUNT] activations outside the layers */
    struct value *layer;         /* [layers][ACT_COUNT] */
    struct value *gradient;      /* [ACT_COUNT] of the layer that backward is in */
    struct routing *routing;     /* [layers] */
    struct gathered *gathered;   /* [parameters] */
    struct slot_pair *parameter; /* [parameters] partial gradients of A and B until they are reduced */
    struct value whole;          /* G, gradient of one effective weight */
};

enum status pass_make(struct pass *out, struct reference *reference, const struct micro_batch *micro, int tenant,
                      bool quiet);
void pass_free(struct pass *pass); /* accepts {0} */

/* Up to LOSS_SUM, which stands in root[ACT_NONE] afterwards. */
enum status pass_forward(struct pass *pass);
/* Right after forward; adds to reference->running. */
enum status pass_backward(struct pass *pass);

struct value *pass_layer(const struct pass *pass, int layer); /* its [ACT_COUNT] */
enum status pass_emit(struct pass *pass, enum phase phase, int layer, enum activation activation, struct value *value);
enum status pass_emit_parameter(struct pass *pass, enum phase phase, const struct param *param, enum part part,
                                struct value *value);
const struct param *pass_param(const struct pass *pass, enum param_kind kind, int layer); /* NULL: the model has none */
const struct adapter_target *pass_target(const struct pass *pass, const struct param *param);
/* Copies and emits a unit's parameters, then its deltas: phase GATHER (delta and merged) or REGATHER (remerged). */
enum status pass_gather(struct pass *pass, int unit, enum phase phase);
void pass_release(struct pass *pass, int unit);
/* What a linear map multiplies by: the merged weight where there is one. NULL for a parameter that the model lacks. */
const struct value *pass_weight(const struct pass *pass, enum param_kind kind, int layer);

#endif
