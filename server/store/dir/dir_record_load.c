/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a record: the newest snapshot that is whole, and every update after it, each checked by
 * its crc, its number and the SHA-256 of the one before. Invariant: what is returned is the record
 * as it was durable, or DAMAGED with the file's name; nothing is ever cut off. Damage that a newer
 * snapshot covers is noted in the store's health and moved to quarantine.
 */
#include "dir_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOAD_TRIES = 8 };

/* --- the folder ------------------------------------------------------------------------------- */

static int add_version(struct dir_versions *versions, bool is_snapshot, uint64_t version)
{
    uint64_t **list = is_snapshot ? &versions->snapshots : &versions->updates;
    size_t *count = is_snapshot ? &versions->snapshot_count : &versions->update_count;
    if (*count == versions->cap[is_snapshot]) {
        size_t cap = *count == 0 ? 128 : *count * 2;
        uint64_t *grown = realloc(*list, cap * sizeof(*grown));
        if (grown == NULL) {
            return CAIRN_E_NO_MEMORY;
        }
        *list = grown;
        versions->cap[is_snapshot] = cap;
    }
    (*list)[(*count)++] = version;
    return 0;
}

static int on_entry(void *user, const char *name, enum vfs_kind kind)
{
    struct dir_versions *versions = user;
    uint64_t version;
    bool is_snapshot;
    (void)kind; /* what is not a file is found out when it is read */
    return dir_parse_version(name, &version, &is_snapshot)
               ? add_version(versions, is_snapshot, version)
               : 0;
}

static int compare_u64(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

int dir_versions_list(struct dir_store *store, const struct dir_at *at, struct dir_versions *ret,
                      struct diag *diag)
{
    struct dir_versions have = {0};
    int rc = store->vfs->ops->list(store->vfs, at->fd, on_entry, &have, diag);
    if (rc != 0) {
        dir_versions_fini(&have);
        return diag_set(diag, rc, "list %s/%s", store->path, at->path);
    }
    if (have.update_count > 0) {
        qsort(have.updates, have.update_count, sizeof(uint64_t), compare_u64);
    }
    if (have.snapshot_count > 0) {
        qsort(have.snapshots, have.snapshot_count, sizeof(uint64_t), compare_u64);
    }
    *ret = have;
    return 0;
}

void dir_versions_fini(struct dir_versions *versions)
{
    free(versions->updates);
    free(versions->snapshots);
    *versions = (struct dir_versions){0};
}

static bool has_update(const struct dir_versions *have, uint64_t version)
{
    return have->update_count > 0 && bsearch(&version, have->updates, have->update_count,
                                             sizeof(version), compare_u64) != NULL;
}

/* --- single files ----------------------------------------------------------------------------- */

/* The state of one load. */
struct load {
    struct dir_store *store;
    struct dir_at at;
    struct dir_versions have;
    struct record *record;
    struct sha256 last;
    uint64_t snapshots[2];
    uint64_t newest;           /* the version to be reached */
    bool is_beside, is_direct; /* see struct dir_record */
    struct record_file damaged[STORE_RECORD_FILES_MAX];
};

static int say_damaged(struct load *load, const char *name, int code, const char *what,
                       struct diag *diag)
{
    if (code == CAIRN_E_FORMAT || code == CAIRN_E_TOO_LARGE) {
        code = CAIRN_E_DAMAGED;
    }
    return diag_set(diag, code, "record file %s/%s/%s: %s%s", load->store->path, load->at.path,
                    name, what,
                    code == CAIRN_E_DAMAGED
                        ? "; it was written whole, so the disk or somebody changed it: take it "
                          "from a mirror (cairn verify --repair)"
                        : "");
}

static int read_snapshot(struct load *load, uint64_t version, struct record **ret,
                         struct sha256 *ret_last, struct diag *diag)
{
    struct dir_bytes file = {.bytes_max = LIMIT_RECORD_BYTES, .direct = load->is_direct};
    struct diag why = DIAG_INIT;
    char name[DIR_NAME_MAX];
    struct record *record = NULL;
    dir_name_version(version, true, name);
    int rc = dir_read_file(load->store, &load->at, name, &file, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return diag_copy(diag, &why);
    }
    rc = rc ? rc : record_snapshot_decode(file.bytes, file.data, &record, ret_last->bytes, &why);
    if (rc == 0 && record_version(record) != version) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it holds version %llu",
                      (unsigned long long)record_version(record));
        record_free(record);
    }
    free(file.data);
    if (rc != 0) {
        return say_damaged(load, name, rc, diag_text(&why, rc), diag);
    }
    *ret = record;
    return 0;
}

