#include "core/checkpoint_made.h"

#include "core/random.h"

#include <inttypes.h>
#include <math.h>

/* `elements` values index-coded need elements + 1 <= 2^p (p = bits of the significand). */
static enum status check_exact(const struct param *param, int64_t elements, enum dtype dtype, const char *where) {
    int bits = dtype == DTYPE_F64 ? 53 : dtype == DTYPE_F32 ? 24 : 8;
    if (elements + 1 > (int64_t)1 << bits)
        return status_fail(STATUS_INPUT,
                           "%s: index data for '%s' is not exact in %s: %" PRId64 " elements, expected less than 2^%d",
                           where, param->name, dtype_word(dtype), elements, bits);
    return STATUS_OK;
}

/* value = base + scale * uniform. A bias has the scale of its projection: 1/sqrt(in of the projection). */
static void distribution(const struct model_config *config, const struct param *param, double *base, double *scale) {
    *base = 0;
    switch (param->kind) {
    case PARAM_EMBED:
        *scale = 1;
        return;
    case PARAM_INPUT_NORM:
    case PARAM_Q_NORM:
    case PARAM_K_NORM:
    case PARAM_POST_NORM:
    case PARAM_NORM:
        *base = 1;
        *scale = 0.2;
        return;
    case PARAM_Q_BIAS:
    case PARAM_K_BIAS:
    case PARAM_V_BIAS:
        *scale = 1 / sqrt((double)config->hidden);
        return;
    case PARAM_O_BIAS:
        *scale = 1 / sqrt((double)(config->heads * config->head_dim));
        return;
    default:
        *scale = 1 / sqrt((double)param->shape[param->ndim - 1]);
        return;
    }
}

enum status checkpoint_made_read(const struct model_config *config, const struct param *param, uint64_t seed,
                                 enum data_kind data, enum dtype dtype, const char *where, struct tensor *out) {
    TRY(tensor_make(out, dtype, param->ndim, param->shape));
    int64_t elements = tensor_elements(out);
    if (data == DATA_INDEX) {
        enum status status = check_exact(param, elements, dtype, where);
        if (status != STATUS_OK) {
            tensor_free(out);
            return status;
        }
        for (int64_t i = 0; i < elements; i++)
            tensor_set(out, i, index_coded(i, elements));
        return STATUS_OK;
    }
    double base, scale;
    distribution(config, param, &base, &scale);
    uint64_t stream = random_stream(param->name);
    for (int64_t i = 0; i < elements; i++)
        tensor_set(out, i, dtype_round(DTYPE_F32, base + scale * random_uniform(seed, stream, (uint64_t)i)));
    return STATUS_OK;
}
