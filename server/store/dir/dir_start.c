/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a store (L21): file system, lock, store record, new epoch, sweep. Each step may be the
 * last before a kill, and the next start does it again: the store record is published like any
 * record, and everything before it leaves an empty store. Runs on the thread that opens the store,
 * before any other.
 *
 * The store record (folder store/): uuid 16 bytes; format, epoch, compat, ro-compat, incompat u64.
 */
#include "dir_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <stdio.h>
#include <string.h>

/* --- the directory and its file system -------------------------------------------------------- */

/* A reader cannot make one, whatever flags it takes: it looks at the wrong place. */
static int no_store(const struct dir_store *store, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_STORE, "%s %s; %s", store->path, what,
                    store->read_only ? "name the directory that cairnd's `store` names"
                                     : "make one with --store-create yes");
}

static int open_root(struct dir_store *store, bool create, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    struct diag why = DIAG_INIT;
    int rc = vfs->ops->open_root(vfs, store->path, &store->root, &why);
    if (rc == 0) {
        return 0;
    }
    if (rc != CAIRN_E_NOT_FOUND) {
        return diag_copy(diag, &why);
    }
    if (!create) {
        return no_store(store, "is not there", diag);
    }
    char parent[4096];
    int n = snprintf(parent, sizeof(parent), "%s", store->path);
    if (n <= 0 || (size_t)n >= sizeof(parent)) {
        return diag_set(diag, CAIRN_E_INVALID, "the store's path is empty or too long");
    }
    while (n > 1 && parent[n - 1] == '/') {
        parent[--n] = 0;
    }
    char *slash = strrchr(parent, '/');
    const char *name = slash != NULL ? slash + 1 : parent;
    const char *above = slash == NULL ? "." : slash == parent ? "/" : parent;
    if (slash != NULL) {
        *slash = 0;
    }
    vfs_fd fd;
    why = DIAG_INIT;
    rc = vfs->ops->open_root(vfs, above, &fd, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return diag_set(diag, rc, "%s, above the store, is not there: make it first", above);
    }
    if (rc != 0) {
        return diag_copy(diag, &why);
    }
    rc = vfs->ops->mkdir(vfs, fd, name, diag);
    rc = rc ? rc : vfs->ops->fsync(vfs, fd, diag); /* L8 */
    err_ignore(vfs->ops->close(vfs, fd, NULL));    /* a directory */
    return rc ? rc : vfs->ops->open_root(vfs, store->path, &store->root, diag);
}

static int check_file_system(struct dir_store *store, const struct store_dir_options *options,
                             struct diag *diag)
{
    static const char *const tried[] = {"ext4", "xfs", "btrfs",
                                        "sim"}; /* L26; sim: the simulator's */
    struct vfs_space space;
    int rc = store->vfs->ops->space(store->vfs, store->root, &space, diag);
    if (rc != 0) {
        return rc;
    }
    if (space.is_network && !options->read_only && !options->force_fs) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "%s is on the network file system %s, where a second daemon on another "
                        "host could not be "
                        "kept out: use a local disk, or promise that no other host writes with "
                        "--store-single-writer yes",
                        store->path, space.fs_type);
    }
    if (strcmp(space.fs_type, "tmpfs") == 0 && !options->force_fs && !options->read_only) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "%s is on tmpfs, which is gone after a power cut: use a disk, or say "
                        "--store-single-writer yes for a test",
                        store->path);
    }
    for (size_t i = 0; i < ARRAY_LEN(tried); i++) {
        if (strcmp(space.fs_type, tried[i]) == 0) {
            return 0;
        }
    }
    dir_note(store, "file system %.23s is not one of ext4, xfs, btrfs", space.fs_type);
    return 0;
}

static int check_owner(struct dir_store *store, struct diag *diag)
{
    struct vfs_stat stat;
    int rc = store->vfs->ops->fstat(store->vfs, store->root, &stat, diag);
    if (rc == 0 && (stat.mode & 0002) != 0) { /* D19: said, never repaired behind anybody's back */
        rc = diag_set(diag, CAIRN_E_DENIED,
                      "%s may be written by everybody (mode %04o): chmod o-w it", store->path,
                      stat.mode & 07777u);
    }
    return rc;
}

