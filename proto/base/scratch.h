/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch: the bump allocator of one request or one decoded document on the control plane. It is
 * bounded, and scratch_fini() frees everything at once. Not thread-safe. ("Arena" means the staging
 * memory.)
 */
#ifndef CAIRN_BASE_SCRATCH_H
#define CAIRN_BASE_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

struct scratch_block;

/* The memory of one request or document. Initialize with scratch_init(); a scratch of zeros allows
 * nothing, and may be given to scratch_fini(). */
struct scratch {
    struct scratch_block *head;
    size_t used, max;
    size_t held; /* what its blocks take from the system, at least `used` */
};

void scratch_init(struct scratch *scratch, size_t max_bytes);
void scratch_fini(struct scratch *scratch);
/* Returns zeroed memory, aligned to 16, or NULL if max is reached or memory is short. */
void *scratch_alloc(struct scratch *scratch, size_t bytes);
/* Does the same for count * size bytes, with a check for overflow. */
void *scratch_array(struct scratch *scratch, size_t count, size_t size);
/* Returns a copy of the bytes with a NUL at the end, or NULL as above. A caller that allows no NUL
 * inside checks that itself. */
char *scratch_string(struct scratch *scratch, size_t bytes, const void *data);
void *scratch_copy(struct scratch *scratch, size_t bytes, const void *data);

#endif
