/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory store: one function per operation, each under the medium's lock on a thread of the
 * pool. Keeps the contract of store.h word for word; where a real back end could differ, this one
 * is the plainest reading of it.
 */
#include "support/store_memory.h"

#include "memory_private.h"

#include "base/check.h"
#include "store/store_order.h"

#include <stdlib.h>
#include <string.h>

struct memory_store {
    struct store base;
    struct loop *loop;
    struct work_pool *pool;
    struct memory_medium *medium;
    bool owns_medium;
    unsigned pending;
    struct post close_post;
    void (*close_done)(void *user);
    void *close_user;
};

static struct memory_store *memory_of(struct store *store)
{
    return container_of(store, struct memory_store, base);
}

/* --- objects ---------------------------------------------------------------------------------- */

static int no_object(struct store_req *req)
{
    return diag_set(&req->diag, CAIRN_E_NOT_FOUND,
                    "object %u of step %llu, term %llu is not in the store", req->object.sequence,
                    (unsigned long long)req->object.step, (unsigned long long)req->object.term);
}

static int add_thing(struct memory_thing **link, uint64_t bytes, struct diag *diag)
{
    struct memory_thing *thing = calloc(1, sizeof(*thing));
    if (thing == NULL) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "memory store: new entry");
    }
    thing->bytes_max = bytes;
    *link = thing;
    return 0;
}

static int do_create(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing **link = memory_find_object(medium, &req->run, &req->object);
    if (*link != NULL) {
        return diag_set(&req->diag, CAIRN_E_EXISTS, "object %u of rank %u exists",
                        req->object.sequence, req->object.rank);
    }
    if (req->bytes == 0 || req->bytes > LIMIT_OBJECT_BYTES) {
        return diag_set(&req->diag, CAIRN_E_INVALID,
                        "the object has %llu bytes; 1 to %d are allowed",
                        (unsigned long long)req->bytes, LIMIT_OBJECT_BYTES);
    }
    int rc = add_thing(link, req->bytes, &req->diag);
    if (rc == 0) {
        (*link)->is_object = true;
        (*link)->run = req->run;
        (*link)->object = req->object;
    }
    return rc;
}

static int do_write(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing *thing = *memory_find_object(medium, &req->run, &req->object);
    if (thing == NULL || thing->sealed) {
        return no_object(req);
    }
    uint64_t end;
    if (req->offset % LIMIT_ALIGN_BYTES != 0 || req->bytes % LIMIT_ALIGN_BYTES != 0 ||
        (uintptr_t)req->data % LIMIT_ALIGN_BYTES != 0 || req->bytes == 0 ||
        !add_u64(req->offset, req->bytes, &end) || end > thing->bytes_max) {
        return diag_set(
            &req->diag, CAIRN_E_INVALID,
            "a write of %llu bytes at %llu is not aligned to %d, or is beyond the object's %llu",
            (unsigned long long)req->bytes, (unsigned long long)req->offset, LIMIT_ALIGN_BYTES,
            (unsigned long long)thing->bytes_max);
    }
    if (end > thing->bytes) {
        uint8_t *data = realloc(thing->data, end);
        if (data == NULL) {
            thing->voided = true;
            return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "memory store: object of %llu bytes",
                            (unsigned long long)end);
        }
        memset(data + thing->bytes, 0, end - thing->bytes);
        thing->data = data;
        thing->bytes = end;
    }
    memcpy(thing->data + req->offset, req->data, req->bytes);
    return 0;
}

static int do_seal(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing **link = memory_find_object(medium, &req->run, &req->object);
    if (*link == NULL) {
        return no_object(req);
    }
    if ((*link)->sealed) {
        return diag_set(&req->diag, CAIRN_E_EXISTS, "object %u is already sealed",
                        req->object.sequence);
    }
    if ((*link)->voided) {
        memory_drop(link);
        return diag_set(&req->diag, CAIRN_E_IO, "object %u: a write to it failed",
                        req->object.sequence);
    }
    struct memory_thing *thing = *link;
    thing->sealed = true;
    return 0;
}

