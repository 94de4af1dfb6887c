/* SPDX-License-Identifier: Apache-2.0
 *
 * memfd: shared memory, mapped at the alignment of huge pages without disturbing what the other
 * threads of the process map. Memory of another process is mapped only after checks that touching
 * it cannot end this process: a file that can shrink under a mapping is a SIGBUS whenever its owner
 * likes. Any thread.
 */
#ifndef CAIRN_ENV_MEMFD_H
#define CAIRN_ENV_MEMFD_H

#include "base/diag.h"

#include <stdbool.h>
#include <stdint.h>

/* A mapping of another process's memory, for memfd_map. The user unmaps it with memfd_unmap. */
struct memfd_map {
    const uint8_t *data;
    uint8_t *room; /* the same as data if it may be written, else NULL */
    uint64_t bytes;
};

enum memfd_use { MEMFD_READ, MEMFD_WRITE };

/* Maps `bytes` from the beginning of fd, shared. The address is a multiple of 2 MiB if there are as
 * many bytes and such a range can be found, else wherever the kernel puts it. *ret is the caller's
 * to unmap, by one munmap of `bytes`. No mapping of another thread is ever replaced or unmapped.
 * Fails with TOO_LARGE, NO_MEMORY or another code if the system refuses; then nothing is mapped. */
int MUST_USE memfd_place(int fd, uint64_t bytes, enum memfd_use use, uint8_t **ret,
                         struct diag *diag);

/* Maps all of fd, which must have exactly `bytes`, be shared memory, and be sealed against
 * shrinking and growing. fd stays the caller's, who may close it afterwards. INVALID says what is
 * wrong with it; NO_MEMORY and other codes mean that the system refused. */
int MUST_USE memfd_map(int fd, uint64_t bytes, enum memfd_use use, struct memfd_map *ret,
                       struct diag *diag);
void memfd_unmap(struct memfd_map *map); /* allowed when nothing is mapped */
/* Returns whether every page of the range exists, as far as the system tells. Touching a hole
 * through a mapping makes a page, which the kernel charges to the toucher, while a sparse file of
 * terabytes costs its maker nothing. */
bool memfd_is_filled(int fd, uint64_t offset, uint64_t bytes);

#endif
