/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated form of vfs: a process's descriptors on a simulated disk. Invariant: after the
 * process's death no call has an effect, and all of them fail with IO. Misuse that the kernel would
 * forgive (a write to a file that is open for reading) breaks a CHECK here. One thread.
 */
#include "sim_disk.h"

#include <stdio.h>
#include <string.h>

enum { FD_FIRST = 3, SECTOR_BYTES = 512 };

struct sim_fd {
    struct inode *inode; /* NULL if this descriptor is free */
    unsigned flags;
};

static struct sim_host *host_of(struct vfs *vfs)
{
    return container_of(vfs, struct sim_host, vfs.base);
}

/* The start of every call: death, planned death, planned failure. */
static int enter(struct vfs *vfs, const char *what, struct diag *diag)
{
    struct sim_host *host = host_of(vfs);
    struct sim_disk *disk = host->disk;

    if (!host->is_dead && host->vfs.kill_in && --host->vfs.kill_in == 0) {
        sim_kill(host, SIM_RESET);
    }
    if (host->is_dead) {
        return diag_set(diag, CAIRN_E_IO, "%s: the process is dead", what);
    }
    disk->calls++;
    if (disk->fail_in && --disk->fail_in == 0) {
        return diag_set(diag, disk->fail_code, "%s: planned failure", what);
    }
    return 0;
}

static struct sim_fd *get_fd(struct vfs *vfs, vfs_fd fd)
{
    struct sim_vfs *self = &host_of(vfs)->vfs;

    CHECK(fd >= FD_FIRST);
    CHECK((size_t)(fd - FD_FIRST) < self->fd_cap);
    CHECK(self->fds[fd - FD_FIRST].inode);
    return &self->fds[fd - FD_FIRST];
}

static struct inode *get_dir(struct vfs *vfs, vfs_fd fd)
{
    struct inode *dir = get_fd(vfs, fd)->inode;

    CHECK(dir->kind == VFS_DIR);
    return dir;
}

static vfs_fd new_fd(struct vfs *vfs, struct inode *inode, unsigned flags)
{
    struct sim_vfs *self = &host_of(vfs)->vfs;
    size_t i = 0;

    while (i < self->fd_cap && self->fds[i].inode) {
        i++;
    }
    if (i == self->fd_cap) {
        self->fd_cap = self->fd_cap ? self->fd_cap * 2 : 16;
        self->fds = realloc(self->fds, self->fd_cap * sizeof self->fds[0]);
        CHECK(self->fds);
        memset(self->fds + i, 0, (self->fd_cap - i) * sizeof self->fds[0]);
    }
    self->fds[i] = (struct sim_fd){inode, flags};
    self->open++;
    inode->opens++;
    return (vfs_fd)i + FD_FIRST;
}

static int check_name(const char *name, struct diag *diag)
{
    if (!*name || *name == '/' || strcmp(name, "..") == 0 || strncmp(name, "../", 3) == 0 ||
        strstr(name, "/../") ||
        (strlen(name) >= 3 && strcmp(name + strlen(name) - 3, "/..") == 0)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "file name \"%s\" is empty, absolute, or leaves its directory", name);
    }
    return 0;
}

static int missing(const char *what, const char *name, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NOT_FOUND, "%s %s: no such file or directory", what, name);
}

struct place {
    struct inode *dir;
    const char *name; /* the last component */
};

/* The directory and the component that name leads to. */
static int find(struct vfs *vfs, vfs_fd at, const char *name, struct place *ret, struct diag *diag)
{
    int rc = check_name(name, diag);

    if (rc) {
        return rc;
    }
    ret->dir = disk_parent(get_dir(vfs, at), name, &ret->name);
    return ret->dir ? 0 : missing("find", name, diag);
}

static struct inode *inode_at(const struct place *place)
{
    bool is_self = strcmp(place->name, ".") == 0;

    return is_self ? place->dir : dir_find(place->dir, strlen(place->name), place->name);
}

static int exists(const char *what, const char *name, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_EXISTS, "%s %s: file exists", what, name);
}

/* --- descriptors ------------------------------------------------------------------------------ */

static int open_root(struct vfs *vfs, const char *path, vfs_fd *ret, struct diag *diag)
{
    int rc = enter(vfs, "open directory", diag);
    struct inode *dir;

    if (rc) {
        return rc;
    }
    dir = disk_walk(host_of(vfs)->disk->root, path);
    if (!dir || dir->kind != VFS_DIR) {
        return missing("open directory", path, diag);
    }
    *ret = new_fd(vfs, dir, VFS_READ | VFS_DIRECTORY);
    return 0;
}

