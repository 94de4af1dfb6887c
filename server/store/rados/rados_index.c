/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of a checkpoint. RADOS lists only whole pools, without order. So each checkpoint has
 * index objects (RADOS_INDEX_SHARDS of them, chosen by rank) whose keys are the objects:
 *
 *   u/<object>/<epoch>   begun by the daemon of that epoch: a bound of its piece numbers (u32)
 *   w/<object>/<epoch>   the same, given up: its pieces go before the key does (rados_sweep.c)
 *   s/<object>           sealed: the epoch in the names of its pieces, the pieces, a crc
 *   d/<object>           being deleted: its pieces go before the key does
 *   b                    changes with each begin: an index object that looks empty is removed
 *                        only if nobody has begun anything since it was looked at
 *
 * To set s/ is the seal: it is durable, happens once, and only while u/ exists, so an object that
 * was given up is never sealed.
 */
#include "rados_private.h"
#include "rados_small.h"

#include "base/buf.h"
#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE_HEADER_BYTES = 12, PIECE_BYTES = 16 };

void rados_shard_of(const struct rados_store *store, const struct run_name *run,
                    const struct object_id *id, unsigned number, struct rados_shard *ret)
{
    rados_space_of(store, run, ret->space);
    rados_name_index(run, id, number, ret->object);
}

static void shard_of(const struct rados_store *store, const struct run_name *run,
                     const struct object_id *id, struct rados_shard *ret)
{
    rados_shard_of(store, run, id, id->rank % RADOS_INDEX_SHARDS, ret);
}

int rados_shard_call(struct rados_store *store, const struct rados_shard *shard, size_t count,
                     struct cluster_step *steps)
{
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = shard->space,
                                .object = shard->object,
                                .step_count = count,
                                .steps = steps};
    return cluster_do(store->cluster, &call);
}

bool rados_pages_next(struct rados_store *store, struct rados_pages *pages)
{
    bool more = !pages->begun || (pages->map.more && pages->map.count > 0);
    if (pages->map.count > 0) {
        snprintf(pages->after, sizeof(pages->after), "%s",
                 pages->map.pairs[pages->map.count - 1].key);
    }
    cluster_map_fini(&pages->map);
    if (!more) {
        return false;
    }
    struct cluster_step step = {.kind = STEP_KEYS, .key = pages->prefix, .after = pages->after};
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = pages->space,
                                .object = pages->object,
                                .step_count = 1,
                                .steps = &step};
    pages->begun = true;
    pages->failure = cluster_do(store->cluster, &call);
    pages->map = step.ret_map;
    return pages->failure == 0;
}

/* --- begin, forget ---------------------------------------------------------------------------- */

int rados_index_begin(struct rados_store *store, const struct run_name *run,
                      const struct object_id *id, struct diag *diag)
{
    char sealed[RADOS_KEY_MAX], begun[RADOS_KEY_MAX];
    uint8_t named[4], change[RADOS_MARK_BYTES];
    struct rados_shard shard;
    rados_key_object('s', id, sealed);
    rados_key_begun('u', id, store->base.caps.epoch, begun);
    shard_of(store, run, id, &shard);
    int rc = rados_list_enter(store, run, (struct ckpt_id){id->term, id->step}, diag);
    if (rc != 0) {
        return rc;
    }
    store_u32(named, RADOS_NAMED_FIRST);
    rados_list_mark(store, change);
    struct cluster_step steps[] = {
        {.kind = STEP_ENSURE}, /* the guard needs the index object */
        {.kind = STEP_KEY_IS, .key = sealed},
        {.kind = STEP_KEY_SET, .key = begun, .data = named, .bytes = sizeof(named)},
        {.kind = STEP_KEY_SET, .key = "b", .data = change, .bytes = sizeof(change)},
    };
    rc = rados_shard_call(store, &shard, ARRAY_LEN(steps), steps);
    if (rc == -ECANCELED) {
        return diag_set(diag, CAIRN_E_EXISTS, "object %s already exists", sealed + 2);
    }
    return rc == 0 ? 0 : rados_error(rc, true, "cannot begin an object", diag);
}

/* Checks whether the key has the value that this operation was to give it. In that case it was our
 * own operation, whose answer was lost and which was sent again (R10). Returns 0 then, or
 * -ECANCELED if it was another one. */
static int check_own(struct rados_store *store, const struct rados_shard *shard, const char *key,
                     struct record_value ours)
{
    struct cluster_step step = {.kind = STEP_KEY, .key = key};
    int rc = rados_shard_call(store, shard, 1, &step);
    if (rc != 0) {
        return rc == -ENOENT ? -ECANCELED : rc;
    }
    const struct cluster_map *map = &step.ret_map;
    bool same = map->count == 1 && map->pairs[0].bytes == ours.bytes &&
                memcmp(map->pairs[0].data, ours.data, ours.bytes) == 0;
    cluster_map_fini(&step.ret_map);
    return same ? 0 : -ECANCELED;
}

