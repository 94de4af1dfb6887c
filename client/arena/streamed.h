/* SPDX-License-Identifier: Apache-2.0
 *
 * streamed: a copy that goes past the caches, for bytes that are not read again soon. Pure; any
 * thread.
 */
#ifndef CAIRN_ARENA_STREAMED_H
#define CAIRN_ARENA_STREAMED_H

#include <stddef.h>

/* Copies like memcpy. It pays from some hundred KiB on: a plain store first reads the cache line
 * that it is about to overwrite, which is a third of the memory traffic of a snapshot. */
void streamed_copy(void *to, const void *from, size_t bytes);

#endif
