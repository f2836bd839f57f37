/* Packed experts: copies of tokens go to their experts (exchanged rows), come back, and are added with their weights.
 */
#ifndef REFERENCE_EXPERTS_H
#define REFERENCE_EXPERTS_H

#include "reference/router.h"

/* out [N*k,H]: row r is the token that row r stands for; x [..,H]. Movement. */
enum status value_dispatch_tokens(const struct arithmetic *m, const struct routing *routing, const struct value *x,
                                  struct value *out);
/* out [N*k,H] of by_choice [N,k,H], and back. Movement. */
enum status value_to_rows(const struct arithmetic *m, const struct routing *routing, const struct value *by_choice,
                          struct value *out);
enum status value_to_choices(const struct arithmetic *m, const struct routing *routing, const struct value *rows,
                             struct value *out);
/* out [N*k,out]: each row times its expert's weight [E,out,in]; dx = dy @ W; G [E,out,in] = sum over an expert's rows
 * dy x. */
enum status value_expert_linear(const struct arithmetic *m, const struct routing *routing, const struct value *x,
                                const struct value *weight, struct value *out);
enum status value_expert_input_gradient(const struct arithmetic *m, const struct routing *routing,
                                        const struct value *dy, const struct value *weight, struct value *out);
enum status value_expert_weight_gradient(const struct arithmetic *m, const struct routing *routing,
                                         const struct value *dy, const struct value *x, struct value *out);
/* gate_up [rows,2I] -> [rows,I] = silu(gate)*up, and its gradient [rows,2I]. */
enum status value_swiglu_packed(const struct arithmetic *m, const struct value *gate_up, struct value *out);
enum status value_swiglu_packed_gradient(const struct arithmetic *m, const struct value *gate_up,
                                         const struct value *dh, struct value *out);
/* The same with gate and up apart, in the shape of gate. */
enum status value_swiglu(const struct arithmetic *m, const struct value *gate, const struct value *up,
                         struct value *out);
enum status value_swiglu_gradient(const struct arithmetic *m, const struct value *gate, const struct value *up,
                                  const struct value *dh, struct value *d_gate, struct value *d_up);
/* out [B,T,H] = sum over choices in ascending expert of weight [N,k] * output [N,k,H]. */
enum status value_combine(const struct arithmetic *m, const struct routing *routing, const struct value *weight,
                          const struct value *output, const struct value *like, struct value *out);
/* d_output [N,k,H] = weight * dy;  d_weight [N,k] = dy . output. */
enum status value_combine_d_output(const struct arithmetic *m, const struct routing *routing,
                                   const struct value *weight, const struct value *dy, struct value *out);
enum status value_combine_d_weight(const struct arithmetic *m, const struct routing *routing,
                                   const struct value *output, const struct value *dy, struct value *out);
/* out (shape of `like`) = sum over choices in ascending expert of copies [N,k,H], then + rest [N,H]. */
enum status value_collect(const struct arithmetic *m, const struct routing *routing, const struct value *copies,
                          const struct value *rest, const struct value *like, struct value *out);

#endif