/* A new store is made in an empty directory, or in one that an earlier, killed attempt left. */
static int check_empty(struct dir_store *store, struct diag *diag)
{
    static const char *const ours[] = {"lock", "store", "runs", "quarantine", "lost+found"};
    struct dir_at at;
    struct dir_entries entries = {0};
    int rc = dir_at_open(store, "", &at, diag);
    rc = rc ? rc : dir_entries_list(store, &at, &entries, diag);
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        bool is_ours = false;
        for (size_t k = 0; k < ARRAY_LEN(ours); k++) {
            is_ours |= strcmp(entries.entries[i].name, ours[k]) == 0;
        }
        if (!is_ours) {
            rc = diag_set(diag, CAIRN_E_NOT_EMPTY,
                          "%s is not empty (%s): a new store needs a directory of its own",
                          store->path, entries.entries[i].name);
        }
    }
    dir_entries_fini(&entries);
    return rc;
}

static int take_lock(struct dir_store *store, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    int rc = vfs->ops->open(vfs, store->root, "lock", VFS_READ | VFS_WRITE | VFS_CREATE,
                            &store->lock_fd, diag);
    if (rc != 0) {
        return rc;
    }
    struct diag why = DIAG_INIT;
    rc = vfs->ops->lock(vfs, store->lock_fd, &why);
    if (rc == CAIRN_E_BUSY) {
        return diag_set(diag, CAIRN_E_STORE_LOCKED,
                        "another daemon has the store %s; stop it first", store->path);
    }
    return rc ? diag_copy(diag, &why) : 0;
}

/* --- the store record ------------------------------------------------------------------------- */

static int get_u64(const struct record *record, const char *key, uint64_t *ret, struct diag *diag)
{
    struct record_value value;
    if (!record_get(record, key, &value) || value.bytes != 8) {
        return diag_set(diag, CAIRN_E_FORMAT, "the store record has no proper \"%s\"", key);
    }
    *ret = load_u64(value.data);
    return 0;
}

static int write_record(struct dir_store *store, const uint64_t numbers[5], const struct uuid *uuid,
                        struct diag *diag)
{
    static const char *const keys[] = {"compat", "epoch", "format", "incompat", "ro-compat"};
    uint8_t bytes[5][8];
    struct record_change changes[6];
    struct record_guard guard = {.key = "uuid", .absent = true};
    for (size_t i = 0; i < 5; i++) {
        store_u64(bytes[i], numbers[i]);
        changes[i] = (struct record_change){.key = keys[i], .value = {8, bytes[i]}};
    }
    changes[5] = (struct record_change){.key = "uuid", .value = {sizeof(uuid->bytes), uuid->bytes}};
    struct record_update update = {
        .guard_count = 1, .guards = &guard, .change_count = 6, .changes = changes};
    uint64_t version;
    return dir_record_update(store, &store->store_record, &update, &version, diag);
}

static int make_store(struct dir_store *store, struct diag *diag)
{
    struct uuid uuid;
    uint64_t numbers[5] = {0, 0, DIR_FORMAT_VERSION, 0, 0};
    int rc = check_empty(store, diag);
    rc = rc ? rc : dir_make(store, "runs", diag);
    rc = rc ? rc : dir_make(store, "quarantine", diag);
    rc = rc ? rc : dir_make(store, "store", diag);
    rc = rc ? rc : FAILPOINT("dir.init");
    store->vfs->ops->random(store->vfs, sizeof(uuid), &uuid);
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0f) | 0x40); /* a version 4 UUID */
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3f) | 0x80);
    return rc ? rc : write_record(store, numbers, &uuid, diag);
}

