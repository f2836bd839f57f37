/* Matrix product in REAL: C[m,n] (+)= A[m,k] B[k,n], every element one chain of fused multiply-adds over ascending k.
 *
 * k is cut into slices of MATMUL_DEPTH; between slices the chain rests in C, which changes no bit. Within a slice B is
 * taken in panels of MATMUL_COLUMNS, packed (row by row, columns next to each other) onto the stack where it does not
 * already lie so, and stays in the first-level cache while all rows of A pass over it. A tile of MATMUL_ROWS rows by
 * one panel lives in registers. A is read where it lies: one broadcast feeds both vectors of the panel. */
#if LANES * REAL_BITS == 256
#define MATMUL_ROWS 6 /* 12 sums + 2 of B + 1 of A of 16 registers */
#else
#define MATMUL_ROWS 8
#endif
#define MATMUL_VECTORS 2
#define MATMUL_COLUMNS (MATMUL_VECTORS * LANES)
#define MATMUL_DEPTH 256
#define MATMUL_BLOCK (8192 / REAL_BITS)               /* rows of A in a copy: 272 KiB */
#define MATMUL_PITCH (MATMUL_DEPTH + 512 / REAL_BITS) /* of its rows: not a power of two */

struct REAL_NAME(tile) {
    int64_t depth;
    const REAL *a;
    int64_t a_row, a_col;
    const REAL *b;
    int64_t b_row;
    REAL *c;
    int64_t c_row;
    int64_t last;    /* columns in the last vector */
    bool accumulate; /* the chain starts from C, else from 0 */
};

