/* SPDX-License-Identifier: Apache-2.0
 *
 * A record as a folder of numbered updates: the guarded update, the snapshots that compact the
 * folder, and the way out after a failed fsync. Invariant: update n+1 is published only when update
 * n is durable, under a number that nobody else can take (the rename does not replace), and it
 * holds the SHA-256 of update n. The decoded form in memory is a cache of the durable state;
 * whenever that is in doubt it is dropped.
 */
#include "dir_record_private.h"

#include "base/check.h"
#include "base/failpoint.h"

/* Writes a snapshot. The update before it is durable in any case, so a failure is only noted, and
 * the next update tries again. */
static void write_snapshot(struct dir_store *store, struct dir_record *rec, const struct dir_at *at)
{
    struct diag diag = DIAG_INIT;
    int rc = dir_record_snapshot(store, rec, at, &diag);
    if (rc == CAIRN_E_NO_SPACE) {
        return; /* a full disk is reported elsewhere, and the snapshot is made up for */
    }
    if (rc != 0) {
        dir_note(store, "the snapshot of record %s at version %llu could not be written: %s",
                 rec->path, (unsigned long long)record_version(rec->record), err_name(rc));
    }
}

/* Drops the decoded form, because it is ahead of the durable state. */
static void drop_cache(struct dir_record *rec)
{
    record_free(rec->record);
    rec->record = NULL;
}

/* Writes the update as the next file of the record. After an unknown outcome the record is stuck:
 * no update is accepted before it is settled whether this one is durable. */
static int publish_update(struct dir_store *store, struct dir_record *rec,
                          const struct record_update *update, const struct dir_at *at,
                          struct diag *diag)
{
    uint64_t version = record_version(rec->record);
    struct buf buf;
    buf_init(&buf, LIMIT_RECORD_UPDATE_BYTES);
    record_update_encode(update, version, rec->last.bytes, &buf);
    int rc = buf_status(&buf);
    if (rc != 0) {
        rc = diag_set(diag, rc, "cannot write update %llu of record %s",
                      (unsigned long long)version, rec->path);
    }
    struct record_value value = {.bytes = buf.bytes, .data = buf.data};
    rc = rc ? rc : FAILPOINT("dir.record");
    rc = rc ? rc : dir_publish(store, at, dir_name_version(version, false).at, value, diag);
    if (rc == 0) {
        rec->last = sha256(buf.bytes, buf.data);
    } else if (rc == CAIRN_E_OUTCOME_UNKNOWN) {
        rec->is_stuck = true;
        rec->version_max = version - 1;
    } else if (rc == CAIRN_E_EXISTS) {
        rc = CAIRN_E_CONFLICT;
        if (diag != NULL) {
            diag_clear(diag);
            diag_set(diag, rc,
                     "another process wrote update %llu of record %s: check that no second daemon "
                     "uses this store",
                     (unsigned long long)version, rec->path);
        }
    }
    buf_fini(&buf);
    return rc;
}

/* --- another version -------------------------------------------------------------------------- */

int dir_record_move_on(struct dir_store *store, struct dir_run *run, uint64_t version,
                       struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    CHECK(version > record_version(rec->record));
    int rc = dir_place_open(store, &run->name, rec->path, &at, diag);
    if (rc == 0) {
        at.is_settling = true;
        record_set_version(rec->record, version);
        rc = dir_record_snapshot(store, rec, &at, diag);
        dir_at_close(store, &at);
    }
    if (rc != 0) {
        record_free(rec->record);
        rec->record = NULL;
        return rc;
    }
    pthread_mutex_lock(&run->copying.lock);
    run->copying.cuts++;
    pthread_mutex_unlock(&run->copying.lock);
    struct diag why = DIAG_INIT;
    if (dir_copy_now(store, run, &why) != 0) {
        dir_copy_want(store, run); /* the first place has it */
    }
    return 0;
}

/* --- a failed fsync --------------------------------------------------------------------------- */

