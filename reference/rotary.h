/* Rotary positions 0..T-1; halves (i, i + d/2) of a head pair up. */
#ifndef REFERENCE_ROTARY_H
#define REFERENCE_ROTARY_H

#include "reference/value.h"

/* cos and sin [T,d/2] of pos * theta^(-2i/d). */
enum status value_rotary_tables(const struct arithmetic *m, int64_t tokens, int64_t head_dim, double theta,
                                struct value *cosine, struct value *sine);
/* x, out [B,T,heads,d]: y1 = x1 c - x2 s, y2 = x2 c + x1 s; backward: s negated. */
enum status value_rotary(const struct arithmetic *m, const struct value *x, const struct value *cosine,
                         const struct value *sine, bool backward, struct value *out);

#endif
