/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated disk: a tree of inodes of which each has a current state (the page cache, what
 * processes see) and a durable one (what a power loss leaves), and between them the list of changes
 * that were not synced. sim_disk.c keeps the states apart; sim_vfs.c puts struct vfs on top. One
 * thread.
 */
#ifndef CAIRN_SIM_DISK_H
#define CAIRN_SIM_DISK_H

#include "sim_private.h"

struct inode;

struct entry {
    char *name; /* owned */
    struct inode *inode;
};

struct entries {
    struct entry *item;
    size_t count, cap;
};

enum change_kind { CHANGE_WRITE, CHANGE_TRUNCATE, CHANGE_ADD, CHANGE_REMOVE };

/* One unsynced change. tx: the operation it belongs to; the halves of a rename share it. */
struct change {
    struct change *next;
    enum change_kind kind;
    uint64_t tx;
    uint64_t offset;     /* WRITE; TRUNCATE: the new length */
    size_t bytes;        /* WRITE */
    struct inode *inode; /* ADD */
    struct inode *peer;  /* the other directory of a rename; else NULL */
    char *name;          /* ADD, REMOVE; owned */
    uint8_t data[];
};

struct content {
    uint8_t *data;
    size_t bytes, cap;
};

struct inode {
    struct list link; /* in sim_disk.inodes */
    enum vfs_kind kind;
    uint32_t mode;
    int64_t mtime_ns;
    unsigned links, opens;
    const struct sim_host *locker; /* the host that holds the lock; NULL while it is free */
    vfs_fd locker_fd;
    struct change *changes, **changes_end;
    struct content cur, base; /* base: meaningful only while has_base */
    bool has_base;            /* of a file: durable and current differ, or may */
    bool is_damaged;          /* a failed fsync: what changed before it never becomes durable */
    bool is_reached;          /* mark of the sweep after a crash */
    struct entries entries, base_entries;
};

struct sim_disk {
    struct list link;
    struct sim *sim;
    struct list inodes;
    struct inode *root;
    uint64_t tx, capacity, used, calls;
    uint64_t fail_in; /* calls until one fails; 0 while none is to fail */
    int fail_code;
    bool fail_fsync;
};

struct inode *inode_new(struct sim_disk *disk, enum vfs_kind kind);
void inode_release(struct sim_disk *disk, struct inode *inode); /* after links or opens went down */
struct inode *dir_find(const struct inode *dir, size_t name_bytes, const char *name);
/* Walks the components; NULL when one is missing or not a directory. */
struct inode *disk_walk(struct inode *from, const char *path);
/* The directory in which the last component of path is, and that component. NULL as above. */
struct inode *disk_parent(struct inode *from, const char *path, const char **ret_name);

/* Changes of the current state, noted as unsynced. */
void dir_add(struct sim_disk *disk, struct inode *dir, const char *name, struct inode *inode);
void dir_remove(struct sim_disk *disk, struct inode *dir, const char *name);
/* Both names exist, and are files. */
void dir_exchange(struct sim_disk *disk, struct inode *dir, const char *name, const char *with);
void dir_rename(struct sim_disk *disk, struct inode *from_dir, const char *from,
                struct inode *to_dir, const char *to);
void file_write(struct sim_disk *disk, struct inode *file, uint64_t offset, size_t bytes,
                const void *data);
void file_truncate(struct sim_disk *disk, struct inode *file, uint64_t bytes);
/* Makes them durable. */
void dir_sync(struct inode *dir);
void file_sync(struct inode *file);
void file_sync_fails(struct sim_disk *disk, struct inode *file);

#endif