static int open_at(struct vfs *vfs, vfs_fd at, const char *name, unsigned flags, vfs_fd *ret,
                   struct diag *diag)
{
    struct sim_disk *disk = host_of(vfs)->disk;
    struct place place;
    struct inode *inode;
    int rc = enter(vfs, "open", diag);

    rc = rc ? rc : find(vfs, at, name, &place, diag);
    if (rc) {
        return rc;
    }
    inode = inode_at(&place);
    if (inode && flags & VFS_CREATE_EXCL) {
        return exists("create", name, diag);
    }
    if (!inode && !(flags & (VFS_CREATE_EXCL | VFS_CREATE))) {
        return missing("open", name, diag);
    }
    if (inode && (flags & VFS_DIRECTORY) && inode->kind != VFS_DIR) {
        return diag_set(diag, CAIRN_E_IO, "open %s: not a directory", name);
    }
    if (inode && (flags & VFS_WRITE) && inode->kind == VFS_DIR) {
        return diag_set(diag, CAIRN_E_IO, "open %s: is a directory", name);
    }
    if (!inode) {
        inode = inode_new(disk, VFS_FILE);
        dir_add(disk, place.dir, place.name, inode);
    }
    *ret = new_fd(vfs, inode, flags);
    return 0;
}

static void drop_fd(struct sim_host *host, vfs_fd fd)
{
    struct inode *inode = host->vfs.fds[fd - FD_FIRST].inode;

    if (inode->locker == host && inode->locker_fd == fd) {
        inode->locker = NULL;
    }
    inode->opens--;
    inode_release(host->disk, inode);
}

/* Frees the number whatever comes, as close() does. The dead's were closed at its death. */
static int close_fd(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    struct sim_host *host = host_of(vfs);
    struct sim_fd *slot;
    bool was_dead = host->is_dead;
    int rc = enter(vfs, "close", diag);

    CHECK(fd >= FD_FIRST);
    CHECK((size_t)(fd - FD_FIRST) < host->vfs.fd_cap);
    slot = &host->vfs.fds[fd - FD_FIRST];
    CHECK(slot->inode);
    if (!was_dead && !host->is_dead) {
        drop_fd(host, fd);
    }
    slot->inode = NULL;
    host->vfs.open--;
    return rc;
}

void sim_vfs_kill(struct sim_host *host)
{
    for (size_t i = 0; i < host->vfs.fd_cap; i++) {
        if (host->vfs.fds[i].inode) {
            drop_fd(host, (vfs_fd)i + FD_FIRST);
        }
    }
}

void sim_vfs_fini(struct sim_host *host) { free(host->vfs.fds); }

/* --- data ------------------------------------------------------------------------------------- */

static void check_direct(struct sim_fd *fd, uint64_t offset, size_t bytes, const void *data)
{
    if ((offset | bytes | (uintptr_t)data) % SECTOR_BYTES) {
        fd->flags &= ~(unsigned)VFS_DIRECT; /* as the real one does after EINVAL */
    }
}

static int pwrite_all(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, const void *data,
                      struct diag *diag)
{
    struct sim_disk *disk = host_of(vfs)->disk;
    struct sim_fd *slot;
    uint64_t room;
    int rc = enter(vfs, "write", diag);

    if (rc) {
        return rc;
    }
    slot = get_fd(vfs, fd);
    CHECK(slot->flags & VFS_WRITE);
    CHECK(slot->inode->kind == VFS_FILE);
    check_direct(slot, offset, bytes, data);
    room = disk->capacity - min_u64(disk->capacity, disk->used);
    room = room < UINT64_MAX - slot->inode->cur.bytes ? room + slot->inode->cur.bytes : UINT64_MAX;
    if (offset + bytes > room) {
        file_write(disk, slot->inode, offset, (size_t)(room > offset ? room - offset : 0), data);
        return diag_set(diag, CAIRN_E_NO_SPACE, "write %zu bytes: no space left on device", bytes);
    }
    file_write(disk, slot->inode, offset, bytes, data);
    return 0;
}

static int pread_all(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, void *data,
                     size_t *ret_bytes, struct diag *diag)
{
    struct sim_fd *slot;
    const struct content *content;
    int rc = enter(vfs, "read", diag);

    if (rc) {
        return rc;
    }
    slot = get_fd(vfs, fd);
    CHECK(slot->flags & VFS_READ);
    CHECK(slot->inode->kind == VFS_FILE);
    check_direct(slot, offset, bytes, data);
    content = &slot->inode->cur;
    bytes = offset < content->bytes ? (size_t)min_u64(bytes, content->bytes - offset) : 0;
    if (bytes) {
        memcpy(data, content->data + offset, bytes);
    }
    *ret_bytes = bytes;
    return 0;
}

