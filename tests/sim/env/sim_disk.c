/* SPDX-License-Identifier: Apache-2.0
 *
 * The two states of the simulated disk. Invariants: what was synced survives every crash; what was
 * not is kept or lost change by change, a write also by sectors of 512 bytes; a rename is kept or
 * lost as a whole; syncing a directory makes its entries durable and nothing of the files that they
 * name.
 */
#include "sim_disk.h"

#include <string.h>

/* --- inodes and names ------------------------------------------------------------------------- */

struct inode *inode_new(struct sim_disk *disk, enum vfs_kind kind)
{
    struct inode *inode = sim_alloc(sizeof *inode);

    inode->kind = kind;
    inode->mode = kind == VFS_DIR ? 0700 : 0600;
    inode->mtime_ns = (int64_t)disk->sim->now_ns;
    inode->changes_end = &inode->changes;
    list_add_tail(&disk->inodes, &inode->link);
    return inode;
}

/* Frees the space of what has no name and no user; the inode itself waits for the next crash,
 * because the name may come back with it. */
void inode_release(struct sim_disk *disk, struct inode *inode)
{
    if (!inode->links && !inode->opens) {
        disk->used -= min_u64(disk->used, inode->cur.bytes);
    }
}

static size_t entry_idx(const struct entries *entries, size_t name_bytes, const char *name)
{
    size_t i = 0;

    while (i < entries->count && (strncmp(entries->item[i].name, name, name_bytes) != 0 ||
                                  entries->item[i].name[name_bytes])) {
        i++;
    }
    return i;
}

static void entries_set(struct entries *entries, const char *name, struct inode *inode)
{
    size_t i = entry_idx(entries, strlen(name), name);

    if (i < entries->count) {
        entries->item[i].inode = inode;
        return;
    }
    if (entries->count == entries->cap) {
        entries->cap = entries->cap ? entries->cap * 2 : 8;
        entries->item = realloc(entries->item, entries->cap * sizeof entries->item[0]);
        CHECK(entries->item);
    }
    entries->item[entries->count] = (struct entry){strdup(name), inode};
    CHECK(entries->item[entries->count].name);
    entries->count++;
}

static void entries_unset(struct entries *entries, const char *name)
{
    size_t i = entry_idx(entries, strlen(name), name);

    if (i < entries->count) {
        free(entries->item[i].name);
        entries->count--;
        memmove(entries->item + i, entries->item + i + 1,
                (entries->count - i) * sizeof entries->item[0]);
    }
}

static void entries_clear(struct entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        free(entries->item[i].name);
    }
    free(entries->item);
    *entries = (struct entries){0};
}

struct inode *dir_find(const struct inode *dir, size_t name_bytes, const char *name)
{
    size_t i = entry_idx(&dir->entries, name_bytes, name);

    return i < dir->entries.count ? dir->entries.item[i].inode : NULL;
}

struct inode *disk_parent(struct inode *from, const char *path, const char **ret_name)
{
    struct inode *dir = from;

    for (;;) {
        size_t bytes;

        path += strspn(path, "/");
        bytes = strcspn(path, "/");
        if (dir->kind != VFS_DIR) {
            return NULL;
        }
        if (!path[bytes + strspn(path + bytes, "/")]) {
            *ret_name = path;
            return dir;
        }
        dir = bytes == 1 && *path == '.' ? dir : dir_find(dir, bytes, path);
        if (!dir) {
            return NULL;
        }
        path += bytes;
    }
}

struct inode *disk_walk(struct inode *from, const char *path)
{
    const char *name;
    struct inode *dir = disk_parent(from, path, &name);

    if (!dir || !*name || strcmp(name, ".") == 0) {
        return dir;
    }
    return dir_find(dir, strcspn(name, "/"), name);
}

/* --- changes ---------------------------------------------------------------------------------- */

static struct change *note(struct inode *inode, enum change_kind kind, uint64_t tx,
                           size_t data_bytes)
{
    struct change *change = sim_alloc(sizeof *change + data_bytes);

    change->kind = kind;
    change->tx = tx;
    *inode->changes_end = change;
    inode->changes_end = &change->next;
    return change;
}

static void note_name(struct inode *dir, enum change_kind kind, uint64_t tx, const char *name,
                      struct inode *inode)
{
    struct change *change = note(dir, kind, tx, 0);

