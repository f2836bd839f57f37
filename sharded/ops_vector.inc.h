/* One vector of REAL in this instruction set: VEC, LANES, and load, store, broadcast, maximum, fused multiply-add.
 * _part touches the first `count` lanes only, 1 <= count <= LANES. */
#if defined(__AVX512F__)
#if REAL_BITS == 64
#define VEC __m512d
#define MM(operation) _mm512_##operation##_pd
#define LANE_MASK(count) ((__mmask8)((1u << (count)) - 1))
#else
#define VEC __m512
#define MM(operation) _mm512_##operation##_ps
#define LANE_MASK(count) ((__mmask16)((1u << (count)) - 1))
#endif
#define LANES (512 / REAL_BITS)

static inline VEC REAL_NAME(load_part)(const REAL *from, int64_t count) {
    return MM(maskz_loadu)(LANE_MASK(count), from);
}

static inline void REAL_NAME(store_part)(REAL *to, VEC value, int64_t count) {
    MM(mask_storeu)(to, LANE_MASK(count), value);
}

#elif defined(__AVX2__)
#if REAL_BITS == 64
#define VEC __m256d
#define MM(operation) _mm256_##operation##_pd
#define LANE_MASK(count) _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3))
#else
#define VEC __m256
#define MM(operation) _mm256_##operation##_ps
#define LANE_MASK(count) _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#endif
#define LANES (256 / REAL_BITS)

static inline VEC REAL_NAME(load_part)(const REAL *from, int64_t count) {
    return MM(maskload)(from, LANE_MASK(count));
}

static inline void REAL_NAME(store_part)(REAL *to, VEC value, int64_t count) {
    MM(maskstore)(to, LANE_MASK(count), value);
}

#else
#define VEC REAL
#define LANES 1

static inline VEC REAL_NAME(load)(const REAL *from) {
    return *from;
}

static inline void REAL_NAME(store)(REAL *to, VEC value) {
    *to = value;
}

static inline VEC REAL_NAME(load_part)(const REAL *from, int64_t count) {
    (void)count;
    return *from;
}

static inline void REAL_NAME(store_part)(REAL *to, VEC value, int64_t count) {
    (void)count;
    *to = value;
}

static inline VEC REAL_NAME(broadcast)(REAL value) {
    return value;
}

static inline VEC REAL_NAME(fuse)(VEC a, VEC b, VEC c) {
    return REAL_FMA(a, b, c);
}

static inline VEC REAL_NAME(larger)(VEC a, VEC b) {
    return a > b ? a : b;
}
#endif

#ifdef MM
static inline VEC REAL_NAME(load)(const REAL *from) {
    return MM(loadu)(from);
}

static inline void REAL_NAME(store)(REAL *to, VEC value) {
    MM(storeu)(to, value);
}

static inline VEC REAL_NAME(broadcast)(REAL value) {
    return MM(set1)(value);
}

static inline VEC REAL_NAME(fuse)(VEC a, VEC b, VEC c) {
    return MM(fmadd)(a, b, c);
}

static inline VEC REAL_NAME(larger)(VEC a, VEC b) {
    return MM(max)(a, b);
}
#undef MM
#undef LANE_MASK
#endif
