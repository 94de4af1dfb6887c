/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a record from its two places: the newest whole snapshot of either, and every update after
 * it, each checked by its crc, its number and the SHA-256 of the one before. Invariant: the result
 * is the record as it was durable, up to the newest version that any name in either place shows, or
 * up to `lost_from`, which is reported. Nothing is ever cut off silently. Whatever is wrong with
 * one file (damage, an I/O error, its absence), the next one is tried.
 */
#include "dir_record_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

enum { LOAD_TRIES = 8 };
static const char written_whole[] = "; it was written whole, so the disk or somebody changed it";

/* --- the folders ------------------------------------------------------------------------------ */

/* Appends a version to the list of updates or of snapshots. Returns 0 or CAIRN_E_NO_MEMORY. */
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
    (void)kind; /* reading it shows whether it is a file */
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

int dir_try_list(struct dir_store *store, const char *path)
{
    struct dir_at at;
    struct dir_versions have = {0};
    int rc = dir_at_open(store, path, &at, NULL);
    if (rc == 0) {
        rc = dir_versions_list(store, &at, &have, NULL);
        dir_at_close(store, &at);
        dir_versions_fini(&have);
    }
    return rc;
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

/* Opens and lists a place. Tries once more after a failure (L22), unless the answer is certain. */
static void open_place(struct dir_sight *sight, struct dir_place *place, const char *path)
{
    for (int i = 0; i < 2; i++) {
        place->at.fd = -1;
        diag_clear(&place->why);
        place->status = dir_at_open(sight->store, path, &place->at, &place->why);
        if (place->status == 0) {
            place->status = dir_versions_list(sight->store, &place->at, &place->have, &place->why);
        }
        if (place->status == 0 || place->status == CAIRN_E_NOT_FOUND ||
            place->status == CAIRN_E_DAMAGED) {
            break;
        }
        if (place->at.fd != -1 && i == 0) {
            dir_at_close(sight->store, &place->at);
        }
    }
    dir_path_copy(path, place->at.path);
}

/* --- single files ----------------------------------------------------------------------------- */

static int say_damaged(const struct dir_sight *sight, const char *path, const char *name,
                       const struct diag *why, struct diag *diag)
{
    int code = why->code;
    if (code == CAIRN_E_FORMAT || code == CAIRN_E_TOO_LARGE || code == CAIRN_E_NOT_FOUND) {
        code = CAIRN_E_DAMAGED;
    }
    return diag_set(diag, code, "record file %s/%s/%s: %s%s", sight->store->path, path, name,
                    why->text, code == CAIRN_E_DAMAGED ? written_whole : "");
}

int dir_sight_snapshot(struct dir_sight *sight, const struct record_file *which,
                       struct record **ret, struct sha256 *ret_last, struct diag *diag)
{
    const struct dir_at *at = &sight->places[which->is_copy].at;
    struct dir_bytes file = {.bytes_max = LIMIT_RECORD_BYTES, .direct = sight->is_direct};
    struct diag why = DIAG_INIT;
    char name[DIR_NAME_MAX];
    struct record *record = NULL;
    dir_name_version(which->version, true, name);
    int rc = dir_read_file(sight->store, at, name, &file, &why);
    sight->is_moving = sight->is_moving || rc == CAIRN_E_NOT_FOUND;
    rc = rc ? rc : record_snapshot_decode(file.bytes, file.data, &record, ret_last->bytes, &why);
    if (rc == 0 && record_version(record) != which->version) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it holds version %llu", (ull)record_version(record));
        record_free(record);
    }
    free(file.data);
    if (rc != 0) {
        err_ignore(diag_set(&why, rc, "%s", err_text(rc))); /* if there is no text yet */
        return say_damaged(sight, at->path, name, &why, diag);
    }
    *ret = record;
    return 0;
}

