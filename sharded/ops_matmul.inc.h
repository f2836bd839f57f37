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

/* Columns of B lie in memory one after another in k: turned SQUARE by SQUARE in registers of 16 bytes. */
#define SQUARE (128 / REAL_BITS)
typedef REAL REAL_NAME(quad) __attribute__((vector_size(16), aligned(REAL_BITS / 8), may_alias));

static inline void REAL_NAME(turn_square)(const REAL *from, int64_t from_row, REAL *to, int64_t to_row) {
    REAL_NAME(quad) x[SQUARE];
    for (int i = 0; i < SQUARE; i++)
        x[i] = *(const REAL_NAME(quad) *)(from + i * from_row);
#if SQUARE == 2
    *(REAL_NAME(quad) *)to = __builtin_shufflevector(x[0], x[1], 0, 2);
    *(REAL_NAME(quad) *)(to + to_row) = __builtin_shufflevector(x[0], x[1], 1, 3);
#else
    REAL_NAME(quad) low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    REAL_NAME(quad) low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    REAL_NAME(quad) high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    REAL_NAME(quad) high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    *(REAL_NAME(quad) *)to = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(REAL_NAME(quad) *)(to + to_row) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(REAL_NAME(quad) *)(to + 2 * to_row) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(REAL_NAME(quad) *)(to + 3 * to_row) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
#endif
}

/* The corner of [depth, columns] that whole squares cover; the rest is the caller's. */
static inline void REAL_NAME(pack_turned)(int64_t depth, int64_t columns, const REAL *b, int64_t b_col, REAL *packed) {
    for (int64_t j = 0; j + SQUARE <= columns; j += SQUARE)
        for (int64_t l = 0; l + SQUARE <= depth; l += SQUARE)
            REAL_NAME(turn_square)(b + j * b_col + l, b_col, packed + l * MATMUL_COLUMNS + j, MATMUL_COLUMNS);
}

static inline void REAL_NAME(pack_copied)(int64_t depth, int64_t columns, const REAL *b, int64_t b_row, REAL *packed) {
    for (int64_t l = 0; l < depth; l++)
        for (int64_t j = 0; j < columns; j += LANES) {
            int64_t count = columns - j < LANES ? columns - j : LANES;
            REAL_NAME(store)(packed + l * MATMUL_COLUMNS + j, REAL_NAME(load_part)(b + l * b_row + j, count));
        }
}

/* packed[l * MATMUL_COLUMNS + j] = B(l, j). Lanes behind the last column hold anything finite: no sum looks at them. */
static inline void REAL_NAME(pack)(int64_t depth, int64_t columns, const REAL *b, int64_t b_row, int64_t b_col,
                                   REAL *packed) {
    if (b_col == 1) {
        REAL_NAME(pack_copied)(depth, columns, b, b_row, packed);
        return;
    }
    int64_t whole_depth = 0, whole_columns = 0;
    if (b_row == 1) {
        REAL_NAME(pack_turned)(depth, columns, b, b_col, packed);
        whole_depth = depth / SQUARE * SQUARE;
        whole_columns = columns / SQUARE * SQUARE;
    }
    int64_t padded = (columns + LANES - 1) / LANES * LANES;
    for (int64_t l = 0; l < depth; l++) {
        for (int64_t j = l < whole_depth ? whole_columns : 0; j < columns; j++)
            packed[l * MATMUL_COLUMNS + j] = b[l * b_row + j * b_col];
        for (int64_t j = columns; j < padded; j++)
            packed[l * MATMUL_COLUMNS + j] = 0;
    }
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

static void REAL_NAME(matmul)(const struct matmul *p) {
    REAL packed[MATMUL_DEPTH * MATMUL_COLUMNS] __attribute__((aligned(64)));
    if (p->k <= 0 && !p->accumulate)
        for (int64_t i = 0; i < p->m && p->n > 0; i++)
            memset((REAL *)p->c + i * p->c_row, 0, (size_t)p->n * sizeof(REAL));
    if (p->m <= 0)
        return;
    for (int64_t k = 0; k < p->k; k += MATMUL_DEPTH) {
        int64_t depth = p->k - k < MATMUL_DEPTH ? p->k - k : MATMUL_DEPTH;
        for (int64_t j = 0; j < p->n; j += MATMUL_COLUMNS) {
            int64_t columns = p->n - j < MATMUL_COLUMNS ? p->n - j : MATMUL_COLUMNS;
            REAL_NAME(matmul_panel)(p, k, depth, j, columns, packed);
        }
    }
}
