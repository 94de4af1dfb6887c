/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks before the mapping. Shared memory pages of a sealed memfd can be replaced by zeroes (a
 * hole) but never go away, so reading them gives bytes, right or wrong, and digests tell which.
 * Huge pages are the exception: a hole in them is filled from a pool that may be empty, and that is
 * a SIGBUS; they are taken from our own user and from root only, who can end this process anyway.
 * Any thread.
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

int memfd_map(int fd, uint64_t bytes, struct memfd_map *ret, struct diag *diag)
{
    int rc = check(fd, bytes, diag);
    void *data;

    if (rc != 0) {
        return rc;
    }
    if (bytes > SIZE_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "memory of %llu bytes", (unsigned long long)bytes);
    }
    data = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
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
    *ret = (struct memfd_map){.data = data, .bytes = bytes};
    return 0;
}

void memfd_unmap(struct memfd_map *map)
{
    if (map->data) {
        CHECK(munmap((void *)(uintptr_t)map->data, (size_t)map->bytes) == 0);
        map->data = NULL;
    }
}