static int check_features(struct dir_store *store, struct diag *diag)
{
    const struct record *record = store->store_record.record;
    uint64_t format, ro_compat, incompat;
    int rc = get_u64(record, "format", &format, diag);
    rc = rc ? rc : get_u64(record, "ro-compat", &ro_compat, diag);
    rc = rc ? rc : get_u64(record, "incompat", &incompat, diag);
    if (rc != 0) {
        return rc;
    }
    if (format != DIR_FORMAT_VERSION || (incompat & ~DIR_INCOMPAT_KNOWN) != 0) {
        return diag_set(diag, CAIRN_E_STORE_FEATURES,
                        "the store %s has format %llu and features %#llx; this version knows "
                        "format %llu and %#llx: "
                        "use a newer Cairn",
                        store->path, (unsigned long long)format, (unsigned long long)incompat,
                        (unsigned long long)DIR_FORMAT_VERSION,
                        (unsigned long long)DIR_INCOMPAT_KNOWN);
    }
    if ((ro_compat & ~DIR_RO_COMPAT_KNOWN) != 0) {
        store->read_only = true;
        dir_note(store, "read-only: features %#llx need a newer Cairn to write",
                 (unsigned long long)ro_compat);
    }
    return 0;
}

static int check_identity(struct dir_store *store, const struct uuid *expected, struct diag *diag)
{
    struct record_value value;
    if (!record_get(store->store_record.record, "uuid", &value) ||
        value.bytes != sizeof(struct uuid)) {
        return diag_set(diag, CAIRN_E_FORMAT, "the store record has no proper \"uuid\"");
    }
    memcpy(&store->base.caps.uuid, value.data, sizeof(struct uuid));
    if (expected != NULL && memcmp(expected, value.data, sizeof(*expected)) != 0) {
        char have[33], want[33];
        hex_encode(sizeof(*expected), value.data, have);
        hex_encode(sizeof(*expected), expected, want);
        return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                        "%s holds store %s; expected was %s: is the right disk mounted?",
                        store->path, have, want);
    }
    return 0;
}

/* Durable before anything is named by it. */
static int raise_epoch(struct dir_store *store, struct diag *diag)
{
    uint64_t epoch, version;
    uint8_t old_bytes[8], new_bytes[8];
    int rc = get_u64(store->store_record.record, "epoch", &epoch, diag);
    if (rc != 0) {
        return rc;
    }
    store_u64(old_bytes, epoch);
    store_u64(new_bytes, epoch + 1);
    store->base.caps.epoch = epoch + 1;
    struct record_guard guard = {.key = "epoch", .value = {8, old_bytes}};
    struct record_change change = {.key = "epoch", .value = {8, new_bytes}};
    struct record_update update = {
        .guard_count = 1, .guards = &guard, .change_count = 1, .changes = &change};
    return dir_record_update(store, &store->store_record, &update, &version, diag);
}

/* --- the order of things ---------------------------------------------------------------------- */

static int find_or_make(struct dir_store *store, bool create, struct diag *diag)
{
    bool exists;
    int rc = dir_record_exists(store, "store", &exists, diag);
    if (rc == 0 && !exists && !create) {
        return no_store(store, "holds no Cairn store", diag);
    }
    if (rc == 0 && !exists) {
        rc = check_empty(store, diag);
    }
    if (rc == 0 && !store->read_only) {
        rc = take_lock(store, diag);
    }
    /* Another daemon may have made it before it gave the lock back: look again, with the lock. */
    rc = rc ? rc : dir_record_load(store, &store->store_record, diag);
    if (rc == 0 && record_version(store->store_record.record) == 0) {
        rc = make_store(store, diag);
    }
    return rc;
}

int dir_start(struct dir_store *store, const struct store_dir_options *options, struct diag *diag)
{
    bool create = options->create && !options->read_only;
    int rc = open_root(store, create, diag);
    rc = rc ? rc : check_file_system(store, options, diag);
    rc = rc ? rc : options->read_only ? 0 : check_owner(store, diag);
    rc = rc ? rc : find_or_make(store, create, diag);
    rc = rc ? rc : check_features(store, diag);
    rc = rc ? rc : check_identity(store, options->expected_uuid, diag);
    if (rc != 0) {
        return rc;
    }
    if (store->read_only) {
        return get_u64(store->store_record.record, "epoch", &store->base.caps.epoch, diag);
    }
    rc = dir_make(store, "runs", diag);
    rc = rc ? rc : dir_make(store, "quarantine", diag);
    rc = rc ? rc : raise_epoch(store, diag);
    return rc ? rc : dir_sweep(store, diag);
}
