/* SPDX-License-Identifier: Apache-2.0
 *
 * arena: the staging memory of a handle: one sealed memfd, prefaulted once, huge pages where they
 * are to be had, not inherited by forked children, given out in extents aligned to
 * LIMIT_ALIGN_BYTES. Bounded; "full" is a normal answer. Owned by the engine's loop; the bytes of
 * an extent travel to workers.
 */
#ifndef CAIRN_ARENA_ARENA_H
#define CAIRN_ARENA_ARENA_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;

enum arena_pages {
    ARENA_PAGES_4K,
    ARENA_PAGES_THP, /* asked for; the kernel may give fewer */
    ARENA_PAGES_HUGETLB,
    ARENA_PAGES_COLLAPSED
};

/* max_bytes 0: grows to what the first save needs (arena_reserve). Nothing is mapped yet. */
int MUST_USE arena_new(uint64_t max_bytes, struct arena **ret, struct diag *diag);
/* Room is made for so many saves at once (arena_reserve), within max_bytes. 0: one, or two where
 * max_bytes allows it. Before the first arena_reserve. */
void arena_set_snapshots(struct arena *arena, unsigned count);
void arena_free(struct arena *arena); /* extents must be back; NULL is fine */
/* Makes room for saves of `bytes` (mapping and prefaulting: slow, done once, on a worker).
 * ARENA_TOO_SMALL when above max. */
int MUST_USE arena_reserve(struct arena *arena, uint64_t bytes, struct diag *diag);
/* Page-locks the memory that is mapped, once, where that can be done; let go before it is unmapped.
 * On a worker, as arena_reserve. The functions outlive the arena. */
struct arena_lock {
    bool (*pin)(void *user, size_t bytes, void *data);
    void (*unpin)(void *user, void *data);
    void *user;
};
void arena_pin(struct arena *arena, const struct arena_lock *lock);
bool arena_is_pinned(const struct arena *arena);     /* or it was tried */
bool arena_is_locked(const struct arena *arena);     /* it was tried, and is */
uint64_t arena_bytes(const struct arena *arena);     /* mapped */
uint64_t arena_max_bytes(const struct arena *arena); /* 0: no bound */
uint64_t arena_used_bytes(const struct arena *arena);
enum arena_pages arena_pages(const struct arena *arena);
const char *arena_pages_name(enum arena_pages pages); /* for logs */
/* An extent, or NULL when there is no room now (wait for arena_give). */
uint8_t *arena_take(struct arena *arena, uint64_t bytes);
void arena_give(struct arena *arena, uint8_t *extent);
/* Gives an extent back whose bytes somebody else may still read: the memory is not written to any
 * more. When the last extent is back it is unmapped, and the next arena_reserve maps another. */
void arena_retire(struct arena *arena, uint8_t *extent);
int arena_fd(const struct arena *arena); /* for handing to the daemon; -1: nothing is mapped */
/* It was handed over, and will not be again. */
void arena_close_fd(struct arena *arena);
/* Another number for each memory that was mapped; 0: none so far. */
uint64_t arena_generation(const struct arena *arena);
uint64_t arena_offset(const struct arena *arena, const uint8_t *extent);
void arena_abandon(
    struct arena *arena); /* in a forked child: closes the descriptor, touches no memory */

#endif
