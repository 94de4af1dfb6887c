/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects. Each write becomes pieces: RADOS objects of at most RADOS_PIECE_BYTES that are written
 * once and whole (R3, R4). That suits an erasure-coded pool, needs no order, and is the fastest way
 * in RADOS. The table of pieces goes into the index with the seal. The names of pieces hold the
 * daemon's epoch, so that a late write of an earlier daemon cannot be taken for ours. After any
 * failed write the object is void. A write that timed out may leave garbage; it has a number below
 * the one that the index names (u/), so the sweep finds it.
 */
#include "rados_private.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct piece_call {
    struct cluster_call call;
    struct cluster_step steps[2];
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
};

/* The lock is held. */
static struct open_object *find_open(struct rados_store *store, const struct store_req *req)
{
    list_each (node, &store->open) {
        struct open_object *object = list_item(node, struct open_object, link);
        if (object_id_equal(&object->id, &req->object) && run_name_equal(&object->run, &req->run)) {
            return object;
        }
    }
    return NULL;
}

static int not_open(struct store_req *req)
{
    return diag_set(&req->diag, CAIRN_E_NOT_FOUND, "object %u of rank %u is not open for writing",
                    req->object.sequence, req->object.rank);
}

/* The lock is held. */
static void free_open(struct rados_store *store, struct open_object *object)
{
    rados_gather_shut(store, object);
    list_remove(&object->link);
    free(object->pieces);
    free(object);
}

/* --- create ----------------------------------------------------------------------------------- */

int rados_op_create(struct rados_store *store, struct store_req *req)
{
    if (req->bytes == 0 || req->bytes > LIMIT_OBJECT_BYTES) {
        return diag_set(&req->diag, CAIRN_E_INVALID,
                        "the object has %llu bytes, which is outside the limits",
                        (unsigned long long)req->bytes);
    }
    struct open_object *object = calloc(1, sizeof(*object));
    if (object == NULL) {
        return diag_no_memory(&req->diag, "an object");
    }
    object->run = req->run;
    object->id = req->object;
    object->bytes_max = req->bytes;
    object->named = RADOS_NAMED_FIRST;
    object->busy = true; /* until the index has it */
    list_init(&object->link);
    pthread_mutex_lock(&store->lock);
    bool taken = find_open(store, req) != NULL;
    if (!taken) {
        list_add_tail(&store->open, &object->link);
    }
    pthread_mutex_unlock(&store->lock);
    int rc =
        taken ? diag_set(&req->diag, CAIRN_E_EXISTS, "object %u of rank %u is still being written",
                         req->object.sequence, req->object.rank)
              : rados_index_begin(store, &req->run, &req->object, &req->diag);
    pthread_mutex_lock(&store->lock);
    object->busy = false;
    if (rc != 0) {
        free_open(store, object);
    }
    pthread_mutex_unlock(&store->lock);
    return rc;
}

/* --- write ------------------------------------------------------------------------------------ */

/* Returns an error unless the write is aligned, within the object, and apart from all earlier
 * writes. */
static int check_write(const struct open_object *object, const struct store_req *req,
                       struct diag *diag)
{
    if (req->offset % LIMIT_ALIGN_BYTES != 0 || req->bytes % LIMIT_ALIGN_BYTES != 0 ||
        req->bytes == 0) {
        return diag_set(diag, CAIRN_E_INVALID, "a write of %llu bytes at %llu is not aligned",
                        (unsigned long long)req->bytes, (unsigned long long)req->offset);
    }
    if (req->offset > object->bytes_max || req->bytes > object->bytes_max - req->offset) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "a write of %llu bytes at %llu goes beyond the object's %llu bytes",
                        (unsigned long long)req->bytes, (unsigned long long)req->offset,
                        (unsigned long long)object->bytes_max);
    }
    for (uint32_t i = 0; i < object->piece_count; i++) {
        const struct piece *piece = &object->pieces[i];
        if (req->offset < piece->offset + piece->bytes &&
            piece->offset < req->offset + req->bytes) {
            return diag_set(diag, CAIRN_E_INVALID, "a write at %llu overlaps an earlier one",
                            (unsigned long long)req->offset);
        }
    }
    return 0;
}

