/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks before the mapping. Pages of a sealed memfd can be replaced by zeros (a hole) but
 * never vanish, so reading them gives bytes, right or wrong, and digests tell which. Huge pages are
 * the exception: a hole in them is filled from a pool that may be empty, and that is a SIGBUS. They
 * are accepted only from our own user and from root, who can end this process anyway. Any thread.
 */
#include "memfd.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20, PLACE_TRIES = 8 };

/* Checks that the file is shared memory, and that huge pages come from our own user or from
 * root. */
static int check_kind(int fd, const struct stat *st, struct diag *diag)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) != 0) {
        return diag_errno(diag, errno, "cannot examine the memory that was handed over");
    }
    if (fs.f_type == TMPFS_MAGIC) {
        return 0;
    }
    if (fs.f_type != HUGETLBFS_MAGIC) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the descriptor is not shared memory; hand over a memfd");
    }
    if (st->st_uid != geteuid() && st->st_uid != 0) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "huge pages of user %u are refused, because they could run out while this process "
            "reads them; run both processes as one user, or hand over plain pages",
            (unsigned)st->st_uid);
    }
    return 0;
}

/* Checks kind, length and seals of memory that another process has handed over. */
static int check(int fd, uint64_t bytes, struct diag *diag)
{
    struct stat st;
    int rc, seals;

    if (fstat(fd, &st) != 0) {
        return diag_errno(diag, errno, "cannot examine the memory that was handed over");
    }
    if (!S_ISREG(st.st_mode)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the descriptor is not shared memory; hand over a memfd");
    }
    rc = check_kind(fd, &st, diag);
    if (rc != 0) {
        return rc;
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the memory is not sealed (F_SEAL_SHRINK and F_SEAL_GROW), so it could "
                        "shrink while it is read; seal it before the hand-over");
    }
    if (bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size != bytes) {
        return diag_set(diag, CAIRN_E_INVALID, "the memory has %lld bytes, but %llu were announced",
                        (long long)st.st_size, (unsigned long long)bytes);
    }
    return 0;
}

/* Returns a multiple of the huge page size where `bytes` of addresses were free a moment ago, or
 * NULL. */
static void *find_aligned_hole(size_t bytes)
{
    uint8_t *room = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED || munmap(room, bytes + HUGE_BYTES) != 0) {
        return NULL;
    }
    return room + (HUGE_BYTES - (uintptr_t)room % HUGE_BYTES) % HUGE_BYTES;
}

/* The process is a trainer, and its other threads map and unmap all the time. Two rules keep their
 * memory out of this:
 *
 *  - No MAP_FIXED, not even over a range that we hold ourselves. When the kernel fails such a call
 *    (a huge page file without huge pages: ENOMEM) it may have removed the old mapping first.
 *  - No MAP_FIXED, not even over a range that we hold ourselves. If the kernel fails such a call
 *    (a huge page file without huge pages gives ENOMEM), it may have removed the old mapping
 *    first. Then it is not known whether the range is still ours, and to unmap it or to try again
 *    there could take memory that another thread got in between.
 *
 * So an address is a hint, which the kernel follows if the range is free and never at the cost of
 * another mapping. The kernel itself aligns files of huge pages and, since Linux 6.7, some others.
 * For the rest a hole is looked for, in vain if another thread takes it first. Memory that is not
 * aligned is only slower, and is mapped first, so that failing to align it cannot fail the call. */
int memfd_place(int fd, uint64_t bytes, enum memfd_use use, uint8_t **ret, struct diag *diag)
{
    const int prot = use == MEMFD_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    if (bytes > SIZE_MAX - HUGE_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "shared memory cannot have %llu bytes",
                        (unsigned long long)bytes);
    }
    const size_t size = (size_t)bytes;
    uint8_t *data = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        return diag_errno(diag, errno, "cannot map %llu bytes of shared memory",
                          (unsigned long long)bytes);
    }
    for (int i = 0; i < PLACE_TRIES && size >= HUGE_BYTES && (uintptr_t)data % HUGE_BYTES != 0;
         i++) {
        void *hole = find_aligned_hole(size);
        uint8_t *other = hole ? mmap(hole, size, prot, MAP_SHARED, fd, 0) : MAP_FAILED;
        if (other != MAP_FAILED) {
            CHECK(munmap(data, size) == 0);
            data = other;
        }
    }
    *ret = data;
    return 0;
}

int memfd_map(int fd, uint64_t bytes, enum memfd_use use, struct memfd_map *ret, struct diag *diag)
{
    int rc = check(fd, bytes, diag);
    uint8_t *data = NULL;

    rc = rc != 0 ? rc : memfd_place(fd, bytes, use, &data, diag);
    if (rc != 0) {
        return rc;
    }
    /* A core dump of this process must not hold a trainer's state. */
    if (madvise(data, (size_t)bytes, MADV_DONTDUMP) != 0) {
        rc = diag_errno(diag, errno, "cannot exclude the handed-over memory from core files");
        CHECK(munmap(data, (size_t)bytes) == 0);
        return rc;
    }
    *ret =
        (struct memfd_map){.data = data, .room = use == MEMFD_WRITE ? data : NULL, .bytes = bytes};
    return 0;
}

void memfd_unmap(struct memfd_map *map)
{
    if (map->data) {
        CHECK(munmap((void *)(uintptr_t)map->data, (size_t)map->bytes) == 0);
        map->data = map->room = NULL;
    }
}

bool memfd_is_filled(int fd, uint64_t offset, uint64_t bytes)
{
    off_t hole = lseek(fd, (off_t)offset, SEEK_HOLE); /* the end counts as one */
    if (hole < 0) {
        return bytes == 0 || errno != ENXIO; /* a file system that does not know has no holes */
    }
    return (uint64_t)hole - offset >= bytes;
}
