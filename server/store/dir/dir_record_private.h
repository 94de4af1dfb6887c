/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of a run, or of the store, as files in two places: what the files that read, check,
 * heal, copy, mend and update it share. The first place has numbered updates and snapshots, the
 * second (copy/, dir_copy.c) snapshots alone. All block; a run's lock is held where a record is
 * given that is not the caller's own.
 */
#ifndef CAIRN_STORE_DIR_RECORD_PRIVATE_H
#define CAIRN_STORE_DIR_RECORD_PRIVATE_H

#include "dir_private.h"

struct dir_versions {
    size_t update_count, snapshot_count, cap[2];
    uint64_t *updates, *snapshots; /* sorted */
};

enum dir_place_number { DIR_FIRST, DIR_SECOND, DIR_PLACES };

struct dir_place {
    struct dir_at at; /* fd -1: it cannot be opened */
    int status;       /* of opening and listing it; NOT_FOUND: there is none */
    struct diag why;
    struct dir_versions have;
};

struct dir_damage {
    size_t count; /* of all; the first are in files */
    struct record_file files[STORE_RECORD_FILES_MAX];
    struct diag first;
};

/* What one look at both places found. */
struct dir_sight {
    struct dir_store *store;
    bool is_beside, is_direct; /* see struct dir_record */
    bool is_moving; /* a file that was listed is gone: somebody compacts the record meanwhile */
    struct dir_place places[DIR_PLACES];
    uint64_t newest;       /* the version to be reached, as far as names tell */
    struct record *record; /* as far as it goes */
    struct sha256 last;
    uint64_t lost_from;
    struct diag lost;
    /* dir_sight_check(): */
    struct dir_damage damage;
    uint64_t snapshots[2], copied; /* whole ones of the first place; of the second */
    bool is_enough;                /* the first place alone has all of it */
};

/* --- dir_record.c ----------------------------------------------------------------------------- */
void dir_record_init(struct dir_record *rec, const char *path);
void dir_record_fini(struct dir_record *rec);
/* The guarded update, durable when 0. The folder must exist. */
int MUST_USE dir_record_update(struct dir_store *store, struct dir_run *run,
                               const struct record_update *update, uint64_t *ret_version,
                               struct diag *diag);
/* A snapshot of the decoded form in the first place, now; nothing where there is one. */
int MUST_USE dir_record_snapshot(struct dir_store *store, struct dir_record *rec,
                                 const struct dir_at *at, struct diag *diag);
/* Are there updates or snapshots in either place? */
int MUST_USE dir_record_exists(struct dir_store *store, const char *path, bool *ret,
                               struct diag *diag);

/* --- dir_record_load.c ------------------------------------------------------------------------ */
/* Fills rec->record from both places, and heals what it finds where the store may write. An absent
 * or empty record is version 0. 0 also where its end is lost: rec->lost_from. An error is one of
 * this reading, or says that there is something, of which nothing can be read. */
int MUST_USE dir_record_load(struct dir_store *store, struct dir_run *run, struct diag *diag);
/* The same of a record of the caller's own, with nothing moved and every file read: damage. */
int MUST_USE dir_record_look(struct dir_store *store, struct dir_record *rec,
                             struct dir_damage *ret, struct diag *diag);
int MUST_USE dir_versions_list(struct dir_store *store, const struct dir_at *at,
                               struct dir_versions *ret, struct diag *diag);
/* Can the folder be opened and listed? */
int MUST_USE dir_try_list(struct dir_store *store, const char *path);
void dir_versions_fini(struct dir_versions *versions);
/* Opens both places and reads as much of the record as they have. */
int MUST_USE dir_sight_open(struct dir_sight *sight, const struct dir_record *rec,
                            struct diag *diag);
void dir_sight_close(struct dir_sight *sight); /* and frees its record */
struct dir_link {                              /* of the chain: the hash of an update */
    bool is_known;
    struct sha256 hash;
};
/* Reads update `version`; it must follow *io_link where that is known, which becomes its own hash.
 * Applies it to record unless that is NULL. */
int MUST_USE dir_sight_update(struct dir_sight *sight, uint64_t version, struct record *record,
                              struct dir_link *io_link, struct diag *diag);
int MUST_USE dir_sight_snapshot(struct dir_sight *sight, const struct record_file *file,
                                struct record **ret, struct sha256 *ret_last, struct diag *diag);

/* --- dir_record_check.c ----------------------------------------------------------------------- */
/* Reads every file of both places. NO_MEMORY, UNSUPPORTED (a newer Cairn's). */
int MUST_USE dir_sight_check(struct dir_sight *sight);

/* --- dir_record_heal.c ------------------------------------------------------------------------ */
/* What the sight found damaged goes to quarantine, and the decoded form in rec, which is what is
 * durable, gets a snapshot in each place that needs one. 0: the first place has all of it again. */
int MUST_USE dir_record_heal(struct dir_store *store, struct dir_run *run,
                             const struct dir_sight *sight, struct diag *diag);
/* After a failed fsync: what is there is settled, so that updates can follow. */
int MUST_USE dir_record_settle(struct dir_store *store, struct dir_run *run, struct diag *diag);
/* The folder of a place, made where it is missing. */
int MUST_USE dir_place_open(struct dir_store *store, const struct run_name *run, const char *path,
                            struct dir_at *ret, struct diag *diag);
/* Something else in a folder's place, or a folder that cannot be read, makes way. */
void dir_move_folder_aside(struct dir_store *store, const char *path);
/* Gives the record another version, beyond any that there was, durably and in both places. */
int MUST_USE dir_record_move_on(struct dir_store *store, struct dir_run *run, uint64_t version,
                                struct diag *diag);

/* --- dir_record_mend.c ------------------------------------------------------------------------ */
/* RECORD_CUT, under the run's lock; from 0: wherever the loss begins. CONFLICT. */
int MUST_USE dir_record_cut(struct dir_store *store, struct dir_run *run, uint64_t from,
                            struct diag *diag);

/* --- dir_copy.c ------------------------------------------------------------------------------- */
/* The record is ahead of its copy: any thread. */
void dir_copy_want(struct dir_store *store, struct dir_run *run);
/* The loop's thread, after each operation: sees to what is wanted. */
void dir_copy_turn(struct dir_store *store);
void dir_copy_init(struct dir_store *store);
/* Nothing is begun any more; then, on the pool, what is behind is copied. */
void dir_copy_stop(struct dir_store *store);
void dir_copy_flush(struct dir_store *store);
/* Now, whatever its pace. The run's lock is held. */
int MUST_USE dir_copy_now(struct dir_store *store, struct dir_run *run, struct diag *diag);

#endif