/* Adds the pieces of a write to the object. Their numbers are never used again, so no write
 * replaces another. */
static int add_pieces(struct open_object *object, const struct store_req *req, uint32_t *ret_first,
                      uint32_t *ret_count)
{
    uint32_t count = (uint32_t)((req->bytes + RADOS_PIECE_BYTES - 1) / RADOS_PIECE_BYTES);
    if (object->piece_count + count > object->piece_cap) {
        uint32_t cap = 2 * (object->piece_count + count);
        struct piece *grown = realloc(object->pieces, cap * sizeof(*grown));
        if (grown == NULL) {
            return CAIRN_E_NO_MEMORY;
        }
        object->pieces = grown;
        object->piece_cap = cap;
    }
    *ret_first = object->piece_count;
    *ret_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)i * RADOS_PIECE_BYTES;
        uint64_t left = req->bytes - at;
        object->pieces[object->piece_count] =
            (struct piece){.offset = req->offset + at,
                           .bytes = (uint32_t)(left < RADOS_PIECE_BYTES ? left : RADOS_PIECE_BYTES),
                           .number = object->piece_count};
        object->piece_count++;
    }
    return 0;
}

/* Finds the object and checks that it accepts this write. The lock is held. */
static int find_to_write(struct rados_store *store, struct store_req *req, struct open_object **ret)
{
    struct open_object *object = find_open(store, req);
    int rc = 0;
    if (object == NULL || object->busy) {
        rc = not_open(req);
    } else if (object->failed) {
        rc = diag_set(&req->diag, CAIRN_E_IO, "object %u of rank %u is void since a write failed",
                      req->object.sequence, req->object.rank);
    } else {
        rc = check_write(object, req, &req->diag);
    }
    *ret = object;
    return rc;
}

/* Makes room for the pieces in the object's table, and gives the first number and the count. The
 * lock is held. */
static int take_pieces(struct open_object *object, struct store_req *req, uint32_t *ret_first,
                       uint32_t *ret_count)
{
    return add_pieces(object, req, ret_first, ret_count) == 0
               ? 0
               : diag_no_memory(&req->diag, "a write");
}

static void note_failure(struct rados_store *store, const struct store_req *req)
{
    pthread_mutex_lock(&store->lock);
    struct open_object *object = find_open(store, req);
    if (object != NULL) {
        object->failed = true;
    }
    pthread_mutex_unlock(&store->lock);
}

/* Lets the index name the pieces below `need` before they are written, so that a crash loses
 * none. */
static int name_pieces(struct rados_store *store, struct store_req *req, uint32_t need)
{
    int rc = 0;
    pthread_mutex_lock(&store->name_lock);
    pthread_mutex_lock(&store->lock);
    struct open_object *object = find_open(store, req), copy = {0};
    if (object != NULL) {
        copy = *object; /* another thread may drop it meanwhile */
    } else {
        rc = not_open(req);
    }
    pthread_mutex_unlock(&store->lock);
    uint32_t will = copy.named;
    while (will < need) {
        will *= 2;
    }
    if (rc == 0 && will != copy.named) {
        rc = rados_index_name(store, &copy, copy.named, will, &req->diag);
        pthread_mutex_lock(&store->lock);
        object = rc == 0 ? find_open(store, req) : NULL;
        if (object != NULL) {
            object->named = will;
        }
        pthread_mutex_unlock(&store->lock);
    }
    pthread_mutex_unlock(&store->name_lock);
    return rc;
}

/* Called if the piece exists already. Its name belongs to this try, so if its bytes are ours, it
 * was our own operation, whose answer was lost and which was sent again (R10). */
