/* SPDX-License-Identifier: Apache-2.0
 *
 * memfd: shared memory, mapped at huge pages' alignment beside whatever the process's other threads
 * map; of somebody else only after it was made sure that touching it cannot end this process: a
 * file that can shrink under a mapping is a SIGBUS at its owner's will. Any thread.
 */
#ifndef CAIRN_ENV_MEMFD_H
#define CAIRN_ENV_MEMFD_H

#include "base/diag.h"

#include <stdbool.h>
#include <stdint.h>

struct memfd_map {
    const uint8_t *data;
    uint8_t *room; /* the same, where it may be written; else NULL */
    uint64_t bytes;
};

enum memfd_use { MEMFD_READ, MEMFD_WRITE };

/* Maps `bytes` from the beginning of fd, shared, at a multiple of 2 MiB if it has as many bytes and
 * such a range can be had; else wherever the kernel puts it. *ret is the caller's to unmap, by one
 * munmap of `bytes`. No mapping of another thread is ever replaced or unmapped. Errors: TOO_LARGE,
 * NO_MEMORY and others by which the system refuses; then nothing is mapped. */
int MUST_USE memfd_place(int fd, uint64_t bytes, enum memfd_use use, uint8_t **ret,
                         struct diag *diag);

/* Maps all of fd, which must have exactly `bytes`, be shared memory, and be sealed against
 * shrinking and growing. fd stays the caller's, and may be closed afterwards. INVALID says what is
 * wrong with it; NO_MEMORY and others: the system refused. */
int MUST_USE memfd_map(int fd, uint64_t bytes, enum memfd_use use, struct memfd_map *ret,
                       struct diag *diag);
void memfd_unmap(struct memfd_map *map); /* fine when nothing is mapped */
/* Returns whether every page of the range is there, as far as the system tells. Touching a hole
 * through a mapping makes a page, which the kernel charges to whoever touched it; a sparse file of
 * terabytes costs its maker nothing. */
bool memfd_is_filled(int fd, uint64_t offset, uint64_t bytes);

#endif
