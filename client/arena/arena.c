/* SPDX-License-Identifier: Apache-2.0
 *
 * One memfd, mapped and touched before the first copy, and given out first fit. There are few
 * extents (one for each save in flight, or one for each object of a save in waves), so a sorted
 * list of them, kept apart from the bytes, is all the bookkeeping. Owned by the engine's loop;
 * arena_reserve runs on a worker while nothing else uses the arena.
 *
 * Huge pages are tried in this order. MFD_HUGETLB, if the machine has set pages aside. The kernel's
 * own, if shmem_enabled lets a program ask for them. Otherwise one page of each 2 MiB is touched
 * and MADV_COLLAPSE makes a huge page of the range, which works whatever shmem_enabled says and
 * costs no more than touching the rest, because nothing has to be copied. Memory that none of these
 * covers has 4 KiB pages.
 */
#include "arena/arena.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/list.h"
#include "env/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum { ARENA_HUGE_BYTES = 2 << 20 };

struct extent {
    struct list link; /* sorted by offset */
    uint64_t offset, bytes;
};

struct arena {
    uint64_t max_bytes;
    unsigned snapshots; /* how many saves it is made for; 0 means as the bound says */
    uint64_t bytes;     /* mapped */
    uint64_t used_bytes;
    uint8_t *data;
    int fd;
    enum arena_pages pages;
    struct list extents;
    uint64_t generation;
    struct arena_lock lock;
    bool pin_tried, pinned;
    bool retired; /* nothing more is given out of this memory */
};

int arena_new(uint64_t max_bytes, struct arena **ret, struct diag *diag)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        return diag_no_memory(diag, "the arena's bookkeeping");
    }
    arena->max_bytes = max_bytes;
    arena->fd = -1;
    list_init(&arena->extents);
    *ret = arena;
    return 0;
}

/* Forgets the number before it is free. A child that is forked between the two closes the number
 * that it finds here (arena_abandon), and would close a file of another thread that got the number
 * next. */
void arena_close_fd(struct arena *arena)
{
    int fd = arena->fd;
    arena->fd = -1;
    if (fd >= 0) {
        err_ignore(close(fd)); /* a memfd has nothing to flush, so no failure can matter */
    }
}

/* Unpins and unmaps the memory and closes its descriptor. The arena is empty afterwards. */
static void arena_unmap(struct arena *arena)
{
    CHECK(list_is_empty(&arena->extents));
    CHECK(arena->used_bytes == 0);
    if (arena->pinned) {
        arena->lock.unpin(arena->lock.user, arena->data);
    }
    arena->pinned = arena->pin_tried = false;
    if (arena->data) {
        CHECK(munmap(arena->data, arena->bytes) == 0);
    }
    arena_close_fd(arena);
    arena->data = NULL;
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

/* Returns whether a program may ask for huge pages of shared memory. Asking in vain makes
 * everything slower. */
static bool shmem_is_advisable(void)
{
    char text[128] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    err_ignore(close(fd)); /* it was only read from */
    return got > 0 && !strstr(text, "[never]") && !strstr(text, "[deny]");
}

/* Returns how much of the memory became huge pages, from its start on; the rest is left to
 * populate(). */
static uint64_t collapse(uint8_t *data, uint64_t bytes)
{
    uint64_t collapsed = 0;
    for (uint64_t at = 0; at + ARENA_HUGE_BYTES <= bytes; at += ARENA_HUGE_BYTES) {
        *(volatile uint8_t *)(data + at) = 0; /* a hole cannot be collapsed */
        if (madvise(data + at, ARENA_HUGE_BYTES, MADV_COLLAPSE) == 0) {
            collapsed += ARENA_HUGE_BYTES;
        } else if (collapsed == 0) {
            break; /* this kernel cannot do it */
        }
    }
    return collapsed;
}

/* Touches all of the memory, and makes it huge pages if that is possible. Returns 0 or an errno
 * value. */
static int settle(uint8_t *data, uint64_t bytes, unsigned flags, enum arena_pages *ret_pages)
{
    enum arena_pages pages = flags != 0 ? ARENA_PAGES_HUGETLB : ARENA_PAGES_4K;
    if (flags == 0 && bytes >= ARENA_HUGE_BYTES) {
        uint64_t huge = bytes - bytes % ARENA_HUGE_BYTES;
        if (shmem_is_advisable() && madvise(data, bytes, MADV_HUGEPAGE) == 0) {
            pages = ARENA_PAGES_THP;
        } else if (collapse(data, bytes) == huge) {
            pages = ARENA_PAGES_COLLAPSED;
        }
    }
    int errnum = populate(data, bytes);
    if (errnum == 0) {
        *ret_pages = pages;
    }
    return errnum;
}

/* Maps a new memfd. A failure leaves nothing behind, and touches no mapping of others
 * (memfd_place). */
static int map_memfd(struct arena *arena, uint64_t bytes, unsigned flags, struct diag *diag)
{
    uint8_t *data = NULL;
    int errnum = 0, rc = 0;
    int fd = memfd_create("cairn-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        errnum = errno;
    } else {
        rc = memfd_place(fd, bytes, MEMFD_WRITE, &data, diag);
    }
    if (data) {
        errnum = madvise(data, bytes, MADV_DONTFORK) != 0
                     ? errno
                     : settle(data, bytes, flags, &arena->pages);
    }
    if (errnum != 0) {
        rc = diag_errno(diag, errnum, "cannot map %llu bytes of shared memory",
                        (unsigned long long)bytes);
    }
    if (rc != 0) {
        if (data) {
            CHECK(munmap(data, bytes) == 0);
        }
        if (fd >= 0) {
            err_ignore(close(fd)); /* the failure that is reported is the one above */
        }
        return rc;
    }
    CHECK(arena->data == NULL);
    CHECK(data != NULL);
    arena->fd = fd;
    arena->data = data;
    arena->bytes = bytes;
    arena->generation++;
    arena->retired = false;
    return 0;
}

/* Returns the room for as many saves of `bytes` as were asked for, within the bound. If no number
 * was given: for one save, and for a second if the bound allows it. */
static uint64_t wanted_bytes(const struct arena *arena, uint64_t bytes)
{
    CHECK(bytes > 0);
    uint64_t count = arena->snapshots != 0 ? arena->snapshots : arena->max_bytes != 0 ? 2 : 1;
    uint64_t wanted = bytes <= UINT64_MAX / 4 / count ? bytes * count : bytes;
    return arena->max_bytes != 0 ? max_u64(bytes, min_u64(wanted, arena->max_bytes)) : wanted;
}

int arena_reserve(struct arena *arena, uint64_t bytes, struct diag *diag)
{
    if (bytes <= arena->bytes) {
        return 0;
    }
    if (arena->max_bytes != 0 && bytes > arena->max_bytes) {
        return diag_set(
            diag, CAIRN_E_ARENA_TOO_SMALL,
            "the arena may have %llu bytes, but this save needs %llu; raise arena_bytes",
            (unsigned long long)arena->max_bytes, (unsigned long long)bytes);
    }
    if (!list_is_empty(&arena->extents)) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "the arena cannot grow while %llu bytes of it are in use; try again when "
                        "the save in flight has ended",
                        (unsigned long long)arena->used_bytes);
    }
    if (bytes > UINT64_MAX / 4) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "an arena cannot have %llu bytes",
                        (unsigned long long)bytes);
    }
    uint64_t wanted = wanted_bytes(arena, bytes);
    arena_unmap(arena);
    CHECK(wanted >= bytes);
    uint64_t huge = round_up_u64(wanted, ARENA_HUGE_BYTES);
    if (wanted >= ARENA_HUGE_BYTES && (arena->max_bytes == 0 || huge <= arena->max_bytes) &&
        map_memfd(arena, huge, MFD_HUGETLB, NULL) == 0) {
        return 0;
    }
    /* The rounding to whole pages is not counted against the bound. */
    int rc = map_memfd(arena, round_up_u64(wanted, LIMIT_ALIGN_BYTES), 0, diag);
    if (rc != 0) {
        diag_add(diag, "cannot prepare the staging memory");
    }
    return rc;
}

