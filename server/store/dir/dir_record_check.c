/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks every file of a record, in both places, including those that no reading needs at present:
 * they protect the record from the next fault. Invariant: a file that is named here is damaged,
 * unreadable, or missing from the set that the first place needs to have the whole record. Reads
 * only.
 */
#include "dir_record_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A snapshot that is whole by itself. */
struct whole {
    struct record_file file;
    struct sha256 last;
};

struct checking {
    struct dir_view *view;
    size_t count;
    struct whole *wholes;
    uint64_t chain_from; /* from this update to the newest all exist and follow each other */
};

static void name(struct checking *checking, struct record_file file, const struct diag *why)
{
    struct dir_damage *damage = &checking->view->damage;
    if (damage->count < STORE_RECORD_FILES_MAX) {
        damage->files[damage->count] = file;
    }
    damage->count++;
    err_ignore(diag_copy(&damage->first, why)); /* the first text is kept */
}

/* Reads all snapshots of one place. The damaged ones are named, the whole ones are listed for the
 * checks that follow. */
static int check_snapshots(struct checking *checking, enum dir_place_number number)
{
    struct dir_view *view = checking->view;
    const struct dir_versions *have = &view->places[number].have;
    for (size_t i = 0; i < have->snapshot_count; i++) {
        struct diag why = DIAG_INIT;
        struct record *record = NULL;
        struct whole whole = {.file = {.version = have->snapshots[i],
                                       .is_snapshot = true,
                                       .is_copy = number == DIR_SECOND}};
        int rc = dir_view_snapshot(view, &whole.file, &record, &whole.last, &why);
        record_free(record);
        if (rc == CAIRN_E_NO_MEMORY || rc == CAIRN_E_UNSUPPORTED) {
            return rc;
        }
        if (rc == 0) {
            checking->wholes[checking->count++] = whole;
        } else {
            name(checking, whole.file, &why);
        }
    }
    return 0;
}

/* Checks each update by itself, and that it follows the one before it. */
static int check_updates(struct checking *checking)
{
    struct dir_view *view = checking->view;
    const struct dir_versions *have = &view->places[DIR_FIRST].have;
    struct dir_link link = {.is_known = false};
    checking->chain_from = view->newest + 1;
    for (size_t i = 0; i < have->update_count && have->updates[i] <= view->newest; i++) {
        uint64_t version = have->updates[i];
        struct diag why = DIAG_INIT;
        bool is_next = i > 0 && have->updates[i - 1] + 1 == version;
        link.is_known = link.is_known && is_next;
        if (version == 1) {
            link = (struct dir_link){.is_known = true};
        }
        if (!is_next) {
            checking->chain_from = version;
        }
        int rc = dir_view_update(view, version, NULL, &link, &why);
        if (rc == CAIRN_E_NO_MEMORY || rc == CAIRN_E_UNSUPPORTED) {
            return rc;
        }
        if (rc != 0) {
            name(checking, (struct record_file){.version = version}, &why);
            link.is_known = false;
            checking->chain_from = version + 1;
            continue;
        }
        for (size_t k = 0; k < checking->count; k++) {
            struct whole *whole = &checking->wholes[k];
            if (whole->file.version == version &&
                memcmp(&whole->last, &link.hash, sizeof(link.hash)) != 0) {
                err_ignore(diag_set(
                    &why, CAIRN_E_DAMAGED, "snapshot %llu of record %s belongs to another history",
                    (unsigned long long)version, view->places[whole->file.is_copy].at.path));
                name(checking, whole->file, &why);
                *whole = checking->wholes[--checking->count];
                k--;
            }
        }
    }
    if (have->update_count == 0 || have->updates[have->update_count - 1] < view->newest) {
        checking->chain_from = view->newest + 1;
    }
    return 0;
}

/* Finds the newest whole snapshots, and whether the first place needs the second. */
static void conclude(struct checking *checking)
{
    struct dir_view *view = checking->view;
    for (size_t i = 0; i < checking->count; i++) {
        uint64_t version = checking->wholes[i].file.version;
        if (checking->wholes[i].file.is_copy) {
            view->copied = max_u64(view->copied, version);
        } else if (version > view->snapshots[0]) {
            view->snapshots[1] = view->snapshots[0];
            view->snapshots[0] = version;
        } else {
            view->snapshots[1] = max_u64(view->snapshots[1], version);
        }
    }
    view->is_enough = view->newest == 0 || checking->chain_from <= view->snapshots[0] + 1;
    if (!view->is_enough && view->damage.count == 0) {
        struct diag why = DIAG_INIT;
        struct record_file file = {.version = view->newest};
        err_ignore(
            diag_set(&why, CAIRN_E_DAMAGED,
                     "%s/%s ends before version %llu, which %s has: some of its files are missing",
                     view->store->path, view->places[DIR_FIRST].at.path,
                     (unsigned long long)view->newest, view->places[DIR_SECOND].at.path));
        name(checking, file, &why);
    }
}

/* Names a place that cannot be read at all. */
static void check_folder(struct checking *checking, enum dir_place_number number)
{
    const struct dir_record_place *place = &checking->view->places[number];
    if (place->status != 0 && place->status != CAIRN_E_NOT_FOUND) {
        name(checking,
             (struct record_file){.version = checking->view->newest,
                                  .is_snapshot = true,
                                  .is_copy = number == DIR_SECOND},
             &place->why);
    }
}

int dir_view_check(struct dir_view *view)
{
    struct checking checking = {.view = view};
    size_t most =
        view->places[DIR_FIRST].have.snapshot_count + view->places[DIR_SECOND].have.snapshot_count;
    CHECK(view->lost_from == 0);
    checking.wholes = calloc(most + 1, sizeof(*checking.wholes));
    if (checking.wholes == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    check_folder(&checking, DIR_FIRST);
    check_folder(&checking, DIR_SECOND);
    int rc = check_snapshots(&checking, DIR_FIRST);
    rc = rc ? rc : check_snapshots(&checking, DIR_SECOND);
    rc = rc ? rc : check_updates(&checking);
    if (rc == 0) {
        conclude(&checking);
    }
    free(checking.wholes);
    return rc;
}
