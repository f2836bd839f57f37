#include "reference/optimizer.h"

/* Double precision on both sides, whatever the subject's dtype. */
static struct arithmetic wide_arithmetic(void) {
    return arithmetic_make(DTYPE_F64, false, true);
}

struct norm {
    struct sum squares;
    int64_t terms;
    struct num largest;
};

static const struct value *gradient_of(const struct reference *r, const struct holding *holding,
                                       const struct param *param, enum part part) {
    return &holding->gradient[inventory_index(r->inventory, param)].part[part];
}

/* |max a' - max a| <= max |a' - a|; a NaN is the largest of all. */
static void meet(struct num *largest, struct num g) {
    if (!isnan(largest->x) && !(fabs(g.x) <= largest->x))
        largest->x = fabs(g.x);
    if (!isnan(largest->e) && !(g.e <= largest->e))
        largest->e = g.e;
}

static void measure(const struct value *g, struct norm *norm) {
    for (int64_t i = 0, n = value_elements(g); i < n; i++) {
        sum_product(&norm->squares, num_at(g, i), num_at(g, i));
        meet(&norm->largest, num_at(g, i));
    }
    norm->terms += value_elements(g);
}

/* sqrt(sum g^2): both sides square, add and take the root in double, v = 2^-53, and in other orders: n roundings of
 * each in the sum, one of each in the root. The subject rounds the result once more to its own dtype; the judge's
 * double e covers that in float64, where it is none. */
static struct num root_of_squares(const struct arithmetic *m, const struct norm *norm) {
    struct arithmetic wide = wide_arithmetic();
    struct num root = num_root(&wide, sum_close(&wide, &norm->squares, 2 * norm->terms));
    root.e += wide.u * root.x;
    return m->dtype == DTYPE_F64 ? root : num_fin(m, root.x, root.e, 1);
}

static double factor_at(const struct arithmetic *m, double max, double norm) {
    double shifted = norm + 1e-6;
    return arithmetic_constant(m, shifted > 0 ? fmin(1, max / shifted) : 1);
}

/* min(1, max/(norm + 1e-6)) in double, then rounded: both sides do the same three IEEE operations on the same norm, so
 * nothing is added to what the norm's own error makes of it. The factor falls with the norm, and rounding is monotone:
 * it lies between those of norm + e and norm - e. A norm that is no number gives a factor that is none. */
static struct num factor_of_norm(const struct arithmetic *m, double max, struct num norm) {
    if (isnan(norm.x))
        return (struct num){NAN, NAN};
    double x = factor_at(m, max, norm.x);
    double above = factor_at(m, max, norm.x - norm.e) - x, below = x - factor_at(m, max, norm.x + norm.e);
    return (struct num){x, fmax(above, below)};
}

static enum status measure_step(struct reference *r, struct holding *holding, const struct param *param, enum part part,
                                const void *context) {
    struct norm *const *norm = context;
    measure(gradient_of(r, holding, param, part), *norm);
    return STATUS_OK;
}

/* Over exactly the tenant's trained tensors, each element once. */
static enum status emit_norm(struct reference *r, struct holding *holding, struct num *out) {
    struct norm norm = {0}, *to = &norm;
    if (!r->arithmetic.dry)
        TRY(each_trained(r, holding, measure_step, &to));
    struct num made = r->job->clip.infinity ? norm.largest : root_of_squares(&r->arithmetic, &norm);
    struct point point = reference_scalar_point(r, PHASE_CLIP, -1, "norm");
    struct value value;
    TRY(value_scalar(&r->arithmetic, &value, made.x, made.e));
    enum status status = reference_emit(r, &point, &value);
    *out = r->arithmetic.dry ? num_exact(0) : num_at(&value, 0);
    value_free(&value);
    return status;
}

/* Multiplying by 1 does not round. */
static enum status clip_step(struct reference *r, struct holding *holding, const struct param *param, enum part part,
                             const void *context) {
    const struct num *factor = context;
    struct value *g = &holding->gradient[inventory_index(r->inventory, param)].part[part];
    bool whole = factor->x == 1 && factor->e == 0;
    for (int64_t i = 0, n = r->arithmetic.dry || whole ? 0 : value_elements(g); i < n; i++)
        num_set(g, i, num_multiply(&r->arithmetic, num_at(g, i), *factor));
    struct point point = reference_parameter_point(r, PHASE_CLIP, -1, param, part);
    return reference_emit(r, &point, g);
}

enum status reference_clip(struct reference *r, struct holding *holding) {
    struct num norm;
    if (!r->job->clip.present && !r->options.norm)
        return STATUS_OK;
    TRY(emit_norm(r, holding, &norm));
    if (!r->job->clip.present)
        return STATUS_OK;
    struct num factor = factor_of_norm(&r->arithmetic, r->job->clip.max, norm);
    return each_trained(r, holding, clip_step, &factor);
}
