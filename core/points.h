/* The one table of storage points: every place where an operation's result is stored and later read.
 *
 * The reference emits and the subject records exactly these; the judge looks up layout line and kind here. A point's
 * name is `step.S/[micro.M/]PHASE/[slot.N/ | tenant.T/]TENSOR`. Nobody writes such a name by hand: fill a struct point
 * and call point_name. */
#ifndef CORE_POINTS_H
#define CORE_POINTS_H

#include "core/inventory.h"
#include "core/tensor.h"

enum phase {
    PHASE_PARAM,    /* parameters, slots, optimizer state as a rank holds them before a step, and once after the last */
    PHASE_GATHER,   /* whole parameters before forward (experts: the local block) */
    PHASE_DELTA,    /* W's delta, and W + delta: part MERGED in forward, REMERGED when backward makes it again */
    PHASE_FORWARD,  /* activations */
    PHASE_LOSS_SUM, /* a rank's partial sum of token losses */
    PHASE_REGATHER, /* whole parameters before backward */
    PHASE_BACKWARD, /* gradients of activations (under the activation's name) and partial gradients of parameters */
    PHASE_GRAD,     /* with micro: the shard's running sum after reduce-scatter; without: divided by the count */
    PHASE_LOSS,     /* `count` (the divisor) and `loss` */
    PHASE_CLIP,     /* `norm` */
    PHASE_OPTIMIZER, /* state after the update */
    PHASE_UPDATE,    /* parameters after the update */
    PHASE_EXPORT,
    PHASE_COUNT
};

/* Activations, in forward order. N = B*T tokens, k experts a token, E experts, rows = exchanged rows (N*k in all). */
enum activation {
    ACT_NONE,
    ACT_INPUT_IDS,  /* input_ids                              [B,T] */
    ACT_LABELS,     /* labels                                 [B,T] */
    ACT_ROTARY_COS, /* rotary.cos                             [T,d/2], the same on every rank */
    ACT_ROTARY_SIN,
    ACT_EMBED,            /* model.embed_tokens                     [B,T,H] */
    ACT_INPUT_NORM_SCALE, /* L.input_layernorm.inverse_rms          [B,T] = 1/sqrt(mean(x^2)+eps) */
    ACT_INPUT_NORM,       /* L.input_layernorm                      [B,T,H] */
    ACT_Q,                /* L.self_attn.q_proj                     [B,T,nh*d], bias included */
    ACT_K,
    ACT_V,
    ACT_Q_NORM_SCALE, /* L.self_attn.q_norm.inverse_rms         [B,T,nh] */
    ACT_Q_NORM,       /* L.self_attn.q_norm                     [B,T,nh,d] */
    ACT_K_NORM_SCALE,
    ACT_K_NORM,
    ACT_Q_ROTARY, /* L.self_attn.q_rotary                   [B,T,nh,d] */
    ACT_K_ROTARY, /* L.self_attn.k_rotary                   [B,T,nk,d] */
    ACT_SCORES,   /* L.self_attn.scores                     [B,nh,T,T] q.k * d^-0.5; masked places 0 */
    ACT_PROBS,    /* L.self_attn.probabilities              [B,nh,T,T] masked places 0 */
    ACT_CONTEXT,  /* L.self_attn.context                    [B,T,nh*d] */
    ACT_O,        /* L.self_attn.o_proj                     [B,T,H], bias included */
    ACT_RESIDUAL, /* L.self_attn.residual                   [B,T,H] = layer input + o_proj */
    ACT_POST_NORM_SCALE,
    ACT_POST_NORM,     /* L.post_attention_layernorm             [B,T,H] */
    ACT_ROUTER_LOGITS, /* L.mlp.router.logits                    [N,E] */
    ACT_ROUTER_SCORES, /* L.mlp.router.scores                    [N,E] softmax over E */
    ACT_TOPK_INDEX, /* L.mlp.router.topk_index                [N,k] I64, falling score, equal scores: lower expert first
                     */
    ACT_TOPK_WEIGHT,     /* L.mlp.router.topk_weight               [N,k] what multiplies expert results */
    ACT_EXPERT_DISPATCH, /* L.mlp.experts.dispatch: backward only [N,k,H] gradient of the copies sent, back at the
                            source */
    ACT_EXPERT_INPUT,    /* L.mlp.experts.input                    [rows,H] as it arrived */
    ACT_EXPERT_GATE_UP,  /* L.mlp.experts.gate_up                  [rows,2I] */
    ACT_EXPERT_HIDDEN,   /* L.mlp.experts.hidden                   [rows,I] silu(gate)*up */
    ACT_EXPERT_DOWN,     /* L.mlp.experts.down                     [rows,H] */
    ACT_EXPERT_OUTPUT,   /* L.mlp.experts.output                   [N,k,H] `down` back at the source, by (token, choice)
                          */
    ACT_ROUTER_INPUT,    /* L.mlp.router.input: backward only      [N,H] d logits @ router weight */
    ACT_MLP_GATE,        /* L.mlp.gate_proj (dense layer)          [B,T,F] */
    ACT_MLP_UP,
    ACT_MLP_HIDDEN, /* L.mlp.hidden                           [B,T,F] silu(gate)*up */
    ACT_MLP,        /* L.mlp                                  [B,T,H] sparse: sum over choices in ascending expert of
                       weight*output */
    ACT_LAYER,      /* L  ("model.layers.3")                  [B,T,H] = residual + mlp: golden hidden.L */
    ACT_NORM_SCALE, /* model.norm.inverse_rms */
    ACT_NORM,       /* model.norm                             [B,T,H] */
    ACT_HEAD,       /* lm_head                                [B,T,V] logits */
    ACT_LOGSUMEXP,  /* logsumexp                              [B,T-1] */
    ACT_TOKEN_LOSS, /* token_loss                             [B,T-1] logsumexp - logit of the label; 0 without a label
                     */
    ACT_COUNT
};