static int do_abort(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing **link = memory_find_object(medium, &req->run, &req->object);
    if (*link == NULL || (*link)->sealed) {
        return no_object(req);
    }
    memory_drop(link);
    return 0;
}

static int do_read(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing *thing = *memory_find_object(medium, &req->run, &req->object);
    if (thing == NULL || !thing->sealed) {
        return no_object(req);
    }
    uint64_t end;
    if (!add_u64(req->offset, req->bytes, &end) || end > thing->bytes ||
        (req->to_end && end != thing->bytes)) {
        return diag_set(&req->diag, CAIRN_E_DAMAGED,
                        "object %u of rank %u has %llu bytes, %llu at %llu wanted",
                        req->object.sequence, req->object.rank, (unsigned long long)thing->bytes,
                        (unsigned long long)req->bytes, (unsigned long long)req->offset);
    }
    if (req->bytes > 0) {
        memcpy(req->data, thing->data + req->offset, req->bytes);
    }
    return 0;
}

static int do_stat(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing *thing = *memory_find_object(medium, &req->run, &req->object);
    if (thing == NULL || !thing->sealed) {
        return no_object(req);
    }
    req->ret_bytes = thing->bytes;
    return 0;
}

static int do_delete_object(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing **link = memory_find_object(medium, &req->run, &req->object);
    if (*link == NULL || !(*link)->sealed) {
        return no_object(req);
    }
    memory_drop(link);
    return 0;
}

static bool is_listed(const struct memory_thing *thing, const struct store_req *req)
{
    return thing->is_object && thing->sealed && thing->object.term == req->id.term &&
           thing->object.step == req->id.step && memory_run_compare(&thing->run, &req->run) == 0;
}

static int do_list_objects(struct memory_medium *medium, struct store_req *req)
{
    size_t count = 0;
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        for (struct memory_thing *thing = medium->things[i]; thing != NULL; thing = thing->next) {
            count += is_listed(thing, req);
        }
    }
    struct object_id *list = calloc(count + 1, sizeof(*list));
    if (list == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of %zu objects", count);
    }
    size_t at = 0;
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        for (struct memory_thing *thing = medium->things[i]; thing != NULL; thing = thing->next) {
            if (is_listed(thing, req)) {
                list[at++] = thing->object;
            }
        }
    }
    qsort(list, count, sizeof(*list), object_id_order);
    req->ret_objects = list;
    req->ret_count = count;
    return 0;
}

/* --- small things ----------------------------------------------------------------------------- */

static int no_small(struct store_req *req)
{
    return diag_set(&req->diag, CAIRN_E_NOT_FOUND,
                    "part, page or manifest %u of step %llu, term %llu is not in the store",
                    req->name.number, (unsigned long long)req->name.id.step,
                    (unsigned long long)req->name.id.term);
}

static int do_publish(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing **link = memory_find_small(medium, &req->name);
    if (*link != NULL) {
        return diag_set(&req->diag, CAIRN_E_EXISTS, "part, page or manifest %u exists",
                        req->name.number);
    }
    uint8_t *data = malloc(req->bytes > 0 ? req->bytes : 1);
    if (data == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "memory store: %llu bytes",
                        (unsigned long long)req->bytes);
    }
    int rc = add_thing(link, req->bytes, &req->diag);
    if (rc != 0) {
        free(data);
        return rc;
    }
    if (req->bytes > 0) {
        memcpy(data, req->data, req->bytes);
    }
    struct memory_thing *thing = *link;
    thing->sealed = true;
    thing->run = req->name.run;
    thing->name = req->name;
    thing->data = data;
    thing->bytes = req->bytes;
    return 0;
}

static int do_fetch(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing *thing = *memory_find_small(medium, &req->name);
    if (thing == NULL) {
        return no_small(req);
    }
    uint64_t from = req->bytes > 0 ? min_u64(req->offset, thing->bytes) : 0;
    uint64_t bytes = req->bytes > 0 ? min_u64(req->bytes, thing->bytes - from) : thing->bytes;
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);
    if (data == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "memory store: %llu bytes",
                        (unsigned long long)bytes);
    }
    if (bytes > 0) {
        memcpy(data, thing->data + from, bytes);
    }
    req->ret_data = data;
    req->ret_bytes = bytes;
    return 0;
}