/* Returns why a guard on u/ or s/ did not hold. */
static int given_up(struct rados_store *store, const struct rados_shard *shard, const char *sealed,
                    struct diag *diag)
{
    struct cluster_step step = {.kind = STEP_KEY, .key = sealed};
    int rc = rados_shard_call(store, shard, 1, &step);
    bool is_sealed = rc == 0 && step.ret_map.count > 0;
    cluster_map_fini(&step.ret_map);
    if (rc != 0 && rc != -ENOENT) {
        return rados_error(rc, true, "cannot seal an object", diag);
    }
    return is_sealed
               ? diag_set(diag, CAIRN_E_EXISTS, "object %s is already sealed", sealed + 2)
               : diag_set(diag, CAIRN_E_IO,
                          "object %s was removed as the leftover of a dead writer", sealed + 2);
}

int rados_index_name(struct rados_store *store, const struct open_object *object, uint32_t was,
                     uint32_t will, struct diag *diag)
{
    char begun[RADOS_KEY_MAX], sealed[RADOS_KEY_MAX];
    uint8_t old[4], new[4];
    struct rados_shard shard;
    store_u32(old, was);
    store_u32(new, will);
    rados_key_object('s', &object->id, sealed);
    rados_key_begun('u', &object->id, store->base.caps.epoch, begun);
    shard_of(store, &object->run, &object->id, &shard);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = begun, .data = old, .bytes = sizeof(old)},
        {.kind = STEP_KEY_SET, .key = begun, .data = new, .bytes = sizeof(new)},
    };
    int rc = rados_shard_call(store, &shard, 2, steps);
    if (rc == -ECANCELED) {
        rc = check_own(store, &shard, begun, (struct record_value){sizeof(new), new});
    }
    if (rc == -ECANCELED || rc == -ENOENT) {
        return given_up(store, &shard, sealed, diag);
    }
    return rc == 0
               ? 0
               : rados_error(rc, true, "cannot enter more pieces of an object in the index", diag);
}

int rados_index_forget(struct rados_store *store, const struct run_name *run,
                       const struct object_id *id)
{
    char begun[RADOS_KEY_MAX];
    struct rados_shard shard;
    rados_key_begun('u', id, store->base.caps.epoch, begun);
    shard_of(store, run, id, &shard);
    struct cluster_step step = {.kind = STEP_KEY_REMOVE, .key = begun};
    return rados_shard_call(store, &shard, 1, &step);
}

/* --- seal ------------------------------------------------------------------------------------- */

static void table_encode(const struct piece_table *table, struct buf *buf)
{
    buf_put_u64(buf, table->epoch);
    buf_put_u32(buf, table->count);
    for (uint32_t i = 0; i < table->count; i++) {
        buf_put_u64(buf, table->pieces[i].offset);
        buf_put_u32(buf, table->pieces[i].bytes);
        buf_put_u32(buf, table->pieces[i].number);
    }
    if (buf_status(buf) == 0) {
        buf_put_u32(buf, crc32c(0, buf->bytes, buf->data));
    }
}

static size_t table_bytes(uint32_t count)
{
    return TABLE_HEADER_BYTES + (size_t)count * PIECE_BYTES + 4;
}

int rados_index_seal(struct rados_store *store, const struct piece_table *table, uint32_t named,
                     struct diag *diag)
{
    char sealed[RADOS_KEY_MAX], begun[RADOS_KEY_MAX];
    uint8_t bound[4];
    struct rados_shard shard;
    struct buf buf;
    rados_key_object('s', &table->id, sealed);
    rados_key_begun('u', &table->id, table->epoch, begun);
    store_u32(bound, named);
    shard_of(store, &table->run, &table->id, &shard);
    buf_init(&buf, table_bytes(table->count));
    table_encode(table, &buf);
    int rc = buf_status(&buf);
    if (rc != 0) {
        buf_fini(&buf);
        return diag_set(diag, rc, "there is not enough memory for an object's table");
    }
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = sealed},
        {.kind = STEP_KEY_IS, .key = begun, .data = bound, .bytes = sizeof(bound)},
        {.kind = STEP_KEY_SET, .key = sealed, .data = buf.data, .bytes = buf.bytes},
        {.kind = STEP_KEY_REMOVE, .key = begun},
    };
    rc = rados_shard_call(store, &shard, 4, steps);
    if (rc == -ECANCELED) {
        rc = check_own(store, &shard, sealed, (struct record_value){buf.bytes, buf.data});
    }
    buf_fini(&buf);
    if (rc == -ECANCELED || rc == -ENOENT) {
        return given_up(store, &shard, sealed, diag);
    }
    return rc == 0 ? 0 : rados_error(rc, true, "cannot seal an object", diag);
}

