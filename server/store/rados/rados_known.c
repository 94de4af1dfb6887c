/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries that this daemon knows to exist in the lists of stored things (rados_list.c):
 * checkpoints, and small things that ENTER has noted down ahead, so that the thread that makes them
 * need not do it again. If one thread is making an entry, the others wait for it. An entry is known
 * only for a while: when nobody writes to a checkpoint any more, another daemon may remove its
 * entries. The store's lock guards everything; any thread.
 */
#include "rados_small.h"

#include "base/check.h"

static uint64_t now_ms(const struct rados_store *store) { return atomic_load(&store->now_ms); }

static bool is_of(const struct rados_known *known, const struct run_name *run, struct ckpt_id id)
{
    return (known->entered || known->busy) && ckpt_id_equal(known->name.id, id) &&
           run_name_equal(&known->name.run, run);
}

static bool is_same(const struct rados_known *known, const struct store_name *name)
{
    return known->name.kind == name->kind && known->name.number == name->number &&
           known->name.tag == name->tag && is_of(known, &name->run, name->id);
}

/* The lock is held here and in the next functions. */
static struct rados_known *find(struct rados_store *store, const struct store_name *name)
{
    for (size_t i = 0; i < RADOS_KNOWN_MAX; i++) {
        if (is_same(&store->known[i], name)) {
            return &store->known[i];
        }
    }
    return NULL;
}

static bool is_fresh(const struct rados_store *store, const struct rados_known *known)
{
    uint64_t most_ms = known->name.kind == 0 ? RADOS_KNOWN_MS : RADOS_AHEAD_MS;
    return known->entered && now_ms(store) - known->entered_ms < most_ms;
}

/* Returns the present entry of a name, or NULL. If a thread is making it, waits for that thread,
 * but not a second time after a failure: otherwise many waiting threads would try one after the
 * other. */
static struct rados_known *await(struct rados_store *store, const struct store_name *name)
{
    struct rados_known *known = find(store, name);
    if (known != NULL && known->busy) {
        uint64_t turn = known->turn;
        while (known->busy && known->turn == turn) {
            pthread_cond_wait(&store->known_changed, &store->lock);
        }
        known = find(store, name);
    }
    return known;
}

/* Returns a slot that nobody needs. With may_evict it may also be one whose loss only costs another
 * entry later. Returns NULL if there is none. */
static struct rados_known *free_place(struct rados_store *store, bool may_evict)
{
    for (size_t i = 0; i < RADOS_KNOWN_MAX; i++) {
        struct rados_known *place = &store->known[store->known_next++ % RADOS_KNOWN_MAX];
        if (!place->busy && !is_fresh(store, place)) {
            return place;
        }
    }
    for (size_t i = 0; may_evict && i < RADOS_KNOWN_MAX; i++) {
        struct rados_known *place = &store->known[store->known_next++ % RADOS_KNOWN_MAX];
        if (!place->busy) {
            return place;
        }
    }
    return NULL;
}

static void take(struct rados_store *store, struct rados_known *place,
                 const struct store_name *name)
{
    uint64_t turn = place->turn + 1;
    *place = (struct rados_known){
        .name = *name, .entered_ms = now_ms(store), .turn = turn, .busy = true};
}

bool rados_known_is(struct rados_store *store, const struct store_name *name)
{
    pthread_mutex_lock(&store->lock);
    const struct rados_known *known = await(store, name);
    bool is = known != NULL && is_fresh(store, known);
    pthread_mutex_unlock(&store->lock);
    return is;
}

bool rados_known_begin(struct rados_store *store, const struct store_name *name,
                       struct rados_known **ret_mine)
{
    pthread_mutex_lock(&store->lock);
    struct rados_known *known = await(store, name), *mine = NULL;
    bool is = known != NULL && is_fresh(store, known);
    if (!is && (known == NULL || !known->busy)) {
        mine = known != NULL ? known : free_place(store, true);
    }
    if (mine != NULL) {
        take(store, mine, name);
    }
    pthread_mutex_unlock(&store->lock);
    *ret_mine = mine;
    return is;
}

struct rados_known *rados_known_try(struct rados_store *store, const struct store_name *name)
{
    pthread_mutex_lock(&store->lock);
    struct rados_known *known = find(store, name), *mine = NULL;
    if (known == NULL || (!known->busy && !is_fresh(store, known))) {
        mine = known != NULL ? known : free_place(store, false);
    }
    if (mine != NULL) {
        take(store, mine, name);
    }
    pthread_mutex_unlock(&store->lock);
    return mine;
}

void rados_known_end(struct rados_store *store, struct rados_known *mine, bool entered)
{
    if (mine == NULL) {
        return;
    }
    pthread_mutex_lock(&store->lock);
    CHECK(mine->busy);
    mine->busy = false;
    mine->entered = entered && !mine->dropped;
    pthread_cond_broadcast(&store->known_changed);
    pthread_mutex_unlock(&store->lock);
}

void rados_known_drop(struct rados_store *store, const struct run_name *run, struct ckpt_id id)
{
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < RADOS_KNOWN_MAX; i++) {
        if (is_of(&store->known[i], run, id)) {
            store->known[i].entered = false;
            store->known[i].dropped = true;
        }
    }
    pthread_mutex_unlock(&store->lock);
}

void rados_known_drop_small(struct rados_store *store, const struct store_name *name)
{
    pthread_mutex_lock(&store->lock);
    struct rados_known *known = find(store, name);
    if (known != NULL) {
        known->entered = false;
        known->dropped = true;
    }
    pthread_mutex_unlock(&store->lock);
}