int dir_sight_update(struct dir_sight *sight, uint64_t version, struct record *record,
                     struct dir_link *io_link, struct diag *diag)
{
    const struct dir_place *place = &sight->places[DIR_FIRST];
    struct dir_bytes file = {.bytes_max = LIMIT_RECORD_UPDATE_BYTES, .direct = sight->is_direct};
    struct diag why = DIAG_INIT;
    struct record_update update;
    struct sha256 previous;
    struct scratch scratch;
    uint64_t number = 0;
    char name[DIR_NAME_MAX];
    dir_name_version(version, false, name);
    int rc = has_update(&place->have, version)
                 ? dir_read_file(sight->store, &place->at, name, &file, &why)
                 : diag_set(&why, CAIRN_E_NOT_FOUND, "it is missing");
    sight->is_moving = sight->is_moving || rc == CAIRN_E_NOT_FOUND;
    scratch_init(&scratch, KIB(64) + file.bytes * 8);
    rc = rc ? rc
            : record_update_decode(file.bytes, file.data, &scratch, &update, &number,
                                   previous.bytes, &why);
    if (rc == 0 && number != version) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it holds update %llu", (ull)number);
    }
    if (rc == 0 && io_link->is_known &&
        memcmp(previous.bytes, io_link->hash.bytes, sizeof(previous)) != 0) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it does not follow the update before it");
    }
    if (rc == 0 && record != NULL) {
        rc = record_apply(record, &update, &why);
        why.code = rc == CAIRN_E_NO_MEMORY || rc == 0 ? rc : CAIRN_E_DAMAGED;
    }
    if (rc == 0) {
        io_link->is_known = true;
        io_link->hash = sha256(file.bytes, file.data);
    }
    scratch_fini(&scratch);
    free(file.data);
    if (rc == 0) {
        return 0;
    }
    err_ignore(diag_set(&why, rc, "%s", err_text(rc))); /* if there is no text yet */
    return say_damaged(sight, place->at.path, name, &why, diag);
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Returns true for an error that is not the medium's fault: no memory, or a file of a newer version
 * of Cairn. */
static bool is_of_this_reading(int code)
{
    return code == CAIRN_E_NO_MEMORY || code == CAIRN_E_UNSUPPORTED;
}

/* One way to read the record: where it begins, and how far it gets. */
struct course {
    struct record_file from; /* version 0 for the empty record */
    struct record *record;
    struct dir_link link;
    struct diag why; /* why it gets no further */
};

/* Returns true if the update of the same number is whole and contradicts a snapshot of the second
 * place: the snapshot belongs to another history then. */
static bool is_contradicted(struct dir_sight *sight, const struct course *course)
{
    struct dir_link link = {.is_known = false};
    return course->from.is_copy &&
           has_update(&sight->places[DIR_FIRST].have, course->from.version) &&
           dir_sight_update(sight, course->from.version, NULL, &link, NULL) == 0 &&
           memcmp(&link.hash, &course->link.hash, sizeof(link.hash)) != 0;
}

/* Reads the record along one course: a snapshot, or none, and all updates after it. */
static int take_course(struct dir_sight *sight, struct course *course)
{
    int rc = course->from.version == 0 ? record_new(&course->record)
                                       : dir_sight_snapshot(sight, &course->from, &course->record,
                                                            &course->link.hash, &course->why);
    course->link.is_known = true;
    if (rc == 0 && is_contradicted(sight, course)) {
        record_free(course->record);
        course->record = NULL;
        return diag_set(&course->why, CAIRN_E_DAMAGED, "%s/%016llx.snapshot is of another history",
                        sight->places[DIR_SECOND].at.path, (ull)course->from.version);
    }
    for (uint64_t at = course->from.version + 1; rc == 0 && at <= sight->newest; at++) {
        rc = dir_sight_update(sight, at, course->record, &course->link, &course->why);
    }
    if (is_of_this_reading(rc)) {
        record_free(course->record);
        course->record = NULL;
    }
    return rc;
}

/* Returns the next older snapshot of both places, that of the first place before that of the
 * second. */