/* Reads update `version`, which must follow the one with the hash *last; applies it to record
 * unless that is NULL, and sets *last to its own hash. */
static int read_update(struct load *load, uint64_t version, struct record *record,
                       struct sha256 *last, struct diag *diag)
{
    struct dir_bytes file = {.bytes_max = LIMIT_RECORD_UPDATE_BYTES, .direct = load->is_direct};
    struct diag why = DIAG_INIT;
    struct record_update update;
    struct sha256 previous;
    struct scratch scratch;
    uint64_t number = 0;
    char name[DIR_NAME_MAX];
    dir_name_version(version, false, name);
    int rc = has_update(&load->have, version)
                 ? dir_read_file(load->store, &load->at, name, &file, &why)
             : load->is_beside ? diag_set(&why, CAIRN_E_NOT_FOUND, "%s is missing", name)
                               : diag_set(&why, CAIRN_E_DAMAGED, "it is missing");
    if (rc == CAIRN_E_NOT_FOUND) {
        return diag_copy(diag, &why);
    }
    scratch_init(&scratch, KIB(64) + file.bytes * 8);
    rc = rc ? rc
            : record_update_decode(file.bytes, file.data, &scratch, &update, &number,
                                   previous.bytes, &why);
    if (rc == 0 && number != version) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it holds update %llu", (unsigned long long)number);
    }
    if (rc == 0 && memcmp(previous.bytes, last->bytes, sizeof(previous)) != 0) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it does not follow the update before it");
    }
    if (rc == 0 && record != NULL) {
        rc = record_apply(record, &update, &why);
        rc = rc == CAIRN_E_NO_MEMORY || rc == 0 ? rc : CAIRN_E_DAMAGED;
    }
    if (rc == 0) {
        *last = sha256(file.bytes, file.data);
    }
    scratch_fini(&scratch);
    free(file.data);
    return rc == 0 ? 0 : say_damaged(load, name, rc, diag_text(&why, rc), diag);
}

/* --- the whole -------------------------------------------------------------------------------- */

static void note_covered(struct load *load, uint64_t version, bool is_snapshot)
{
    char name[DIR_NAME_MAX];
    dir_name_version(version, is_snapshot, name);
    dir_note(load->store, "covered damage: %s/%s", load->at.path, name);
    if (load->is_beside) {
        return; /* who writes the record moves it, when it is loaded next */
    }
    dir_quarantine(load->store, &load->at, name);
}

/* Reading stopped before update `version`: with that one whole it would go on, and with any of the
 * snapshots from there on, all of which are damaged. */
static void name_damaged(struct load *load, uint64_t version)
{
    size_t count = 0;
    load->damaged[count++] = (struct record_file){.version = version};
    for (size_t i = load->have.snapshot_count; i-- > 0 && count < STORE_RECORD_FILES_MAX;) {
        uint64_t snapshot = load->have.snapshots[i];
        if (snapshot >= version && snapshot <= load->newest) {
            load->damaged[count++] = (struct record_file){.version = snapshot, .is_snapshot = true};
        }
    }
}

/* The newest whole snapshot not above version_max, else the empty record. A damaged one is passed
 * over: the updates since an older one are kept for this, and if they do not reach up to it,
 * read_update() says which is missing. */
static int take_snapshot(struct load *load, uint64_t version_max, struct diag *diag)
{
    for (size_t i = load->have.snapshot_count; i-- > 0;) {
        uint64_t version = load->have.snapshots[i];
        if (version > version_max) {
            continue;
        }
        int rc = read_snapshot(load, version, &load->record, &load->last, NULL);
        if (rc == 0) {
            load->snapshots[0] = version;
            return 0;
        }
        if (rc != CAIRN_E_DAMAGED) {
            load->damaged[0] = (struct record_file){.version = version, .is_snapshot = true};
            return read_snapshot(load, version, &load->record, &load->last, diag);
        }
    }
    return record_new(&load->record) == 0
               ? 0
               : diag_set(diag, CAIRN_E_NO_MEMORY, "record %s", load->at.path);
}

/* The record is whole. What lies before its snapshot is what saves it when the snapshot goes bad:
 * look at that too, once, and say what is wrong with it. */