    change->name = strdup(name);
    CHECK(change->name);
    change->inode = inode;
}

static struct change *pop_change(struct inode *inode)
{
    struct change *change = inode->changes;

    inode->changes = change->next;
    if (!inode->changes) {
        inode->changes_end = &inode->changes;
    }
    return change;
}

static void free_change(struct change *change)
{
    free(change->name);
    free(change);
}

static void drop_changes(struct inode *inode)
{
    while (inode->changes) {
        free_change(pop_change(inode));
    }
}

void dir_add(struct sim_disk *disk, struct inode *dir, const char *name, struct inode *inode)
{
    entries_set(&dir->entries, name, inode);
    inode->links++;
    note_name(dir, CHANGE_ADD, ++disk->tx, name, inode);
}

void dir_remove(struct sim_disk *disk, struct inode *dir, const char *name)
{
    struct inode *inode = dir_find(dir, strlen(name), name);

    note_name(dir, CHANGE_REMOVE, ++disk->tx, name, NULL);
    entries_unset(&dir->entries, name);
    inode->links--;
    inode_release(disk, inode);
}

void dir_rename(struct sim_disk *disk, struct inode *from_dir, const char *from,
                struct inode *to_dir, const char *to)
{
    struct inode *inode = dir_find(from_dir, strlen(from), from);
    uint64_t tx = ++disk->tx;

    entries_unset(&from_dir->entries, from);
    entries_set(&to_dir->entries, to, inode);
    note_name(from_dir, CHANGE_REMOVE, tx, from, NULL);
    note_name(to_dir, CHANGE_ADD, tx, to, inode);
    if (from_dir != to_dir) {
        container_of(from_dir->changes_end, struct change, next)->peer = to_dir;
        container_of(to_dir->changes_end, struct change, next)->peer = from_dir;
    }
}

/* Both halves have the same number, so a crash keeps both or none. */
void dir_exchange(struct sim_disk *disk, struct inode *dir, const char *name, const char *with)
{
    struct inode *first = dir_find(dir, strlen(name), name);
    struct inode *second = dir_find(dir, strlen(with), with);
    uint64_t tx = ++disk->tx;

    entries_unset(&dir->entries, name);
    entries_unset(&dir->entries, with);
    entries_set(&dir->entries, name, second);
    entries_set(&dir->entries, with, first);
    note_name(dir, CHANGE_REMOVE, tx, name, NULL);
    note_name(dir, CHANGE_REMOVE, tx, with, NULL);
    note_name(dir, CHANGE_ADD, tx, name, second);
    note_name(dir, CHANGE_ADD, tx, with, first);
}

static void content_resize(struct content *content, size_t bytes)
{
    if (bytes > content->cap) {
        size_t cap = content->cap ? content->cap : 256;

        while (cap < bytes) {
            cap *= 2;
        }
        content->data = realloc(content->data, cap);
        CHECK(content->data);
        content->cap = cap;
    }
    if (bytes > content->bytes) {
        memset(content->data + content->bytes, 0, bytes - content->bytes);
    }
    content->bytes = bytes;
}

static void content_copy(struct content *to, const struct content *from)
{
    content_resize(to, from->bytes);
    if (from->bytes) {
        memcpy(to->data, from->data, from->bytes);
    }
}

static void content_clear(struct content *content)
{
    free(content->data);
    *content = (struct content){0};
}

static void content_write(struct content *content, uint64_t offset, size_t bytes, const void *data)
{
    if (offset + bytes > content->bytes) {
        content_resize(content, (size_t)(offset + bytes));
    }
    memcpy(content->data + offset, data, bytes);
}

static void begin_change(struct inode *file)
{
    if (!file->has_base) {
        content_copy(&file->base, &file->cur);
        file->has_base = true;
    }
}

void file_write(struct sim_disk *disk, struct inode *file, uint64_t offset, size_t bytes,
                const void *data)
{
    struct change *change;
    size_t before = file->cur.bytes;

    if (!bytes) {
        return;
    }
    begin_change(file);
    change = note(file, CHANGE_WRITE, ++disk->tx, bytes);
    change->offset = offset;
    change->bytes = bytes;
    memcpy(change->data, data, bytes);
    content_write(&file->cur, offset, bytes, data);
    disk->used += file->cur.bytes - before;
    file->mtime_ns = (int64_t)disk->sim->now_ns;
}

