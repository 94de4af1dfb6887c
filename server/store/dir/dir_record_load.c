/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads a record from what its two places show, says what is lost of it and what can be done, and
 * heals the place that does not have all of it. Invariant (L14): a damaged file is moved away only
 * if its replacement was read as a whole, and the next update waits until the first place has
 * everything again. Under the run's lock.
 */
#include "dir_record_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <string.h>

typedef unsigned long long ull;

enum { LOAD_TRIES = 8 };

/* --- the loss, in words ----------------------------------------------------------------------- */

/* Returns true if the folder above a record cannot be listed, so that nothing of the run can be
 * read. */
static bool is_run_unreadable(const struct dir_view *view, const char *path)
{
    char above[DIR_PATH_MAX];
    dir_path_copy(path, above);
    char *slash = strrchr(above, '/');
    if (view->places[DIR_FIRST].status != CAIRN_E_IO || slash == NULL) {
        return false;
    }
    *slash = 0;
    return dir_try_list(view->store, above) != 0;
}

/* Shortens the cause of a loss. The remedy names the store, so the file is named inside it, and the
 * last words are dropped; both have to fit into one text. */
static void short_cause(const struct dir_view *view, struct diag *ret)
{
    *ret = view->lost;
    char *path = strstr(ret->text, view->store->path);
    size_t length = strlen(view->store->path);
    if (path != NULL && path[length] == '/') {
        memmove(path, path + length + 1, strlen(path + length + 1) + 1);
    }
    char *tail = strstr(ret->text, dir_written_whole);
    if (tail != NULL) {
        *tail = '\0';
    }
}

