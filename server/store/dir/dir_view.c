/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a record from its two places: the newest whole snapshot of either, and every update after
 * it, each checked by its crc, its number and the SHA-256 of the one before. Invariant: the result
 * is the record as it was durable, up to the newest version that any name in either place shows, or
 * up to `lost_from`, which is reported. Nothing is ever cut off silently. Whatever is wrong with
 * one file (damage, an I/O error, its absence), the next one is tried. Reads only.
 */
#include "dir_record_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

const char dir_written_whole[] =
    "; the file was complete when it was written, so the disk or another program has changed it";

/* --- the folders ------------------------------------------------------------------------------ */

/* Opens and lists a place. Tries once more after a failure (L22), unless the answer is certain. */
static void open_place(struct dir_view *view, struct dir_record_place *place, const char *path)
{
    for (int i = 0; i < 2; i++) {
        place->at.fd = -1;
        diag_clear(&place->why);
        place->status = dir_at_open(view->store, path, &place->at, &place->why);
        if (place->status == 0) {
            place->status = dir_versions_list(view->store, &place->at, &place->have, &place->why);
        }
        if (place->status == 0 || place->status == CAIRN_E_NOT_FOUND ||
            place->status == CAIRN_E_DAMAGED) {
            break;
        }
        if (place->at.fd != -1 && i == 0) {
            dir_at_close(view->store, &place->at);
        }
    }
    dir_path_copy(path, place->at.path);
}

/* --- single files ----------------------------------------------------------------------------- */

static int say_damaged(const struct dir_view *view, const char *path, const char *name,
                       const struct diag *why, struct diag *diag)
{
    int code = why->code;
    if (code == CAIRN_E_FORMAT || code == CAIRN_E_TOO_LARGE || code == CAIRN_E_NOT_FOUND) {
        code = CAIRN_E_DAMAGED;
    }
    return diag_set(diag, code, "the record file %s/%s/%s is damaged: %s%s", view->store->path,
                    path, name, why->text, code == CAIRN_E_DAMAGED ? dir_written_whole : "");
}

int dir_view_snapshot(struct dir_view *view, const struct record_file *which, struct record **ret,
                      struct sha256 *ret_last, struct diag *diag)
{
    const struct dir_at *at = &view->places[which->is_copy].at;
    struct dir_bytes file = {.bytes_max = LIMIT_RECORD_BYTES, .direct = view->is_direct};
    struct diag why = DIAG_INIT;
    struct record *record = NULL;
    struct dir_name name = dir_name_version(which->version, true);
    int rc = dir_read_file(view->store, at, name.at, &file, &why);
    view->is_moving = view->is_moving || rc == CAIRN_E_NOT_FOUND;
    rc = rc ? rc : record_snapshot_decode(file.bytes, file.data, &record, ret_last->bytes, &why);
    if (rc == 0 && record_version(record) != which->version) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it holds version %llu", (ull)record_version(record));
        record_free(record);
    }
    free(file.data);
    if (rc != 0) {
        err_ignore(diag_set(&why, rc, "%s", err_text(rc))); /* if there is no text yet */
        return say_damaged(view, at->path, name.at, &why, diag);
    }
    *ret = record;
    return 0;
}

