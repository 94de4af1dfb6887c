/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch: the bump allocator of one request or one decoded document on the control plane. Bounded;
 * everything goes at once with scratch_fini(). Not thread-safe. ("Arena" is the staging memory.)
 */
#ifndef CAIRN_BASE_SCRATCH_H
#define CAIRN_BASE_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

struct scratch_block;

struct scratch {
    struct scratch_block *head;
    size_t used, max;
    size_t held; /* what its blocks take, at least used */
};

void scratch_init(struct scratch *scratch, size_t max_bytes);
void scratch_fini(struct scratch *scratch);
/* Zeroed memory, aligned to 16; NULL when max or memory is exhausted. */
void *scratch_alloc(struct scratch *scratch, size_t bytes);
/* count * size with overflow check. */
void *scratch_array(struct scratch *scratch, size_t count, size_t size);
/* A NUL-terminated copy of bytes (NULs inside are the caller's to refuse). NULL when exhausted. */
char *scratch_string(struct scratch *scratch, size_t bytes, const void *data);
void *scratch_copy(struct scratch *scratch, size_t bytes, const void *data);

#endif