static int check_written(struct rados_store *store, struct piece_call *piece)
{
    size_t bytes = piece->steps[1].bytes;
    uint8_t *room = malloc(bytes + 1);
    struct cluster_step step = {.kind = STEP_READ, .bytes = bytes + 1, .into = room};
    struct cluster_call look = piece->call;
    look.step_count = 1;
    look.steps = &step;
    int rc = room != NULL ? cluster_do(store->cluster, &look) : -ENOMEM;
    if (rc == 0 && (step.ret_bytes != bytes || memcmp(room, piece->steps[1].data, bytes) != 0)) {
        rc = -EEXIST;
    }
    free(room);
    return rc;
}

static void start_call(struct rados_store *store, struct piece_call *piece, size_t steps)
{
    piece->call = (struct cluster_call){.pool = CLUSTER_DATA,
                                        .space = piece->space,
                                        .object = piece->object,
                                        .step_count = steps,
                                        .steps = piece->steps};
    cluster_start(store->cluster, &piece->call);
}

/* Starts the write of one piece. `at` is where it begins in the request's bytes. */
static void start_write(struct rados_store *store, const struct store_req *req, uint32_t number,
                        uint64_t at, struct piece_call *ret)
{
    uint64_t left = req->bytes - at;
    rados_space_of(store, &req->run, ret->space);
    rados_name_piece(&req->run, &req->object, store->base.caps.epoch, number, ret->object);
    ret->steps[0] = (struct cluster_step){.kind = STEP_CREATE};
    ret->steps[1] = (struct cluster_step){
        .kind = STEP_WRITE_FULL,
        .data = (const uint8_t *)req->data + at,
        .bytes = (size_t)(left < RADOS_PIECE_BYTES ? left : RADOS_PIECE_BYTES)};
    start_call(store, ret, 2);
}

/* Writes the pieces, a few at a time. Waits for all that were started, and returns the first
 * failure. */
static int write_pieces(struct rados_store *store, const struct store_req *req, uint32_t first,
                        uint32_t count)
{
    struct piece_call calls[RADOS_AT_ONCE];
    uint32_t started = 0, waited = 0;
    int rc = 0;
    while (waited < started || (rc == 0 && started < count)) {
        if (rc == 0 && started < count && started - waited < RADOS_AT_ONCE) {
            start_write(store, req, first + started, (uint64_t)started * RADOS_PIECE_BYTES,
                        &calls[started % RADOS_AT_ONCE]);
            started++;
            continue;
        }
        struct piece_call *piece = &calls[waited++ % RADOS_AT_ONCE];
        int wrote = cluster_wait(store->cluster, &piece->call);
        wrote = wrote == -EEXIST ? check_written(store, piece) : wrote;
        rc = rc != 0 ? rc : wrote;
    }
    return rc;
}

/* Writes all pieces of a request. The numbers of those beyond the first ones are noted in the index
 * before. */
static int write_all(struct rados_store *store, struct store_req *req, uint32_t first,
                     uint32_t count)
{
    int rc = 0;
    if (first + count > RADOS_NAMED_FIRST) {
        rc = name_pieces(store, req, first + count);
    }
    if (rc == 0) {
        rc = write_pieces(store, req, first, count);
        rc = rc != 0 ? rados_error(rc, true, "cannot write a piece of an object", &req->diag) : 0;
    }
    if (rc != 0) {
        note_failure(store, req);
    }
    return rc;
}

/* Writes what was gathered as one write. */
static int write_gathered(struct rados_store *store, struct store_req *req,
                          const struct gather *gather)
{
    struct store_req whole = {.run = req->run, .object = req->object, .bytes = gather->bytes};
    const void *data;
    void *copy;
    int rc = 0;
    if (rados_gather_bytes(gather, &data, &copy) != 0) {
        note_failure(store, req);
        return diag_no_memory(&req->diag, "a write");
    }
    whole.offset = gather->offset;
    whole.data = (void *)(uintptr_t)data; /* a write only reads its data */
    rc = write_all(store, &whole, gather->piece, 1);
    free(copy);
    return rc != 0 ? diag_copy(&req->diag, &whole.diag) : 0;
}

