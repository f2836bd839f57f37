/* The base model's weights, from a Hugging Face folder or made from a seed: whole parameters by in-memory name.
 *
 * A folder holds config.json and model.safetensors or several files + model.safetensors.index.json; experts lie packed
 * (mlp.experts.gate_up_proj [E,2I,H]: rows 0..I-1 gate, I..2I-1 up) or one by one (mlp.experts.3.gate_proj.weight),
 * f32, bf16, f16 or f64, also mixed. Everything is checked when it is opened: a missing tensor, a wrong shape or type,
 * a damaged file is STATUS_INPUT naming file and tensor. Tensors that no parameter needs are ignored as Hugging Face
 * does. */
#ifndef CORE_CHECKPOINT_H
#define CORE_CHECKPOINT_H

#include "core/inventory.h"
#include "core/tensor.h"

struct checkpoint; /* owned by whoever opened it; files stay mapped until checkpoint_close */

enum data_kind {
    DATA_RANDOM,
    DATA_INDEX
};

enum status checkpoint_open(struct checkpoint **out, const char *folder);
/* Weights from (name, global index, seed). DATA_RANDOM: uniform, scaled by 1/sqrt(in) for matrices (embedding: by 1),
 * norms 1 + 0.2*uniform, rounded to float32. DATA_INDEX: core/random.h's index code. Takes over nothing; `yaml`/`map`
 * hold the config.json keys. */
enum status checkpoint_make(struct checkpoint **out, const struct yaml *yaml, const struct yaml_node *map,
                            uint64_t seed, enum data_kind data);
void checkpoint_close(struct checkpoint *checkpoint); /* accepts NULL */

const struct model_config *checkpoint_config(const struct checkpoint *checkpoint);
const struct inventory *checkpoint_inventory(const struct checkpoint *checkpoint);
const char *checkpoint_path(const struct checkpoint *checkpoint); /* the folder, or "" */

/* A new whole tensor [param->shape] in `dtype` (F64, F32, BF16), rounded to nearest even from what is stored; an alias
 * gives the tensor it stands for. */
enum status checkpoint_read(const struct checkpoint *checkpoint, const struct param *param, enum dtype dtype,
                            struct tensor *out);

#endif
