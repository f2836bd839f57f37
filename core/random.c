#include "core/random.h"

#include <math.h>

__extension__ typedef unsigned __int128 wide;

/* the golden ratio's fraction: splitmix64's step (Steele, Lea, Flood 2014; Vigna's splitmix64.c) */
static const uint64_t STEP = 0x9e3779b97f4a7c15u;

/* splitmix64's finaliser */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t random_stream(const char *name) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, 64 bits */
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

/* Output number `index` of the splitmix64 generator that starts at mix(seed + STEP) ^ stream. */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t start = mix(seed + STEP) ^ stream;
    return mix(start + (index + 1) * STEP);
}

double random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    int64_t half = ((int64_t)1 << 23) - 1; /* -half .. half: 2^24 - 1 values, neither -1 nor 1 */
    return (double)(random_below(seed, stream, index, 2 * half + 1) - half) * 0x1p-23;
}

/* The upper half of bits * n: no value is likelier than another by more than n / 2^64. */
int64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n) {
    return (int64_t)(((wide)random_bits(seed, stream, index) * (wide)n) >> 64);
}

/* The smallest k with elements * 2^-k < 1: the length of `elements` in bits. */
static int code_shift(int64_t elements) {
    int k = 0;
    while (k < 63 && elements >> k != 0)
        k++;
    return k;
}

double index_coded(int64_t index, int64_t elements) {
    return ldexp((double)(index + 1), -code_shift(elements));
}

int64_t index_decoded(double value, int64_t elements) {
    double place = ldexp(value, code_shift(elements));
    if (!(place >= 1 && place <= (double)elements) || place != floor(place))
        return -1;
    return (int64_t)place - 1;
}