int rados_op_write(struct rados_store *store, struct store_req *req)
{
    struct open_object *object;
    struct gather gather;
    uint32_t first = 0, count = 0;
    pthread_mutex_lock(&store->lock);
    int rc = find_to_write(store, req, &object);
    bool is_small = req->bytes < RADOS_PIECE_BYTES, was_dropped = false;
    if (rc == 0 && is_small && rados_gather_join(store, object, req, &rc, &req->diag)) {
        pthread_mutex_unlock(&store->lock);
        return rc;
    }
    rc = rc != 0 ? rc : take_pieces(object, req, &first, &count);
    if (rc == 0 && is_small) {
        rados_gather_lead(store, object, first, req, &gather);
        was_dropped = find_open(store, req) == NULL; /* while it waited */
    }
    pthread_mutex_unlock(&store->lock);
    if (rc != 0 || !is_small) {
        return rc != 0 ? rc : write_all(store, req, first, count);
    }
    rc = was_dropped ? not_open(req) : write_gathered(store, req, &gather);
    pthread_mutex_lock(&store->lock);
    rados_gather_end(store, &gather, rc, &req->diag);
    pthread_mutex_unlock(&store->lock);
    return rc;
}

/* --- seal, abort ------------------------------------------------------------------------------ */

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    return compare_u64(x->offset, y->offset);
}

/* Returns the table of the object's pieces, sorted by offset; NULL if there is no memory. The
 * caller frees it. */
static struct piece_table *table_of(const struct rados_store *store,
                                    const struct open_object *object)
{
    struct piece_table *table =
        calloc(1, sizeof(*table) + object->piece_count * sizeof(table->pieces[0]));
    if (table == NULL) {
        return NULL;
    }
    *table = (struct piece_table){.refs = 1,
                                  .run = object->run,
                                  .id = object->id,
                                  .epoch = store->base.caps.epoch,
                                  .count = object->piece_count};
    if (object->piece_count > 0) {
        memcpy(table->pieces, object->pieces, object->piece_count * sizeof(table->pieces[0]));
        qsort(table->pieces, table->count, sizeof(table->pieces[0]), compare_pieces);
        const struct piece *last = &table->pieces[table->count - 1];
        table->bytes = last->offset + last->bytes;
    }
    return table;
}

/* Takes an object for sealing or dropping, so that no other thread writes, seals or drops it.
 * Returns NULL if it is not open or is taken. */
static struct open_object *take(struct rados_store *store, const struct store_req *req)
{
    pthread_mutex_lock(&store->lock);
    struct open_object *object = find_open(store, req);
    object = object != NULL && !object->busy ? object : NULL;
    if (object != NULL) {
        object->busy = true;
    }
    pthread_mutex_unlock(&store->lock);
    return object;
}

/* Answers SEAL for an object that is not open here: it is sealed already, or was never begun. */
static int seal_of_another(struct rados_store *store, struct store_req *req)
{
    struct piece_table *table;
    struct diag why = DIAG_INIT;
    int rc = rados_index_find(store, req, true, &table, &why);
    if (rc == 0) {
        rados_table_unref(store, table);
        return diag_set(&req->diag, CAIRN_E_EXISTS, "object %u of rank %u is already sealed",
                        req->object.sequence, req->object.rank);
    }
    return rc == CAIRN_E_NOT_FOUND ? not_open(req) : diag_copy(&req->diag, &why);
}

int rados_op_seal(struct rados_store *store, struct store_req *req)
{
    struct open_object *object = take(store, req);
    if (object == NULL) {
        return seal_of_another(store, req);
    }
    struct piece_table *table = table_of(store, object);
    int rc = 0;
    if (table == NULL) {
        rc = diag_no_memory(&req->diag, "an object's table");
    } else if (object->failed) {
        rc = diag_set(&req->diag, CAIRN_E_IO, "object %u of rank %u is void since a write failed",
                      req->object.sequence, req->object.rank);
    } else {
        rc = rados_index_seal(store, table, object->named, &req->diag);
    }
    pthread_mutex_lock(&store->lock);
    if (rc == 0 || rc == CAIRN_E_OUTCOME_UNKNOWN || rc == CAIRN_E_EXISTS) {
        free_open(store, object); /* unknown: the pieces may be in use, and the index knows */
    } else {
        object->failed = true;
        object->busy = false;
    }
    pthread_mutex_unlock(&store->lock);
    free(table);
    return rc;
}