static int sync_fd(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    struct sim_disk *disk = host_of(vfs)->disk;
    struct inode *inode;
    int rc = enter(vfs, "fsync", diag);

    if (rc) {
        return rc;
    }
    inode = get_fd(vfs, fd)->inode;
    if (inode->kind == VFS_DIR) {
        dir_sync(inode);
    } else if (disk->fail_fsync) {
        disk->fail_fsync = false;
        file_sync_fails(disk, inode);
        return diag_set(diag, CAIRN_E_IO, "fsync: input/output error");
    } else {
        file_sync(inode);
    }
    return 0;
}

static int allocate(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag)
{
    struct sim_disk *disk = host_of(vfs)->disk;
    const struct inode *inode;
    int rc = enter(vfs, "reserve", diag);

    if (rc) {
        return rc;
    }
    inode = get_fd(vfs, fd)->inode;
    if (bytes > inode->cur.bytes &&
        bytes - inode->cur.bytes > disk->capacity - min_u64(disk->capacity, disk->used)) {
        return diag_set(diag, CAIRN_E_NO_SPACE, "reserve %llu bytes: no space left on device",
                        (unsigned long long)bytes);
    }
    return 0;
}

static int truncate_fd(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag)
{
    struct sim_fd *slot;
    int rc = enter(vfs, "truncate", diag);

    if (rc) {
        return rc;
    }
    slot = get_fd(vfs, fd);
    CHECK(slot->flags & VFS_WRITE);
    file_truncate(host_of(vfs)->disk, slot->inode, bytes);
    return 0;
}

static int chmod_fd(struct vfs *vfs, vfs_fd fd, uint32_t mode, struct diag *diag)
{
    int rc = enter(vfs, "chmod", diag);

    if (!rc) {
        get_fd(vfs, fd)->inode->mode = mode; /* durable at once: nothing depends on it */
    }
    return rc;
}

static int lock_fd(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    struct sim_host *host = host_of(vfs);
    struct inode *inode;
    int rc = enter(vfs, "lock", diag);

    if (rc) {
        return rc;
    }
    inode = get_fd(vfs, fd)->inode;
    CHECK(get_fd(vfs, fd)->flags & VFS_WRITE);
    if (inode->locker && (inode->locker != host || inode->locker_fd != fd)) {
        return diag_set(diag, CAIRN_E_BUSY, "another process holds the lock");
    }
    inode->locker = host;
    inode->locker_fd = fd;
    return 0;
}

static bool is_direct(struct vfs *vfs, vfs_fd fd) { return get_fd(vfs, fd)->flags & VFS_DIRECT; }

static void random_bytes(struct vfs *vfs, size_t bytes, void *ret)
{
    loop_random(&host_of(vfs)->loop, bytes, ret);
}

/* --- names ------------------------------------------------------------------------------------ */

static void fill_stat(const struct inode *inode, struct vfs_stat *ret)
{
    *ret = (struct vfs_stat){.kind = inode->kind,
                             .bytes = inode->cur.bytes,
                             .mode = inode->mode,
                             .mtime_ns = inode->mtime_ns};
}

static int fstat_fd(struct vfs *vfs, vfs_fd fd, struct vfs_stat *ret, struct diag *diag)
{
    int rc = enter(vfs, "stat", diag);

    if (!rc) {
        fill_stat(get_fd(vfs, fd)->inode, ret);
    }
    return rc;
}

static int stat_at(struct vfs *vfs, vfs_fd at, const char *name, struct vfs_stat *ret,
                   struct diag *diag)
{
    struct place place;
    struct inode *inode;
    int rc = enter(vfs, "stat", diag);

    rc = rc ? rc : find(vfs, at, name, &place, diag);
    if (rc) {
        return rc;
    }
    inode = inode_at(&place);
    if (!inode) {
        return missing("stat", name, diag);
    }
    fill_stat(inode, ret);
    return 0;
}

static int make_dir(struct vfs *vfs, vfs_fd at, const char *name, struct diag *diag)
{
    struct sim_disk *disk = host_of(vfs)->disk;
    struct place place;
    int rc = enter(vfs, "make directory", diag);

    rc = rc ? rc : find(vfs, at, name, &place, diag);
    if (rc) {
        return rc;
    }
    if (inode_at(&place)) {
        return exists("make directory", name, diag);
    }
    dir_add(disk, place.dir, place.name, inode_new(disk, VFS_DIR));
    return 0;
}

