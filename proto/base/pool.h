/* SPDX-License-Identifier: Apache-2.0
 *
 * pool: a fixed number of equal, aligned buffers in one anonymous mapping, of huge pages if there
 * are any, all touched once at the start. The data plane uses only such buffers: an empty pool
 * means that its user waits, never that it allocates. Owned by one loop; workers may use the
 * buffers themselves.
 */
#ifndef CAIRN_BASE_POOL_H
#define CAIRN_BASE_POOL_H

#include "diag.h"

#include <stddef.h>

struct pool;

enum { POOL_ALIGN = 4096 };

/* Makes a pool. buffer_bytes is a multiple of POOL_ALIGN. NO_MEMORY if the mapping fails. */
int MUST_USE pool_new(size_t count, size_t buffer_bytes, struct pool **ret, struct diag *diag);
/* Frees the pool, and CHECKs that every buffer came back. NULL is allowed. */
void pool_free(struct pool *pool);
void *pool_get(struct pool *pool); /* NULL if the pool is empty */
void pool_put(struct pool *pool, void *buffer);
size_t pool_free_count(const struct pool *pool);
size_t pool_count(const struct pool *pool);

#endif
