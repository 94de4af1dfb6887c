/* SPDX-License-Identifier: Apache-2.0
 *
 * One memfd, mapped and touched before the first copy, given out first fit. Extents are few (one a
 * save in flight), so a sorted list of them is all the bookkeeping there is, kept apart from the
 * bytes. Owned by the engine's loop; arena_reserve runs on a worker while nobody else uses the
 * arena.
 */
#include "arena/arena.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/list.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { ARENA_HUGE_BYTES = 2 << 20 };

struct extent {
    struct list link; /* sorted by offset */
    uint64_t offset, bytes;
};

struct arena {
    uint64_t max_bytes;
    uint64_t bytes; /* mapped */
    uint64_t used_bytes;
    uint8_t *data;
    int fd;
    enum arena_pages pages;
    struct list extents;
};

int arena_new(uint64_t max_bytes, struct arena **ret, struct diag *diag)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the arena's bookkeeping");
    }
    arena->max_bytes = max_bytes;
    arena->fd = -1;
    list_init(&arena->extents);
    *ret = arena;
    return 0;
}

static void arena_unmap(struct arena *arena)
{
    if (arena->data) {
        CHECK(munmap(arena->data, arena->bytes) == 0);
    }
    if (arena->fd >= 0) {
        /* A memfd has nothing to flush: there is no failure to tell anybody. */
        err_ignore(close(arena->fd));
    }
    arena->data = NULL;
    arena->fd = -1;
    arena->bytes = 0;
}

void arena_free(struct arena *arena)
{
    if (!arena) {
        return;
    }
    CHECK(list_is_empty(&arena->extents));
    arena_unmap(arena);
    free(arena);
}

/* Touches every page, so that the copy of a snapshot does not pay for it. */
static int populate(uint8_t *data, uint64_t bytes)
{
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) {
        return 0;
    }
    if (errno != EINVAL) {
        return errno;
    }
    for (uint64_t at = 0; at < bytes; at += LIMIT_ALIGN_BYTES) { /* an older kernel */
        *(volatile uint8_t *)(data + at) = 0;
    }
    return 0;
}

/* 0, or an errno value; on failure nothing is left behind. */
static int map_memfd(struct arena *arena, uint64_t bytes, unsigned flags)
{
    int fd = memfd_create("cairn-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) {
        return errno;
    }
    void *data = MAP_FAILED;
    int errnum = 0;
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
        (data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED ||
        madvise(data, bytes, MADV_DONTFORK) != 0) {
        errnum = errno;
    }
    if (errnum == 0) {
        errnum = populate(data, bytes);
    }
    if (errnum != 0) {
        if (data != MAP_FAILED) {
            CHECK(munmap(data, bytes) == 0);
        }
        err_ignore(close(fd)); /* the failure that is reported is the one above */
        return errnum;
    }
    arena->fd = fd;
    arena->data = data;
    arena->bytes = bytes;
    return 0;
}

int arena_reserve(struct arena *arena, uint64_t bytes, struct diag *diag)
{
    if (bytes <= arena->bytes) {
        return 0;
    }
    if (arena->max_bytes != 0 && bytes > arena->max_bytes) {
        return diag_set(diag, CAIRN_E_ARENA_TOO_SMALL,
                        "the arena may have %llu bytes, this save needs %llu: raise arena_bytes",
                        (unsigned long long)arena->max_bytes, (unsigned long long)bytes);
    }
    if (!list_is_empty(&arena->extents)) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "the arena cannot grow while %llu bytes of it are in use",
                        (unsigned long long)arena->used_bytes);
    }
    if (bytes > UINT64_MAX / 4) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "an arena of %llu bytes",
                        (unsigned long long)bytes);
    }
    /* With a bound that the user gave, room for a second save in flight where the bound allows it.
     */
    uint64_t wanted =
        arena->max_bytes != 0 ? max_u64(bytes, min_u64(bytes * 2, arena->max_bytes)) : bytes;
    arena_unmap(arena);
    uint64_t huge = round_up_u64(wanted, ARENA_HUGE_BYTES);
    if (wanted >= ARENA_HUGE_BYTES && (arena->max_bytes == 0 || huge <= arena->max_bytes) &&
        map_memfd(arena, huge, MFD_HUGETLB) == 0) {
        arena->pages = ARENA_PAGES_HUGETLB;
        return 0;
    }
    /* The rounding to whole pages is not counted against the bound. */
    int errnum = map_memfd(arena, round_up_u64(wanted, LIMIT_ALIGN_BYTES), 0);
    if (errnum != 0) {
        return diag_errno(diag, errnum, "map %llu bytes of staging memory",
                          (unsigned long long)wanted);
    }
    arena->pages = ARENA_PAGES_4K;
    return 0;
}

uint64_t arena_bytes(const struct arena *arena) { return arena->bytes; }
uint64_t arena_used_bytes(const struct arena *arena) { return arena->used_bytes; }
enum arena_pages arena_pages(const struct arena *arena) { return arena->pages; }
int arena_fd(const struct arena *arena) { return arena->fd; }

uint8_t *arena_take(struct arena *arena, uint64_t bytes)
{
    CHECK(bytes > 0);
    if (bytes > arena->bytes) {
        return NULL;
    }
    uint64_t need = round_up_u64(bytes, LIMIT_ALIGN_BYTES), at = 0;
    struct list *before = &arena->extents; /* the new extent goes in front of this node */
    list_each (node, &arena->extents) {
        const struct extent *extent = list_item(node, struct extent, link);
        if (extent->offset - at >= need) {
            before = node;
            break;
        }
        at = extent->offset + extent->bytes;
    }
    if (need > arena->bytes || at > arena->bytes - need) {
        return NULL;
    }
    struct extent *extent = malloc(sizeof *extent);
    if (!extent) {
        return NULL;
    }
    extent->offset = at;
    extent->bytes = need;
    list_add_tail(before, &extent->link); /* in front of `before` */
    arena->used_bytes += need;
    return arena->data + at;
}

uint64_t arena_offset(const struct arena *arena, const uint8_t *extent)
{
    CHECK(extent >= arena->data);
    CHECK(extent < arena->data + arena->bytes);
    return (uint64_t)(extent - arena->data);
}

void arena_give(struct arena *arena, uint8_t *data)
{
    uint64_t offset = arena_offset(arena, data);
    list_each (node, &arena->extents) {
        struct extent *extent = list_item(node, struct extent, link);
        if (extent->offset == offset) {
            arena->used_bytes -= extent->bytes;
            list_remove(&extent->link);
            free(extent);
            return;
        }
    }
    UNREACHABLE();
}

void arena_abandon(struct arena *arena)
{
    if (arena && arena->fd >= 0) {
        err_ignore(
            close(arena->fd)); /* a child's copy of the descriptor; there is nobody to tell */
        arena->fd = -1;
        arena->data = NULL; /* the mapping was not inherited (MADV_DONTFORK) */
    }
}
