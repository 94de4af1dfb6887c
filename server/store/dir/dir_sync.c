/* SPDX-License-Identifier: Apache-2.0
 *
 * Durability of directories: what this incarnation knows of them, and fsyncs that are shared by all
 * threads waiting for the same one. Invariant: 0 means that every name that was in the directory
 * before the call is durable. A directory whose fsync failed is never trusted again before a
 * restart; that of a record is, once its doubt was settled (dir_record.c).
 */
#include "dir_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <stdlib.h>
#include <string.h>

/* All threads that wait for one directory; exists while one of them does. */
struct dir_syncer {
    struct dir_syncer *next;
    const char *path; /* of one of the waiters; their paths are equal */
    struct sync_waiter *waiters;
    bool is_running;
};

struct sync_waiter {
    struct sync_waiter *next;
    char path[DIR_PATH_MAX];
    bool is_taken, is_done; /* is_taken: the fsync that runs began after this waiter's rename */
    int status;
    struct diag diag;
};

int dir_sync_init(struct dir_sync *sync)
{
    if (pthread_mutex_init(&sync->lock, NULL) != 0) {
        return CAIRN_E_NO_MEMORY;
    }
    if (pthread_cond_init(&sync->done, NULL) != 0) {
        pthread_mutex_destroy(&sync->lock);
        return CAIRN_E_NO_MEMORY;
    }
    return 0;
}

void dir_sync_fini(struct dir_sync *sync)
{
    CHECK(sync->active == NULL);
    while (sync->broken != NULL) {
        struct dir_broken *broken = sync->broken;
        sync->broken = broken->next;
        free(broken);
    }
    pthread_cond_destroy(&sync->done);
    pthread_mutex_destroy(&sync->lock);
}

/* --- what is known ---------------------------------------------------------------------------- */

/* Returns the slot of a path. It holds one path: a collision forgets the other, which costs one
 * more fsync and is never wrong. */
static struct dir_known *slot_of(struct dir_sync *sync, const char *path)
{
    return &sync->known[dir_hash(path) % DIR_KNOWN_SLOTS];
}

bool dir_knows(struct dir_store *store, const char *path, enum dir_fact fact)
{
    pthread_mutex_lock(&store->sync.lock);
    const struct dir_known *slot = slot_of(&store->sync, path);
    bool knows = (slot->facts & fact) != 0 && strcmp(slot->path, path) == 0;
    pthread_mutex_unlock(&store->sync.lock);
    return knows;
}

static void learn_locked(struct dir_sync *sync, const char *path, enum dir_fact fact)
{
    struct dir_known *slot = slot_of(sync, path);
    if (slot->facts == 0 || strcmp(slot->path, path) != 0) {
        slot->facts = 0;
        dir_path_copy(path, slot->path);
    }
    slot->facts |= fact;
}

void dir_learn(struct dir_store *store, const char *path, enum dir_fact fact)
{
    pthread_mutex_lock(&store->sync.lock);
    learn_locked(&store->sync, path, fact);
    pthread_mutex_unlock(&store->sync.lock);
}

static void forget_locked(struct dir_sync *sync, const char *path)
{
    struct dir_known *slot = slot_of(sync, path);
    if (strcmp(slot->path, path) == 0) {
        slot->facts = 0;
    }
}

void dir_forget(struct dir_store *store, const char *path)
{
    pthread_mutex_lock(&store->sync.lock);
    forget_locked(&store->sync, path);
    pthread_mutex_unlock(&store->sync.lock);
}

/* --- broken directories ----------------------------------------------------------------------- */

static bool is_broken(const struct dir_sync *sync, const char *path)
{
    for (const struct dir_broken *broken = sync->broken; broken != NULL; broken = broken->next) {
        if (strcmp(broken->path, path) == 0) {
            return true;
        }
    }
    return false;
}

static int say_broken(const char *path, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_READ_ONLY,
                    "an fsync of directory %s failed, so nothing new is written to it; check the "
                    "disk and restart the daemon",
                    path[0] != 0 ? path : ".");
}

int dir_check_broken(struct dir_store *store, const char *path, struct diag *diag)
{
    pthread_mutex_lock(&store->sync.lock);
    bool broken = is_broken(&store->sync, path);
    pthread_mutex_unlock(&store->sync.lock);
    return broken ? say_broken(path, diag) : 0;
}

/* Notes that fsync has failed for the directory: nothing may rely on what was written in it. */
static void add_broken(struct dir_store *store, const char *path)
{
    struct dir_broken *broken = calloc(1, sizeof(*broken));
    if (broken == NULL) {
        /* It cannot remember which directory, so it stops all writing. */
        atomic_store(&store->is_degraded, true);
        return;
    }
    dir_path_copy(path, broken->path);
    broken->next = store->sync.broken;
    store->sync.broken = broken;
    forget_locked(&store->sync, path);
}

static void remove_broken(struct dir_sync *sync, const char *path)
{
    struct dir_broken **link = &sync->broken;
    while (*link != NULL && strcmp((*link)->path, path) != 0) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        struct dir_broken *broken = *link;
        *link = broken->next;
        free(broken);
    }
}