/* --- find ------------------------------------------------------------------------------------- */

static struct piece_table **slot_of(struct rados_store *store, const struct object_id *id)
{
    uint32_t crc = crc32c(0, sizeof(id->writer), &id->writer);
    return &store->tables[(crc + id->sequence + id->rank) % RADOS_TABLES_KEPT];
}

void rados_table_unref(struct rados_store *store, struct piece_table *table)
{
    if (table == NULL) {
        return;
    }
    pthread_mutex_lock(&store->lock);
    CHECK(table->refs > 0);
    bool last = --table->refs == 0;
    pthread_mutex_unlock(&store->lock);
    if (last) {
        free(table);
    }
}

void rados_tables_free(struct rados_store *store)
{
    for (size_t i = 0; i < RADOS_TABLES_KEPT; i++) {
        rados_table_unref(store, store->tables[i]);
        store->tables[i] = NULL;
    }
}

static bool is_table_of(const struct piece_table *table, const struct store_req *req)
{
    return table != NULL && object_id_equal(&table->id, &req->object) &&
           run_name_equal(&table->run, &req->run);
}

int rados_table_decode(const struct store_req *req, const struct cluster_pair *pair,
                       struct piece_table **ret, struct diag *diag)
{
    uint32_t count = pair->bytes >= TABLE_HEADER_BYTES ? load_u32(pair->data + 8) : 0;
    if (pair->bytes < TABLE_HEADER_BYTES + 4 || pair->bytes != table_bytes(count) ||
        load_u32(pair->data + pair->bytes - 4) != crc32c(0, pair->bytes - 4, pair->data)) {
        return diag_set(diag, CAIRN_E_DAMAGED, "the index entry of object %s is damaged",
                        pair->key + 2);
    }
    struct piece_table *table = calloc(1, sizeof(*table) + count * sizeof(table->pieces[0]));
    if (table == NULL) {
        return diag_no_memory(diag, "an object's table");
    }
    *table = (struct piece_table){.refs = 1,
                                  .run = req->run,
                                  .id = req->object,
                                  .epoch = load_u64(pair->data),
                                  .count = count};
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *at = pair->data + TABLE_HEADER_BYTES + (size_t)i * PIECE_BYTES;
        table->pieces[i] = (struct piece){
            .offset = load_u64(at), .bytes = load_u32(at + 8), .number = load_u32(at + 12)};
        table->bytes = table->pieces[i].offset + table->pieces[i].bytes;
    }
    *ret = table;
    return 0;
}

/* Keeps the table of an object for later reads, in place of the one that had its slot. */
static void remember(struct rados_store *store, struct piece_table *table)
{
    struct piece_table **slot = slot_of(store, &table->id);
    pthread_mutex_lock(&store->lock);
    struct piece_table *old = *slot;
    *slot = table;
    table->refs++;
    pthread_mutex_unlock(&store->lock);
    rados_table_unref(store, old);
}

/* Drops the table of an object, which is about to be deleted. */
static void forget_table(struct rados_store *store, const struct store_req *req)
{
    struct piece_table **slot = slot_of(store, &req->object), *old = NULL;
    pthread_mutex_lock(&store->lock);
    if (is_table_of(*slot, req)) {
        old = *slot;
        *slot = NULL;
    }
    pthread_mutex_unlock(&store->lock);
    rados_table_unref(store, old);
}

/* Reads the table of a sealed object's pieces from the index. */
static int fetch_table(struct rados_store *store, const struct store_req *req,
                       struct piece_table **ret, struct diag *diag)
{
    char sealed[RADOS_KEY_MAX];
    struct rados_shard shard;
    rados_key_object('s', &req->object, sealed);
    shard_of(store, &req->run, &req->object, &shard);
    struct cluster_step step = {.kind = STEP_KEY, .key = sealed};
    int rc = rados_shard_call(store, &shard, 1, &step);
    if (rc == -ENOENT || (rc == 0 && step.ret_map.count == 0)) {
        cluster_map_fini(&step.ret_map);
        return diag_set(diag, CAIRN_E_NOT_FOUND, "object %s of step %llu is not in the store",
                        sealed + 2, (unsigned long long)req->object.step);
    }
    rc = rc != 0 ? rados_error(rc, false, "cannot find an object", diag)
                 : rados_table_decode(req, &step.ret_map.pairs[0], ret, diag);
    cluster_map_fini(&step.ret_map);
    return rc;
}

int rados_index_find(struct rados_store *store, const struct store_req *req, bool fresh,
                     struct piece_table **ret, struct diag *diag)
{
    pthread_mutex_lock(&store->lock);
    struct piece_table *known = *slot_of(store, &req->object);
    bool found = !fresh && is_table_of(known, req);
    if (found) {
        known->refs++;
    }
    pthread_mutex_unlock(&store->lock);
    if (found) {
        *ret = known;
        return 0;
    }
    forget_table(store, req);
    int rc = fetch_table(store, req, ret, diag);
    if (rc == 0) {
        remember(store, *ret);
    }
    return rc;
}

