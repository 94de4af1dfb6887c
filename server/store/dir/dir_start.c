/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a store (L21): file system, lock, store record, new epoch, sweep. A kill may follow any
 * step, and the next start does it again: the store record is published like any record, and
 * everything before it leaves an empty store. Runs on the thread that opens the store, before any
 * other.
 *
 * The store record is in the folder store/, and in copy/store/ like any record. If its end is lost
 * in both, its permanent entries come from what is left, and the epoch goes on beyond any that may
 * have been given.
 */
#include "dir_record_private.h"

#include "base/check.h"
#include "base/failpoint.h"
#include "hash/hash.h"
#include "store/store_record.h"

#include <stdio.h>
#include <string.h>

/* --- the directory and its file system -------------------------------------------------------- */

/* Returns NO_STORE. Advice to make a store is given only to a caller that makes stores: after a
 * mistyped path it would lead to an empty store at the wrong place. */
static int no_store(const struct store_dir_options *options, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_STORE, "%s %s; %s", options->path, what,
                    options->remedy && !options->read_only
                        ? options->remedy
                        : "check the path, which [store] url names in cairnd's configuration");
}

/* Opens the store's directory; makes it if it may be created. */
static int open_root(struct dir_store *store, const struct store_dir_options *options, bool create,
                     struct diag *diag)
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
        return no_store(options, "does not exist", diag);
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
        return diag_set(
            diag, rc, "%s, the directory above the store, does not exist; create it first", above);
    }
    if (rc != 0) {
        return diag_copy(diag, &why);
    }
    rc = vfs->ops->mkdir(vfs, fd, name, diag);
    rc = rc ? rc : vfs->ops->fsync(vfs, fd, diag); /* L8 */
    err_ignore(vfs->ops->close(vfs, fd, NULL));    /* a directory has nothing to flush */
    return rc ? rc : vfs->ops->open_root(vfs, store->path, &store->root, diag);
}

/* Refuses a network file system and tmpfs unless the configuration allows them. Other untried ones
 * are only noted. */
static int check_file_system(struct dir_store *store, const struct store_dir_options *options,
                             struct diag *diag)
{
    static const char *const tried[] = {"ext4", "xfs", "btrfs",
                                        "sim"}; /* L26; "sim" is the simulator's */
    struct vfs_space space;
    int rc = store->vfs->ops->space(store->vfs, store->root, &space, diag);
    if (rc != 0) {
        return rc;
    }
    if (space.is_network && !options->read_only && !options->force_fs) {
        return diag_set(
            diag, CAIRN_E_UNSUPPORTED,
            "%s is on the network file system %s, where a second daemon on another host could not "
            "be kept out: use a local disk, or set [store] single-writer = yes (cairn store create "
            "--single-writer) if you are sure that no other host writes",
            store->path, space.fs_type);
    }
    if (strcmp(space.fs_type, "tmpfs") == 0 && !options->force_fs && !options->read_only) {
        return diag_set(
            diag, CAIRN_E_UNSUPPORTED,
            "%s is on tmpfs, whose contents are lost at a power cut: use a disk, or, for a test, "
            "set [store] single-writer = yes (cairn store create --single-writer)",
            store->path);
    }
    for (size_t i = 0; i < ARRAY_LEN(tried); i++) {
        if (strcmp(space.fs_type, tried[i]) == 0) {
            return 0;
        }
    }
    dir_note(store, "Cairn is not tested on the file system %.23s; use ext4, xfs or btrfs",
             space.fs_type);
    return 0;
}

/* Refuses a store that everybody may write to. It is not repaired silently. */
static int check_owner(struct dir_store *store, struct diag *diag)
{
    struct vfs_stat stat;
    int rc = store->vfs->ops->fstat(store->vfs, store->root, &stat, diag);
    if (rc == 0 && (stat.mode & 0002) != 0) { /* D19: reported, never repaired silently */
        rc = diag_set(diag, CAIRN_E_DENIED,
                      "every user may write to %s (mode %04o); run `chmod o-w` on it", store->path,
                      stat.mode & 07777u);
    }
    return rc;
}

