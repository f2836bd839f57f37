#include "core/points.h"

#include <stdio.h>
#include <string.h>

#define BOTH .has_forward = true, .has_backward = true
#define FORWARD .has_forward = true
#define BACKWARD .has_backward = true
#define WIDE .wide_forward = true, .wide_backward = true
#define LAYER "model.layers.%d"
#define TOKENS "batch[world] token"
#define ROWS "row"

const struct activation_row activation_table[ACT_COUNT] = {
    [ACT_INPUT_IDS] = {"input_ids", TOKENS, POINT_EXACT, POINT_EXACT, FORWARD},
    [ACT_LABELS] = {"labels", TOKENS, POINT_EXACT, POINT_EXACT, FORWARD},
    [ACT_ROTARY_COS] = {"rotary.cos", "token pair", POINT_VALUE, POINT_VALUE, FORWARD, WIDE},
    [ACT_ROTARY_SIN] = {"rotary.sin", "token pair", POINT_VALUE, POINT_VALUE, FORWARD, WIDE},
    [ACT_EMBED] = {"model.embed_tokens", TOKENS " hidden", POINT_EXACT, POINT_VALUE, BOTH},
    [ACT_INPUT_NORM_SCALE] = {LAYER ".input_layernorm.inverse_rms", TOKENS, POINT_VALUE, POINT_VALUE, FORWARD, WIDE},
    [ACT_INPUT_NORM] = {LAYER ".input_layernorm", TOKENS " hidden", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_Q] = {LAYER ".self_attn.q_proj", TOKENS " out", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_K] = {LAYER ".self_attn.k_proj", TOKENS " out", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_V] = {LAYER ".self_attn.v_proj", TOKENS " out", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_Q_NORM_SCALE] = {LAYER ".self_attn.q_norm.inverse_rms", TOKENS " head", POINT_VALUE, POINT_VALUE, FORWARD,
                          WIDE},
    [ACT_Q_NORM] = {LAYER ".self_attn.q_norm", TOKENS " head head_dim", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_K_NORM_SCALE] = {LAYER ".self_attn.k_norm.inverse_rms", TOKENS " head", POINT_VALUE, POINT_VALUE, FORWARD,
                          WIDE},
    [ACT_K_NORM] = {LAYER ".self_attn.k_norm", TOKENS " head head_dim", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_Q_ROTARY] = {LAYER ".self_attn.q_rotary", TOKENS " head head_dim", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_K_ROTARY] = {LAYER ".self_attn.k_rotary", TOKENS " head head_dim", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_SCORES] = {LAYER ".self_attn.scores", "batch[world] head query key", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_PROBS] = {LAYER ".self_attn.probabilities", "batch[world] head query key", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_CONTEXT] = {LAYER ".self_attn.context", TOKENS " out", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_O] = {LAYER ".self_attn.o_proj", TOKENS " hidden", POINT_VALUE, POINT_VALUE, FORWARD},
    [ACT_RESIDUAL] = {LAYER ".self_attn.residual", TOKENS " hidden", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_POST_NORM_SCALE] = {LAYER ".post_attention_layernorm.inverse_rms", TOKENS, POINT_VALUE, POINT_VALUE, FORWARD,
                             WIDE},
    [ACT_POST_NORM] = {LAYER ".post_attention_layernorm", TOKENS " hidden", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_ROUTER_LOGITS] = {LAYER ".mlp.router.logits", "(" TOKENS ") expert", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_ROUTER_SCORES] = {LAYER ".mlp.router.scores", "(" TOKENS ") expert", POINT_VALUE, POINT_VALUE, BOTH, WIDE},
    [ACT_TOPK_INDEX] = {LAYER ".mlp.router.topk_index", "(" TOKENS ") choice", POINT_CHOICE, POINT_CHOICE, FORWARD},
    [ACT_TOPK_WEIGHT] = {LAYER ".mlp.router.topk_weight", "(" TOKENS ") choice", POINT_VALUE, POINT_VALUE, BOTH, WIDE},
    [ACT_EXPERT_DISPATCH] = {LAYER ".mlp.experts.dispatch", "(" TOKENS ") choice hidden", POINT_EXACT, POINT_EXACT,
                             BACKWARD},
    [ACT_EXPERT_INPUT] = {LAYER ".mlp.experts.input", ROWS " hidden", POINT_EXCHANGED, POINT_EXCHANGED, BOTH},
    [ACT_EXPERT_GATE_UP] = {LAYER ".mlp.experts.gate_up", ROWS " (half inter)", POINT_EXCHANGED, POINT_EXCHANGED, BOTH},
    [ACT_EXPERT_HIDDEN] = {LAYER ".mlp.experts.hidden", ROWS " inter", POINT_EXCHANGED, POINT_EXCHANGED, BOTH},
    [ACT_EXPERT_DOWN] = {LAYER ".mlp.experts.down", ROWS " hidden", POINT_EXCHANGED, POINT_EXCHANGED, BOTH},
    [ACT_EXPERT_OUTPUT] = {LAYER ".mlp.experts.output", "(" TOKENS ") choice hidden", POINT_EXACT, POINT_VALUE, BOTH},
    [ACT_ROUTER_INPUT] = {LAYER ".mlp.router.input", "(" TOKENS ") hidden", POINT_VALUE, POINT_VALUE, BACKWARD},
    [ACT_MLP_GATE] = {LAYER ".mlp.gate_proj", TOKENS " inter", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_MLP_UP] = {LAYER ".mlp.up_proj", TOKENS " inter", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_MLP_HIDDEN] = {LAYER ".mlp.hidden", TOKENS " inter", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_MLP] = {LAYER ".mlp", TOKENS " hidden", POINT_VALUE, POINT_VALUE, FORWARD},
    [ACT_LAYER] = {LAYER, TOKENS " hidden", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_NORM_SCALE] = {"model.norm.inverse_rms", TOKENS, POINT_VALUE, POINT_VALUE, FORWARD, WIDE},
    [ACT_NORM] = {"model.norm", TOKENS " hidden", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_HEAD] = {"lm_head", TOKENS " vocab", POINT_VALUE, POINT_VALUE, BOTH},
    [ACT_LOGSUMEXP] = {"logsumexp", TOKENS, POINT_VALUE, POINT_VALUE, FORWARD, WIDE},
    [ACT_TOKEN_LOSS] = {"token_loss", TOKENS, POINT_VALUE, POINT_VALUE, FORWARD, WIDE},
};

