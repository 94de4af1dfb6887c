/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of a run, or of the store, as files in two places: types and calls of the files that
 * read, check, heal, copy, mend and update it. The first place has numbered updates and snapshots,
 * the second (copy/, dir_copy.c) has snapshots alone. The files are in the order in which they call
 * each other, the lowest first. All functions block. A run's lock is held whenever a record is
 * passed in that the caller does not own.
 */
#ifndef CAIRN_STORE_DIR_RECORD_PRIVATE_H
#define CAIRN_STORE_DIR_RECORD_PRIVATE_H

#include "dir_private.h"

struct dir_versions {
    size_t update_count, snapshot_count, cap[2];
    uint64_t *updates, *snapshots; /* sorted */
};

enum dir_place_number { DIR_FIRST, DIR_SECOND, DIR_PLACES };

struct dir_record_place {
    struct dir_at at; /* its fd is -1 if it cannot be opened */
    int status;       /* of opening and listing it; NOT_FOUND if it does not exist */
    struct diag why;
    struct dir_versions have;
};

struct dir_damage {
    size_t count; /* of all files; the first ones are in files */
    struct record_file files[STORE_RECORD_FILES_MAX];
    struct diag first;
};

/* The findings of one look at both places. */
struct dir_view {
    struct dir_store *store;
    bool is_beside, is_direct; /* see struct dir_record */
    bool is_moving;            /* a listed file is gone: a daemon compacts the record meanwhile */
    struct dir_record_place places[DIR_PLACES];
    uint64_t newest;       /* the version to be reached, by the names of the files */
    struct record *record; /* as far as it can be read */
    struct sha256 last;
    uint64_t lost_from;
    struct diag lost;
    /* dir_view_check(): */
    struct dir_damage damage;
    uint64_t snapshots[2], copied; /* whole ones of the first place; `copied`: of the second */
    bool is_enough;                /* the first place alone has all of it */
};

/* --- dir_record_place.c: one place of a record
 * ------------------------------------------------------- */
void dir_record_init(struct dir_record *rec, const char *path);
void dir_record_fini(struct dir_record *rec);
int MUST_USE dir_versions_list(struct dir_store *store, const struct dir_at *at,
                               struct dir_versions *ret, struct diag *diag);
void dir_versions_fini(struct dir_versions *versions);
bool dir_versions_has_update(const struct dir_versions *have, uint64_t version);
/* Tells whether either place has an update or a snapshot. */
int MUST_USE dir_record_exists(struct dir_store *store, const char *path, bool *ret,
                               struct diag *diag);
/* Returns 0 if the folder can be opened and listed. */
int MUST_USE dir_try_list(struct dir_store *store, const char *path);
/* Opens the folder of a place, and makes it if it is missing. */
int MUST_USE dir_place_open(struct dir_store *store, const struct run_name *run, const char *path,
                            struct dir_at *ret, struct diag *diag);
/* Moves away something else in a folder's place, or a folder that cannot be read. */
void dir_move_folder_aside(struct dir_store *store, const char *path);
/* Writes a snapshot of the decoded form into the first place, unless there is one. */
int MUST_USE dir_record_snapshot(struct dir_store *store, struct dir_record *rec,
                                 const struct dir_at *at, struct diag *diag);

/* --- dir_view.c: what both places show ------------------------------------------------------- */
/* Ends the text of a damaged file. */
extern const char dir_written_whole[];
/* Opens both places and reads as much of the record as they have. */
int MUST_USE dir_view_open(struct dir_view *view, const struct dir_record *rec, struct diag *diag);
void dir_view_close(struct dir_view *view); /* also frees its record */
struct dir_link {                           /* the hash of an update in the chain */
    bool is_known;
    struct sha256 hash;
};
/* Reads update `version`. It must follow *io_link, if that is known, and *io_link becomes its hash.
 * Applies the update to record unless that is NULL. */
int MUST_USE dir_view_update(struct dir_view *view, uint64_t version, struct record *record,
                             struct dir_link *io_link, struct diag *diag);
int MUST_USE dir_view_snapshot(struct dir_view *view, const struct record_file *file,
                               struct record **ret, struct sha256 *ret_last, struct diag *diag);

/* --- dir_record_check.c ----------------------------------------------------------------------- */
/* Reads every file of both places. Returns NO_MEMORY, or UNSUPPORTED for a newer Cairn's file. */
int MUST_USE dir_view_check(struct dir_view *view);

/* --- dir_copy.c ------------------------------------------------------------------------------- */
/* Called on any thread when the record is newer than its copy. */
void dir_copy_want(struct dir_store *store, struct dir_run *run);
/* Called on the loop's thread after each operation: starts the copies that are due. */
void dir_copy_turn(struct dir_store *store);
void dir_copy_init(struct dir_store *store);
/* dir_copy_stop(): no copy is begun any more. dir_copy_flush(), on the pool: copies what is
 * behind. */
void dir_copy_stop(struct dir_store *store);
void dir_copy_flush(struct dir_store *store);
/* Copies now, whatever the pace. The run's lock is held. */
int MUST_USE dir_copy_now(struct dir_store *store, struct dir_run *run, struct diag *diag);

/* --- dir_record_load.c ------------------------------------------------------------------------ */
/* Fills rec->record from both places, and heals the damage that it finds if the store may write.
 * An absent or empty record has version 0. Returns 0 even if the end is lost; rec->lost_from says
 * so. An error means that this reading failed, or that there is a record of which nothing can be
 * read. */
int MUST_USE dir_record_load(struct dir_store *store, struct dir_run *run, struct diag *diag);
/* Reads a record that the caller owns, and every file of it. Moves nothing and reports the
 * damage. */
int MUST_USE dir_record_read(struct dir_store *store, struct dir_record *rec,
                             struct dir_damage *ret, struct diag *diag);
/* Moves the damaged files to quarantine and writes a snapshot of the decoded form in rec, which is
 * durable, into each place that needs one. Returns 0 if the first place has all of it again. */
int MUST_USE dir_record_heal(struct dir_store *store, struct dir_run *run,
                             const struct dir_view *view, struct diag *diag);

/* --- dir_record.c ----------------------------------------------------------------------------- */
/* Makes a guarded update, which is durable if 0 is returned. The folder must exist. */
int MUST_USE dir_record_update(struct dir_store *store, struct dir_run *run,
                               const struct record_update *update, uint64_t *ret_version,
                               struct diag *diag);
/* Called after a failed fsync: settles which files exist, so that updates can follow. */
int MUST_USE dir_record_settle(struct dir_store *store, struct dir_run *run, struct diag *diag);
/* Gives the record a version beyond any that it has had, durably and in both places. */
int MUST_USE dir_record_move_on(struct dir_store *store, struct dir_run *run, uint64_t version,
                                struct diag *diag);

/* --- dir_record_mend.c ------------------------------------------------------------------------ */
/* Does RECORD_CUT, under the run's lock. With `from` 0 it cuts wherever the loss begins. Returns
 * CONFLICT if the loss begins elsewhere. */
int MUST_USE dir_record_cut(struct dir_store *store, struct dir_run *run, uint64_t from,
                            struct diag *diag);

#endif
