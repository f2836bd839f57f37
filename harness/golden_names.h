/* The grammar of golden names (docs/formats.md), and what shape each must have. */
#ifndef HARNESS_GOLDEN_NAMES_H
#define HARNESS_GOLDEN_NAMES_H

#include "core/job.h"

enum golden_kind {
    GOLDEN_DELTA,         /* delta/<base parameter> */
    GOLDEN_MERGED,        /* merged/<base parameter> */
    GOLDEN_BASE_FORWARD,  /* base_forward/micro.M/logits */
    GOLDEN_PEFT_FORWARD,  /* peft_forward/micro.M/logits */
    GOLDEN_LOGITS,        /* step.S/micro.M/logits */
    GOLDEN_TOKEN_LOSS,    /* step.S/micro.M/token_loss */
    GOLDEN_HIDDEN,        /* step.S/micro.M/hidden.L */
    GOLDEN_ROUTER_LOGITS, /* step.S/micro.M/router.L/logits */
    GOLDEN_TOPK_INDEX,
    GOLDEN_TOPK_WEIGHT,
    GOLDEN_LOSS,      /* step.S/loss */
    GOLDEN_GRAD_NORM, /* step.S/grad_norm */
    GOLDEN_GRAD,      /* step.S/grad/<key> */
    GOLDEN_PARAM,     /* step.S/param/<key> */
    GOLDEN_OPTIM      /* step.S/optim/<state>/<key> */
};

struct golden_name {
    enum golden_kind kind;
    int step, micro, layer;              /* -1 where there is none */
    const struct param *param;           /* base parameter, or the one behind the key */
    const struct adapter_target *target; /* of a PEFT key; NULL: the key is a base parameter's */
    bool b;                              /* the key is lora_B's */
    char state[32];
};

/* False if `name` is not a golden name of this job's tenant. */
bool golden_name_parse(struct golden_name *out, const char *name, const struct job *job, int tenant);
/* The shape that such a tensor has in this job: ndim, or -1 if its micro-batch is not in the job. */
int golden_name_shape(const struct golden_name *name, const struct job *job, int64_t *shape);
bool golden_name_whole(const struct golden_name *name); /* int64 */

#endif