/* Settles a record after an fsync of its folder failed behind a rename into it. The folder's names
 * may be in the cache and not on the disk. A later fsync that succeeds proves nothing about them,
 * because the kernel may have dropped what it could not write (L5). So nothing is built on these
 * names.
 *
 * Instead, everything that can be seen, with the update in doubt if its name is visible, is written
 * once more: a snapshot in a new file, which is fsynced, under a name that was never used in this
 * folder. Its entry is a change that was made after the failure, so an fsync of the folder that
 * succeeds now covers it. From then on the record is that snapshot, whichever of the older names a
 * power cut removes, because none of them is needed to read it. Its version is beyond that of the
 * update in doubt: if the name of that update was not visible and comes back later, it is covered
 * and can never take effect.
 *
 * A restart does less: it believes the names that it sees after one more fsync. A failure here
 * counts like any failed fsync, and three of them end all writing. */
int dir_record_settle(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_record seen;
    struct diag why = DIAG_INIT;
    CHECK(rec->is_stuck);
    uint64_t doubted = rec->version_max == UINT64_MAX ? 0 : rec->version_max + 1;
    if (store->read_only || atomic_load(&store->is_degraded)) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "record %s takes no more updates, because an fsync of it failed; check the "
                        "disk and restart the daemon",
                        rec->path);
    }
    dir_record_init(&seen, rec->path);
    seen.is_beside = true; /* takes all names, and moves nothing */
    int rc = dir_record_read(store, &seen, NULL, &why);
    if (rc == 0 && seen.lost_from != 0) {
        rc = diag_copy(&why, &seen.lost);
    }
    if (rc == 0) {
        record_free(rec->record);
        rec->record = seen.record;
        seen.record = NULL;
        rec->last = seen.last;
        rec->snapshots[0] = rec->snapshots[1] = 0; /* nothing is pruned because of it */
        rc =
            dir_record_move_on(store, run, max_u64(record_version(rec->record), doubted) + 1, &why);
    }
    dir_record_fini(&seen);
    if (rc != 0) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "an fsync of record %s failed, so its last update may not be durable, and "
                        "writing it again failed too: %s; check the disk",
                        rec->path, diag_text(&why, rc));
    }
    rec->is_stuck = false;
    dir_note(store, "written again after a failed fsync: %s", rec->path);
    return 0;
}

/* --- updates ---------------------------------------------------------------------------------- */

/* Makes the record ready for an update: loaded, whole, and with nothing in doubt. Returns why no
 * update is possible. */
static int make_ready(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    bool is_broken = dir_check_broken(store, rec->path, NULL) != 0;
    if (is_broken && !rec->is_stuck && rec->record != NULL) {
        /* The name of a snapshot is in doubt, and so would any later one be. */
        rec->is_stuck = true;
        rec->version_max = record_version(rec->record);
    }
    if (rec->is_stuck) {
        return dir_record_settle(store, run, diag);
    }
    bool is_good = rec->record != NULL && rec->lost_from == 0 && !rec->is_unhealed;
    int rc = is_good ? 0 : dir_record_load(store, run, diag);
    if (rc == 0 && rec->is_stuck) {
        rc = dir_record_settle(store, run, diag);
    }
    if (rc == 0 && rec->lost_from != 0) {
        rc = diag_set(diag, CAIRN_E_DAMAGED, "%s", rec->lost.text);
    }
    if (rc == 0 && rec->is_unhealed) {
        rc = diag_set(diag, CAIRN_E_READ_ONLY,
                      "only the copy of record %s is complete, and restoring the first place from "
                      "it failed; see the store's line in `cairn status`",
                      rec->path);
    }
    return rc;
}

int dir_record_update(struct dir_store *store, struct dir_run *run,
                      const struct record_update *update, uint64_t *ret_version, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    int rc = make_ready(store, run, diag);
    rc = rc ? rc : dir_at_open(store, rec->path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    rc = record_apply(rec->record, update, diag);
    if (rc == 0) {
        rc = publish_update(store, rec, update, &at, diag);
        if (rc != 0) {
            drop_cache(rec);
        } else {
            *ret_version = record_version(rec->record);
            /* The next multiple was reached, or an earlier one for which no snapshot could be
             * written. */
            if (*ret_version / store->snapshot_every > rec->snapshots[0] / store->snapshot_every) {
                write_snapshot(store, rec, &at);
            }
            dir_copy_want(store, run);
        }
    }
    dir_at_close(store, &at);
    return rc;
}
