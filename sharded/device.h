/* Tensors in the device's memory: shape on the host, data behind the table of operations. Whoever made one calls
 * device_free; tensor_free does not touch it (owns is false). */
#ifndef SHARDED_DEVICE_H
#define SHARDED_DEVICE_H

#include "sharded/ops.h"

/* Born NaN, as host tensors are. STATUS_MEMORY. */
enum status device_make(const struct ops *ops, struct tensor *out, enum dtype dtype, int ndim, const int64_t *shape);
enum status device_zeros(const struct ops *ops, struct tensor *out, enum dtype dtype, int ndim, const int64_t *shape);
enum status device_upload(const struct ops *ops, struct tensor *out, const struct tensor *host);
/* A new host tensor, the caller's. */
enum status device_download(const struct ops *ops, struct tensor *out, const struct tensor *from);
void device_free(const struct ops *ops, struct tensor *tensor); /* accepts {0}; leaves {0} */

/* A plain block; STATUS_MEMORY with the number of bytes. */
enum status device_block(const struct ops *ops, void **out, size_t bytes);
enum status device_indices(const struct ops *ops, int64_t **out, const int64_t *host, int64_t count);

/* `count` zeroed objects on the host; STATUS_MEMORY. Never NULL on success. */
enum status host_zeros(void **out, size_t count, size_t size);

#endif