static void check_covered(struct load *load)
{
    struct record *older = NULL;
    struct sha256 last = {{0}};
    uint64_t from = 0;
    for (size_t i = load->have.snapshot_count; i-- > 0;) {
        uint64_t version = load->have.snapshots[i];
        if (version > load->snapshots[0]) {
            note_covered(load, version, true);
        } else if (version < load->snapshots[0] && from == 0) {
            int rc = read_snapshot(load, version, &older, &last, NULL);
            if (rc == 0) {
                from = version;
                record_free(older);
            } else if (rc == CAIRN_E_DAMAGED) {
                note_covered(load, version, true);
            }
        }
    }
    load->snapshots[1] = from;
    for (uint64_t version = from + 1; version <= load->snapshots[0]; version++) {
        int rc = read_update(load, version, NULL, &last, NULL);
        if (rc == CAIRN_E_DAMAGED) {
            note_covered(load, version, false);
        }
        if (rc != 0) {
            return;
        }
    }
}

static int load_folder(struct load *load, const struct dir_record *rec, struct diag *diag)
{
    uint64_t version_max = rec->is_stuck ? rec->version_max : UINT64_MAX;
    int rc = dir_versions_list(load->store, &load->at, &load->have, diag);
    if (rc != 0) {
        return rc;
    }
    if (load->have.update_count > 0) {
        load->newest = load->have.updates[load->have.update_count - 1];
    }
    if (load->have.snapshot_count > 0) {
        load->newest = max_u64(load->newest, load->have.snapshots[load->have.snapshot_count - 1]);
    }
    load->newest = min_u64(load->newest, version_max);
    rc = take_snapshot(load, version_max, diag);
    if (rc != 0) {
        return rc;
    }
    for (uint64_t version = load->snapshots[0] + 1; version <= load->newest; version++) {
        rc = read_update(load, version, load->record, &load->last, diag);
        if (rc != 0) {
            name_damaged(load, version);
            return rc;
        }
    }
    CHECK(record_version(load->record) == load->newest);
    if ((rec->is_direct || !load->store->read_only) && !rec->is_stuck) {
        check_covered(load);
    }
    return 0;
}

/* L11: what is about to be believed is made durable first. Where that fails the record can still be
 * read, for restores, but nothing is added to it. */
static int sync_or_stick(struct dir_store *store, struct dir_record *rec, const struct dir_at *at,
                         struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int rc = dir_sync_once(store, at, &why);
    if (rc != 0 && dir_check_broken(store, at->path, NULL) != 0) {
        rec->is_stuck = true;
        rec->version_max = UINT64_MAX;
        dir_note(store, "fsync failed, not writable: %s", at->path);
        return 0;
    }
    return rc == 0 ? 0 : diag_copy(diag, &why);
}

static int load_once(struct dir_store *store, struct dir_record *rec, struct diag *diag)
{
    struct load load = {
        .store = store, .at = {.fd = -1}, .is_beside = rec->is_beside, .is_direct = rec->is_direct};
    struct diag why = DIAG_INIT;
    int rc = dir_at_open(store, rec->path, &load.at, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        rc = record_new(&load.record);
        if (rc != 0) {
            return diag_set(diag, rc, "record %s", rec->path);
        }
    } else if (rc != 0) {
        return diag_copy(diag, &why);
    } else {
        rc = rec->is_stuck ? 0 : sync_or_stick(store, rec, &load.at, diag);
        rc = rc ? rc : load_folder(&load, rec, diag);
        dir_at_close(store, &load.at);
    }
    dir_versions_fini(&load.have);
    memcpy(rec->damaged, load.damaged, sizeof(rec->damaged));
    rec->newest = load.newest;
    if (rc != 0) {
        record_free(load.record);
        return rc;
    }
    CHECK(rec->record == NULL);
    rec->record = load.record;
    rec->last = load.last;
    memcpy(rec->snapshots, load.snapshots, sizeof(rec->snapshots));
    return 0;
}

int dir_record_load(struct dir_store *store, struct dir_record *rec, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int rc = load_once(store, rec, &why);
    /* Beside a daemon the folder may be compacted between listing and reading: look again. */
    for (int i = 1; i < LOAD_TRIES && rc != 0 && rec->is_beside; i++) {
        diag_clear(&why);
        rc = load_once(store, rec, &why);
    }
    if (rc == CAIRN_E_NOT_FOUND) {
        rc = CAIRN_E_DAMAGED; /* a folder that is only being compacted comes to rest */
    }
    return rc == 0 ? 0 : diag_set(diag, rc, "%s", diag_text(&why, rc));
}