static int do_delete_small(struct memory_medium *medium, struct store_req *req)
{
    struct memory_thing **link = memory_find_small(medium, &req->name);
    if (*link == NULL) {
        return no_small(req);
    }
    memory_drop(link);
    return 0;
}

/* Both, or the second alone, are where the first must be found afterwards. */
static int do_exchange(struct memory_medium *medium, struct store_req *req)
{
    bool is_small = req->name.kind != 0;
    struct store_name with = req->name;
    with.tag = req->with_tag;
    struct memory_thing **source = is_small
                                       ? memory_find_small(medium, &with)
                                       : memory_find_object(medium, &req->run, &req->with_object);
    struct memory_thing *thing = *source;
    if (thing == NULL || (!is_small && !thing->sealed)) {
        return is_small ? no_small(req) : no_object(req);
    }
    struct memory_thing *target = is_small ? *memory_find_small(medium, &req->name)
                                           : *memory_find_object(medium, &req->run, &req->object);
    if (target != NULL && !is_small && !target->sealed) {
        return diag_set(&req->diag, CAIRN_E_BUSY, "object %u is being written",
                        req->object.sequence);
    }
    if (target != NULL) {
        struct memory_thing before = *target;
        target->bytes = thing->bytes;
        target->data = thing->data;
        target->bytes_max = thing->bytes_max;
        thing->bytes = before.bytes;
        thing->data = before.data;
        thing->bytes_max = before.bytes_max;
        return 0;
    }
    *source = thing->next;
    thing->object = req->object;
    thing->name = req->name;
    struct memory_thing **link = is_small ? memory_find_small(medium, &req->name)
                                          : memory_find_object(medium, &req->run, &req->object);
    thing->next = *link;
    *link = thing;
    return 0;
}

/* --- what is stored, for gc ------------------------------------------------------------------- */

static size_t count_things(const struct memory_medium *medium)
{
    size_t count = 0;
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        for (struct memory_thing *thing = medium->things[i]; thing != NULL; thing = thing->next) {
            count++;
        }
    }
    return count;
}

static int do_list_small(struct memory_medium *medium, struct store_req *req)
{
    struct store_name *list = calloc(count_things(medium) + 1, sizeof(*list));
    size_t count = 0;
    if (list == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of small things");
    }
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        for (struct memory_thing *thing = medium->things[i]; thing != NULL; thing = thing->next) {
            if (!thing->is_object && ckpt_id_equal(thing->name.id, req->id) &&
                memory_run_compare(&thing->run, &req->run) == 0) {
                list[count++] = thing->name;
            }
        }
    }
    qsort(list, count, sizeof(*list), store_order_smalls);
    req->ret_smalls = list;
    req->ret_count = count;
    return 0;
}

static int do_list_ckpts(struct memory_medium *medium, struct store_req *req)
{
    struct ckpt_id *list = calloc(count_things(medium) + 1, sizeof(*list));
    size_t count = 0, kept = 0;
    if (list == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of checkpoints");
    }
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) {
        for (struct memory_thing *thing = medium->things[i]; thing != NULL; thing = thing->next) {
            if (thing->sealed && memory_run_compare(&thing->run, &req->run) == 0) {
                list[count++] = thing->is_object
                                    ? (struct ckpt_id){thing->object.term, thing->object.step}
                                    : thing->name.id;
            }
        }
    }
    qsort(list, count, sizeof(*list), ckpt_id_order);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || !ckpt_id_equal(list[kept - 1], list[i])) {
            list[kept++] = list[i];
        }
    }
    req->ret_ckpts = list;
    req->ret_count = kept;
    return 0;
}