/* Returns the error for a store whose own record is gone, or has nothing whole in either place.
 * Only an operator may give such a store another identity. */
static int no_identity(const struct dir_store *store, int code, const char *what, struct diag *diag)
{
    return diag_set(diag, code,
                    "the store's own record is lost (%.110s), but the store holds runs: put store/ "
                    "or copy/store/ back from a mirror or a backup, or make the record again with "
                    "`cairn salvage --store dir:%s`",
                    what, store->path);
}

/* Tells whether something is in `runs` or `copy`, which means that a store was here. */
static int find_remains(struct dir_store *store, bool *ret, struct diag *diag)
{
    static const char *const folders[] = {"runs", "copy"};
    int rc = 0;
    *ret = false;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(folders); i++) {
        struct dir_at at;
        struct dir_entries entries = {0};
        struct diag why = DIAG_INIT;
        rc = dir_at_open(store, folders[i], &at, &why);
        if (rc == 0) {
            rc = dir_entries_list(store, &at, &entries, &why);
            dir_at_close(store, &at);
        }
        *ret = *ret || entries.count > 0;
        dir_entries_fini(&entries);
        rc = rc == CAIRN_E_NOT_FOUND ? 0 : rc != 0 ? diag_copy(diag, &why) : 0;
    }
    return rc;
}

/* Checks that a new store can be made here: in an empty directory, or in one that an earlier,
 * killed attempt has left. */
static int check_empty(struct dir_store *store, struct diag *diag)
{
    static const char *const ours[] = {"lock", "store", "runs", "quarantine", "copy", "lost+found"};
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
    bool remains = false;
    rc = rc ? rc : find_remains(store, &remains, diag);
    return rc == 0 && remains
               ? no_identity(store, CAIRN_E_NOT_EMPTY, "neither copy of it has anything", diag)
               : rc;
}

/* Opens the store read-only, because its file system is, or has become, read-only: then nobody
 * writes to it, and it can be served. */
static int go_without_lock(struct dir_store *store)
{
    store->read_only = store->is_shared = true;
    snprintf(store->base.caps.read_only_why, sizeof(store->base.caps.read_only_why),
             "its file system is mounted read-only");
    dir_note(store, "the store is read-only, because its file system is mounted read-only");
    return 0;
}

/* Takes the lock that keeps a second daemon out. A store on a read-only file system needs none. */
static int take_lock(struct dir_store *store, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    struct diag why = DIAG_INIT;
    int rc = vfs->ops->open(vfs, store->root, "lock", VFS_READ | VFS_WRITE | VFS_CREATE,
                            &store->lock_fd, &why);
    if (rc == CAIRN_E_READ_ONLY) {
        return go_without_lock(store);
    }
    rc = rc ? rc : vfs->ops->lock(vfs, store->lock_fd, &why);
    if (rc == CAIRN_E_BUSY) {
        return diag_set(diag, CAIRN_E_STORE_LOCKED,
                        "another daemon is using the store %s; stop that daemon first",
                        store->path);
    }
    return rc ? diag_copy(diag, &why) : 0;
}

/* --- the store record ------------------------------------------------------------------------- */

/* Makes an empty store: its directories and the first update of its own record. */
static int make_store(struct dir_store *store, struct diag *diag)
{
    struct store_record_update first;
    struct uuid random;
    uint64_t version;
    int rc = check_empty(store, diag);
    rc = rc ? rc : dir_make(store, "runs", diag);
    rc = rc ? rc : dir_make(store, "quarantine", diag);
    rc = rc ? rc : dir_make(store, "store", diag);
    rc = rc ? rc : FAILPOINT("dir.init");
    store->vfs->ops->random(store->vfs, sizeof(random), &random);
    store_record_first(DIR_FORMAT_VERSION, &random, &first);
    return rc ? rc : dir_record_update(store, store->own, &first.update, &version, diag);
}

/* Checks the store's own record: format, features and identity. An unknown feature can make the
 * store read-only. */
