/* SPDX-License-Identifier: Apache-2.0
 *
 * The second place of each record, copy/PATH: the two newest snapshots that were written there.
 * Invariant: it holds only what the first place has durably, and no request waits for it. A copy is
 * written soon after an update was answered, by one thread of the pool at a time, at a pace that
 * costs a run one small file a second, and less often if writing it takes long. Timer and queue
 * belong to the loop's thread.
 */
#include "dir_record_private.h"

#include "base/check.h"
#include "base/failpoint.h"

enum {
    PAUSE_MS = 1000,      /* between two copies of one record */
    PAUSE_FOR_EACH = 50,  /* and at least this many times as long as the last copy took: 2 % */
    PAUSE_MAX_MS = 10000, /* but no longer, since a copy may take seconds on a busy disk */
    COPIES_KEPT = 2
};

/* --- one copy --------------------------------------------------------------------------------- */

struct copy {
    struct buf buf;
    uint64_t version;
    unsigned cuts;
};

/* Removes all but the newest COPIES_KEPT snapshots of the copy. */
static void prune(struct dir_store *store, const struct dir_at *at)
{
    struct dir_versions have = {0};
    if (dir_versions_list(store, at, &have, NULL) != 0) {
        return; /* tried again after the next one */
    }
    for (size_t i = 0; i + COPIES_KEPT < have.snapshot_count; i++) {
        err_ignore(store->vfs->ops->unlink(
            store->vfs, at->fd, dir_name_version(have.snapshots[i], true).at, false, NULL));
    }
    dir_versions_fini(&have);
}

/* Publishes a snapshot. A file of that name was not found whole, or may not be durable, so it goes
 * to quarantine first. */
static int publish_again(struct dir_store *store, const struct dir_at *at, const char *name,
                         struct record_value value, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int rc = dir_publish(store, at, name, value, &why);
    if (rc == CAIRN_E_EXISTS) {
        dir_quarantine(store, at, name);
        diag_clear(&why);
        rc = dir_publish(store, at, name, value, &why);
    }
    return rc ? diag_copy(diag, &why) : 0;
}

/* Writes one copy into the second place. Under copying.lock. */
static int put(struct dir_store *store, struct dir_run *run, const struct copy *copy,
               struct diag *diag)
{
    struct dir_at at;
    if (copy->cuts != run->copying.cuts || copy->version <= atomic_load(&run->copying.to)) {
        return 0; /* a newer copy or a cut came first */
    }
    int rc = FAILPOINT("dir.copy");
    rc = rc ? diag_set(diag, rc, "copy: fail point dir.copy")
            : dir_place_open(store, &run->name, run->record.copy_path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    struct record_value value = {.bytes = copy->buf.bytes, .data = copy->buf.data};
    /* A snapshot needs no other file of the folder: the next fsync settles a failed one. */
    at.is_settling = true;
    rc = publish_again(store, &at, dir_name_version(copy->version, true).at, value, diag);
    if (rc == 0) {
        atomic_store(&run->copying.to, copy->version);
        prune(store, &at);
    }
    dir_at_close(store, &at);
    return rc;
}

/* Encodes the record for a copy. Under the run's lock. Returns false if there is nothing to copy,
 * or on an error, which is in *ret_status. */
static bool encode(struct dir_run *run, struct copy *ret, int *ret_status)
{
    const struct dir_record *rec = &run->record;
    *ret_status = 0;
    if (rec->record == NULL || rec->is_stuck || rec->is_unhealed || rec->lost_from != 0 ||
        record_version(rec->record) <= atomic_load(&run->copying.to)) {
        return false;
    }
    ret->version = record_version(rec->record);
    pthread_mutex_lock(&run->copying.lock);
    ret->cuts = run->copying.cuts;
    pthread_mutex_unlock(&run->copying.lock);
    buf_init(&ret->buf, LIMIT_RECORD_BYTES);
    record_snapshot_encode(rec->record, rec->last.bytes, &ret->buf);
    *ret_status = buf_status(&ret->buf);
    if (*ret_status != 0) {
        buf_fini(&ret->buf);
    }
    return *ret_status == 0;
}

int dir_copy_now(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct copy copy;
    int rc;
    if (!encode(run, &copy, &rc)) {
        return rc ? diag_set(diag, rc, "cannot copy %s", run->record.path) : 0;
    }
    pthread_mutex_lock(&run->copying.lock);
    rc = put(store, run, &copy, diag);
    pthread_mutex_unlock(&run->copying.lock);
    buf_fini(&copy.buf);
    return rc;
}

/* Gives a record its first snapshot in the first place, too. Until then it may be a long row of
 * updates, each of which is needed. */
static void add_first_snapshot(struct dir_store *store, struct dir_run *run)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    bool is_wanted = rec->record != NULL && !rec->is_stuck && !rec->is_unhealed &&
                     rec->lost_from == 0 && record_version(rec->record) > 0 &&
                     rec->snapshots[0] == 0;
    if (is_wanted && dir_at_open(store, rec->path, &at, NULL) == 0) {
        err_ignore(dir_record_snapshot(store, rec, &at, NULL)); /* otherwise with the next copy */
        dir_at_close(store, &at);
    }
}

