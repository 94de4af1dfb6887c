/* SPDX-License-Identifier: Apache-2.0
 *
 * pool: a fixed number of equal, aligned buffers in one anonymous mapping (huge pages where they
 * are to be had), touched once at start. The data plane uses only these: an empty pool is
 * back-pressure, never a malloc. Owned by one loop; not thread-safe (buffers themselves may travel
 * to workers).
 */
#ifndef CAIRN_BASE_POOL_H
#define CAIRN_BASE_POOL_H

#include "diag.h"

#include <stddef.h>
#include <stdint.h>

struct pool;

enum { POOL_ALIGN = 4096 };

/* buffer_bytes: a multiple of POOL_ALIGN. NO_MEMORY when the mapping fails. */
int MUST_USE pool_new(size_t count, size_t buffer_bytes, struct pool **ret, struct diag *diag);
/* CHECKs that every buffer came back. Accepts NULL. */
void pool_free(struct pool *pool);
void *pool_get(struct pool *pool); /* NULL when empty */
void pool_put(struct pool *pool, void *buffer);
size_t pool_free_count(const struct pool *pool);
size_t pool_count(const struct pool *pool);

#endif