static int check_record(struct dir_store *store, const struct uuid *expected, struct diag *diag)
{
    uint64_t newer = 0;
    struct store_record_rules rules = {.place = store->path,
                                       .hint = "check that the right disk is mounted",
                                       .format = DIR_FORMAT_VERSION,
                                       .ro_compat_known = DIR_RO_COMPAT_KNOWN,
                                       .incompat_known = DIR_INCOMPAT_KNOWN,
                                       .expected = expected};
    int rc = store_record_check(store->own->record.record, &rules, &store->base.caps, &newer, diag);
    if (newer != 0) {
        store->read_only = true;
        dir_note(store,
                 "the store is read-only, because only a newer Cairn can write its features %#llx",
                 (unsigned long long)newer);
    }
    return rc;
}

/* Raises the epoch, durably, before any name uses it. A disk without a free byte is no reason not
 * to start, because restores work there: only the names of temporaries have the epoch, and these
 * have 64 random bits as well, so that the epoch of before serves. */
static int raise_epoch(struct dir_store *store, uint64_t by, struct diag *diag)
{
    struct store_record_update raise;
    CHECK(by > 0);
    struct diag why = DIAG_INIT;
    uint64_t version, before = store->base.caps.epoch;
    int rc =
        store_record_raise(store->own->record.record, by, &raise, &store->base.caps.epoch, &why);
    rc = rc ? rc : dir_record_update(store, store->own, &raise.update, &version, &why);
    if (rc == CAIRN_E_NO_SPACE && by == 1) {
        store->base.caps.epoch = before;
        dir_note(store, "the disk is full, so this start is not counted: %s", diag_text(&why, rc));
        return 0;
    }
    return rc ? diag_copy(diag, &why) : 0;
}

/* Reads the store record for a reader, and mends nothing. */
static int read_record_only(struct dir_store *store, struct diag *diag)
{
    struct dir_record *rec = &store->own->record;
    rec->is_beside = true;
    int rc = dir_record_read(store, rec, NULL, diag);
    rec->is_beside = false;
    if (rc == 0 && rec->lost_from != 0) {
        dir_note(store, "the store's own record: %s", rec->lost.text);
    }
    return rc;
}

static bool has_identity(const struct dir_store *store)
{
    struct record_value uuid;
    return record_get(store->own->record.record, "uuid", &uuid);
}

/* Makes the store record again for what is in `runs` and `copy`, on an operator's word, in one
 * update. Epochs go on from the seconds since 1970, which are more than the starts of any store. */
static int remake(struct dir_store *store, const struct store_dir_options *options,
                  struct diag *diag)
{
    const struct uuid *expected = options->expected_uuid;
    struct store_record_update first;
    struct uuid uuid;
    char hex[33];
    uint64_t version;
    store->vfs->ops->random(store->vfs, sizeof(uuid), &uuid);
    uuid = expected != NULL ? *expected : uuid;
    store_record_first(DIR_FORMAT_VERSION, &uuid, &first);
    store_record_go_on(&first, (uint64_t)loop_wall_ns(store->loop) / 1000000000u);
    store_record_add_lost(&first, loop_wall_ns(store->loop));
    if (expected != NULL && memcmp(expected, first.bytes[5], sizeof(uuid)) != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the requested UUID is not one that a store can have");
    }
    hex_encode(sizeof(uuid), first.bytes[5], hex);
    err_ignore(diag_set(options->salvaged, CAIRN_E_DAMAGED,
                        "nothing intact of it is left; the store's UUID is %s%s",
                        store->read_only && expected == NULL ? "a new one" : hex,
                        expected != NULL   ? ""
                        : store->read_only ? " (--store-uuid keeps the old one)"
                                           : ", a new one: write it to [store] uuid"));
    if (store->read_only) {
        return record_apply(store->own->record.record, &first.update, diag);
    }
    int rc = dir_make(store, "store", diag);
    rc = rc ? rc : FAILPOINT("dir.remake");
    rc = rc ? rc : dir_record_update(store, store->own, &first.update, &version, diag);
    if (rc == 0) {
        dir_note(store, "the store's own record was lost and has been made again");
    }
    return rc;
}

