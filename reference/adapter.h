/* LoRA as PEFT applies it, on slot tensors A [E,R,in], B [E,out,R] (2-D: [R,in], [out,R]; E = 1 here). Only the
 * target's r of R rows are read; r, E, in, out are the target's, the scale is rounded to the subject's dtype. */
#ifndef REFERENCE_ADAPTER_H
#define REFERENCE_ADAPTER_H

#include "reference/value.h"

/* Slot tensors of a parameter, R rows: exact zeros. */
enum status value_slot_a(const struct arithmetic *m, const struct param *param, int64_t max_rank, struct value *out);
enum status value_slot_b(const struct arithmetic *m, const struct param *param, int64_t max_rank, struct value *out);
/* What a free slot holds: A core/job.h's slot_initial, B zero. */
void value_initial_slot(const struct arithmetic *m, enum dtype stored, const struct param *param, int slot,
                        struct value *a, struct value *b);
/* The adapter file's flat tensors into the slot's rows k < r, rounded; exact zeros beyond, or NaN. */
void value_load_slot(const struct arithmetic *m, enum dtype stored, const struct adapter_target *target,
                     int64_t max_rank, bool beyond_nan, struct value *a, struct value *b);
/* Row q of R that element `at` of A or of B belongs to; `in` is that of the linear map. */
int64_t slot_row(enum part part, int64_t max_rank, int64_t in, int64_t at);
/* PEFT's flat form, x and e: [E*r,in] and [out,r*E]. */
enum status value_flat_a(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                         const struct value *slot, struct value *out);
enum status value_flat_b(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                         const struct value *slot, struct value *out);

/* D, in the parameter's shape: D[e,o,i] = scale * sum over q < r of B[e,o,q] A[e,q,i]. */
enum status value_delta(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                        const struct value *a, const struct value *b, struct value *out);
/* From G, the gradient of the effective weight, in slot form, rows >= r exact 0:
 * dA[e,q,i] = scale * sum_o B[e,o,q] G[e,o,i];  dB[e,o,q] = scale * sum_i G[e,o,i] A[e,q,i]. */
enum status value_delta_gradient_a(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                                   const struct value *g, const struct value *b, struct value *out);
enum status value_delta_gradient_b(const struct arithmetic *m, const struct adapter_target *target, int64_t max_rank,
                                   const struct value *g, const struct value *a, struct value *out);

#endif
