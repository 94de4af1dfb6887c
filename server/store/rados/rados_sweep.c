/* SPDX-License-Identifier: Apache-2.0
 *
 * The sweep of a checkpoint removes what daemons that died have left. The index names it: u/ for an
 * object that was begun and not sealed, d/ for one whose deletion was cut short.
 *
 * A guarded operation first turns u/ into w/. From then on the object cannot be sealed, so its
 * pieces can be removed safely even if its writer lives. The pieces are removed, and w/ stays until
 * the next sweep, which removes the pieces once more: in this way it finds what a write did after
 * it was reported as timed out. An index object that holds nothing any more is removed as well.
 */
#include "rados_private.h"
#include "rados_small.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED_MAX = LIMIT_OBJECT_BYTES / LIMIT_ALIGN_BYTES };

static int not_proper(const struct rados_sweep *sweep, const char *key)
{
    return diag_set(&sweep->req->diag, CAIRN_E_DAMAGED,
                    "the index holds '%s', which is not an entry", key);
}

/* Removes pieces 0 to count - 1 of an object, as if it had been sealed. */
static int remove_numbers(struct rados_sweep *sweep, const struct object_id *id, uint64_t epoch,
                          uint32_t count)
{
    struct piece_table *table = calloc(1, sizeof(*table) + count * sizeof(table->pieces[0]));
    if (table == NULL) {
        return diag_no_memory(&sweep->req->diag, "sweeping a checkpoint");
    }
    *table =
        (struct piece_table){.run = sweep->req->run, .id = *id, .epoch = epoch, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        table->pieces[i].number = i;
    }
    int rc = rados_remove_pieces(sweep->store, table, &sweep->req->diag);
    free(table);
    return rc;
}

/* Sweeps an entry u/ or w/. */
static int sweep_begun(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    char swept[RADOS_KEY_MAX];
    struct object_id id;
    uint64_t epoch;
    uint32_t named = pair->bytes == 4 ? load_u32(pair->data) : 0;
    bool is_first = pair->key[0] == 'u';
    if (!is_first && sweep->has_given_up) {
        sweep->is_used = true;
        return 0;
    }
    if (!rados_key_parse_begun(pair->key, sweep->req->id, &id, &epoch) || named == 0 ||
        named > NAMED_MAX) {
        return not_proper(sweep, pair->key);
    }
    rados_key_begun('w', &id, epoch, swept);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = pair->key, .data = pair->data, .bytes = pair->bytes},
        {.kind = STEP_KEY_REMOVE, .key = pair->key},
        {.kind = STEP_KEY_SET, .key = swept, .data = pair->data, .bytes = pair->bytes}};
    int rc = is_first ? rados_shard_call(sweep->store, &sweep->shard, 3, steps) : 0;
    if (rc == -ECANCELED || rc == -ENOENT) { /* sealed, dropped or swept meanwhile */
        sweep->is_used = true;
        return 0;
    }
    rc = rc != 0 ? rados_sweep_failed(sweep, rc) : remove_numbers(sweep, &id, epoch, named);
    if (rc == 0 && is_first) {
        sweep->is_used = true;
        sweep->has_given_up = true;
    } else if (rc == 0) {
        rc = rados_shard_call(sweep->store, &sweep->shard, 2, steps); /* removes w/ */
        rc = rc == 0 || rc == -ECANCELED || rc == -ENOENT ? 0 : rados_sweep_failed(sweep, rc);
    }
    sweep->req->ret_count += rc == 0;
    return rc;
}

/* Finishes the removal of an object that was under way: its pieces, and then its key. */
static int sweep_dying(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    struct piece_table *table;
    if (!rados_key_parse(pair->key, sweep->req->id, &sweep->req->object)) {
        return not_proper(sweep, pair->key);
    }
    int rc = rados_table_decode(sweep->req, pair, &table, &sweep->req->diag);
    if (rc != 0) {
        return rc;
    }
    rc = rados_remove_pieces(sweep->store, table, &sweep->req->diag);
    free(table);
    if (rc == 0) {
        struct cluster_step step = {.kind = STEP_KEY_REMOVE, .key = pair->key};
        rc = rados_shard_call(sweep->store, &sweep->shard, 1, &step);
        rc = rc == 0 ? 0 : rados_sweep_failed(sweep, rc);
    }
    sweep->req->ret_count += rc == 0;
    return rc;
}

