/* A walk: one micro-batch through the model and back under one tenant (or none), with what it gathers and keeps. */
#ifndef REFERENCE_WALK_H
#define REFERENCE_WALK_H

#include "reference/router.h"
#include "reference/state.h"

struct gathered { /* copies of a parameter for the time that its unit is gathered */
    struct value weight, a, b;
    struct value merged; /* W + D where the tenant adapts the parameter */
};

struct walk {
    struct reference *reference;
    struct arithmetic arithmetic;
    bool quiet; /* an answer: nothing is emitted */
    const struct micro_batch *micro;
    int tenant;                /* -1: none */
    struct holding *holding;   /* the tenant's slot; NULL: none */
    struct value *root;        /* [ACT_COUNT] activations outside the layers */
    struct value *layer;       /* [layers][ACT_COUNT] */
    struct value *gradient;    /* [ACT_COUNT] of the layer that backward is in */
    struct routing *routing;   /* [layers] */
    struct gathered *gathered; /* [parameters] */
    struct parts *parameter;   /* [parameters] partial gradients until they are reduced */
};

enum status walk_make(struct walk *out, struct reference *reference, const struct micro_batch *micro, int tenant,
                      bool quiet);
void walk_free(struct walk *walk); /* accepts {0} */

/* Up to LOSS_SUM, which stands in root[ACT_NONE] afterwards. */
enum status walk_forward(struct walk *walk);
/* Right after forward; adds to the gradients of the tenant's window. */
enum status walk_backward(struct walk *walk);

struct value *walk_layer(const struct walk *walk, int layer); /* its [ACT_COUNT] */
enum status walk_emit(struct walk *walk, enum phase phase, int layer, enum activation activation, struct value *value);
enum status walk_emit_parameter(struct walk *walk, enum phase phase, const struct param *param, enum part part,
                                struct value *value);
const struct param *walk_param(const struct walk *walk, enum param_kind kind, int layer); /* NULL: the model has none */
const struct adapter_target *walk_target(const struct walk *walk, const struct param *param);
/* Copies and emits a unit's parameters, then its deltas: phase GATHER (delta and merged) or REGATHER (remerged). */
enum status walk_gather(struct walk *walk, int unit, enum phase phase);
void walk_release(struct walk *walk, int unit);
/* Between forward and backward: release and gather again, or neither where a run keeps its units gathered. */
void walk_reshard(struct walk *walk, int unit);
enum status walk_regather(struct walk *walk, int unit);
/* What a linear map multiplies by: the merged weight where there is one. NULL for a parameter that the model lacks. */
const struct value *walk_weight(const struct walk *walk, enum param_kind kind, int layer);

#endif
