/* FSDP2 unit by unit: gather before use, reshard after, reduce-scatter of gradients.
 *
 * A unit is the root, a layer, or a layer's experts or its rest (unit.h). Its tensors that are gathered over the same
 * mesh axes travel in one flat buffer, every shard padded to the largest of its group; so do gradients on their way
 * back. */
#ifndef SHARDED_FSDP_H
#define SHARDED_FSDP_H

#include "core/points.h"
#include "sharded/place.h"
#include "sharded/unit.h"

struct subject;

struct transfer { /* one tensor between its shards and its gathered form */
    const struct peers *peers;
    void *shard; /* own piece */
    void *whole; /* gathered form */
};
/* Collective: every whole is complete afterwards; shards of type `from` are cast to `to` before they travel. `what`
 * names the tensors in the ledger. */
enum status fsdp_gather(struct subject *subject, const char *what, enum dtype from, enum dtype to,
                        const struct transfer *items, int count);
/* Collective: each whole is this rank's part of a sum; the own piece of the sum is ADDED to the shard. Both are of the
 * wide type. */
enum status fsdp_reduce(struct subject *subject, const char *what, const struct transfer *items, int count);

/* Collective. All weights of the unit and the acting slot's factors, recorded under `phase` (gather or regather). */
enum status fsdp_unit_gather(struct subject *subject, struct unit unit, enum phase phase, int micro);
/* Frees what the gather made, merged weights too. */
void fsdp_unit_reshard(struct subject *subject, struct unit unit);
/* The same, but a piece of what was gathered stays for the regather, if the job has groups of N ranks. */
enum status fsdp_unit_narrow(struct subject *subject, struct unit unit);
/* Collective. Reduces the unit's partial gradients onto the shards' running sums and records these. */
enum status fsdp_unit_reduce(struct subject *subject, struct unit unit, int micro);

#endif