static struct record_file next_snapshot(const struct dir_sight *sight, size_t left[DIR_PLACES],
                                        uint64_t version_max)
{
    struct record_file next = {.is_snapshot = true};
    for (int place = DIR_PLACES; place-- > 0;) {
        const uint64_t *snapshots = sight->places[place].have.snapshots;
        while (left[place] > 0 && snapshots[left[place] - 1] > version_max) {
            left[place]--;
        }
        if (left[place] > 0 && snapshots[left[place] - 1] >= next.version) {
            next.version = snapshots[left[place] - 1];
            next.is_copy = place == DIR_SECOND;
        }
    }
    if (next.version > 0) {
        left[next.is_copy]--;
    }
    return next;
}

/* Takes the course that gets farthest; usually that is the first one, which reaches the end. */
static int take_best(struct dir_sight *sight, uint64_t version_max, struct diag *diag)
{
    size_t left[DIR_PLACES] = {sight->places[DIR_FIRST].have.snapshot_count,
                               sight->places[DIR_SECOND].have.snapshot_count};
    struct course best = {.record = NULL};
    for (bool is_over = false; !is_over;) {
        struct course course = {.from = next_snapshot(sight, left, version_max)};
        int rc = take_course(sight, &course);
        if (is_of_this_reading(rc)) {
            record_free(best.record);
            return diag_copy(diag, &course.why) ? rc : diag_set(diag, rc, "record");
        }
        if (course.record != NULL &&
            (best.record == NULL || record_version(course.record) > record_version(best.record))) {
            record_free(best.record);
            best = course;
        } else {
            record_free(course.record);
        }
        is_over = rc == 0 || course.from.version == 0;
    }
    CHECK(best.record != NULL);
    sight->record = best.record;
    sight->last = best.link.hash;
    if (record_version(best.record) < sight->newest) {
        sight->lost_from = record_version(best.record) + 1;
        sight->lost = best.why;
    }
    return 0;
}

/* Finds the newest version that any file of the two places has. */
static void find_newest(struct dir_sight *sight, uint64_t version_max)
{
    for (int i = 0; i < DIR_PLACES; i++) {
        const struct dir_versions *have = &sight->places[i].have;
        uint64_t newest = 0;
        if (have->update_count > 0 && i == DIR_FIRST) {
            newest = have->updates[have->update_count - 1];
        }
        if (have->snapshot_count > 0) {
            newest = max_u64(newest, have->snapshots[have->snapshot_count - 1]);
        }
        sight->newest = max_u64(sight->newest, min_u64(newest, version_max));
    }
}

static bool is_told(const struct dir_place *place)
{
    return place->status == 0 || place->status == CAIRN_E_NOT_FOUND;
}

/* Judges what an unreadable place means. If the first place cannot be listed, it may have more than
 * the second. If one place cannot be listed and the other is empty, nobody may call the record
 * empty. */
static int judge_places(struct dir_sight *sight, struct diag *diag)
{
    const struct dir_place *first = &sight->places[DIR_FIRST];
    const struct dir_place *second = &sight->places[DIR_SECOND];
    bool is_empty = record_version(sight->record) == 0 && sight->lost_from == 0;
    if (is_told(first)) {
        return is_empty && !is_told(second) ? diag_copy(diag, &second->why) : 0;
    }
    if (is_empty || is_of_this_reading(first->status)) {
        return diag_copy(diag, &first->why);
    }
    if (first->status != CAIRN_E_DAMAGED && sight->lost_from == 0) {
        sight->lost_from = record_version(sight->record) + 1;
        sight->lost = first->why;
    }
    return 0;
}

/* The permanent identity in a record: a run's uuid, or the store's. */
struct identity {
    size_t bytes;
    uint8_t data[64];
};

static void take_identity(const struct record *record, struct identity *ret)
{
    struct record_value value;
    if ((record_get(record, "info", &value) || record_get(record, "uuid", &value)) &&
        value.bytes <= sizeof(ret->data)) {
        ret->bytes = value.bytes;
        memcpy(ret->data, value.data, value.bytes);
    }
}