/* Sweeps what one key of the index stands for. A sealed object stays, and so does the index. */
static int sweep_entry(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    if (strncmp(pair->key, "u/", 2) == 0 || strncmp(pair->key, "w/", 2) == 0) {
        return sweep_begun(sweep, pair);
    }
    if (strncmp(pair->key, "d/", 2) == 0) {
        return sweep_dying(sweep, pair);
    }
    sweep->is_used = true;
    return strncmp(pair->key, "s/", 2) == 0 ? 0 : not_proper(sweep, pair->key);
}

/* --- one walk for the shards of the index and for the list of small things --- */

int rados_sweep_failed(const struct rados_sweep *sweep, int rc)
{
    return rados_error(rc, true, sweep->what, &sweep->req->diag);
}

/* Removes the swept object itself, unless something was begun since it was read. b sorts before all
 * other keys, so anything that was begun while these were read has changed it. */
static int remove_swept(struct rados_sweep *sweep)
{
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = "b", .data = sweep->mark.data, .bytes = sweep->mark.bytes},
        {.kind = STEP_REMOVE}};
    if (sweep->has_smalls) {
        rados_known_drop(sweep->store, &sweep->req->run, sweep->req->id);
    }
    int rc = rados_shard_call(sweep->store, &sweep->shard, 2, steps);
    sweep->is_used = rc == -ECANCELED;
    return rc == 0 || rc == -ECANCELED || rc == -ENOENT ? 0 : rados_sweep_failed(sweep, rc);
}

static int walk_entry(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    if (strcmp(pair->key, "b") != 0 || pair->bytes > sizeof(sweep->mark.data)) {
        return sweep->entry(sweep, pair);
    }
    sweep->mark.bytes = pair->bytes;
    memcpy(sweep->mark.data, pair->data, pair->bytes);
    return 0;
}

int rados_sweep_walk(struct rados_sweep *sweep)
{
    struct rados_pages pages = {.space = sweep->shard.space, .object = sweep->shard.object};
    int rc = 0;
    while (rc == 0 && rados_pages_next(sweep->store, &pages)) {
        for (size_t i = 0; rc == 0 && i < pages.map.count; i++) {
            rc = walk_entry(sweep, &pages.map.pairs[i]);
        }
    }
    cluster_map_fini(&pages.map);
    if (pages.failure != 0) {
        return pages.failure == -ENOENT ? 0 : rados_sweep_failed(sweep, pages.failure);
    }
    return rc != 0 || sweep->is_used ? rc : remove_swept(sweep);
}

/* Sweeps a checkpoint. If nobody will write to it any more and it holds nothing, it is also removed
 * from the list; otherwise each pass of garbage collection would examine every checkpoint that ever
 * existed. */
int rados_op_sweep(struct rados_store *store, struct store_req *req)
{
    struct object_id id = {.term = req->id.term, .step = req->id.step};
    struct rados_mark entry = {.found = false};
    bool is_used = false;
    req->ret_count = 0;
    int rc = req->for_good ? rados_list_find(store, req, &entry, &req->diag) : 0;
    for (unsigned i = 0; rc == 0 && i < RADOS_INDEX_SHARDS; i++) {
        struct rados_sweep sweep = {.store = store,
                                    .req = req,
                                    .what = "cannot remove a checkpoint's leftovers",
                                    .entry = sweep_entry};
        rados_shard_of(store, &req->run, &id, i, &sweep.shard);
        rc = rados_sweep_walk(&sweep);
        is_used = is_used || sweep.is_used;
    }
    rc = rc != 0 ? rc : rados_sweep_smalls(store, req, &is_used);
    return rc == 0 && entry.found && !is_used ? rados_list_leave(store, req, &entry, &req->diag)
                                              : rc;
}