/* --- records ---------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) { return memory_run_compare(a, b); }

static int do_list_runs(struct memory_medium *medium, struct store_req *req)
{
    size_t count = count_things(medium);
    for (struct memory_run *run = medium->runs; run != NULL; run = run->next) {
        count++;
    }
    struct run_name *list = calloc(count + 1, sizeof(*list));
    if (list == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of %zu runs", count);
    }
    size_t at = 0, kept = 0;
    for (struct memory_run *run = medium->runs; run != NULL; run = run->next) {
        if (!store_is_own_record(&run->name)) {
            list[at++] = run->name;
        }
    }
    for (size_t i = 0; i < MEMORY_BUCKETS; i++) { /* also of those that have no record */
        for (struct memory_thing *thing = medium->things[i]; thing != NULL; thing = thing->next) {
            list[at] = thing->run;
            at += thing->sealed;
        }
    }
    qsort(list, at, sizeof(*list), compare_names);
    for (size_t i = 0; i < at; i++) {
        if (kept == 0 || memory_run_compare(&list[kept - 1], &list[i]) != 0) {
            list[kept++] = list[i];
        }
    }
    req->ret_runs = list;
    req->ret_count = kept;
    return 0;
}

static int lost_end(const struct memory_run *run, struct store_req *req)
{
    return diag_set(&req->diag, CAIRN_E_DAMAGED,
                    "the end of the record of %s/%s is lost, from update %llu on",
                    run->name.project, run->name.run, (unsigned long long)run->lost_from);
}

static int do_record_get(struct memory_medium *medium, struct store_req *req)
{
    struct memory_run *run = *memory_find_run(medium, &req->run);
    if (run != NULL && memory_run_compare(&run->name, &req->run) == 0) {
        req->ret_lost_from = run->lost_from;
        req->ret_is_unreadable = run->is_unreadable;
        if (run->lost_from != 0 && !req->take_prefix) {
            return lost_end(run, req);
        }
        bool known = !req->from_medium && req->known_version != 0 &&
                     record_version(run->record) == req->known_version;
        return known ? 0 : record_clone(run->record, &req->ret_record);
    }
    return record_new(&req->ret_record);
}

static int do_record_update(struct memory_medium *medium, struct store_req *req)
{
    struct memory_run **link = memory_find_run(medium, &req->run);
    struct memory_run *run = *link, *fresh = NULL;
    if (run == NULL || memory_run_compare(&run->name, &req->run) != 0) {
        fresh = calloc(1, sizeof(*fresh));
        if (fresh == NULL || record_new(&fresh->record) != 0) {
            free(fresh);
            return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "memory store: new record");
        }
        fresh->name = req->run;
        run = fresh;
    }
    int rc = run->lost_from != 0 ? lost_end(run, req)
                                 : record_apply(run->record, req->update, &req->diag);
    if (rc == 0) {
        req->ret_version = record_version(run->record);
        if (fresh != NULL) {
            fresh->next = *link;
            *link = fresh;
        }
    } else if (fresh != NULL) {
        record_free(fresh->record);
        free(fresh);
    }
    return rc;
}

static int do_usage(struct memory_medium *medium, struct store_req *req)
{
    (void)medium;
    req->ret_usage = (struct store_usage){0}; /* there is no bound */
    return 0;
}

static int do_probe(struct memory_medium *medium, struct store_req *req)
{
    (void)medium, (void)req;
    return 0;
}

/* What is not sealed is gone with the process that wrote it. */
static int do_sweep(struct memory_medium *medium, struct store_req *req)
{
    (void)medium;
    req->ret_count = 0;
    return 0;
}

/* There is nothing to note down before a thing is made. */
static int do_enter(struct memory_medium *medium, struct store_req *req)
{
    (void)medium, (void)req;
    return 0;
}

/* A record is a map here, not files. */
static int do_record_file(struct memory_medium *medium, struct store_req *req)
{
    (void)medium;
    return diag_set(&req->diag, CAIRN_E_UNSUPPORTED, "a record in memory has no files");
}

/* --- the store -------------------------------------------------------------------------------- */