static int rename_at(struct vfs *vfs, vfs_fd from_at, const char *from, vfs_fd to_at,
                     const char *to, struct diag *diag)
{
    struct place old, new;
    int rc = enter(vfs, "rename", diag);

    rc = rc ? rc : find(vfs, from_at, from, &old, diag);
    rc = rc ? rc : find(vfs, to_at, to, &new, diag);
    if (rc) {
        return rc;
    }
    if (!inode_at(&old)) {
        return missing("rename", from, diag);
    }
    if (inode_at(&new)) {
        return exists("rename", to, diag);
    }
    dir_rename(host_of(vfs)->disk, old.dir, old.name, new.dir, new.name);
    return 0;
}

static int exchange_at(struct vfs *vfs, vfs_fd at, const char *name, const char *with,
                       struct diag *diag)
{
    struct place first, second;
    int rc = enter(vfs, "exchange", diag);

    rc = rc ? rc : find(vfs, at, name, &first, diag);
    rc = rc ? rc : find(vfs, at, with, &second, diag);
    if (rc) {
        return rc;
    }
    if (!inode_at(&first) || !inode_at(&second)) {
        return missing("exchange", inode_at(&first) ? with : name, diag);
    }
    dir_exchange(host_of(vfs)->disk, first.dir, first.name, second.name);
    return 0;
}

static int unlink_at(struct vfs *vfs, vfs_fd at, const char *name, bool is_dir, struct diag *diag)
{
    struct place place;
    struct inode *inode;
    int rc = enter(vfs, "remove", diag);

    rc = rc ? rc : find(vfs, at, name, &place, diag);
    if (rc) {
        return rc;
    }
    inode = inode_at(&place);
    if (!inode) {
        return missing("remove", name, diag);
    }
    if (is_dir != (inode->kind == VFS_DIR)) {
        return diag_set(diag, CAIRN_E_IO, "remove %s: %s", name,
                        is_dir ? "not a directory" : "is a directory");
    }
    if (inode->entries.count) {
        return diag_set(diag, CAIRN_E_NOT_EMPTY, "remove %s: directory not empty", name);
    }
    dir_remove(host_of(vfs)->disk, place.dir, place.name);
    return 0;
}

/* From a seeded place on, so that nobody relies on an order; each() may change the directory. */
static int list_dir(struct vfs *vfs, vfs_fd fd,
                    int (*each)(void *user, const char *name, enum vfs_kind kind), void *user,
                    struct diag *diag)
{
    struct entry *copy;
    size_t count, start;
    struct inode *dir;
    int rc = enter(vfs, "list directory", diag);

    if (rc) {
        return rc;
    }
    dir = get_dir(vfs, fd);
    count = dir->entries.count;
    if (!count) {
        return 0;
    }
    copy = sim_alloc(count * sizeof *copy);
    start = (size_t)sim_below(host_of(vfs)->sim, count);
    for (size_t i = 0; i < count; i++) {
        copy[i] = dir->entries.item[(start + i) % count];
        copy[i].name = strdup(copy[i].name);
        CHECK(copy[i].name);
    }
    for (size_t i = 0; i < count; i++) {
        rc = rc ? rc : each(user, copy[i].name, copy[i].inode->kind);
        free(copy[i].name);
    }
    free(copy);
    return rc;
}

static int space(struct vfs *vfs, vfs_fd dir, struct vfs_space *ret, struct diag *diag)
{
    const struct sim_disk *disk = host_of(vfs)->disk;
    int rc = enter(vfs, "free space", diag);

    (void)dir;
    if (!rc) {
        uint64_t total = min_u64(disk->capacity, UINT64_C(1) << 40);
        *ret = (struct vfs_space){.total_bytes = total,
                                  .free_bytes = total - min_u64(total, disk->used),
                                  .total_inodes = 1 << 20,
                                  .free_inodes = 1 << 19,
                                  .fs_type = "ext4"};
    }
    return rc;
}

void sim_vfs_init(struct sim_host *host)
{
    static const struct vfs_ops ops = {
        .open_root = open_root,
        .open = open_at,
        .close = close_fd,
        .pwrite = pwrite_all,
        .pread = pread_all,
        .fsync = sync_fd,
        .allocate = allocate,
        .truncate = truncate_fd,
        .chmod = chmod_fd,
        .fstat = fstat_fd,
        .stat = stat_at,
        .mkdir = make_dir,
        .rename = rename_at,
        .exchange = exchange_at,
        .unlink = unlink_at,
        .list = list_dir,
        .space = space,
        .lock = lock_fd,
        .is_direct = is_direct,
        .random = random_bytes,
    };

    host->vfs.base.ops = &ops;
}
