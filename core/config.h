/* A model's configuration: Hugging Face config.json, as far as it decides what is computed.
 *
 * A family is one row of choices; this version has one (qwen3_moe). A config of another family, or one that asks for
 * something a family cannot do (sliding window, rope scaling, another activation), is STATUS_INPUT with file and key.
 */
#ifndef CORE_CONFIG_H
#define CORE_CONFIG_H

#include "core/status.h"
#include "core/yaml.h"

#include <stdbool.h>
#include <stdint.h>

struct model_config {
    const char *family; /* "qwen3_moe" */
    int64_t vocab, hidden, layers;
    int64_t heads, kv_heads, head_dim;
    int64_t experts, experts_per_token; /* E, k */
    int64_t expert_width;               /* I */
    int64_t dense_width;                /* of layers without experts */
    bool norm_topk;                     /* router weights of a token sum to 1 */
    bool tied;                          /* lm_head is the embedding */
    bool attention_bias;                /* q, k, v, o have biases */
    double rope_theta, norm_eps;
    bool *sparse; /* [layers]: the layer has experts */
};

/* From a parsed JSON (or YAML) map; keys we do not know are carried, not refused. */
enum status config_read(struct model_config *out, const struct yaml *yaml, const struct yaml_node *map);
enum status config_open(struct model_config *out, const char *path); /* config.json */
void config_free(struct model_config *config);

#endif
