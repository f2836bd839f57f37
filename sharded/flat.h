/* PEFT's flat adapter tensors and a rank's block of a slot: the flat axes are named by a layout line, and everything is
 * moved by axis name. A_flat "(expert[ep] rank) in"; B_flat by rules->import_b and rules->export_b; a 2-D weight has no
 * expert axis. All memory here is the host's. */
#ifndef SHARDED_FLAT_H
#define SHARDED_FLAT_H

#include "core/adapter.h"
#include "core/points.h"
#include "layout/shard.h"

struct subject;

struct flat_axes {               /* sizes of the axes of one rank's piece */
    int64_t expert, rank, width; /* local experts (1 on a 2-D weight); r; in (A) or out (B) */
};

/* The layout line of the flat tensor, bound to its whole shape. `text` for lora_B of packed experts. */
enum status flat_line(struct line *out, const struct subject *subject, const struct param *param,
                      const struct adapter_target *adapter, enum part part, const char *text);

/* Moves elements of `element` bytes between a flat piece, whose axes lie in the order of `line`, and a slot's block
 * [expert,R,in] (A) or [expert,out,R] (B); rows of the slot beyond axes->rank are not touched. */
enum flat_direction {
    FLAT_TO_SLOT,
    SLOT_TO_FLAT
};
void flat_move(const struct line *line, enum part part, const struct flat_axes *axes, int64_t max_rank, size_t element,
               void *flat, void *slot, enum flat_direction direction);

/* This rank's block of a slot (`used` is its place in the whole slot), in the job's dtype: the adapter's rows, then
 * zeros, or NaN if the job says so. */
enum status flat_import(const struct subject *subject, const struct param *param, const struct adapter_target *adapter,
                        enum part part, const struct shard *used, struct tensor *out);

#endif
