/* The whole table in one type. REAL_BITS is 64 or 32; included once for each by ops_kernels.c. */
#if REAL_BITS == 64
#define REAL double
#define REAL_NAME(name) name##_f64
#define REAL_FMA __builtin_fma
#define REAL_SQRT __builtin_sqrt
#define REAL_EXP elementary_inline_exp
#define REAL_LOG elementary_inline_log
#else
#define REAL float
#define REAL_NAME(name) name##_f32
#define REAL_FMA __builtin_fmaf
#define REAL_SQRT __builtin_sqrtf
#define REAL_EXP elementary_inline_expf
#define REAL_LOG elementary_inline_logf
#endif

#include "sharded/ops_vector.inc.h"
#include "sharded/ops_matmul.inc.h"
#include "sharded/ops_rows.inc.h"
#include "sharded/ops_attention.inc.h"
#include "sharded/ops_experts.inc.h"
#include "sharded/ops_loss.inc.h"
#include "sharded/ops_update.inc.h"

#undef REAL
#undef REAL_NAME
#undef REAL_FMA
#undef REAL_SQRT
#undef REAL_EXP
#undef REAL_LOG
#undef VEC
#undef LANES
#undef SQUARE
#undef MATMUL_ROWS
#undef MATMUL_VECTORS
#undef MATMUL_COLUMNS
#undef MATMUL_DEPTH
#undef MATMUL_BLOCK
#undef MATMUL_PITCH
#undef ROWS_ABREAST
#undef TOKENS_ABREAST
#undef VOCAB_BLOCK