/* Starts the removal of one piece. */
static void start_removal(struct rados_store *store, const struct piece_table *table, uint32_t i,
                          struct piece_call *ret)
{
    rados_space_of(store, &table->run, ret->space);
    rados_name_piece(&table->run, &table->id, table->epoch, table->pieces[i].number, ret->object);
    ret->steps[0] = (struct cluster_step){.kind = STEP_REMOVE};
    start_call(store, ret, 1);
}

int rados_remove_pieces(struct rados_store *store, const struct piece_table *table,
                        struct diag *diag)
{
    struct piece_call calls[RADOS_AT_ONCE];
    uint32_t started = 0, waited = 0;
    int rc = 0;
    while (waited < started || (started < table->count && rc != -ETIMEDOUT)) {
        /* A cluster that does not answer is not asked for each piece; the index still names
         * them. */
        if (started < table->count && started - waited < RADOS_AT_ONCE && rc != -ETIMEDOUT) {
            start_removal(store, table, started, &calls[started % RADOS_AT_ONCE]);
            started++;
            continue;
        }
        int removed = cluster_wait(store->cluster, &calls[waited++ % RADOS_AT_ONCE].call);
        if (removed != 0 && removed != -ENOENT && rc != -ETIMEDOUT) {
            rc = removed;
        }
    }
    return rc == 0 ? 0 : rados_error(rc, true, "cannot remove pieces of an object", diag);
}

/* Removes the pieces and the entry of an object. Returns OUTCOME_UNKNOWN if the cluster does not
 * answer. */
static int drop(struct rados_store *store, struct open_object *object)
{
    struct piece_table *table = table_of(store, object);
    int rc = table != NULL ? rados_remove_pieces(store, table, NULL) : CAIRN_E_NO_MEMORY;
    if (rc == 0 && !object->failed) {
        /* A write that timed out may still happen, so the entry stays, for the sweep. */
        int forgotten = rados_index_forget(store, &object->run, &object->id);
        rc = forgotten == 0 ? 0 : rados_error(forgotten, true, "cannot drop an object", NULL);
    }
    free(table);
    return rc;
}

int rados_op_abort(struct rados_store *store, struct store_req *req)
{
    struct open_object *object = take(store, req);
    if (object == NULL) {
        return not_open(req);
    }
    err_ignore(drop(store, object)); /* the index names what could not be removed */
    pthread_mutex_lock(&store->lock);
    free_open(store, object);
    pthread_mutex_unlock(&store->lock);
    return 0;
}

void rados_abort_all(struct rados_store *store)
{
    bool is_silent = false;               /* one time-out is enough: the index names all of them */
    list_each_safe (node, &store->open) { /* no request is left, so no lock is needed */
        struct open_object *object = list_item(node, struct open_object, link);
        is_silent = is_silent || drop(store, object) == CAIRN_E_OUTCOME_UNKNOWN;
        free_open(store, object);
    }
}

/* --- read ------------------------------------------------------------------------------------- */

struct reading {
    struct rados_store *store;
    const struct piece_table *table;
    uint64_t from, to; /* range of the object */
    uint8_t *data;
};

/* Starts the read of the bytes of one piece that the request wants. */
static void start_piece(const struct reading *reading, const struct piece *piece,
                        struct piece_call *ret)
{
    uint64_t from = piece->offset > reading->from ? piece->offset : reading->from;
    uint64_t end = piece->offset + piece->bytes;
    uint64_t to = end < reading->to ? end : reading->to;
    rados_space_of(reading->store, &reading->table->run, ret->space);
    rados_name_piece(&reading->table->run, &reading->table->id, reading->table->epoch,
                     piece->number, ret->object);
    ret->steps[0] = (struct cluster_step){.kind = STEP_READ,
                                          .offset = from - piece->offset,
                                          .bytes = (size_t)(to - from),
                                          .into = reading->data + (from - reading->from)};
    ret->call = (struct cluster_call){.pool = CLUSTER_DATA,
                                      .space = ret->space,
                                      .object = ret->object,
                                      .step_count = 1,
                                      .steps = ret->steps};
    cluster_start(reading->store->cluster, &ret->call);
}

