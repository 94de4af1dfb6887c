/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks before the mapping. Shared memory pages of a sealed memfd can be replaced by zeroes (a
 * hole) but never go away, so reading them gives bytes, right or wrong, and digests tell which.
 * Huge pages are the exception: a hole in them is filled from a pool that may be empty, and that is
 * a SIGBUS; they are taken from our own user and from root only, who can end this process anyway.
 * Any thread.
 */
#include "memfd.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };

static int check_kind(int fd, const struct stat *st, struct diag *diag)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) != 0) {
        return diag_errno(diag, errno, "look at the memory that was handed over");
    }
    if (fs.f_type == TMPFS_MAGIC) {
        return 0;
    }
    if (fs.f_type != HUGETLBFS_MAGIC) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the descriptor is no shared memory; hand over a memfd");
    }
    if (st->st_uid != geteuid() && st->st_uid != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "huge pages of user %u are not taken: they could run out under this "
                        "process; run both as one user, or hand over plain pages",
                        (unsigned)st->st_uid);
    }
    return 0;
}

static int check(int fd, uint64_t bytes, struct diag *diag)
{
    struct stat st;
    int rc, seals;

    if (fstat(fd, &st) != 0) {
        return diag_errno(diag, errno, "look at the memory that was handed over");
    }
    if (!S_ISREG(st.st_mode)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the descriptor is no shared memory; hand over a memfd");
    }
    rc = check_kind(fd, &st, diag);
    if (rc != 0) {
        return rc;
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the memory is not sealed (F_SEAL_SHRINK and F_SEAL_GROW): it could go "
                        "away while it is read");
    }
    if (bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size != bytes) {
        return diag_set(diag, CAIRN_E_INVALID, "the memory has %lld bytes, %llu were announced",
                        (long long)st.st_size, (unsigned long long)bytes);
    }
    return 0;
}

/* Where huge pages of the memory become huge pages of the mapping, too: the kernel alone sees to
 * that only where shmem_enabled says so, and 4 KiB at a time costs a fault each and the disk a
 * third. */
static void *map_aligned(int fd, size_t bytes, int prot)
{
    size_t slack = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
    uint8_t *room = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        return MAP_FAILED;
    }
    size_t head = slack > 0 ? (HUGE_BYTES - (uintptr_t)room % HUGE_BYTES) % HUGE_BYTES : 0;
    size_t used = (size_t)round_up_u64(bytes, LIMIT_ALIGN_BYTES), tail = slack - head;
    void *data = mmap(room + head, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
    int errnum = errno;
    if (data == MAP_FAILED) {
        CHECK(munmap(room, bytes + slack) == 0);
        errno = errnum;
        return MAP_FAILED;
    }
    if (head > 0) {
        CHECK(munmap(room, head) == 0);
    }
    if (tail > 0) {
        CHECK(munmap(room + head + used, tail) == 0);
    }
    return data;
}

int memfd_map(int fd, uint64_t bytes, enum memfd_use use, struct memfd_map *ret, struct diag *diag)
{
    int rc = check(fd, bytes, diag);
    void *data;

    if (rc != 0) {
        return rc;
    }
    if (bytes > SIZE_MAX - HUGE_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "memory of %llu bytes", (unsigned long long)bytes);
    }
    data = map_aligned(fd, (size_t)bytes, use == MEMFD_WRITE ? PROT_READ | PROT_WRITE : PROT_READ);
    if (data == MAP_FAILED) {
        return diag_errno(diag, errno, "map %llu bytes that were handed over",
                          (unsigned long long)bytes);
    }
    /* A dump of this process is not the place for a trainer's state. */
    if (madvise(data, (size_t)bytes, MADV_DONTDUMP) != 0) {
        rc = diag_errno(diag, errno, "keep handed-over memory out of core files");
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
    return bytes == 0 || (hole >= 0 && (uint64_t)hole - offset >= bytes);
}
