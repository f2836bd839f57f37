#include "layout/line.h"

#include <string.h>

void chunk_range(int64_t n, int64_t pieces, int64_t index, bool balanced, int64_t *begin, int64_t *count) {
    if (balanced) {
        int64_t longer = n % pieces;
        *begin = index * (n / pieces) + (index < longer ? index : longer);
        *count = n / pieces + (index < longer);
        return;
    }
    int64_t piece = n / pieces + (n % pieces != 0);
    *begin = index * piece < n ? index * piece : n;
    *count = n - *begin < piece ? n - *begin : piece;
}

static int64_t size_called(const char *name, const struct axis_size *sizes, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return sizes[i].size;
    return -1;
}

static enum status bind_axis(struct line_axis *axis, int d, int64_t extent, const char *where) {
    if (axis->size >= 0 && axis->size != extent)
        return status_fail(STATUS_INPUT, "%s: axis '%s' has size %lld in 'axes', expected %lld as the tensor's dim %d",
                           where, axis->name, (long long)axis->size, (long long)extent, d);
    axis->size = extent;
    return STATUS_OK;
}

/* Product of the known sizes of a dim; the unknown axis (NULL: none). */
static enum status known_product(struct line_dim *dim, int d, const char *where, int64_t *product,
                                 struct line_axis **unknown) {
    *product = 1;
    *unknown = NULL;
    for (int a = 0; a < dim->axes; a++) {
        struct line_axis *axis = &dim->axis[a];
        if (axis->size < 0 && *unknown)
            return status_fail(STATUS_INPUT,
                               "%s: neither '%s' nor '%s' has a size, expected one unknown in the parenthesis of dim "
                               "%d at most (sizes stand in 'axes')",
                               where, (*unknown)->name, axis->name, d);
        if (axis->size < 0)
            *unknown = axis;
        else if (__builtin_mul_overflow(*product, axis->size, product))
            return status_fail(STATUS_INPUT, "%s: the sizes of dim %d are too large, expected their product below 2^63",
                               where, d);
    }
    return STATUS_OK;
}

static enum status bind_dim(struct line_dim *dim, int d, int64_t extent, const char *where) {
    int64_t product;
    struct line_axis *unknown;
    if (!dim->parenthesis)
        return bind_axis(&dim->axis[0], d, extent, where);
    TRY(known_product(dim, d, where, &product, &unknown));
    if (!unknown && product != extent)
        return status_fail(STATUS_INPUT, "%s: the axes of dim %d make %lld elements, expected %lld as the tensor's",
                           where, d, (long long)product, (long long)extent);
    if (unknown && (product == 0 || extent % product != 0))
        return status_fail(STATUS_INPUT,
                           "%s: no size of axis '%s' makes dim %d %lld elements long, expected a multiple of %lld",
                           where, unknown->name, d, (long long)extent, (long long)product);
    if (unknown)
        unknown->size = extent / product;
    return STATUS_OK;
}

/* Without a shape every axis needs a size. */
static enum status all_known(struct line_dim *dim, int d, const char *where) {
    int64_t product;
    struct line_axis *unknown;
    TRY(known_product(dim, d, where, &product, &unknown));
    if (unknown)
        return status_fail(STATUS_INPUT, "%s: axis '%s' has no size, expected one in 'axes'", where, unknown->name);
    return STATUS_OK;
}

enum status line_bind(struct line *line, int ndim, const int64_t *shape, const struct axis_size *sizes, int count,
                      const char *where) {
    if (shape && line->dims != ndim)
        return status_fail(STATUS_INPUT, "%s: the line has %d dims, expected %d as the tensor", where, line->dims,
                           ndim);
    for (int d = 0; d < line->dims; d++) {
        struct line_dim *dim = &line->dim[d];
        for (int a = 0; a < dim->axes; a++)
            dim->axis[a].size = size_called(dim->axis[a].name, sizes, count);
        TRY(shape ? bind_dim(dim, d, shape[d], where) : all_known(dim, d, where));
    }
    return STATUS_OK;
}

void line_shape(const struct line *line, int64_t *shape) {
    for (int d = 0; d < line->dims; d++) {
        shape[d] = 1;
        for (int a = 0; a < line->dim[d].axes; a++)
            shape[d] *= line->dim[d].axis[a].size;
    }
}

static unsigned cut_mask(const struct line_cut *cut) {
    unsigned mask = 0;
    for (int k = 0; k < cut->axes; k++)
        mask |= 1U << cut->axis[k];
    return mask;
}

static unsigned cuts_mask(const struct line_cuts *cuts) {
    unsigned mask = 0;
    for (int i = 0; i < cuts->count; i++)
        mask |= cut_mask(&cuts->cut[i]);
    return mask;
}

unsigned line_cut_axes(const struct line *line) {
    unsigned mask = 0;
    for (int d = 0; d < line->dims; d++) {
        mask |= cuts_mask(&line->dim[d].cuts);
        for (int a = 0; a < line->dim[d].axes; a++)
            mask |= cuts_mask(&line->dim[d].axis[a].cuts);
    }
    return mask;
}

unsigned line_owed_axes(const struct line *line) {
    return cuts_mask(&line->owed);
}

static void drop_cuts(struct line_cuts *cuts, unsigned axes) {
    struct line_cuts kept = {0};
    for (int i = 0; i < cuts->count; i++)
        if (!(cut_mask(&cuts->cut[i]) & axes))
            kept.cut[kept.count++] = cuts->cut[i];
    *cuts = kept;
}

struct line line_gathered(const struct line *line, unsigned axes) {
    struct line gathered = *line;
    for (int d = 0; d < gathered.dims; d++) {
        drop_cuts(&gathered.dim[d].cuts, axes);
        for (int a = 0; a < gathered.dim[d].axes; a++)
            drop_cuts(&gathered.dim[d].axis[a].cuts, axes);
    }
    return gathered;
}

bool line_find_axis(const struct line *line, const char *name, int *dim, int *position) {
    for (int d = 0; d < line->dims; d++)
        for (int a = 0; a < line->dim[d].axes; a++)
            if (strcmp(line->dim[d].axis[a].name, name) == 0) {
                *dim = d;
                *position = a;
                return true;
            }
    return false;
}