static int wait_piece(const struct reading *reading, struct piece_call *piece)
{
    int rc = cluster_wait(reading->store->cluster, &piece->call);
    return rc == 0 && piece->steps[0].ret_bytes != piece->steps[0].bytes ? -ERANGE : rc;
}

/* Reads the pieces, a few at a time. Waits for all that were started. Returns -ERANGE if a piece is
 * too short. */
static int read_pieces(const struct reading *reading)
{
    const struct piece_table *table = reading->table;
    struct piece_call calls[RADOS_AT_ONCE];
    uint32_t next = 0, waited = 0, started = 0;
    int rc = 0;
    while (true) {
        while (next < table->count && started - waited < RADOS_AT_ONCE) {
            const struct piece *piece = &table->pieces[next++];
            if (piece->offset < reading->to && piece->offset + piece->bytes > reading->from) {
                start_piece(reading, piece, &calls[started++ % RADOS_AT_ONCE]);
            }
        }
        if (waited == started) {
            return rc;
        }
        int piece_rc = wait_piece(reading, &calls[waited++ % RADOS_AT_ONCE]);
        if (piece_rc != 0 && rc == 0) {
            rc = piece_rc;
            next = table->count;
        }
    }
}

/* Reads a range of an object. Bytes that were never written are zeros. */
static int read_table(struct rados_store *store, struct store_req *req,
                      const struct piece_table *table, struct diag *diag)
{
    if (req->offset > table->bytes || req->bytes > table->bytes - req->offset ||
        (req->to_end && req->bytes != table->bytes - req->offset)) {
        return diag_set(
            diag, CAIRN_E_DAMAGED,
            "object %u of rank %u has %llu bytes, but %llu bytes at %llu were requested",
            req->object.sequence, req->object.rank, (unsigned long long)table->bytes,
            (unsigned long long)req->bytes, (unsigned long long)req->offset);
    }
    struct reading reading = {.store = store,
                              .table = table,
                              .from = req->offset,
                              .to = req->offset + req->bytes,
                              .data = req->data};
    memset(req->data, 0, req->bytes > 0 && table->count == 0 ? req->bytes : 0);
    uint64_t covered = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        covered += table->pieces[i].bytes;
    }
    if (covered != table->bytes && req->bytes > 0) {
        memset(req->data, 0, req->bytes); /* holes read as zeros */
    }
    int rc = read_pieces(&reading);
    if (rc == -ENOENT || rc == -ERANGE) {
        return diag_set(
            diag, CAIRN_E_DAMAGED, "object %u of rank %u is damaged: a piece of it is %s",
            req->object.sequence, req->object.rank, rc == -ENOENT ? "missing" : "too short");
    }
    return rc == 0 ? 0 : rados_error(rc, false, "cannot read an object", diag);
}

int rados_op_read(struct rados_store *store, struct store_req *req)
{
    struct piece_table *table;
    int rc = rados_index_find(store, req, false, &table, &req->diag);
    if (rc != 0) {
        return rc;
    }
    struct diag why = DIAG_INIT;
    rc = read_table(store, req, table, &why);
    rados_table_unref(store, table);
    if (rc == CAIRN_E_DAMAGED) { /* or has another daemon deleted it meanwhile? */
        rc = rados_index_find(store, req, true, &table, &req->diag);
        if (rc == 0) {
            rados_table_unref(store, table);
            rc = CAIRN_E_DAMAGED;
        }
    }
    return rc == CAIRN_E_DAMAGED || (rc != 0 && req->diag.code == 0) ? diag_copy(&req->diag, &why)
                                                                     : rc;
}
