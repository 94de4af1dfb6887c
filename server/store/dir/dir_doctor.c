/* SPDX-License-Identifier: Apache-2.0
 *
 * dir_doctor: see dir_doctor.h.
 */
#include "dir_doctor.h"

#include "base/check.h"
#include "base/digits.h"
#include "base/limits.h"
#include "env/holder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROBE_BYTES = LIMIT_ALIGN_BYTES, SLOW_SYNC_MS = 200, INODES_MIN = 10000 };

struct checking {
    const struct dir_doctor_options *options;
    struct vfs *vfs;
    vfs_fd root;
    struct doctor *doctor;
};

static int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    CHECK(clock_gettime(clock, &ts) == 0);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Tells whether the store is on a file system that Cairn is tested on. Network file systems and
 * tmpfs are unsafe. */
static void check_file_system(struct checking *checking, const struct vfs_space *space)
{
    static const char *const tried[] = {"ext4", "xfs", "btrfs", "sim"};
    bool is_tried = false;
    for (size_t i = 0; i < ARRAY_LEN(tried); i++) {
        is_tried = is_tried || strcmp(space->fs_type, tried[i]) == 0;
    }
    if (space->is_network) {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "file system",
                   "%s is on the network file system %s", checking->options->path, space->fs_type);
        doctor_remedy(checking->doctor, "use a local disk, or a store on Ceph: on a network file "
                                        "system a daemon on another host could not be kept out");
    } else if (strcmp(space->fs_type, "tmpfs") == 0) {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "file system", "%s is on tmpfs",
                   checking->options->path);
        doctor_remedy(checking->doctor,
                      "use a disk, because the contents of tmpfs are lost at a power cut");
    } else if (!is_tried) {
        doctor_add(checking->doctor, DOCTOR_WARNING, "file system", "%s is on %s",
                   checking->options->path, space->fs_type);
        doctor_remedy(checking->doctor, "use ext4, xfs or btrfs, on which Cairn is tested");
    } else {
        doctor_add(checking->doctor, DOCTOR_GOOD, "file system", "%s is on %s",
                   checking->options->path, space->fs_type);
    }
}

/* Tells how much room and how many inodes are free. */
static void check_space(struct checking *checking)
{
    struct vfs_space space;
    struct diag why = DIAG_INIT;
    int rc = checking->vfs->ops->space(checking->vfs, checking->root, &space, &why);
    if (rc != 0) {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "file system", "%s", diag_text(&why, rc));
        return;
    }
    check_file_system(checking, &space);
    struct doctor_room room = {.free_bytes = space.free_bytes,
                               .total_bytes = space.total_bytes,
                               .reserve_bytes = checking->options->reserve_bytes,
                               .records_free_bytes = max_u64(1, space.free_bytes)};
    doctor_space(checking->doctor, "space", &room);
    /* Btrfs does not count inodes. */
    if (space.total_inodes > 0 && space.free_inodes < INODES_MIN) {
        doctor_add(checking->doctor, DOCTOR_WARNING, "inodes",
                   "%" PRIu64 " of %" PRIu64 " inodes are free", space.free_inodes,
                   space.total_inodes);
        doctor_remedy(checking->doctor, "a checkpoint needs a file for each rank's objects and "
                                        "part: make the file system with more inodes");
    }
}