int rados_op_stat(struct rados_store *store, struct store_req *req)
{
    struct piece_table *table;
    int rc = rados_index_find(store, req, true, &table, &req->diag);
    if (rc == 0) {
        req->ret_bytes = table->bytes;
        rados_table_unref(store, table);
    }
    return rc;
}

/* --- list, delete ----------------------------------------------------------------------------- */

/* Appends the objects that the keys name to the request's list. */
static int add_objects(struct store_req *req, const struct cluster_map *map)
{
    if (map->count == 0) {
        return 0;
    }
    struct object_id *grown =
        realloc(req->ret_objects, (req->ret_count + map->count) * sizeof(*grown));
    if (grown == NULL) {
        return diag_no_memory(&req->diag, "a list of %zu objects", req->ret_count);
    }
    req->ret_objects = grown;
    for (size_t i = 0; i < map->count; i++) {
        if (!rados_key_parse(map->pairs[i].key, req->id, &grown[req->ret_count])) {
            return diag_set(&req->diag, CAIRN_E_DAMAGED,
                            "the index holds '%s', which is not the name of an object",
                            map->pairs[i].key);
        }
        req->ret_count++;
    }
    return 0;
}

/* Appends the sealed objects of one shard of the index to the request's list. A shard that is
 * missing is empty. */
static int list_shard(struct rados_store *store, struct store_req *req, unsigned number)
{
    struct object_id id = {.term = req->id.term, .step = req->id.step};
    struct rados_shard shard;
    struct rados_pages pages = {.space = shard.space, .object = shard.object, .prefix = "s/"};
    int rc = 0;
    rados_space_of(store, &req->run, shard.space);
    rados_name_index(&req->run, &id, number, shard.object);
    while (rc == 0 && rados_pages_next(store, &pages)) {
        rc = add_objects(req, &pages.map);
    }
    cluster_map_fini(&pages.map);
    if (pages.failure != 0 && pages.failure != -ENOENT) {
        rc = rados_error(pages.failure, false, "cannot list objects", &req->diag);
    }
    return rc;
}

int rados_op_list_objects(struct rados_store *store, struct store_req *req)
{
    req->ret_objects = calloc(1, sizeof(*req->ret_objects)); /* never NULL on success */
    req->ret_count = 0;
    int rc = req->ret_objects != NULL ? 0 : diag_no_memory(&req->diag, "a list");
    for (unsigned i = 0; rc == 0 && i < RADOS_INDEX_SHARDS; i++) {
        rc = list_shard(store, req, i);
    }
    if (rc != 0) {
        free(req->ret_objects);
        req->ret_objects = NULL;
    } else if (req->ret_count > 1) {
        qsort(req->ret_objects, req->ret_count, sizeof(*req->ret_objects), object_id_order);
    }
    return rc;
}

int rados_op_delete_object(struct rados_store *store, struct store_req *req)
{
    char sealed[RADOS_KEY_MAX], dying[RADOS_KEY_MAX];
    struct piece_table *table;
    struct rados_shard shard;
    struct buf buf;
    int rc = rados_index_find(store, req, true, &table, &req->diag);
    if (rc != 0) {
        return rc;
    }
    forget_table(store, req);
    rados_key_object('s', &req->object, sealed);
    rados_key_object('d', &req->object, dying);
    shard_of(store, &req->run, &req->object, &shard);
    buf_init(&buf, table_bytes(table->count));
    table_encode(table, &buf);
    rc = buf_status(&buf);
    if (rc == 0) { /* from here on nobody sees it; a crash leaves the rest under d/ */
        struct cluster_step steps[] = {
            {.kind = STEP_KEY_IS, .key = sealed, .data = buf.data, .bytes = buf.bytes},
            {.kind = STEP_KEY_SET, .key = dying, .data = buf.data, .bytes = buf.bytes},
            {.kind = STEP_KEY_REMOVE, .key = sealed}};
        rc = rados_shard_call(store, &shard, 3, steps);
        rc = rc == 0 ? rados_remove_pieces(store, table, &req->diag)
                     : rados_error(rc, true, "cannot delete an object", &req->diag);
    }
    if (rc == 0) {
        struct cluster_step step = {.kind = STEP_KEY_REMOVE, .key = dying};
        int removed = rados_shard_call(store, &shard, 1, &step);
        rc = removed == 0 ? 0 : rados_error(removed, true, "cannot delete an object", &req->diag);
    }
    buf_fini(&buf);
    rados_table_unref(store, table);
    return rc;
}