int dir_view_update(struct dir_view *view, uint64_t version, struct record *record,
                    struct dir_link *io_link, struct diag *diag)
{
    const struct dir_record_place *place = &view->places[DIR_FIRST];
    struct dir_bytes file = {.bytes_max = LIMIT_RECORD_UPDATE_BYTES, .direct = view->is_direct};
    struct diag why = DIAG_INIT;
    struct record_update update;
    struct sha256 previous;
    struct scratch scratch;
    uint64_t number = 0;
    struct dir_name name = dir_name_version(version, false);
    int rc = dir_versions_has_update(&place->have, version)
                 ? dir_read_file(view->store, &place->at, name.at, &file, &why)
                 : diag_set(&why, CAIRN_E_NOT_FOUND, "it is missing");
    view->is_moving = view->is_moving || rc == CAIRN_E_NOT_FOUND;
    scratch_init(&scratch, KIB(64) + file.bytes * 8);
    rc = rc ? rc
            : record_update_decode(file.bytes, file.data, &scratch, &update, &number,
                                   previous.bytes, &why);
    if (rc == 0 && number != version) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it holds update %llu", (ull)number);
    }
    if (rc == 0 && io_link->is_known &&
        memcmp(previous.bytes, io_link->hash.bytes, sizeof(previous)) != 0) {
        rc = diag_set(&why, CAIRN_E_DAMAGED, "it does not follow the previous update");
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
    return say_damaged(view, place->at.path, name.at, &why, diag);
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
static bool is_contradicted(struct dir_view *view, const struct course *course)
{
    struct dir_link link = {.is_known = false};
    return course->from.is_copy &&
           dir_versions_has_update(&view->places[DIR_FIRST].have, course->from.version) &&
           dir_view_update(view, course->from.version, NULL, &link, NULL) == 0 &&
           memcmp(&link.hash, &course->link.hash, sizeof(link.hash)) != 0;
}

/* Reads the record along one course: a snapshot, or none, and all updates after it. */
static int take_course(struct dir_view *view, struct course *course)
{
    int rc = course->from.version == 0 ? record_new(&course->record)
                                       : dir_view_snapshot(view, &course->from, &course->record,
                                                           &course->link.hash, &course->why);
    course->link.is_known = true;
    if (rc == 0 && is_contradicted(view, course)) {
        record_free(course->record);
        course->record = NULL;
        return diag_set(&course->why, CAIRN_E_DAMAGED,
                        "%s/%016llx.snapshot belongs to another history",
                        view->places[DIR_SECOND].at.path, (ull)course->from.version);
    }
    for (uint64_t at = course->from.version + 1; rc == 0 && at <= view->newest; at++) {
        rc = dir_view_update(view, at, course->record, &course->link, &course->why);
    }
    if (is_of_this_reading(rc)) {
        record_free(course->record);
        course->record = NULL;
    }
    return rc;
}

/* Returns the next older snapshot of both places, that of the first place before that of the
 * second. */
static struct record_file next_snapshot(const struct dir_view *view, size_t left[DIR_PLACES],
                                        uint64_t version_max)
{
    struct record_file next = {.is_snapshot = true};
    for (int place = DIR_PLACES; place-- > 0;) {
        const uint64_t *snapshots = view->places[place].have.snapshots;
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
static int take_best(struct dir_view *view, uint64_t version_max, struct diag *diag)
{
    size_t left[DIR_PLACES] = {view->places[DIR_FIRST].have.snapshot_count,
                               view->places[DIR_SECOND].have.snapshot_count};
    struct course best = {.record = NULL};
    for (bool is_over = false; !is_over;) {
        struct course course = {.from = next_snapshot(view, left, version_max)};
        int rc = take_course(view, &course);
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
    view->record = best.record;
    view->last = best.link.hash;
    if (record_version(best.record) < view->newest) {
        view->lost_from = record_version(best.record) + 1;
        view->lost = best.why;
    }
    return 0;
}

/* Finds the newest version that any file of the two places has. */
static void find_newest(struct dir_view *view, uint64_t version_max)
{
    for (int i = 0; i < DIR_PLACES; i++) {
        const struct dir_versions *have = &view->places[i].have;
        uint64_t newest = 0;
        if (have->update_count > 0 && i == DIR_FIRST) {
            newest = have->updates[have->update_count - 1];
        }
        if (have->snapshot_count > 0) {
            newest = max_u64(newest, have->snapshots[have->snapshot_count - 1]);
        }
        view->newest = max_u64(view->newest, min_u64(newest, version_max));
    }
}

static bool is_told(const struct dir_record_place *place)
{
    return place->status == 0 || place->status == CAIRN_E_NOT_FOUND;
}

/* Judges what an unreadable place means. If the first place cannot be listed, it may have more than
 * the second. If one place cannot be listed and the other is empty, nobody may call the record
 * empty. */
static int judge_places(struct dir_view *view, struct diag *diag)
{
    const struct dir_record_place *first = &view->places[DIR_FIRST];
    const struct dir_record_place *second = &view->places[DIR_SECOND];
    bool is_empty = record_version(view->record) == 0 && view->lost_from == 0;
    if (is_told(first)) {
        return is_empty && !is_told(second) ? diag_copy(diag, &second->why) : 0;
    }
    if (is_empty || is_of_this_reading(first->status)) {
        return diag_copy(diag, &first->why);
    }
    if (first->status != CAIRN_E_DAMAGED && view->lost_from == 0) {
        view->lost_from = record_version(view->record) + 1;
        view->lost = first->why;
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
static void find_identity(struct dir_view *view, enum dir_place_number number, struct identity *ret)
{
    const struct dir_versions *have = &view->places[number].have;
    struct dir_link link = {.is_known = true};
    struct record *record = NULL;
    for (size_t i = have->snapshot_count; record == NULL && i-- > 0;) {
        struct record_file file = {
            .version = have->snapshots[i], .is_snapshot = true, .is_copy = number == DIR_SECOND};
        /* Otherwise takes the next one. */
        err_ignore(dir_view_snapshot(view, &file, &record, &link.hash, NULL));
    }
    if (record == NULL && number == DIR_FIRST && dir_versions_has_update(have, 1) &&
        record_new(&record) == 0) {
        /* Otherwise there is no identity. */
        err_ignore(dir_view_update(view, 1, record, &link, NULL));
    }
    if (record != NULL) {
        take_identity(record, ret);
        record_free(record);
    }
}

/* Refuses two places with different identities. Folders were exchanged or put back by hand, because
 * one fault cannot do that; to believe either would write its record over the other's. */
static int compare_places(struct dir_view *view, struct diag *diag)
{
    struct identity first = {.bytes = 0}, second = {.bytes = 0};
    bool was_moving = view->is_moving;
    find_identity(view, DIR_FIRST, &first);
    find_identity(view, DIR_SECOND, &second);
    view->is_moving = was_moving;
    if (first.bytes == 0 || second.bytes == 0 ||
        (first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_DAMAGED,
                    "the record in %s/%s belongs to another run than the one in %s: put the right "
                    "folder back, or move the wrong one away",
                    view->store->path, view->places[DIR_FIRST].at.path,
                    view->places[DIR_SECOND].at.path);
}

int dir_view_open(struct dir_view *view, const struct dir_record *rec, struct diag *diag)
{
    uint64_t version_max = rec->is_stuck ? rec->version_max : UINT64_MAX;
    view->is_beside = rec->is_beside;
    view->is_direct = rec->is_direct;
    open_place(view, &view->places[DIR_FIRST], rec->path);
    open_place(view, &view->places[DIR_SECOND], rec->copy_path);
    find_newest(view, version_max);
    int rc = compare_places(view, diag);
    rc = rc ? rc : take_best(view, version_max, diag);
    return rc ? rc : judge_places(view, diag);
}

void dir_view_close(struct dir_view *view)
{
    for (int i = 0; i < DIR_PLACES; i++) {
        dir_versions_fini(&view->places[i].have);
        dir_at_close(view->store, &view->places[i].at);
    }
    record_free(view->record);
    view->record = NULL;
}