/* Tells whether others than the owner may change the store. */
static void check_mode(struct checking *checking)
{
    struct vfs_stat stat;
    struct diag why = DIAG_INIT;
    int rc = checking->vfs->ops->fstat(checking->vfs, checking->root, &stat, &why);
    if (rc != 0) {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "permissions", "%s", diag_text(&why, rc));
        return;
    }
    bool all = (stat.mode & 0002) != 0, group = (stat.mode & 0020) != 0;
    doctor_add(checking->doctor,
               all     ? DOCTOR_UNSAFE
               : group ? DOCTOR_WARNING
                       : DOCTOR_GOOD,
               "permissions", "mode %04o%s", stat.mode & 07777u,
               all     ? ": every user may change the store"
               : group ? ": a whole group may change the store"
                       : "");
    if (all || group) {
        doctor_remedy(checking->doctor, "chmod %s %s", all ? "o-w,g-w" : "g-w",
                      checking->options->path);
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

struct probe {
    char name[48];
    vfs_fd fd;
    uint8_t *page;
    bool is_direct;
    int64_t sync_ns, mtime_ns, before_ns, after_ns;
};

/* Writes a small file, makes it durable and reads it back. Measures how long this takes and what
 * time the file got. */
static int write_probe(struct checking *checking, struct probe *probe, struct diag *diag)
{
    struct vfs *vfs = checking->vfs;
    int rc = vfs->ops->open(vfs, checking->root, probe->name,
                            VFS_READ | VFS_WRITE | VFS_CREATE_EXCL | VFS_DIRECT, &probe->fd, diag);
    if (rc != 0) {
        return rc;
    }
    uint8_t *back = aligned_alloc(LIMIT_ALIGN_BYTES, PROBE_BYTES);
    struct vfs_stat stat = {0};
    size_t got = 0;
    probe->is_direct = vfs->ops->is_direct(vfs, probe->fd);
    probe->before_ns = clock_ns(CLOCK_REALTIME);
    int64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    rc = back == NULL ? diag_no_memory(diag, "this check")
                      : vfs->ops->pwrite(vfs, probe->fd, 0, PROBE_BYTES, probe->page, diag);
    rc = rc ? rc : vfs->ops->fsync(vfs, probe->fd, diag);
    rc = rc ? rc : vfs->ops->fsync(vfs, checking->root, diag);
    probe->sync_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
    probe->after_ns = clock_ns(CLOCK_REALTIME);
    rc = rc ? rc : vfs->ops->fstat(vfs, probe->fd, &stat, diag);
    rc = rc ? rc : vfs->ops->pread(vfs, probe->fd, 0, PROBE_BYTES, back, &got, diag);
    if (rc == 0 && (got != PROBE_BYTES || memcmp(back, probe->page, PROBE_BYTES) != 0)) {
        rc =
            diag_set(diag, CAIRN_E_DAMAGED, "%s/%s does not hold the bytes that were written to it",
                     checking->options->path, probe->name);
    }
    probe->mtime_ns = stat.mtime_ns;
    free(back);
    err_ignore(vfs->ops->close(vfs, probe->fd, NULL)); /* it was synced before */
    return rc;
}

/* Tells how long fsync took, whether O_DIRECT works, and whether the file system's clock is right.
 */
static void tell_probe(struct checking *checking, const struct probe *probe)
{
    int64_t ms = probe->sync_ns / 1000000;
    doctor_add(checking->doctor, ms > SLOW_SYNC_MS ? DOCTOR_WARNING : DOCTOR_GOOD, "fsync",
               "making a file and its name durable took %" PRId64 ".%01" PRId64 " ms", ms,
               probe->sync_ns / 100000 % 10);
    if (ms > SLOW_SYNC_MS) {
        doctor_remedy(checking->doctor, "each commit waits for a few of these: find out what else "
                                        "uses this disk, or use another disk");
    }
    doctor_add(
        checking->doctor, probe->is_direct ? DOCTOR_GOOD : DOCTOR_WARNING, "O_DIRECT",
        probe->is_direct
            ? "writes bypass the page cache (O_DIRECT)"
            : "the file system does not support O_DIRECT, so writes go through the page cache");
    if (!probe->is_direct) {
        doctor_remedy(checking->doctor, "use ext4 or xfs, which are two to six times as fast");
    }
    /* A file gets the time of the kernel's last tick, which is slightly behind the clock. */
    struct doctor_clock clock = {.whose = "the file system's",
                                 .theirs_ns = probe->mtime_ns,
                                 .before_ns = probe->before_ns - 20000000,
                                 .after_ns = probe->after_ns};
    doctor_clock(checking->doctor, &clock);
}

/* Tries whether a file can be made durable here, and removes it. */
static void check_writing(struct checking *checking)
{
    struct vfs *vfs = checking->vfs;
    struct diag why = DIAG_INIT;
    struct probe probe = {.fd = -1, .page = aligned_alloc(LIMIT_ALIGN_BYTES, PROBE_BYTES)};
    uint64_t random;
    vfs->ops->random(vfs, sizeof(random), &random);
    /* Named like a temporary. */
    snprintf(probe.name, sizeof(probe.name), ".tmp-0-%016" PRIx64, random);
    int rc = CAIRN_E_NO_MEMORY;
    if (probe.page != NULL) {
        memset(probe.page, 0x5a, PROBE_BYTES);
        memcpy(probe.page, &random, sizeof(random));
        rc = write_probe(checking, &probe, &why);
    }
    if (rc == 0) {
        tell_probe(checking, &probe);
    } else {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "fsync",
                   "a file cannot be made durable here: %s", diag_text(&why, rc));
        doctor_remedy(checking->doctor,
                      rc == CAIRN_E_DENIED || rc == CAIRN_E_READ_ONLY
                          ? "run this command as the user that cairnd runs as, on "
                            "a file system that is mounted for writing"
                      : rc == CAIRN_E_NO_SPACE
                          ? "remove other files from this file system, or grow it, until a few MiB "
                            "are free"
                          : "check the kernel's log and the disk");
    }
    err_ignore(vfs->ops->unlink(vfs, checking->root, probe.name, false, NULL)); /* if it is there */
    free(probe.page);
}