void file_truncate(struct sim_disk *disk, struct inode *file, uint64_t bytes)
{
    size_t before = file->cur.bytes;

    begin_change(file);
    note(file, CHANGE_TRUNCATE, ++disk->tx, 0)->offset = bytes;
    content_resize(&file->cur, (size_t)bytes);
    disk->used = disk->used + file->cur.bytes - before;
}

/* --- making durable --------------------------------------------------------------------------- */

static void apply(struct inode *inode, const struct change *change)
{
    switch (change->kind) {
    case CHANGE_WRITE:
        content_write(&inode->base, change->offset, change->bytes, change->data);
        break;
    case CHANGE_TRUNCATE:
        content_resize(&inode->base, (size_t)change->offset);
        break;
    case CHANGE_ADD:
        entries_set(&inode->base_entries, change->name, change->inode);
        break;
    case CHANGE_REMOVE:
        entries_unset(&inode->base_entries, change->name);
        break;
    }
}

/* In order, and with the other halves of renames, so that no durable state has half of one. Each
 * step takes a change off a list, so this ends. */
static void dir_commit(struct inode *dir, uint64_t upto)
{
    while (dir->changes && dir->changes->tx <= upto) {
        struct change *change = pop_change(dir);

        apply(dir, change);
        if (change->peer) {
            dir_commit(change->peer, change->tx);
        }
        free_change(change);
    }
}

void dir_sync(struct inode *dir) { dir_commit(dir, UINT64_MAX); }

void file_sync(struct inode *file)
{
    if (file->is_damaged) {
        for (const struct change *change = file->changes; change; change = change->next) {
            apply(file, change);
        }
    } else {
        content_clear(&file->base);
        file->has_base = false;
    }
    drop_changes(file);
}

/* As ext4 and XFS: the pages are marked clean although they never reached the medium, and may or
 * may not be read back. */
void file_sync_fails(struct sim_disk *disk, struct inode *file)
{
    drop_changes(file);
    file->is_damaged = file->has_base;
    if (file->has_base && sim_chance(disk->sim, 2)) {
        size_t before = file->cur.bytes;
        content_copy(&file->cur, &file->base);
        disk->used = disk->used + file->cur.bytes - before;
    }
}

/* --- power loss ------------------------------------------------------------------------------- */

enum loss { LOSE_ALL, LOSE_NONE, LOSE_SOME, LOSE_TAIL, LOSS_COUNT };

struct crash {
    struct sim *sim;
    enum loss loss;
    uint64_t nonce, tail; /* TAIL: changes from this tx on are lost */
};

/* The same answer for both halves of a rename. */
static bool is_kept(const struct crash *crash, const struct change *change)
{
    uint64_t hash = (change->tx ^ crash->nonce) * UINT64_C(0xbf58476d1ce4e5b9);

    switch (crash->loss) {
    case LOSE_ALL:
        return false;
    case LOSE_NONE:
        return true;
    case LOSE_SOME:
        return (hash ^ (hash >> 31)) >> 17 & 1;
    case LOSE_TAIL:
        return change->tx < crash->tail;
    case LOSS_COUNT:
        break;
    }
    UNREACHABLE();
}

/* Some of the sectors arrive. A lost write may have moved the end of the file all the same. */
static void apply_torn(const struct crash *crash, struct inode *file, const struct change *change)
{
    enum { SECTOR = 512 };
    uint64_t at = change->offset, end = change->offset + change->bytes;

    while (at < end) {
        uint64_t next = min_u64(end, (at / SECTOR + 1) * SECTOR);

        if (sim_chance(crash->sim, 2)) {
            content_write(&file->base, at, (size_t)(next - at),
                          change->data + (at - change->offset));
        }
        at = next;
    }
    if (end > file->base.bytes && sim_chance(crash->sim, 2)) {
        content_resize(&file->base, (size_t)end);
    }
}

