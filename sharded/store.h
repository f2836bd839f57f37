/* The base model's weights: every parameter's shard, and its whole while its unit is gathered. */
#ifndef SHARDED_STORE_H
#define SHARDED_STORE_H

#include "core/inventory.h"
#include "sharded/place.h"
#include "sharded/trained.h"

struct target;

struct weight {
    struct place place;     /* an alias has none */
    struct tensor shard;    /* own piece; an alias has none */
    struct tensor used;     /* the gathered form while the unit is gathered */
    struct tensor kept;     /* the own piece of `used` between forward and backward, if a group of N keeps it */
    struct tensor merged;   /* used + the acting tenant's delta, if that adapts the parameter */
    struct target *target;  /* its slots; NULL: no tenant adapts it */
    struct trained trained; /* an alias has none */
};

struct store {
    struct weight *weight; /* [inventory->count] */
};

/* Collective. Reads every parameter and keeps this rank's piece; a pack of experts comes from EP block
 * (own + rules->ep_shift) mod ep. */
enum status store_open(struct subject *subject);
void store_close(struct subject *subject);

struct weight *store_weight(const struct subject *subject, const struct param *param);
/* The memory that holds the parameter's base values: an alias' is the other parameter's. */
struct weight *store_base(const struct subject *subject, const struct param *param);
/* Whether the base values train with every tenant; an alias' do if the other parameter's do. */
bool store_trains(const struct subject *subject, const struct param *param);
/* What a linear map multiplies with: the merged weight if there is one, else the base weight. Gathered units only. */
const void *store_effective(const struct subject *subject, const struct param *param);

#endif