/* --- the lock --------------------------------------------------------------------------------- */

/* Tells whether a daemon has the store, and which. */
static void check_lock(struct checking *checking)
{
    struct vfs *vfs = checking->vfs;
    struct diag why = DIAG_INIT;
    char path[4096], who[128] = "";
    vfs_fd fd;
    int rc = vfs->ops->open(vfs, checking->root, "lock", VFS_READ | VFS_WRITE, &fd, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        doctor_add(checking->doctor, DOCTOR_GOOD, "lock", "no daemon has ever used this store");
        return;
    }
    if (rc != 0) {
        doctor_add(checking->doctor, DOCTOR_WARNING, "lock", "%s", diag_text(&why, rc));
        doctor_remedy(checking->doctor, "run this command as the user that cairnd runs as");
        return;
    }
    rc = vfs->ops->lock(vfs, fd, &why);
    err_ignore(vfs->ops->close(vfs, fd, NULL)); /* also releases the lock */
    snprintf(path, sizeof(path), "%s/lock", checking->options->path);
    if (rc == CAIRN_E_BUSY) {
        holder_of(path, sizeof(who), who);
        doctor_add(checking->doctor, DOCTOR_GOOD, "lock", "a daemon is using the store: %s",
                   who[0] != '\0' ? who : "its process cannot be seen from here");
    } else if (rc == 0) {
        doctor_add(checking->doctor, DOCTOR_GOOD, "lock", "no daemon is using the store");
    } else {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "lock", "%s", diag_text(&why, rc));
        doctor_remedy(checking->doctor,
                      "use a file system with open-file-description locks; without them two "
                      "daemons on one store would not notice each other");
    }
}

/* --- quarantine ------------------------------------------------------------------------------- */

struct quarantined {
    struct vfs *vfs;
    vfs_fd fd;
    uint64_t files, bytes;
};

static int count_file(void *user, const char *name, enum vfs_kind kind)
{
    struct quarantined *io = user;
    struct vfs_stat stat;
    if (kind == VFS_FILE && io->vfs->ops->stat(io->vfs, io->fd, name, &stat, NULL) == 0) {
        io->files++;
        io->bytes += stat.bytes;
    }
    return 0;
}

/* Reports files in quarantine. They are evidence, which only an operator may delete, so the
 * operator has to know of them. */
static void check_quarantine(struct checking *checking)
{
    struct vfs *vfs = checking->vfs;
    struct quarantined found = {.vfs = vfs};
    struct diag why = DIAG_INIT;
    int rc = vfs->ops->open(vfs, checking->root, "quarantine", VFS_READ | VFS_DIRECTORY, &found.fd,
                            &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return; /* there is no store yet */
    }
    if (rc == 0) {
        rc = vfs->ops->list(vfs, found.fd, count_file, &found, &why);
        err_ignore(vfs->ops->close(vfs, found.fd, NULL)); /* a directory has nothing to flush */
    }
    if (rc != 0) {
        doctor_add(checking->doctor, DOCTOR_WARNING, "quarantine", "%s", diag_text(&why, rc));
        doctor_remedy(checking->doctor, "run this command as the user that cairnd runs as");
    } else if (found.files > 0) {
        doctor_add(checking->doctor, DOCTOR_GOOD, "quarantine",
                   "%" PRIu64 " file%s (%" PRIu64
                   " bytes) in %.160s/quarantine: damaged files of records that were replaced; "
                   "nothing reads them, so remove them when you no longer need them",
                   found.files, plural(found.files), found.bytes, checking->options->path);
    }
}

int dir_doctor(const struct dir_doctor_options *options, struct doctor *doctor, struct diag *diag)
{
    struct checking checking = {.options = options, .vfs = options->vfs, .doctor = doctor};
    struct diag why = DIAG_INIT;
    int rc = options->vfs->ops->open_root(options->vfs, options->path, &checking.root, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return diag_set(diag, CAIRN_E_NO_STORE,
                        "%s does not exist; name the directory that [store] url names in cairnd's "
                        "configuration",
                        options->path);
    }
    if (rc != 0) {
        return diag_copy(diag, &why);
    }
    check_space(&checking);
    check_mode(&checking);
    check_writing(&checking);
    check_lock(&checking);
    check_quarantine(&checking);
    /* A directory has nothing to flush. */
    err_ignore(options->vfs->ops->close(options->vfs, checking.root, NULL));
    return 0;
}