static inline __attribute__((always_inline)) void REAL_NAME(tile_run)(int rows, int vectors,
                                                                      const struct REAL_NAME(tile) * tile) {
    VEC sum[MATMUL_ROWS][MATMUL_VECTORS];
    const REAL *a = tile->a, *b = tile->b;
    int64_t a_row = tile->a_row, a_col = tile->a_col, b_row = tile->b_row;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            const REAL *c = tile->c + i * tile->c_row + v * LANES;
            sum[i][v] = !tile->accumulate  ? REAL_NAME(broadcast)(0)
                        : v == vectors - 1 ? REAL_NAME(load_part)(c, tile->last)
                                           : REAL_NAME(load)(c);
        }
    for (int64_t l = 0; l < tile->depth; l++) {
        VEC row[MATMUL_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            row[v] = REAL_NAME(load)(b + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            VEC factor = REAL_NAME(broadcast)(a[i * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[i][v] = REAL_NAME(fuse)(factor, row[v], sum[i][v]);
        }
        a += a_col;
        b += b_row;
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            REAL *c = tile->c + i * tile->c_row + v * LANES;
            if (v == vectors - 1)
                REAL_NAME(store_part)(c, sum[i][v], tile->last);
            else
                REAL_NAME(store)(c, sum[i][v]);
        }
}

#define TILE(rows, vectors)                                                                                            \
    static void REAL_NAME(tile_##rows##_##vectors)(const struct REAL_NAME(tile) * tile) {                              \
        REAL_NAME(tile_run)(rows, vectors, tile);                                                                      \
    }
#define TILE_PAIR(rows) TILE(rows, 1) TILE(rows, 2)
TILE_PAIR(1)
TILE_PAIR(2)
TILE_PAIR(3)
TILE_PAIR(4)
TILE_PAIR(5)
TILE_PAIR(6)
#if MATMUL_ROWS == 8
TILE_PAIR(7)
TILE_PAIR(8)
#endif
#undef TILE
#undef TILE_PAIR

#define TILE_NAMES(rows)                                                                                               \
    { REAL_NAME(tile_##rows##_1), REAL_NAME(tile_##rows##_2) }
static void (*const REAL_NAME(tiles)[MATMUL_ROWS][MATMUL_VECTORS])(const struct REAL_NAME(tile) *) = {
    TILE_NAMES(1), TILE_NAMES(2), TILE_NAMES(3), TILE_NAMES(4), TILE_NAMES(5), TILE_NAMES(6),
#if MATMUL_ROWS == 8
    TILE_NAMES(7), TILE_NAMES(8),
#endif
};
#undef TILE_NAMES

/* A matrix is turned SQUARE by SQUARE. A register of 32 bytes takes half a row and half of the row SQUARE/2 below it;
 * its two halves then turn side by side. */
#if LANES == 1
#define SQUARE 1

static inline void REAL_NAME(turn_square)(const REAL *from, int64_t from_row, REAL *to, int64_t to_row) {
    (void)from_row;
    (void)to_row;
    *to = *from;
}
#else
#define SQUARE (256 / REAL_BITS)
typedef REAL REAL_NAME(half) __attribute__((vector_size(16), aligned(REAL_BITS / 8), may_alias));
typedef REAL REAL_NAME(full) __attribute__((vector_size(32), aligned(REAL_BITS / 8), may_alias));

static inline REAL_NAME(full) REAL_NAME(halves)(const REAL *low, const REAL *high) {
    REAL_NAME(half) x = *(const REAL_NAME(half) *)low, y = *(const REAL_NAME(half) *)high;
#if SQUARE == 4
    return __builtin_shufflevector(x, y, 0, 1, 2, 3);
#else
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7);
#endif
}

static inline void REAL_NAME(turn_square)(const REAL *from, int64_t from_row, REAL *to, int64_t to_row) {
    for (int j = 0; j < SQUARE; j += SQUARE / 2, from += SQUARE / 2) {
        REAL_NAME(full) x[SQUARE / 2];
        for (int i = 0; i < SQUARE / 2; i++)
            x[i] = REAL_NAME(halves)(from + i * from_row, from + (i + SQUARE / 2) * from_row);
#if SQUARE == 4
        *(REAL_NAME(full) *)(to + j * to_row) = __builtin_shufflevector(x[0], x[1], 0, 4, 2, 6);
        *(REAL_NAME(full) *)(to + (j + 1) * to_row) = __builtin_shufflevector(x[0], x[1], 1, 5, 3, 7);
#else
        REAL_NAME(full) low01 = __builtin_shufflevector(x[0], x[1], 0, 8, 1, 9, 4, 12, 5, 13);
        REAL_NAME(full) low23 = __builtin_shufflevector(x[2], x[3], 0, 8, 1, 9, 4, 12, 5, 13);
        REAL_NAME(full) high01 = __builtin_shufflevector(x[0], x[1], 2, 10, 3, 11, 6, 14, 7, 15);
        REAL_NAME(full) high23 = __builtin_shufflevector(x[2], x[3], 2, 10, 3, 11, 6, 14, 7, 15);
        *(REAL_NAME(full) *)(to + j * to_row) = __builtin_shufflevector(low01, low23, 0, 1, 8, 9, 4, 5, 12, 13);
        *(REAL_NAME(full) *)(to + (j + 1) * to_row) = __builtin_shufflevector(low01, low23, 2, 3, 10, 11, 6, 7, 14, 15);
        *(REAL_NAME(full) *)(to + (j + 2) * to_row) = __builtin_shufflevector(high01, high23, 0, 1, 8, 9, 4, 5, 12, 13);
        *(REAL_NAME(full) *)(to + (j + 3) * to_row) =
            __builtin_shufflevector(high01, high23, 2, 3, 10, 11, 6, 7, 14, 15);
#endif
    }
}
#endif

/* to[j * to_row + i] = from[i * from_row + j] */
static void REAL_NAME(turn)(int64_t rows, int64_t columns, const REAL *from, int64_t from_row, REAL *to,
                            int64_t to_row) {
    int64_t whole_rows = rows / SQUARE * SQUARE, whole_columns = columns / SQUARE * SQUARE;
    for (int64_t i = 0; i < whole_rows; i += SQUARE)
        for (int64_t j = 0; j < whole_columns; j += SQUARE)
            REAL_NAME(turn_square)(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = j < whole_columns ? whole_rows : 0; i < rows; i++)
            to[j * to_row + i] = from[i * from_row + j];
}

static inline void REAL_NAME(pack_copied)(int64_t depth, int64_t columns, const REAL *b, int64_t b_row, REAL *packed) {
    for (int64_t l = 0; l < depth; l++)
        for (int64_t j = 0; j < columns; j += LANES) {
            int64_t count = columns - j < LANES ? columns - j : LANES;
            REAL_NAME(store)(packed + l * MATMUL_COLUMNS + j, REAL_NAME(load_part)(b + l * b_row + j, count));
        }
}

/* packed[l * MATMUL_COLUMNS + j] = B(l, j). Lanes behind the last column are 0: no sum that is kept looks at them. */
static inline void REAL_NAME(pack)(int64_t depth, int64_t columns, const REAL *b, int64_t b_row, int64_t b_col,
                                   REAL *packed) {
    if (b_col == 1) {
        REAL_NAME(pack_copied)(depth, columns, b, b_row, packed);
        return;
    }
    int64_t padded = (columns + LANES - 1) / LANES * LANES;
    for (int64_t l = 0; l < depth && columns < padded; l++)
        for (int64_t j = columns; j < padded; j++)
            packed[l * MATMUL_COLUMNS + j] = 0;
    if (b_row == 1)
        REAL_NAME(turn)(columns, depth, b, b_col, packed, MATMUL_COLUMNS);
    else
        for (int64_t l = 0; l < depth; l++)
            for (int64_t j = 0; j < columns; j++)
                packed[l * MATMUL_COLUMNS + j] = b[l * b_row + j * b_col];
}

/* All rows over one panel, in blocks of nearly equal height: 9 rows are 5 + 4, not 8 + 1, which would wait for its
 * sums. */
static inline void REAL_NAME(sweep)(int64_t rows, int vectors, struct REAL_NAME(tile) * tile) {
    int64_t blocks = (rows + MATMUL_ROWS - 1) / MATMUL_ROWS;
    for (int64_t left = rows; blocks > 0; blocks--) {
        int64_t height = (left + blocks - 1) / blocks;
        REAL_NAME(tiles)[height - 1][vectors - 1](tile);
        tile->a += height * tile->a_row;
        tile->c += height * tile->c_row;
        left -= height;
    }
}

static void REAL_NAME(matmul_panel)(const struct matmul *p, int64_t k, int64_t depth, int64_t j, int64_t columns,
                                    REAL *packed) {
    const REAL *a = p->a, *b = p->b;
    REAL *c = p->c;
    struct REAL_NAME(tile) tile = {
        .depth = depth,
        .a = a + k * p->a_col,
        .a_row = p->a_row,
        .a_col = p->a_col,
        .b = b + k * p->b_row + j * p->b_col,
        .b_row = p->b_row,
        .c = c + j,
        .c_row = p->c_row,
        .last = (columns - 1) % LANES + 1,
        .accumulate = p->accumulate || k > 0,
    };
    /* Whole vectors that lie ready and that few tiles read are not worth a copy. */
    if (p->b_col != 1 || columns % LANES || p->m > 2 * MATMUL_ROWS) {
        REAL_NAME(pack)(depth, columns, tile.b, p->b_row, p->b_col, packed);
        tile.b = packed;
        tile.b_row = MATMUL_COLUMNS;
    }
    REAL_NAME(sweep)(p->m, columns > LANES ? 2 : 1, &tile);
}

static void REAL_NAME(matmul_in_place)(const struct matmul *p) {
    REAL packed[MATMUL_DEPTH * MATMUL_COLUMNS] __attribute__((aligned(64)));
    for (int64_t k = 0; k < p->k; k += MATMUL_DEPTH) {
        int64_t depth = p->k - k < MATMUL_DEPTH ? p->k - k : MATMUL_DEPTH;
        for (int64_t j = 0; j < p->n; j += MATMUL_COLUMNS) {
            int64_t columns = p->n - j < MATMUL_COLUMNS ? p->n - j : MATMUL_COLUMNS;
            REAL_NAME(matmul_panel)(p, k, depth, j, columns, packed);
        }
    }
}

/* The same, block by block of a copy of A that lies well. */
static __attribute__((noinline)) void REAL_NAME(matmul_copied)(const struct matmul *p) {
    REAL copy[MATMUL_BLOCK * MATMUL_PITCH] __attribute__((aligned(64)));
    for (int64_t k = 0; k < p->k; k += MATMUL_DEPTH)
        for (int64_t i = 0; i < p->m; i += MATMUL_BLOCK) {
            struct matmul block = *p;
            const REAL *a = (const REAL *)p->a + i * p->a_row + k * p->a_col;
            block.m = p->m - i < MATMUL_BLOCK ? p->m - i : MATMUL_BLOCK;
            block.k = p->k - k < MATMUL_DEPTH ? p->k - k : MATMUL_DEPTH;
            block.accumulate = p->accumulate || k > 0;
            block.b = (const REAL *)p->b + k * p->b_row;
            block.c = (REAL *)p->c + i * p->c_row;
            block.a = copy;
            block.a_row = MATMUL_PITCH;
            block.a_col = 1;
            if (p->a_row == 1)
                REAL_NAME(turn)(block.k, block.m, a, p->a_col, copy, MATMUL_PITCH);
            else
                for (int64_t r = 0; r < block.m; r++)
                    memcpy(copy + r * MATMUL_PITCH, a + r * p->a_row, (size_t)block.k * sizeof(REAL));
            REAL_NAME(matmul_in_place)(&block);
        }
}

/* Reading A where it lies is slow if it is turned, or if its rows are a multiple of 4 KiB apart (one cache set for
 * all); a copy pays once enough panels read it. */
static bool REAL_NAME(copy_pays)(const struct matmul *p) {
    bool turned = p->a_row == 1 && p->a_col != 1;
    bool aliased = p->a_col == 1 && p->a_row * (REAL_BITS / 8) % 4096 == 0;
    return (turned || aliased) && p->n >= 8 * MATMUL_COLUMNS && p->m >= 4 * MATMUL_ROWS && p->k >= 4 * MATMUL_ROWS;
}

static void REAL_NAME(matmul)(const struct matmul *p) {
    if (p->m <= 0 || p->n <= 0)
        return;
    if (p->k <= 0 && !p->accumulate)
        for (int64_t i = 0; i < p->m; i++)
            memset((REAL *)p->c + i * p->c_row, 0, (size_t)p->n * sizeof(REAL));
    if (REAL_NAME(copy_pays)(p))
        REAL_NAME(matmul_copied)(p);
    else
        REAL_NAME(matmul_in_place)(p);
}
