/* SPDX-License-Identifier: Apache-2.0
 *
 * neighbours: the other threads of a training process. They map, allocate, start threads and fork
 * without a pause, and each checks that its memory holds what it wrote and that its descriptors are
 * its own. What they find ends the process with a line on stderr and exit status 3; memory that was
 * unmapped under them ends it with a signal.
 */
#ifndef CAIRN_E2E_NEIGHBOURS_H
#define CAIRN_E2E_NEIGHBOURS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fills memory with words that depend on key and place, and checks them. */
void pattern_fill(uint64_t key, void *data, size_t bytes);
void pattern_check(const char *what, uint64_t key, const void *data, size_t bytes);
/* The next of a sequence of random numbers. */
uint64_t random_next(uint64_t *io_state);

/* delay: every munmap of libcairn takes so long that each neighbour has mapped something before it
 * and after it, so that what it sets free by mistake has another owner at once. Once a process. */
void neighbours_start(uint64_t seed, bool delay);
/* Ends the threads; how often they went round, all together. */
uint64_t neighbours_stop(void);
/* Calls of munmap that libcairn made. */
uint64_t neighbours_unmaps(void);

#endif