void arena_pin(struct arena *arena, const struct arena_lock *lock)
{
    if (arena->data && !arena->pin_tried) {
        arena->lock = *lock;
        arena->pin_tried = true;
        arena->pinned = lock->pin(lock->user, arena->bytes, arena->data);
    }
}

bool arena_is_pinned(const struct arena *arena) { return arena->pin_tried; }
bool arena_is_locked(const struct arena *arena) { return arena->pinned; }
void arena_set_snapshots(struct arena *arena, unsigned count) { arena->snapshots = count; }
uint64_t arena_bytes(const struct arena *arena) { return arena->bytes; }
uint64_t arena_max_bytes(const struct arena *arena) { return arena->max_bytes; }
uint64_t arena_used_bytes(const struct arena *arena) { return arena->used_bytes; }
enum arena_pages arena_pages(const struct arena *arena) { return arena->pages; }
int arena_fd(const struct arena *arena) { return arena->fd; }

uint64_t arena_generation(const struct arena *arena) { return arena->generation; }

const char *arena_pages_name(enum arena_pages pages)
{
    static const char *const names[] = {[ARENA_PAGES_4K] = "4 KiB",
                                        [ARENA_PAGES_THP] = "2 MiB, advised",
                                        [ARENA_PAGES_COLLAPSED] = "2 MiB, collapsed",
                                        [ARENA_PAGES_HUGETLB] = "2 MiB, hugetlb"};
    CHECK((size_t)pages < ARRAY_LEN(names));
    return names[pages];
}

/* Checks that the extents lie in the mapped memory, in order and apart, and add up to what is used.
 */
static void check_invariants(const struct arena *arena)
{
    uint64_t end = 0, sum = 0;
    list_each (node, &arena->extents) {
        const struct extent *extent = list_item(node, struct extent, link);
        CHECK(extent->bytes > 0);
        CHECK(extent->offset % LIMIT_ALIGN_BYTES == 0);
        CHECK(extent->offset >= end);
        end = extent->offset + extent->bytes;
        sum += extent->bytes;
    }
    CHECK(end <= arena->bytes);
    CHECK(sum == arena->used_bytes);
}

uint8_t *arena_take(struct arena *arena, uint64_t bytes)
{
    CHECK(bytes > 0);
    if (bytes > arena->bytes || arena->retired) {
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
    check_invariants(arena);
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
    check_invariants(arena);
    uint64_t offset = arena_offset(arena, data);
    list_each (node, &arena->extents) {
        struct extent *extent = list_item(node, struct extent, link);
        if (extent->offset == offset) {
            arena->used_bytes -= extent->bytes;
            list_remove(&extent->link);
            free(extent);
            if (arena->retired && list_is_empty(&arena->extents)) {
                arena_unmap(arena);
            }
            return;
        }
    }
    UNREACHABLE();
}

void arena_retire(struct arena *arena, uint8_t *data)
{
    arena->retired = true;
    arena_give(arena, data);
}

void arena_abandon(struct arena *arena)
{
    if (arena) {
        arena_close_fd(arena); /* the child's copy of the descriptor */
        arena->data = NULL;    /* the mapping was not inherited (MADV_DONTFORK) */
    }
}
