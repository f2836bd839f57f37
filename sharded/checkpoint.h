/* Checkpoints: all that training has changed, in a folder SAVE_FOLDER/NAME, and back under any mesh.
 *
 * Form `sharded`: rankNNNNN.safetensors holds the shards of one rank, index.json (written last) the mesh they were cut
 * for, each tensor's layout line and shape, who holds which slot, the step counters, and every file's size and
 * checksum. The folder is filled under another name and renamed, so that a save that dies leaves what stood there
 * whole. A load makes everything anew and swaps it in when every rank has succeeded: a file that is missing, truncated
 * or of another job is STATUS_INPUT with its name and the reason, the same on every rank, and the state stays as it
 * was. */
#ifndef SHARDED_CHECKPOINT_H
#define SHARDED_CHECKPOINT_H

#include "core/status.h"

struct subject;

/* Collective. `save` is the index of the name in job->save; no window is open. */
enum status checkpoint_save(struct subject *subject, int save);
enum status checkpoint_load(struct subject *subject, int save);

#endif
