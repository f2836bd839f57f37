/* Values with bounds: memory, and what the subject's precision is. */
#ifndef REFERENCE_VALUE_H
#define REFERENCE_VALUE_H

#include "reference/reference.h"

/* How values are made, and whom the bounds are about. */
struct arithmetic {
    enum dtype dtype; /* of the subject's arithmetic and constants: float32 in a bfloat16 job */
    double u;         /* its unit roundoff */
    double eta;       /* results below may be flushed to zero: the smallest normal number */
    double largest;   /* results beyond may be infinite */
    bool dry;         /* values have shapes only */
    bool bounds;      /* values have e */
};

struct arithmetic arithmetic_make(enum dtype dtype, bool dry, bool bounds);
/* A constant as the subject holds it. */
double arithmetic_constant(const struct arithmetic *m, double exact);

int64_t value_elements(const struct value *value);
/* Elements of all dims but the last. */
int64_t value_rows(const struct value *value);
int64_t value_last(const struct value *value);
/* x and e are born NaN: an element that nobody writes fails every check. The old content of `out` is not freed. */
enum status value_new(const struct arithmetic *m, struct value *out, int ndim, const int64_t *shape);
enum status value_like(const struct arithmetic *m, struct value *out, const struct value *model);
enum status value_copy(const struct arithmetic *m, struct value *out, const struct value *from);
enum status value_scalar(const struct arithmetic *m, struct value *out, double x, double e);
void value_zero(struct value *value); /* exact zeros */
/* A stored tensor (of the type that the subject stores), rounded to what the subject computes in. */
enum status value_from_tensor(const struct arithmetic *m, struct value *out, const struct tensor *tensor);
/* The same elements under another shape. */
void value_reshape(struct value *value, int ndim, const int64_t *shape);
/* mag, born |x|; see reference.h. */
enum status value_add_magnitude(struct value *value);

#endif
