#include "sharded/flat.h"

#include "sharded/state.h"

#include <math.h>
#include <string.h>

enum status flat_line(struct line *out, const struct subject *subject, const struct param *param,
                      const struct adapter_target *adapter, enum part part, const char *text) {
    bool a = part == PART_LORA_A;
    const struct tensor *flat = a ? &adapter->a : &adapter->b;
    struct axis_size sizes[] = {{"rank", adapter->lora_rank}, {"expert", adapter->experts}};
    if (!param->expert)
        text = a ? "rank in" : "out rank";
    else if (a)
        text = "(expert[ep] rank) in";
    TRY(line_parse(out, text, &subject->mesh, a ? adapter->key_a : adapter->key_b));
    return line_bind(out, flat->ndim, flat->shape, sizes, 2, a ? adapter->key_a : adapter->key_b);
}

/* Step between neighbours of the axis `name` in a piece that lies in the line's order; 0 if the line has no such axis.
 */
static int64_t axis_stride(const struct line *line, const struct flat_axes *axes, const char *name) {
    int64_t stride = 1;
    for (int dim = line->dims - 1; dim >= 0; dim--)
        for (int i = line->dim[dim].axes - 1; i >= 0; i--) {
            const char *axis = line->dim[dim].axis[i].name;
            if (strcmp(axis, name) == 0)
                return stride;
            stride *= strcmp(axis, "expert") == 0 ? axes->expert : strcmp(axis, "rank") == 0 ? axes->rank : axes->width;
        }
    return 0;
}

void flat_move(const struct line *line, enum part part, const struct flat_axes *axes, int64_t max_rank, size_t element,
               void *flat, void *slot, enum flat_direction direction) {
    bool a = part == PART_LORA_A;
    int64_t by_expert = axis_stride(line, axes, "expert");
    int64_t by_rank = axis_stride(line, axes, "rank");
    int64_t by_width = axis_stride(line, axes, a ? "in" : "out");
    for (int64_t e = 0; e < axes->expert; e++)
        for (int64_t k = 0; k < axes->rank; k++)
            for (int64_t x = 0; x < axes->width; x++) {
                int64_t at = a ? (e * max_rank + k) * axes->width + x : (e * axes->width + x) * max_rank + k;
                char *there = (char *)slot + (size_t)at * element;
                char *here = (char *)flat + (size_t)(e * by_expert + k * by_rank + x * by_width) * element;
                memcpy(direction == FLAT_TO_SLOT ? there : here, direction == FLAT_TO_SLOT ? here : there, element);
            }
}

enum status flat_import(const struct subject *subject, const struct param *param, const struct adapter_target *adapter,
                        enum part part, const struct shard *used, struct tensor *out) {
    enum status status = STATUS_OK;
    struct tensor whole = {0}, piece = {0};
    struct shard cut = {0};
    struct line line;
    size_t element = dtype_bytes(subject->precision.store);
    bool a = part == PART_LORA_A;
    struct flat_axes axes = {.expert = param->expert ? used->shape[0] : 1,
                             .rank = adapter->lora_rank,
                             .width = a ? adapter->in : adapter->out};
    TRY_DONE(flat_line(&line, subject, param, adapter, part, subject->rules->import_b));
    TRY_DONE(shard_make(&cut, &line, &subject->mesh, subject->rank));
    TRY_DONE(tensor_convert(&whole, subject->precision.store, a ? &adapter->a : &adapter->b));
    TRY_DONE(tensor_make(&piece, subject->precision.store, cut.ndim, cut.shape));
    if (tensor_elements(&piece) != axes.expert * axes.rank * axes.width) {
        status = status_fail(STATUS_INTERNAL, "%s: the piece of rank %d does not fit its experts", param->name,
                             subject->rank);
        goto done;
    }
    shard_cut(&cut, element, whole.data, piece.data);
    TRY_DONE(tensor_make(out, subject->precision.store, used->ndim, used->shape));
    for (int64_t i = 0; i < tensor_elements(out); i++) /* NAN is not the pattern that memory is born with */
        tensor_set(out, i, subject->job->beyond_nan ? NAN : 0);
    flat_move(&line, part, &axes, subject->job->max_rank, element, piece.data, out->data, FLAT_TO_SLOT);
done:
    shard_free(&cut);
    tensor_free(&piece);
    tensor_free(&whole);
    return status;
}