/* Writes what happened to the end of the record, and what can be done about it. */
static void say_lost(const struct dir_view *view, struct dir_record *rec)
{
    struct run_name run;
    struct diag why;
    rec->lost = (struct diag)DIAG_INIT;
    rec->is_unreadable = is_run_unreadable(view, rec->path);
    if (rec->is_unreadable) { /* no command of Cairn reaches what is below it */
        err_ignore(
            diag_set(&rec->lost, view->lost.code,
                     "%.250s; nothing of the run can be read: check the disk (dmesg), and restore "
                     "from a mirror meanwhile; the second copy of the record ends with update %llu",
                     view->lost.text, (ull)(view->lost_from - 1)));
        return;
    }
    if (view->lost.code == CAIRN_E_DENIED) { /* only the right to read it is lost */
        err_ignore(
            diag_set(&rec->lost, CAIRN_E_DENIED,
                     "%.250s; nothing is lost: give %s back to the user that cairnd runs as "
                     "(`chown -R`, `chmod -R u+rwX`); until then the record ends with update %llu",
                     view->lost.text, rec->path, (ull)(view->lost_from - 1)));
        return;
    }
    /* The store's own: a daemon that opens it goes on by itself. */
    if (!dir_parse_record(rec->path, &run)) {
        err_ignore(diag_set(&rec->lost, view->lost.code,
                            "%.250s; the store's record ends with update %llu, and a daemon that "
                            "starts continues from there",
                            view->lost.text, (ull)(view->lost_from - 1)));
        return;
    }
    short_cause(view, &why);
    err_ignore(diag_set(&rec->lost, view->lost.code,
                        "%.200s; the record can be read up to update %llu: if a mirror has the "
                        "rest, use verify --repair --from; if not, stop the daemon and run `cairn "
                        "salvage %s --store %s --accept-loss --yes`, which gives up the rest",
                        why.text, (ull)(view->lost_from - 1), run_name_text(&run).at,
                        store_caps_url(&view->store->base.caps)));
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Moves the record that was read from the view to `rec`, which owns it from here on. */
static void take_totals(struct dir_view *view, struct dir_record *rec)
{
    CHECK(rec->record == NULL);
    rec->record = view->record;
    view->record = NULL;
    rec->last = view->last;
    rec->newest = view->newest;
    rec->lost_from = view->lost_from;
    diag_clear(&rec->lost);
    rec->is_unreadable = false;
    if (rec->lost_from != 0) {
        say_lost(view, rec);
    }
    memcpy(rec->snapshots, view->snapshots, sizeof(rec->snapshots));
}

/* Names the files that would let the reading go on: update `lost_from`, where it stopped, and the
 * snapshots from there on, all of which are damaged. */
static void name_lost(const struct dir_view *view, struct dir_damage *ret)
{
    *ret = (struct dir_damage){.count = 1, .first = view->lost};
    ret->files[0] = (struct record_file){.version = view->lost_from};
    for (int place = 0; place < DIR_PLACES; place++) {
        const struct dir_versions *have = &view->places[place].have;
        for (size_t i = have->snapshot_count; i-- > 0 && have->snapshots[i] >= view->lost_from;) {
            if (have->snapshots[i] > view->newest || ret->count == STORE_RECORD_FILES_MAX) {
                continue;
            }
            ret->files[ret->count++] = (struct record_file){
                .version = have->snapshots[i], .is_snapshot = true, .is_copy = place != DIR_FIRST};
        }
    }
}

/* Reports a missing folder of copies. Every opening for writing makes it, so if it is missing,
 * somebody or something has removed it, together with the second copies of all records. Nothing
 * else would show that. */
static void check_copies_folder(const struct dir_view *view, struct dir_damage *io)
{
    struct dir_at at;
    if (io->count > 0 || view->newest == 0 ||
        view->places[DIR_SECOND].status != CAIRN_E_NOT_FOUND) {
        return;
    }
    int rc = dir_at_open(view->store, "copy", &at, NULL);
    if (rc == 0) {
        dir_at_close(view->store, &at);
    } else if (rc == CAIRN_E_NOT_FOUND) {
        io->count = 1;
        io->files[0] =
            (struct record_file){.version = view->newest, .is_snapshot = true, .is_copy = true};
        err_ignore(diag_set(&io->first, CAIRN_E_DAMAGED,
                            "%s/copy, which holds the second copy of all records, is missing",
                            view->store->path));
    }
}

/* Reads the record from both places. Returns 0, an error, or 1 if what was found is odd and should
 * be read again. */
static int read_places(struct dir_store *store, struct dir_record *rec, struct dir_damage *damage,
                       struct diag *diag)
{
    struct dir_view view = {.store = store};
    int rc = dir_view_open(&view, rec, diag);
    if (rc == 0 && damage != NULL && view.lost_from == 0) {
        rc = dir_view_check(&view);
    }
    if (rc == 0 && damage != NULL) {
        *damage = view.damage;
        if (view.lost_from != 0) {
            name_lost(&view, damage);
        } else {
            check_copies_folder(&view, damage);
        }
    }
    bool is_odd = view.lost_from != 0 || view.damage.count > 0 || view.is_moving;
    if (rc == 0) {
        take_totals(&view, rec);
    }
    dir_view_close(&view);
    return rc ? rc : is_odd;
}

int dir_record_read(struct dir_store *store, struct dir_record *rec, struct dir_damage *ret,
                    struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int rc = 1;
    /* A daemon may compact the folders between listing and reading: read again. */
    for (int i = 0; i < LOAD_TRIES && rc != 0; i++) {
        diag_clear(&why);
        record_free(rec->record);
        rec->record = NULL;
        rc = read_places(store, rec, ret, &why);
    }
    return rc >= 0 ? 0 : diag_copy(diag, &why);
}

/* --- healing ---------------------------------------------------------------------------------- */

/* Moves the files of one place that the view names to quarantine. */
static void quarantine_files(struct dir_store *store, const struct dir_view *view, bool is_copy,
                             const struct dir_at *at)
{
    const struct dir_damage *damage = &view->damage;
    for (size_t i = 0; i < min_u64(damage->count, STORE_RECORD_FILES_MAX); i++) {
        if (damage->files[i].is_copy == is_copy) {
            dir_quarantine(
                store, at,
                dir_name_version(damage->files[i].version, damage->files[i].is_snapshot).at);
        }
    }
}

/* Makes the first place whole: moves damaged files away, and writes a snapshot if the files that
 * are left are not enough. */
static int heal_first(struct dir_store *store, struct dir_run *run, const struct dir_view *view,
                      struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    if (view->places[DIR_FIRST].status == CAIRN_E_DAMAGED) {
        dir_move_folder_aside(store, rec->path);
    }
    int rc = dir_place_open(store, &run->name, rec->path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    quarantine_files(store, view, false, &at);
    if (!view->is_enough) {
        rc = dir_record_snapshot(store, rec, &at, diag);
    }
    dir_at_close(store, &at);
    rec->is_unhealed = rc != 0;
    return rc;
}

/* Makes the second place whole, which is only a copy: moves damaged files away and copies the
 * record again. */
static int heal_second(struct dir_store *store, struct dir_run *run, const struct dir_view *view,
                       struct diag *diag)
{
    const struct dir_record_place *place = &view->places[DIR_SECOND];
    if (place->status == 0) {
        quarantine_files(store, view, true, &place->at);
    } else if (place->status != CAIRN_E_NOT_FOUND) {
        dir_move_folder_aside(store, run->record.copy_path); /* it is only a copy */
    }
    return dir_copy_now(store, run, diag);
}

int dir_record_heal(struct dir_store *store, struct dir_run *run, const struct dir_view *view,
                    struct diag *diag)
{
    CHECK(run->record.record != NULL);
    CHECK(run->record.lost_from == 0);
    int rc = FAILPOINT("dir.heal");
    rc = rc ? diag_set(diag, rc, "heal: fail point dir.heal") : 0;
    rc = rc ? rc : heal_first(store, run, view, diag);
    return rc ? rc : heal_second(store, run, view, diag);
}

/* --- loading ---------------------------------------------------------------------------------- */

/* L11: makes what is about to be believed durable first. If that fails, the record can still be
 * read, for restores, but nothing is added to it before dir_record_settle(). */
static int sync_or_stick(struct dir_store *store, struct dir_record *rec, struct diag *diag)
{
    struct dir_at at;
    struct diag why = DIAG_INIT;
    if (rec->is_stuck || store->read_only || dir_at_open(store, rec->path, &at, NULL) != 0) {
        return 0; /* loading reports what is wrong with it */
    }
    int rc = dir_sync_once(store, &at, &why);
    dir_at_close(store, &at);
    if (rc != 0 && dir_check_broken(store, rec->path, NULL) != 0) {
        rec->is_stuck = true;
        rec->version_max = UINT64_MAX;
        dir_note(store, "an fsync failed, so this record cannot be written: %s", rec->path);
        return 0;
    }
    return rc == 0 ? 0 : diag_copy(diag, &why);
}

/* Does the same for the second place. If it fails, that place counts as behind and is written
 * anew. */
static bool is_copy_durable(struct dir_store *store, const struct dir_record_place *place)
{
    return place->status == 0 && dir_sync_once(store, &place->at, NULL) == 0;
}

/* Repairs the place that is damaged or old, after the record was read from the other one. An error
 * is only noted: the record is whole in memory. */
static void heal_or_note(struct dir_store *store, struct dir_run *run, struct dir_view *view)
{
    struct diag why = DIAG_INIT;
    struct dir_record *rec = &run->record;
    uint64_t copied = is_copy_durable(store, &view->places[DIR_SECOND]) ? view->copied : 0;
    atomic_store(&run->copying.to, copied);
    rec->is_unhealed = !view->is_enough;
    bool is_wanted = view->damage.count > 0 || rec->is_unhealed;
    if (is_wanted) {
        dir_note(store, "%s: %s",
                 rec->is_unhealed ? "read from the second copy"
                                  : "damage that the second copy covers",
                 view->damage.count > 0 ? view->damage.first.text : rec->path);
    }
    if (is_wanted && dir_record_heal(store, run, view, &why) != 0) {
        dir_note(store, "a damaged copy could not be repaired: %s", why.text);
    }
    if (atomic_load(&run->copying.to) < record_version(rec->record)) {
        dir_copy_want(store, run);
    }
}

int dir_record_load(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_view view = {.store = store};
    CHECK(!rec->is_beside);
    record_free(rec->record);
    rec->record = NULL;
    int rc = sync_or_stick(store, rec, diag);
    rc = rc ? rc : dir_view_open(&view, rec, diag);
    bool may_heal = !store->read_only && !rec->is_stuck && view.lost_from == 0;
    rc = rc || !may_heal ? rc : dir_view_check(&view);
    if (rc == 0) {
        take_totals(&view, rec);
        if (may_heal) {
            heal_or_note(store, run, &view);
        } else if (rec->lost_from != 0) {
            dir_note(store, "%s", rec->lost.text);
        }
    }
    dir_view_close(&view);
    return rc;
}