/* --- shared fsyncs ---------------------------------------------------------------------------- */

static struct dir_syncer **find_syncer(struct dir_sync *sync, const char *path)
{
    struct dir_syncer **link = &sync->active;
    while (*link != NULL && strcmp((*link)->path, path) != 0) {
        link = &(*link)->next;
    }
    return link;
}

/* Runs one fsync for all threads that wait now. The lock is held on entry and on return. */
static void sync_for_all(struct dir_store *store, struct dir_syncer *syncer,
                         const struct dir_at *at)
{
    struct dir_sync *sync = &store->sync;
    struct diag diag = DIAG_INIT;
    for (struct sync_waiter *waiter = syncer->waiters; waiter != NULL; waiter = waiter->next) {
        waiter->is_taken = !waiter->is_done;
    }
    syncer->is_running = true;
    pthread_mutex_unlock(&sync->lock);
    int rc = FAILPOINT("dir.dirsync");
    rc = rc ? rc : store->vfs->ops->fsync(store->vfs, at->fd, &diag); /* L8 */
    pthread_mutex_lock(&sync->lock);
    syncer->is_running = false;
    if (rc == 0) {
        learn_locked(sync, at->path, DIR_IS_SYNCED);
        remove_broken(sync, at->path); /* only if it was broken and has been settled */
    } else {
        if (!is_broken(sync, at->path)) {
            add_broken(store, at->path); /* L5 */
        }
        atomic_fetch_add(&store->sync_failures, 1);
    }
    for (struct sync_waiter *waiter = syncer->waiters; waiter != NULL; waiter = waiter->next) {
        if (waiter->is_taken) {
            waiter->is_done = true;
            waiter->status = rc;
            waiter->diag = diag;
        }
    }
    pthread_cond_broadcast(&sync->done);
}

/* Takes the waiter off the syncer. The last waiter frees the syncer. Called with the lock held. */
static void leave(struct dir_sync *sync, struct dir_syncer *syncer, struct sync_waiter *waiter)
{
    struct sync_waiter **link = &syncer->waiters;
    while (*link != waiter) {
        CHECK(*link != NULL);
        link = &(*link)->next;
    }
    *link = waiter->next;
    if (syncer->waiters != NULL) {
        syncer->path = syncer->waiters->path;
        return;
    }
    struct dir_syncer **place = &sync->active;
    while (*place != syncer) {
        CHECK(*place != NULL);
        place = &(*place)->next;
    }
    *place = syncer->next;
    free(syncer);
}

int dir_sync_now(struct dir_store *store, const struct dir_at *at, struct diag *diag)
{
    struct dir_sync *sync = &store->sync;
    struct sync_waiter waiter = {0};
    dir_path_copy(at->path, waiter.path);
    pthread_mutex_lock(&sync->lock);
    if (is_broken(sync, at->path) && !at->is_settling) {
        pthread_mutex_unlock(&sync->lock);
        return say_broken(at->path, diag);
    }
    struct dir_syncer **link = find_syncer(sync, at->path);
    if (*link == NULL) {
        *link = calloc(1, sizeof(**link));
        if (*link == NULL) {
            pthread_mutex_unlock(&sync->lock);
            return diag_no_memory(diag, "the fsync of directory %s", at->path);
        }
        (*link)->path = waiter.path;
    }
    struct dir_syncer *syncer = *link;
    waiter.next = syncer->waiters;
    syncer->waiters = &waiter;
    while (!waiter.is_done) {
        if (syncer->is_running) {
            pthread_cond_wait(&sync->done, &sync->lock);
        } else {
            sync_for_all(store, syncer, at);
        }
    }
    leave(sync, syncer, &waiter);
    pthread_mutex_unlock(&sync->lock);
    if (waiter.status != 0) {
        diag_set(diag, waiter.status, "cannot fsync directory %s: %s",
                 at->path[0] != 0 ? at->path : ".", diag_text(&waiter.diag, waiter.status));
    }
    return waiter.status;
}

int dir_sync_once(struct dir_store *store, const struct dir_at *at, struct diag *diag)
{
    if (store->read_only || dir_knows(store, at->path, DIR_IS_SYNCED)) {
        return 0;
    }
    return dir_sync_now(store, at, diag);
}

void dir_count_failures(struct dir_store *store)
{
    unsigned failures = atomic_exchange(&store->sync_failures, 0);
    uint64_t now_ms = failures > 0 ? loop_now_ms(store->loop) : 0;
    for (unsigned i = 0; i < failures; i++) {
        store->failure_ms[store->failure_count++ % DIR_SYNC_FAILURES_MAX] = now_ms;
        if (store->failure_count < DIR_SYNC_FAILURES_MAX) {
            continue;
        }
        uint64_t oldest_ms = store->failure_ms[store->failure_count % DIR_SYNC_FAILURES_MAX];
        if (now_ms - oldest_ms <= DIR_SYNC_FAILURES_MS) {
            atomic_store(&store->is_degraded, true);
        }
    }
}