/* How a record is judged. */
enum point_kind {
    POINT_VALUE,    /* floating point, within the bar */
    POINT_EXACT,    /* moved, not computed: 0 ulp */
    POINT_CHOICE,   /* router choices: a top-k of the recorded scores */
    POINT_EXCHANGED /* rows by (expert, global token), owners from the choices; within the bar (0 ulp where e = 0) */
};

struct activation_row {
    const char *name; /* with %d for the layer; NULL for ACT_NONE */
    const char *line; /* layout line; `world` stands for the world's mesh axes in mesh order, as in batch[world] */
    enum point_kind forward, backward;
    bool has_forward, has_backward;
    bool wide_forward, wide_backward; /* stays float32 where activations are bfloat16 */
};
extern const struct activation_row activation_table[ACT_COUNT];

enum part {
    PART_WEIGHT,
    PART_LORA_A,
    PART_LORA_B,
    PART_MERGED,
    PART_REMERGED
};

struct point {
    enum phase phase;
    int step;
    int micro;                  /* M, -1: none */
    int slot;                   /* slot.N: a slot that does not act; -1: none */
    const char *tenant;         /* export: tenant.T; else NULL */
    enum activation activation; /* ACT_NONE: a parameter or a scalar */
    int layer;                  /* of the activation */
    const struct param *param;  /* parameter points */
    enum part part;
    const char *state;  /* optimizer state name ("momentum_buffer"), else NULL */
    const char *scalar; /* "loss", "count", "norm"; export: the PEFT key; else NULL */
};

#define POINT_NAME_MAX 512
#define POINT_NONE ((struct point){.micro = -1, .slot = -1, .layer = -1})

const char *phase_name(enum phase phase);
/* The trace name; `out` has POINT_NAME_MAX bytes. Returns `out`. TENSOR is the activation's name; or the parameter's
 * with `.lora_A`, `.lora_B`, `.merged`, `.remerged`, behind `STATE/` for optimizer state; or the scalar. */
char *point_name(char *out, const struct point *point);
/* The tensor part alone. */
char *point_tensor(char *out, const struct point *point);

/* The types of a job: float64 and float32 jobs have one; where activations are bfloat16, sums and statistics are wide.
 */
struct precision {
    enum dtype store;   /* parameters and slots, as a rank holds them between steps */
    enum dtype compute; /* gathered parameters, deltas, activations and their gradients */
    enum dtype wide;    /* what adds up or scales: norms' scales, router weights, losses, parameter gradients, states */
    bool master;        /* every trained tensor has a wide copy that updates act on: the state `master` */
};
/* In which of them the job stores a point's tensor. Ids, choices and counts are I64; an export has its file's type,
 * which is not told here. */
enum dtype point_dtype(const struct point *point, const struct precision *precision);

/* Whether world N must equal world 1 bit for bit here: everything that does not add over tokens
 * of several ranks and does not follow an update. */
bool point_is_split_invariant(const struct point *point);
/* Whether the record is a sum still owed over ranks: parameter gradients of a micro-batch and loss_sum. */
bool point_is_partial(const struct point *point);
enum point_kind point_kind(const struct point *point);

#endif