/* Loads the store record. A lost end of it does not keep the store from opening: it may have held
 * duties, the position of the scrub, epochs and retention policies. The epoch is raised beyond all
 * that may have been given, and the cut marks the policies as in doubt, so that nothing is
 * forgotten by an older one. The identity and the features are in the first update and in every
 * snapshot; if none of these is left, only an operator's word helps. */
static int load_record(struct dir_store *store, bool remakes, uint64_t *ret_raise,
                       struct diag *diag)
{
    enum { LOST_EPOCHS_MAX = 1 << 20 };
    struct dir_record *rec = &store->own->record;
    *ret_raise = 1;
    int rc =
        store->read_only ? read_record_only(store, diag) : dir_record_load(store, store->own, diag);
    bool is_lost = rc == 0 && rec->lost_from != 0;
    if (rc == 0 && !remakes && !has_identity(store) &&
        (is_lost || record_version(rec->record) > 0)) {
        return no_identity(store, is_lost ? rec->lost.code : CAIRN_E_DAMAGED,
                           is_lost ? rec->lost.text : "nothing intact is left", diag);
    }
    if (!is_lost) {
        return rc;
    }
    *ret_raise = LOST_EPOCHS_MAX;
    return store->read_only ? 0 : dir_record_cut(store, store->own, 0, diag);
}

/* --- the order of things ---------------------------------------------------------------------- */

/* Loads the store's own record. If there is none, the store is made, or made again around the runs
 * that a salvage has found. */
static int find_or_make(struct dir_store *store, const struct store_dir_options *options,
                        uint64_t *ret_raise, struct diag *diag)
{
    bool exists, remains = false, create = options->create && !options->read_only;
    int rc = dir_record_exists(store, "store", &exists, diag);
    rc = rc || exists ? rc : find_remains(store, &remains, diag);
    if (rc == 0 && !exists && !create && !(remains && options->salvaged != NULL)) {
        return remains ? no_identity(store, options->create ? CAIRN_E_NOT_EMPTY : CAIRN_E_DAMAGED,
                                     "neither copy of it has anything", diag)
                       : no_store(options, "holds no Cairn store", diag);
    }
    if (rc == 0 && !exists && create) {
        rc = check_empty(store, diag);
    }
    if (rc == 0 && !store->read_only) {
        rc = take_lock(store, diag);
    }
    /* Another daemon may have made it before it released the lock: look again, with the lock. */
    rc = rc ? rc : load_record(store, options->salvaged != NULL, ret_raise, diag);
    if (rc != 0 || has_identity(store)) {
        return rc;
    }
    return options->salvaged  ? remake(store, options, diag)
           : store->read_only ? no_store(options, "holds no Cairn store", diag)
                              : make_store(store, diag);
}

/* Makes the folder of copies. A failure does not stop the start; the writer of a copy reports
 * it. */
static void make_copies_folder(struct dir_store *store)
{
    struct diag why = DIAG_INIT;
    int rc = dir_make(store, "copy", &why);
    if (rc != 0) {
        dir_note(store, "copy: %s", diag_text(&why, rc));
    }
}

int dir_start(struct dir_store *store, const struct store_dir_options *options, struct diag *diag)
{
    uint64_t raise = 1;
    store->own = dir_run_find(store, &(struct run_name){.project = ""});
    if (store->own == NULL) {
        return diag_no_memory(diag, "opening the store %s", store->path);
    }
    int rc = open_root(store, options, options->create && !options->read_only, diag);
    rc = rc ? rc : check_file_system(store, options, diag);
    rc = rc ? rc : options->read_only ? 0 : check_owner(store, diag);
    rc = rc ? rc : find_or_make(store, options, &raise, diag);
    rc = rc ? rc : check_record(store, options->expected_uuid, diag);
    if (rc != 0 || store->read_only) {
        return rc;
    }
    rc = dir_make(store, "runs", diag);
    rc = rc ? rc : dir_make(store, "quarantine", diag);
    make_copies_folder(store);
    rc = rc ? rc : raise_epoch(store, raise, diag);
    return rc ? rc : dir_sweep(store, diag);
}