/* Copies a record while its updates go on: the run's lock is held only while encoding. */
static void copy_beside(struct dir_store *store, struct dir_run *run)
{
    struct copy copy;
    struct diag why = DIAG_INIT;
    int rc;
    pthread_mutex_lock(&run->lock);
    bool is_needed = encode(run, &copy, &rc);
    if (is_needed) {
        add_first_snapshot(store, run);
    }
    pthread_mutex_unlock(&run->lock);
    if (is_needed) {
        pthread_mutex_lock(&run->copying.lock);
        rc = put(store, run, &copy, &why);
        pthread_mutex_unlock(&run->copying.lock);
        buf_fini(&copy.buf);
    }
    /* A full disk is reported elsewhere, and the copy is made up for. */
    if (rc != 0 && rc != CAIRN_E_NO_SPACE) {
        dir_note(store, "no copy of %s: %s", run->record.path, diag_text(&why, rc));
    }
}

/* --- turns ---------------------------------------------------------------------------------- */

void dir_copy_want(struct dir_store *store, struct dir_run *run)
{
    pthread_mutex_lock(&store->lock);
    if (!run->copying.is_queued) {
        run->copying.is_queued = true;
        run->copying.next = store->copies_wanted;
        store->copies_wanted = run;
    }
    pthread_mutex_unlock(&store->lock);
}

static struct dir_run *first_due(const struct dir_store *store)
{
    struct dir_run *first = store->copies;
    for (struct dir_run *run = store->copies; run != NULL; run = run->copying.next) {
        first = run->copying.due_ns < first->copying.due_ns ? run : first;
    }
    return first;
}

/* Starts the timer for the copy that is due first, unless a copy is being made. */
static void start_timer(struct dir_store *store)
{
    const struct dir_run *first = first_due(store);
    if (first == NULL || store->copy_now != NULL || store->is_closing) {
        return;
    }
    uint64_t now = loop_now_ns(store->loop);
    uint64_t wait_ns = first->copying.due_ns > now ? first->copying.due_ns - now : 0;
    timer_start(&store->copy_timer, (wait_ns + 999999) / 1000000);
}

void dir_copy_turn(struct dir_store *store)
{
    pthread_mutex_lock(&store->lock);
    struct dir_run *run = store->copies_wanted;
    store->copies_wanted = NULL;
    pthread_mutex_unlock(&store->lock);
    if (run == NULL) {
        return;
    }
    uint64_t soon_ns = loop_now_ns(store->loop) + store->copy_after_ms * UINT64_C(1000000);
    while (run != NULL) {
        struct dir_run *next = run->copying.next;
        run->copying.due_ns = max_u64(run->copying.due_ns, soon_ns);
        run->copying.next = store->copies;
        store->copies = run;
        run = next;
    }
    start_timer(store);
}

static void run_copy(struct work *work)
{
    struct dir_store *store = container_of(work, struct dir_store, copy_work);
    copy_beside(store, store->copy_now);
}

static void close_when_idle(struct dir_store *store);

/* Called when a copy was made. The next copy of this run waits longer, the longer this one took. */
static void on_copied(struct work *work)
{
    struct dir_store *store = container_of(work, struct dir_store, copy_work);
    uint64_t now = loop_now_ns(store->loop);
    uint64_t took_ms = (now - store->copy_begin_ns) / 1000000;
    uint64_t pause_ms = min_u64(max_u64(PAUSE_MS, took_ms * PAUSE_FOR_EACH), PAUSE_MAX_MS);
    store->copy_now->copying.due_ns = now + pause_ms * UINT64_C(1000000);
    store->copy_now = NULL;
    dir_count_failures(store);
    dir_copy_turn(store);
    start_timer(store);
    close_when_idle(store);
}

/* Called when a copy of a record is due. Updates that come while it is made belong to the next
 * copy. */
static void on_timer(struct timer *timer)
{
    struct dir_store *store = container_of(timer, struct dir_store, copy_timer);
    struct dir_run *run = first_due(store);
    CHECK(run != NULL && store->copy_now == NULL);
    struct dir_run **link = &store->copies;
    while (*link != run) {
        link = &(*link)->copying.next;
    }
    *link = run->copying.next;
    pthread_mutex_lock(&store->lock);
    run->copying.is_queued = false; /* later updates belong to another copy */
    pthread_mutex_unlock(&store->lock);
    if (atomic_load(&store->is_degraded)) {
        start_timer(store);
        return;
    }
    store->copy_now = run;
    store->copy_begin_ns = loop_now_ns(store->loop);
    store->copy_work = (struct work){.run = run_copy, .done = on_copied};
    work_submit(store->pool, &store->copy_work);
}

void dir_copy_init(struct dir_store *store)
{
    timer_init(&store->copy_timer, store->loop, on_timer);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void close_when_idle(struct dir_store *store)
{
    if (store->is_closing && store->copy_now == NULL) {
        work_submit(store->pool, &store->close_work);
    }
}

void dir_copy_stop(struct dir_store *store)
{
    store->is_closing = true;
    timer_stop(&store->copy_timer);
    close_when_idle(store);
}

/* Copies every record that is ahead of its copy. If this fails, the next start copies, because the
 * first place has everything. */
void dir_copy_flush(struct dir_store *store)
{
    if (store->read_only || atomic_load(&store->is_degraded)) {
        return;
    }
    for (size_t i = 0; i < DIR_RUN_BUCKETS; i++) {
        for (struct dir_run *run = store->runs[i]; run != NULL; run = run->next) {
            copy_beside(store, run);
        }
    }
}
