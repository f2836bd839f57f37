/* Data made from a global index and a seed: the same element whatever the sharding, the rank or the order of calls.
 *
 * hash: splitmix64 finaliser over (seed, stream, index); stream is random_stream(name) (FNV-1a of the tensor's name).
 */
#ifndef CORE_RANDOM_H
#define CORE_RANDOM_H

#include <stdint.h>

uint64_t random_stream(const char *name);
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in (-1, 1), a multiple of 2^-23: exact in float32 (and so in float64). */
double random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform integer in [0, n), n > 0. */
int64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n);

/* Index-coded data: (index + 1) * 2^-k with the smallest k that brings the last of `elements` values below 1. Each
 * element says where it came from. Exact if elements + 1 <= 2^53 (float64), 2^24 (float32), 2^8 (bfloat16). */
double index_coded(int64_t index, int64_t elements);
int64_t index_decoded(double value, int64_t elements); /* -1 if the value is not one of them */

#endif