static int (*const operations[])(struct memory_medium *medium, struct store_req *req) = {
    [STORE_ENTER] = do_enter,
    [STORE_CREATE] = do_create,
    [STORE_WRITE] = do_write,
    [STORE_SEAL] = do_seal,
    [STORE_ABORT] = do_abort,
    [STORE_READ] = do_read,
    [STORE_STAT] = do_stat,
    [STORE_LIST_OBJECTS] = do_list_objects,
    [STORE_DELETE_OBJECT] = do_delete_object,
    [STORE_PUBLISH] = do_publish,
    [STORE_FETCH] = do_fetch,
    [STORE_DELETE_SMALL] = do_delete_small,
    [STORE_EXCHANGE] = do_exchange,
    [STORE_LIST_SMALL] = do_list_small,
    [STORE_LIST_CKPTS] = do_list_ckpts,
    [STORE_LIST_RUNS] = do_list_runs,
    [STORE_RECORD_GET] = do_record_get,
    [STORE_RECORD_UPDATE] = do_record_update,
    [STORE_RECORD_FILE] = do_record_file,
    [STORE_RECORD_MEND] = do_record_file,
    [STORE_RECORD_CUT] = do_record_file,
    [STORE_USAGE] = do_usage,
    [STORE_PROBE] = do_probe,
    [STORE_SWEEP] = do_sweep,
};

static void run_op(struct work *work)
{
    struct store_req *req = container_of(work, struct store_req, work);
    struct memory_medium *medium = memory_of(req->store)->medium;
    pthread_mutex_lock(&medium->lock);
    req->status = operations[req->op](medium, req);
    pthread_mutex_unlock(&medium->lock);
}

static void op_done(struct work *work)
{
    struct store_req *req = container_of(work, struct store_req, work);
    struct memory_store *store = memory_of(req->store);
    CHECK(store->pending > 0);
    store->pending--;
    req->done(req);
}

static void memory_submit(struct store *base, struct store_req *req)
{
    struct memory_store *store = memory_of(base);
    CHECK((size_t)req->op < ARRAY_LEN(operations));
    CHECK(req->done != NULL);
    store->pending++;
    req->work = (struct work){.run = run_op, .done = op_done};
    work_submit(store->pool, &req->work);
}

static void close_now(struct post *post)
{
    struct memory_store *store = container_of(post, struct memory_store, close_post);
    void (*done)(void *user) = store->close_done;
    void *user = store->close_user;
    store->medium->in_use = false;
    if (store->owns_medium) {
        memory_medium_free(store->medium);
    }
    free(store);
    if (done != NULL) {
        done(user);
    }
}

static void memory_close(struct store *base, void (*done)(void *user), void *user)
{
    struct memory_store *store = memory_of(base);
    CHECK(store->pending == 0);
    store->close_done = done;
    store->close_user = user;
    store->close_post.cb = close_now;
    loop_post(store->loop, &store->close_post);
}

static const struct store_ops memory_ops = {.submit = memory_submit, .close = memory_close};

int store_memory_new(struct loop *loop, struct work_pool *pool, struct memory_medium *medium,
                     struct store **ret, struct diag *diag)
{
    if (medium != NULL && medium->in_use) {
        return diag_set(diag, CAIRN_E_STORE_LOCKED, "another store has this medium");
    }
    struct memory_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "memory store");
    }
    store->owns_medium = medium == NULL;
    if (medium == NULL && memory_medium_new(&medium) != 0) {
        free(store);
        return diag_set(diag, CAIRN_E_NO_MEMORY, "memory store");
    }
    if (medium->epoch++ == 0) {
        loop_random(loop, sizeof(medium->uuid), &medium->uuid);
    }
    medium->in_use = true;
    memory_restart(medium);
    store->base.ops = &memory_ops;
    store->loop = loop;
    store->pool = pool;
    store->medium = medium;
    store->base.caps = (struct store_caps){.object_bytes_preferred = MIB(64),
                                           .align_bytes = LIMIT_ALIGN_BYTES,
                                           .exchanges = true,
                                           .name = "memory",
                                           .uuid = medium->uuid,
                                           .epoch = medium->epoch};
    *ret = &store->base;
    return 0;
}