static void crash_inode(const struct crash *crash, struct inode *inode)
{
    while (inode->changes) {
        struct change *change = pop_change(inode);
        bool is_tearable = change->kind == CHANGE_WRITE && crash->loss == LOSE_SOME;

        if (is_tearable && sim_chance(crash->sim, 3)) {
            apply_torn(crash, inode, change);
        } else if (is_kept(crash, change)) {
            apply(inode, change);
        }
        free_change(change);
    }
    if (inode->has_base) {
        content_copy(&inode->cur, &inode->base);
        content_clear(&inode->base);
    }
    inode->has_base = inode->is_damaged = false;
    if (inode->kind == VFS_DIR) {
        entries_clear(&inode->entries);
        for (size_t i = 0; i < inode->base_entries.count; i++) {
            entries_set(&inode->entries, inode->base_entries.item[i].name,
                        inode->base_entries.item[i].inode);
        }
    }
}

static void inode_free(struct inode *inode)
{
    drop_changes(inode);
    content_clear(&inode->cur);
    content_clear(&inode->base);
    entries_clear(&inode->entries);
    entries_clear(&inode->base_entries);
    free(inode);
}

/* Counts links and space anew and frees what no name leads to. */
static void sweep(struct sim_disk *disk)
{
    bool is_growing = true;

    list_each (node, &disk->inodes) {
        struct inode *inode = list_item(node, struct inode, link);
        inode->is_reached = inode == disk->root;
        inode->links = 0;
    }
    while (is_growing) {
        is_growing = false;
        list_each (node, &disk->inodes) {
            struct inode *dir = list_item(node, struct inode, link);
            for (size_t i = 0; dir->is_reached && i < dir->entries.count; i++) {
                struct inode *child = dir->entries.item[i].inode;
                is_growing = is_growing || !child->is_reached;
                child->is_reached = true;
            }
        }
    }
    disk->used = 0;
    list_each_safe (node, &disk->inodes) {
        struct inode *inode = list_item(node, struct inode, link);
        if (!inode->is_reached) {
            list_remove(&inode->link);
            inode_free(inode);
            continue;
        }
        disk->used += inode->cur.bytes;
        for (size_t i = 0; i < inode->entries.count; i++) {
            inode->entries.item[i].inode->links++;
        }
    }
}

static void crash_as(struct sim_disk *disk, enum loss loss)
{
    struct crash crash = {.sim = disk->sim, .loss = loss, .nonce = sim_random(disk->sim)};
    uint64_t first = disk->tx + 1;

    list_each (node, &disk->inodes) {
        const struct inode *inode = list_item(node, struct inode, link);
        CHECK(inode->opens == 0); /* kill the disk's hosts first */
        first = inode->changes ? min_u64(first, inode->changes->tx) : first;
    }
    crash.tail = sim_between(disk->sim, first, disk->tx + 1);
    list_each (node, &disk->inodes) {
        crash_inode(&crash, list_item(node, struct inode, link));
    }
    sweep(disk);
}

void sim_disk_crash(struct sim_disk *disk)
{
    crash_as(disk, (enum loss)sim_below(disk->sim, LOSS_COUNT));
}
void sim_disk_crash_lose_all(struct sim_disk *disk) { crash_as(disk, LOSE_ALL); }

/* --- the disk --------------------------------------------------------------------------------- */

struct sim_disk *sim_disk_new(struct sim *sim)
{
    struct sim_disk *disk = sim_alloc(sizeof *disk);

    disk->sim = sim;
    disk->capacity = UINT64_MAX;
    list_init(&disk->inodes);
    list_add_tail(&sim->disks, &disk->link);
    disk->root = inode_new(disk, VFS_DIR);
    disk->root->links = 1;
    dir_add(disk, disk->root, "store", inode_new(disk, VFS_DIR));
    dir_sync(disk->root);
    return disk;
}

void sim_disks_free_all(struct sim *sim)
{
    struct list *node, *inode;

    while ((node = list_pop(&sim->disks))) {
        struct sim_disk *disk = list_item(node, struct sim_disk, link);
        while ((inode = list_pop(&disk->inodes))) {
            inode_free(list_item(inode, struct inode, link));
        }
        free(disk);
    }
}

void sim_disk_set_capacity(struct sim_disk *disk, uint64_t bytes) { disk->capacity = bytes; }
uint64_t sim_disk_used(const struct sim_disk *disk) { return disk->used; }
uint64_t sim_disk_calls(const struct sim_disk *disk) { return disk->calls; }
void sim_disk_fail_next_fsync(struct sim_disk *disk) { disk->fail_fsync = true; }

void sim_disk_fail_call(struct sim_disk *disk, uint64_t call, int code)
{
    disk->fail_in = call;
    disk->fail_code = code;
}
