/* Linear maps y = x W^T with adapters: W is the gathered weight [out,in], or a pack of experts [experts,out,in] whose
 * rows lie one block behind the other. Where the acting tenant adapts W, W + D stands for it, D = scale * B[:, :r]
 * A[:r, :]. */
#ifndef SHARDED_LINEAR_H
#define SHARDED_LINEAR_H

#include "core/points.h"
#include "sharded/unit.h"

struct subject;

struct blocks { /* rows begin[e] .. begin[e+1]-1 belong to expert e; a plain weight has one block */
    int64_t count;
    const int64_t *begin; /* [count + 1] */
};

/* W + D of every parameter of a gathered unit that the acting tenant adapts; records D and W + D (PART_MERGED), or W +
 * D alone (PART_REMERGED). */
enum status linear_merge_unit(struct subject *subject, struct unit unit, enum part part, int micro);

/* y = x W^T, y in the type `to`. */
void linear_forward(const struct subject *subject, const struct param *param, const struct blocks *blocks,
                    const void *x, void *y, enum dtype to);
/* dx = dy W, or dx += dy W, the chain of fused multiply-adds going on from dx; dx in the type `to`. */
void linear_backward(const struct subject *subject, const struct param *param, const struct blocks *blocks,
                     const void *dy, void *dx, enum dtype to, bool accumulate);
/* If the acting tenant adapts the parameter or its base trains: G = dy^T x over this rank's rows (0 where an expert has
 * none), kept as the base's partial gradient if that trains. If the tenant adapts it, then the factors' partial
 * gradients dA = scale * B^T G, dB = scale * G A^T, 0 in rows >= r. Records all of them. */
enum status linear_gradient(struct subject *subject, const struct param *param, int micro, const struct blocks *blocks,
                            const void *dy, const void *x);

#endif
