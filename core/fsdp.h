/* How FSDP2 is set up in a run. All zero: one unit a layer, resharded after forward, nothing recomputed. */
#ifndef CORE_FSDP_H
#define CORE_FSDP_H

#include <stdbool.h>

enum expert_dim {    /* the dim of packed experts and their slots that `fsdp` cuts */
    EXPERT_DIM_AUTO, /* dim 1 where it divides, else dim 0 */
    EXPERT_DIM_0,
    EXPERT_DIM_1
};

struct fsdp_options {
    bool experts_apart; /* packed experts and their slots are a unit of their own in each layer */
    bool keep_gathered; /* no reshard after forward: backward finds its units as forward left them, no `regather` */
    int reshard_group;  /* N: after forward a unit is kept by groups of N ranks, backward gathers from these; 0: by all
                         */
    bool recompute;     /* backward makes a layer's activations again from the layer's input */
    enum expert_dim expert_dim; /* of the built-in layout */
};

#endif
