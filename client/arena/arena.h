/* SPDX-License-Identifier: Apache-2.0
 *
 * arena: the staging memory of a handle. It is one sealed memfd, touched once ahead of its use,
 * made of huge pages if the machine has them, not inherited by forked children, and given out in
 * extents aligned to LIMIT_ALIGN_BYTES. It is bounded, and "full" is a normal answer. Owned by the
 * engine's loop; workers read and write the bytes of extents.
 */
#ifndef CAIRN_ARENA_ARENA_H
#define CAIRN_ARENA_ARENA_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;

/* The kind of pages that the memory has, for logs. */
enum arena_pages {
    ARENA_PAGES_4K,
    ARENA_PAGES_THP, /* asked for; the kernel may give fewer */
    ARENA_PAGES_HUGETLB,
    ARENA_PAGES_COLLAPSED
};

/* Makes an arena without memory. If max_bytes is 0, arena_reserve grows it to what the first save
 * needs. */
int MUST_USE arena_new(uint64_t max_bytes, struct arena **ret, struct diag *diag);
/* Sets for how many saves at once arena_reserve makes room, within max_bytes. 0 means one, or two
 * if max_bytes allows it. Called before the first arena_reserve. */
void arena_set_snapshots(struct arena *arena, unsigned count);
void arena_free(struct arena *arena); /* all extents must be back; NULL is allowed */
/* Makes room for saves of `bytes` each, by mapping memory and touching it. This is slow, is done
 * once, and runs on a worker. ARENA_TOO_SMALL if `bytes` is more than the arena may have. */
int MUST_USE arena_reserve(struct arena *arena, uint64_t bytes, struct diag *diag);
/* Page-locks the mapped memory once, if that is possible; it is unlocked before it is unmapped.
 * Runs on a worker, like arena_reserve. The functions outlive the arena. */
struct arena_lock {
    bool (*pin)(void *user, size_t bytes, void *data);
    void (*unpin)(void *user, void *data);
    void *user;
};
void arena_pin(struct arena *arena, const struct arena_lock *lock);
bool arena_is_pinned(const struct arena *arena);     /* or it was tried */
bool arena_is_locked(const struct arena *arena);     /* it was tried, and succeeded */
uint64_t arena_bytes(const struct arena *arena);     /* mapped */
uint64_t arena_max_bytes(const struct arena *arena); /* 0 means no bound */
uint64_t arena_used_bytes(const struct arena *arena);
enum arena_pages arena_pages(const struct arena *arena);
const char *arena_pages_name(enum arena_pages pages); /* for logs */
/* Returns an extent, or NULL if there is no room now (wait for arena_give). */
uint8_t *arena_take(struct arena *arena, uint64_t bytes);
void arena_give(struct arena *arena, uint8_t *extent);
/* Gives an extent back whose bytes a daemon may still read, so the memory must not be written any
 * more. When the last extent is back the memory is unmapped, and the next arena_reserve maps other
 * memory. */
void arena_retire(struct arena *arena, uint8_t *extent);
int arena_fd(const struct arena *arena); /* to hand to the daemon; -1 if nothing is mapped */
/* Closes the descriptor, when it was handed over and will not be again. */
void arena_close_fd(struct arena *arena);
/* Returns a number that differs for each memory that was mapped; 0 means none so far. */
uint64_t arena_generation(const struct arena *arena);
uint64_t arena_offset(const struct arena *arena, const uint8_t *extent);
/* In a forked child: closes the descriptor and touches no memory. */
void arena_abandon(struct arena *arena);

#endif
