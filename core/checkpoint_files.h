/* The weights of a Hugging Face folder: model.safetensors, or the files of model.safetensors.index.json.
 *
 * Experts lie packed under their in-memory names or one by one (mlp.experts.3.gate_proj.weight); each parameter is
 * found in the form it has. Private to core/checkpoint. */
#ifndef CORE_CHECKPOINT_FILES_H
#define CORE_CHECKPOINT_FILES_H

#include "core/inventory.h"
#include "core/tensor.h"

struct checkpoint_files;

/* Maps every file and checks every parameter of the inventory that owns a weight: present, shape, float type. */
enum status checkpoint_files_open(struct checkpoint_files **out, const char *folder, const struct inventory *inventory);
void checkpoint_files_close(struct checkpoint_files *files); /* accepts NULL */
/* A new whole tensor [param->shape]; `param` owns its weight (no alias). */
enum status checkpoint_files_read(const struct checkpoint_files *files, const struct param *param, enum dtype dtype,
                                  struct tensor *out);

#endif