/* Finds the identity in one place alone. Finds none if nothing in the place is whole. */
static void find_identity(struct dir_sight *sight, enum dir_place_number number,
                          struct identity *ret)
{
    const struct dir_versions *have = &sight->places[number].have;
    struct dir_link link = {.is_known = true};
    struct record *record = NULL;
    for (size_t i = have->snapshot_count; record == NULL && i-- > 0;) {
        struct record_file file = {
            .version = have->snapshots[i], .is_snapshot = true, .is_copy = number == DIR_SECOND};
        /* Otherwise takes the next one. */
        err_ignore(dir_sight_snapshot(sight, &file, &record, &link.hash, NULL));
    }
    if (record == NULL && number == DIR_FIRST && has_update(have, 1) && record_new(&record) == 0) {
        /* Otherwise there is no identity. */
        err_ignore(dir_sight_update(sight, 1, record, &link, NULL));
    }
    if (record != NULL) {
        take_identity(record, ret);
        record_free(record);
    }
}

/* Refuses two places with different identities. Folders were exchanged or put back by hand, because
 * one fault cannot do that; to believe either would write its record over the other's. */
static int compare_places(struct dir_sight *sight, struct diag *diag)
{
    struct identity first = {.bytes = 0}, second = {.bytes = 0};
    bool was_moving = sight->is_moving;
    find_identity(sight, DIR_FIRST, &first);
    find_identity(sight, DIR_SECOND, &second);
    sight->is_moving = was_moving;
    if (first.bytes == 0 || second.bytes == 0 ||
        (first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_DAMAGED,
                    "the run's record in %s/%s is another run's than the one in %s: put the right "
                    "folder back, or move the wrong one away",
                    sight->store->path, sight->places[DIR_FIRST].at.path,
                    sight->places[DIR_SECOND].at.path);
}

int dir_sight_open(struct dir_sight *sight, const struct dir_record *rec, struct diag *diag)
{
    uint64_t version_max = rec->is_stuck ? rec->version_max : UINT64_MAX;
    sight->is_beside = rec->is_beside;
    sight->is_direct = rec->is_direct;
    open_place(sight, &sight->places[DIR_FIRST], rec->path);
    open_place(sight, &sight->places[DIR_SECOND], rec->copy_path);
    find_newest(sight, version_max);
    int rc = compare_places(sight, diag);
    rc = rc ? rc : take_best(sight, version_max, diag);
    return rc ? rc : judge_places(sight, diag);
}

void dir_sight_close(struct dir_sight *sight)
{
    for (int i = 0; i < DIR_PLACES; i++) {
        dir_versions_fini(&sight->places[i].have);
        dir_at_close(sight->store, &sight->places[i].at);
    }
    record_free(sight->record);
    sight->record = NULL;
}

/* --- a record --------------------------------------------------------------------------------- */

/* Returns true if the folder above a record cannot be listed, so that nothing of the run can be
 * read. */
static bool is_run_unreadable(const struct dir_sight *sight, const char *path)
{
    char above[DIR_PATH_MAX];
    dir_path_copy(path, above);
    char *slash = strrchr(above, '/');
    if (sight->places[DIR_FIRST].status != CAIRN_E_IO || slash == NULL) {
        return false;
    }
    *slash = 0;
    return dir_try_list(sight->store, above) != 0;
}

/* Shortens the cause of a loss. The remedy names the store, so the file is named inside it, and the
 * last words are dropped; both have to fit into one text. */
static void short_cause(const struct dir_sight *sight, struct diag *ret)
{
    *ret = sight->lost;
    char *path = strstr(ret->text, sight->store->path);
    size_t length = strlen(sight->store->path);
    if (path != NULL && path[length] == '/') {
        memmove(path, path + length + 1, strlen(path + length + 1) + 1);
    }
    char *tail = strstr(ret->text, written_whole);
    if (tail != NULL) {
        *tail = '\0';
    }
}

/* Writes what happened to the end of the record, and what can be done about it. */
static void say_lost(const struct dir_sight *sight, struct dir_record *rec)
{
    struct run_name run;
    struct diag why;
    char text[RUN_NAME_TEXT_MAX];
    rec->lost = (struct diag)DIAG_INIT;
    if (is_run_unreadable(sight, rec->path)) { /* no command of Cairn reaches what is below it */
        err_ignore(diag_set(&rec->lost, sight->lost.code,
                            "%.250s; nothing of the run can be read: look at the disk (dmesg), and "
                            "restore from a mirror meanwhile; its second record goes as far as "
                            "update %llu",
                            sight->lost.text, (ull)(sight->lost_from - 1)));
        return;
    }
    if (sight->lost.code == CAIRN_E_DENIED) { /* only the right to read it is lost */
        err_ignore(diag_set(&rec->lost, CAIRN_E_DENIED,
                            "%.250s; nothing is lost: give %s back to the user that cairnd runs as "
                            "(`chown -R`, `chmod -R u+rwX`); until then the record goes as far as "
                            "update %llu",
                            sight->lost.text, rec->path, (ull)(sight->lost_from - 1)));
        return;
    }
    /* The store's own: a daemon that opens it goes on by itself. */
    if (!dir_parse_record(rec->path, &run)) {
        err_ignore(diag_set(&rec->lost, sight->lost.code,
                            "%.250s; the store's record goes as far as update %llu; a daemon that "
                            "starts goes on from there",
                            sight->lost.text, (ull)(sight->lost_from - 1)));
        return;
    }
    run_name_format(&run, text);
    short_cause(sight, &why);
    err_ignore(diag_set(&rec->lost, sight->lost.code,
                        "%.200s; the record goes as far as update %llu: with the daemon stopped "
                        "`cairn salvage %s --store %s --accept-loss --yes` goes on without what is "
                        "lost, unless a mirror has it (verify --repair --from)",
                        why.text, (ull)(sight->lost_from - 1), text,
                        store_caps_url(&sight->store->base.caps)));
}

/* Moves the record that was read from the sight to `rec`, which owns it from here on. */
static void take_sight(struct dir_sight *sight, struct dir_record *rec)
{
    CHECK(rec->record == NULL);
    rec->record = sight->record;
    sight->record = NULL;
    rec->last = sight->last;
    rec->newest = sight->newest;
    rec->lost_from = sight->lost_from;
    diag_clear(&rec->lost);
    if (rec->lost_from != 0) {
        say_lost(sight, rec);
    }
    memcpy(rec->snapshots, sight->snapshots, sizeof(rec->snapshots));
}

/* Names the files that would let the reading go on: update `lost_from`, where it stopped, and the
 * snapshots from there on, all of which are damaged. */
static void name_lost(const struct dir_sight *sight, struct dir_damage *ret)
{
    *ret = (struct dir_damage){.count = 1, .first = sight->lost};
    ret->files[0] = (struct record_file){.version = sight->lost_from};
    for (int place = 0; place < DIR_PLACES; place++) {
        const struct dir_versions *have = &sight->places[place].have;
        for (size_t i = have->snapshot_count; i-- > 0 && have->snapshots[i] >= sight->lost_from;) {
            if (have->snapshots[i] > sight->newest || ret->count == STORE_RECORD_FILES_MAX) {
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
static void check_copies_folder(const struct dir_sight *sight, struct dir_damage *io)
{
    struct dir_at at;
    if (io->count > 0 || sight->newest == 0 ||
        sight->places[DIR_SECOND].status != CAIRN_E_NOT_FOUND) {
        return;
    }
    int rc = dir_at_open(sight->store, "copy", &at, NULL);
    if (rc == 0) {
        dir_at_close(sight->store, &at);
    } else if (rc == CAIRN_E_NOT_FOUND) {
        io->count = 1;
        io->files[0] =
            (struct record_file){.version = sight->newest, .is_snapshot = true, .is_copy = true};
        err_ignore(diag_set(&io->first, CAIRN_E_DAMAGED,
                            "%s/copy is missing, the second place of all records",
                            sight->store->path));
    }
}

/* Reads the record from both places. Returns 0, an error, or 1 if what was found is odd and should
 * be looked at again. */
static int look_once(struct dir_store *store, struct dir_record *rec, struct dir_damage *damage,
                     struct diag *diag)
{
    struct dir_sight sight = {.store = store};
    int rc = dir_sight_open(&sight, rec, diag);
    if (rc == 0 && damage != NULL && sight.lost_from == 0) {
        rc = dir_sight_check(&sight);
    }
    if (rc == 0 && damage != NULL) {
        *damage = sight.damage;
        if (sight.lost_from != 0) {
            name_lost(&sight, damage);
        } else {
            check_copies_folder(&sight, damage);
        }
    }
    bool is_odd = sight.lost_from != 0 || sight.damage.count > 0 || sight.is_moving;
    if (rc == 0) {
        take_sight(&sight, rec);
    }
    dir_sight_close(&sight);
    return rc ? rc : is_odd;
}

int dir_record_look(struct dir_store *store, struct dir_record *rec, struct dir_damage *ret,
                    struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int rc = 1;
    /* A daemon may compact the folders between listing and reading: look again. */
    for (int i = 0; i < LOAD_TRIES && rc != 0; i++) {
        diag_clear(&why);
        record_free(rec->record);
        rec->record = NULL;
        rc = look_once(store, rec, ret, &why);
    }
    return rc >= 0 ? 0 : diag_copy(diag, &why);
}

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
        dir_note(store, "fsync failed, not writable: %s", rec->path);
        return 0;
    }
    return rc == 0 ? 0 : diag_copy(diag, &why);
}

/* Does the same for the second place. If it fails, that place counts as behind and is written
 * anew. */
static bool is_copy_durable(struct dir_store *store, const struct dir_place *place)
{
    return place->status == 0 && dir_sync_once(store, &place->at, NULL) == 0;
}

/* Repairs the place that is damaged or old, after the record was read from the other one. An error
 * is only noted: the record is whole in memory. */
static void heal_or_note(struct dir_store *store, struct dir_run *run, struct dir_sight *sight)
{
    struct diag why = DIAG_INIT;
    struct dir_record *rec = &run->record;
    uint64_t copied = is_copy_durable(store, &sight->places[DIR_SECOND]) ? sight->copied : 0;
    atomic_store(&run->copying.to, copied);
    rec->is_unhealed = !sight->is_enough;
    bool is_wanted = sight->damage.count > 0 || rec->is_unhealed;
    if (is_wanted) {
        dir_note(store, "%s: %s", rec->is_unhealed ? "from the other place" : "covered damage",
                 sight->damage.count > 0 ? sight->damage.first.text : rec->path);
    }
    if (is_wanted && dir_record_heal(store, run, sight, &why) != 0) {
        dir_note(store, "not healed: %s", why.text);
    }
    if (atomic_load(&run->copying.to) < record_version(rec->record)) {
        dir_copy_want(store, run);
    }
}

int dir_record_load(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_sight sight = {.store = store};
    CHECK(!rec->is_beside);
    record_free(rec->record);
    rec->record = NULL;
    int rc = sync_or_stick(store, rec, diag);
    rc = rc ? rc : dir_sight_open(&sight, rec, diag);
    bool may_heal = !store->read_only && !rec->is_stuck && sight.lost_from == 0;
    rc = rc || !may_heal ? rc : dir_sight_check(&sight);
    if (rc == 0) {
        take_sight(&sight, rec);
        if (may_heal) {
            heal_or_note(store, run, &sight);
        } else if (rec->lost_from != 0) {
            dir_note(store, "%s", rec->lost.text);
        }
    }
    dir_sight_close(&sight);
    return rc;
}
