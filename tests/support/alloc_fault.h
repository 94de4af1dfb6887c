/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the n-th allocation (malloc, calloc, realloc, mmap) fail. Reaches calls of code that is
 * linked into the test program, not those inside shared libraries. The usual loop:
 *
 *     for (unsigned n = 1;; n++) {
 *         alloc_fault_at(n);
 *         int rc = thing_new(&thing);
 *         if (!alloc_fault_hit()) { break; }       // n is past the last allocation: it was clean
 *         assert_int_equal(rc, CAIRN_E_NO_MEMORY);
 *     }
 *
 * Also plays the other threads of a program, whose mappings land in every hole that the code under
 * test leaves in the address space (alloc_fault_fill_holes).
 */
#ifndef CAIRN_TESTS_SUPPORT_ALLOC_FAULT_H
#define CAIRN_TESTS_SUPPORT_ALLOC_FAULT_H

#include <stdbool.h>

/* The n-th allocation from now on fails, once; 0 switches off. */
void alloc_fault_at(unsigned n);
/* Whether it has failed; switches off. */
bool alloc_fault_hit(void);

/* From now on a mapping of a stranger takes each range of addresses that munmap sets free, and each
 * that a failed MAP_FIXED has set free, before the call returns; `count` times. */
void alloc_fault_fill_holes(unsigned count);
/* Ends that, and returns how many calls of munmap and of mmap with MAP_FIXED went over a mapping of
 * a stranger: each of them took memory away from another thread. */
unsigned alloc_fault_trespasses(void);

#endif
