/* A LoRA adapter as PEFT stores it: adapter_config.json and adapter_model.safetensors, read as they lie.
 *
 * What the flat axes mean (A row = e*r + k, expert slow; B column = k*E + e, expert FAST) is not said here: reference/
 * has it as an index formula, sharded/ as a layout line. Keys, nesting (`.base_layer`), patterns and scale follow
 * PEFT 0.21.2. Refused with file and place: shapes that do not fit, missing tensors, keys that belong to no target
 * (with a hint where `base_model.model.` stands twice), settings that change the layout (dora, lora_bias, ...). */
#ifndef CORE_ADAPTER_H
#define CORE_ADAPTER_H

#include "core/checkpoint.h"

struct adapter_target {
    const struct param *param;   /* of the inventory it was opened with */
    int64_t experts;             /* E for packed experts, 1 for a 2-D weight */
    int64_t in, out;             /* of the linear map */
    int64_t lora_rank;           /* r, after rank_pattern */
    double alpha;                /* after alpha_pattern */
    double scale;                /* alpha / r, or alpha / sqrt(r) with rslora */
    struct tensor a;             /* [experts*r, in] flat, stored type */
    struct tensor b;             /* [out, r*experts] flat, stored type */
    char key_a[256], key_b[256]; /* base_model.model.<module>[.base_layer].lora_A.weight */
};

struct adapter {
    char *path; /* folder, "" if made */
    int count;
    struct adapter_target *targets; /* in inventory order */
    char *config_text;              /* adapter_config.json as it is written on export */
    void *files;                    /* private: the mapping behind the views, or the owned tensors */
};

struct adapter_spec { /* an adapter made here */
    int64_t rank;
    double alpha;
    bool rslora;
    uint64_t seed;
    bool zero_b;
    enum data_kind data;
    int parameters; /* target_parameters: full name equal to an entry or ending in "." + entry */
    const char *const *target_parameters;
    int modules; /* target_modules: the same rule on module names */
    const char *const *target_modules;
};

enum status adapter_open(struct adapter *out, const char *folder, const struct inventory *inventory);
/* float32 values from (key, global index of the flat tensor, seed): A uniform/sqrt(in), B uniform/sqrt(r) or zero.
 * `where`
 * ("FILE:LINE") stands before a message. */
enum status adapter_make(struct adapter *out, const struct adapter_spec *spec, const struct inventory *inventory,
                         const char *where);
void adapter_free(struct adapter *adapter);
/* The target on this parameter, NULL if the adapter has none there. */
const struct adapter_target *adapter_find(const struct adapter *adapter, const struct param *param);
/* Writes a PEFT folder: config_text and the tensors a[i], b[i] of target i, flat, metadata {"format":"pt"}; files
 * appear by rename, the folder is made. */
enum status adapter_write(const struct adapter *adapter, const char *folder, const struct tensor *a,
                          const struct tensor *b);

#endif