static const char *const phase_names[PHASE_COUNT] = {
    [PHASE_PARAM] = "param",       [PHASE_GATHER] = "gather",       [PHASE_DELTA] = "delta",
    [PHASE_FORWARD] = "forward",   [PHASE_LOSS_SUM] = "loss_sum",   [PHASE_REGATHER] = "regather",
    [PHASE_BACKWARD] = "backward", [PHASE_GRAD] = "grad",           [PHASE_LOSS] = "loss",
    [PHASE_CLIP] = "clip",         [PHASE_OPTIMIZER] = "optimizer", [PHASE_UPDATE] = "update",
    [PHASE_EXPORT] = "export",
};

static const char *const part_suffix[] = {
    [PART_WEIGHT] = "",        [PART_LORA_A] = ".lora_A",     [PART_LORA_B] = ".lora_B",
    [PART_MERGED] = ".merged", [PART_REMERGED] = ".remerged",
};

const char *phase_name(enum phase phase) {
    return phase_names[phase];
}

char *point_tensor(char *out, const struct point *point) {
    if (point->activation != ACT_NONE) {
        const char *format = activation_table[point->activation].name;
        const char *layer = strstr(format, "%d");
        if (layer)
            snprintf(out, POINT_NAME_MAX, "%.*s%d%s", (int)(layer - format), format, point->layer, layer + 2);
        else
            snprintf(out, POINT_NAME_MAX, "%s", format);
    } else if (point->param) {
        snprintf(out, POINT_NAME_MAX, "%s%s%s%s", point->state ? point->state : "", point->state ? "/" : "",
                 point->param->name, part_suffix[point->part]);
    } else {
        snprintf(out, POINT_NAME_MAX, "%s", point->scalar);
    }
    return out;
}

char *point_name(char *out, const struct point *point) {
    char tensor[POINT_NAME_MAX];
    char micro[32] = "";
    char owner[96] = "";
    if (point->micro >= 0)
        snprintf(micro, sizeof micro, "micro.%d/", point->micro);
    if (point->tenant)
        snprintf(owner, sizeof owner, "tenant.%s/", point->tenant);
    else if (point->slot >= 0)
        snprintf(owner, sizeof owner, "slot.%d/", point->slot);
    int length = snprintf(out, POINT_NAME_MAX, "step.%d/%s%s/%s%s", point->step, micro, phase_names[point->phase],
                          owner, point_tensor(tensor, point));
    if (length >= POINT_NAME_MAX)
        out[POINT_NAME_MAX - 1] = '\0';
    return out;
}

static bool is_whole_number(const struct point *point) {
    if (point->phase == PHASE_LOSS)
        return strcmp(point->scalar, "count") == 0;
    return point->activation == ACT_INPUT_IDS || point->activation == ACT_LABELS || point->activation == ACT_TOPK_INDEX;
}

enum dtype point_dtype(const struct point *point, const struct precision *precision) {
    const struct activation_row *row = &activation_table[point->activation];
    if (is_whole_number(point))
        return DTYPE_I64;
    switch (point->phase) {
    case PHASE_PARAM:
    case PHASE_UPDATE:
        return point->state ? precision->wide : precision->store;
    case PHASE_GATHER:
    case PHASE_REGATHER:
    case PHASE_DELTA:
        return precision->compute;
    case PHASE_FORWARD:
        return row->wide_forward ? precision->wide : precision->compute;
    case PHASE_BACKWARD:
        return point->activation == ACT_NONE || row->wide_backward ? precision->wide : precision->compute;
    default:
        return precision->wide;
    }
}

bool point_is_partial(const struct point *point) {
    if (point->phase == PHASE_LOSS_SUM)
        return true;
    return point->phase == PHASE_BACKWARD && point->activation == ACT_NONE;
}

bool point_is_split_invariant(const struct point *point) {
    switch (point->phase) {
    case PHASE_PARAM:
    case PHASE_GATHER:
    case PHASE_DELTA:
    case PHASE_FORWARD:
    case PHASE_REGATHER:
        return true;
    case PHASE_BACKWARD:
        return point->activation != ACT_NONE;
    case PHASE_LOSS:
        return strcmp(point->scalar, "count") == 0;
    default:
        return false;
    }
}

enum point_kind point_kind(const struct point *point) {
    if (point->activation != ACT_NONE) {
        const struct activation_row *row = &activation_table[point->activation];
        return point->phase == PHASE_BACKWARD ? row->backward : row->forward;
    }
    switch (point->phase) {
    case PHASE_PARAM:
    case PHASE_GATHER:
    case PHASE_REGATHER:
        return POINT_EXACT;
    case PHASE_LOSS:
        return strcmp(point->scalar, "count") == 0 ? POINT_EXACT : POINT_VALUE;
    default:
        return POINT_VALUE;
    }
}
