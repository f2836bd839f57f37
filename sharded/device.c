#include "sharded/device.h"

#include <stdlib.h>

enum status device_block(const struct ops *ops, void **out, size_t bytes) {
    *out = ops->allocate(bytes);
    return *out ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory: a buffer of %zu bytes", bytes);
}

enum status device_make(const struct ops *ops, struct tensor *out, enum dtype dtype, int ndim, const int64_t *shape) {
    struct tensor tensor = tensor_view(dtype, ndim, shape, NULL);
    TRY(device_block(ops, &tensor.data, tensor_bytes(&tensor)));
    *out = tensor;
    return STATUS_OK;
}

enum status device_zeros(const struct ops *ops, struct tensor *out, enum dtype dtype, int ndim, const int64_t *shape) {
    TRY(device_make(ops, out, dtype, ndim, shape));
    ops->zero(out->data, tensor_bytes(out));
    return STATUS_OK;
}

enum status device_upload(const struct ops *ops, struct tensor *out, const struct tensor *host) {
    TRY(device_make(ops, out, host->dtype, host->ndim, host->shape));
    ops->to_device(out->data, host->data, tensor_bytes(host));
    return STATUS_OK;
}

enum status device_download(const struct ops *ops, struct tensor *out, const struct tensor *from) {
    TRY(tensor_make(out, from->dtype, from->ndim, from->shape));
    ops->to_host(out->data, from->data, tensor_bytes(from));
    return STATUS_OK;
}

void device_free(const struct ops *ops, struct tensor *tensor) {
    ops->release(tensor->data);
    *tensor = (struct tensor){0};
}

enum status device_indices(const struct ops *ops, int64_t **out, const int64_t *host, int64_t count) {
    void *block;
    TRY(device_block(ops, &block, (size_t)count * sizeof *host));
    ops->to_device(block, host, (size_t)count * sizeof *host);
    *out = block;
    return STATUS_OK;
}

enum status host_zeros(void **out, size_t count, size_t size) {
    *out = calloc(count ? count : 1, size);
    return *out ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory: %zu times %zu bytes", count, size);
}
