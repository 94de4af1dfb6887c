/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of stored things, for garbage collection. RADOS lists only whole pools, so everything
 * is entered before it is made: checkpoints as keys of `stored/<run>`, the small things of one as
 * keys of `smalls/<run>/<term>-<step>`. An entry may stand for nothing (after a crash in between),
 * but nothing exists without an entry. Objects have their own index (rados_index.c). Keys of
 * smalls/:
 *
 *   <kind>-<number>-<tag>             a small thing
 *   t/<kind>-<number>-<tag>/<tails>   its tails, so many (u32), are being made
 *   x/<kind>-<number>-<tag>/<tails>   the same, given up by a sweep (rados_sweep_small.c)
 *   d/<kind>-<number>-<tag>/<tails>   it is being removed: its tails go before the key does
 *   b                                 changes with each entry
 *
 * The entry of a checkpoint changes with each entering as well: a sweep that found nothing of it
 * removes the entry only if nobody has entered it since the sweep looked.
 */
#include "rados_small.h"

#include "base/check.h"
#include "base/digits.h"
#include "store/store_order.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MARK[] = "b";

static void stored_of(const struct rados_store *store, const struct run_name *run,
                      struct rados_shard *ret)
{
    rados_space_of(store, run, ret->space);
    snprintf(ret->object, sizeof(ret->object), "stored/%s", run->run);
}

void rados_list_smalls(const struct rados_store *store, const struct run_name *run,
                       struct ckpt_id id, struct rados_shard *ret)
{
    rados_space_of(store, run, ret->space);
    snprintf(ret->object, sizeof(ret->object), "smalls/%s/%" PRIu64 "-%" PRIu64, run->run, id.term,
             id.step);
}

static void key_of_ckpt(struct ckpt_id id, char ret[RADOS_KEY_MAX])
{
    snprintf(ret, RADOS_KEY_MAX, "%016" PRIx64 "-%016" PRIx64, id.term, id.step);
}

void rados_list_mark(struct rados_store *store, uint8_t ret[RADOS_MARK_BYTES])
{
    store_u64(ret, store->writer);
    store_u64(ret + 8, atomic_fetch_add(&store->next, 1));
}

/* --- checkpoints ------------------------------------------------------------------------------ */

int rados_list_enter(struct rados_store *store, const struct run_name *run, struct ckpt_id id,
                     struct diag *diag)
{
    const struct store_name name = {.run = *run, .id = id};
    char key[RADOS_KEY_MAX];
    uint8_t mark[RADOS_MARK_BYTES];
    struct rados_known *mine;
    struct rados_shard shard;
    if (rados_known_begin(store, &name, &mine)) {
        return 0;
    }
    stored_of(store, run, &shard);
    key_of_ckpt(id, key);
    rados_list_mark(store, mark);
    struct cluster_step step = {
        .kind = STEP_KEY_SET, .key = key, .data = mark, .bytes = sizeof(mark)};
    int rc = rados_shard_call(store, &shard, 1, &step);
    rados_known_end(store, mine, rc == 0);
    return rc == 0 ? 0 : rados_error(rc, false, "cannot enter a checkpoint in the list", diag);
}

int rados_list_find(struct rados_store *store, const struct store_req *req, struct rados_mark *ret,
                    struct diag *diag)
{
    char key[RADOS_KEY_MAX];
    struct rados_shard shard;
    *ret = (struct rados_mark){.found = false};
    stored_of(store, &req->run, &shard);
    key_of_ckpt(req->id, key);
    struct cluster_step step = {.kind = STEP_KEY, .key = key};
    int rc = rados_shard_call(store, &shard, 1, &step);
    if (rc == -ENOENT) {
        return 0;
    }
    if (rc != 0) {
        return rados_error(rc, false, "listing the stored objects", diag);
    }
    const struct cluster_map *map = &step.ret_map;
    if (map->count == 1 && map->pairs[0].bytes <= sizeof(ret->data)) {
        ret->found = true;
        ret->bytes = map->pairs[0].bytes;
        memcpy(ret->data, map->pairs[0].data, ret->bytes);
    }
    cluster_map_fini(&step.ret_map);
    return 0;
}

int rados_list_leave(struct rados_store *store, const struct store_req *req,
                     const struct rados_mark *mark, struct diag *diag)
{
    char key[RADOS_KEY_MAX];
    struct rados_shard shard;
    rados_known_drop(store, &req->run, req->id);
    stored_of(store, &req->run, &shard);
    key_of_ckpt(req->id, key);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = key, .data = mark->data, .bytes = mark->bytes},
        {.kind = STEP_KEY_REMOVE, .key = key}};
    int rc = rados_shard_call(store, &shard, 2, steps);
    return rc == 0 || rc == -ECANCELED || rc == -ENOENT
               ? 0
               : rados_error(rc, true, "cannot remove a checkpoint from the list", diag);
}

/* --- small things ----------------------------------------------------------------------------- */

int rados_list_enter_small(struct rados_store *store, const struct store_name *name,
                           const struct rados_tails *tails, struct diag *diag)
{
    char key[RADOS_KEY_MAX], tail_key[RADOS_KEY_MAX];
    uint8_t mark[RADOS_MARK_BYTES], count[4];
    struct rados_shard shard;
    if (tails->count == 0 && rados_known_is(store, name)) {
        return 0;
    }
    int rc = rados_list_enter(store, &name->run, name->id, diag);
    if (rc != 0) {
        return rc;
    }
    rados_list_smalls(store, &name->run, name->id, &shard);
    rados_key_small(name, key);
    rados_key_tails('t', name, tails->name, tail_key);
    rados_list_mark(store, mark);
    store_u32(count, tails->count);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_SET, .key = key, .data = "", .bytes = 0},
        {.kind = STEP_KEY_SET, .key = MARK, .data = mark, .bytes = sizeof(mark)},
        {.kind = STEP_KEY_SET, .key = tail_key, .data = count, .bytes = sizeof(count)}};
    rc = rados_shard_call(store, &shard, tails->count > 0 ? 3 : 2, steps);
    return rc == 0 ? 0 : rados_error(rc, false, "cannot enter a small document in the list", diag);
}

/* Enters, in one operation, those names that are not entered and that no thread is entering. Their
 * opening is in the record, so gc does not touch them and the entries stay. */
static int enter_names(struct rados_store *store, struct store_req *req)
{
    char keys[STORE_ENTER_MAX][RADOS_KEY_MAX];
    uint8_t mark[RADOS_MARK_BYTES];
    struct rados_known *mine[STORE_ENTER_MAX];
    struct cluster_step steps[STORE_ENTER_MAX + 1];
    struct rados_shard shard;
    size_t count = 0;
    for (size_t i = 0; i < req->name_count; i++) {
        mine[count] = rados_known_try(store, &req->names[i]);
        if (mine[count] != NULL) {
            rados_key_small(&req->names[i], keys[count]);
            steps[count] = (struct cluster_step){
                .kind = STEP_KEY_SET, .key = keys[count], .data = "", .bytes = 0};
            count++;
        }
    }
    if (count == 0) {
        return 0;
    }
    rados_list_smalls(store, &req->run, req->id, &shard);
    rados_list_mark(store, mark);
    steps[count] = (struct cluster_step){
        .kind = STEP_KEY_SET, .key = MARK, .data = mark, .bytes = sizeof(mark)};
    int rc = rados_shard_call(store, &shard, count + 1, steps);
    for (size_t i = 0; i < count; i++) {
        rados_known_end(store, mine[i], rc == 0);
    }
    return rc == 0 ? 0
                   : rados_error(rc, false, "cannot enter small documents in the list", &req->diag);
}

int rados_op_enter(struct rados_store *store, struct store_req *req)
{
    CHECK(req->name_count <= STORE_ENTER_MAX);
    int rc = rados_list_enter(store, &req->run, req->id, &req->diag);
    return rc != 0 ? rc : enter_names(store, req);
}

/* Called if the entry of the tails is gone. Either a sweep gave them up, or our own answer was lost
 * and the operation was sent again (R10). */
static int not_settled(struct rados_store *store, const struct rados_shard *shard,
                       const struct store_name *name, const struct rados_tails *tails,
                       struct diag *diag)
{
    char key[RADOS_KEY_MAX];
    rados_key_tails('x', name, tails->name, key);
    struct cluster_step step = {.kind = STEP_KEY, .key = key};
    int rc = rados_shard_call(store, shard, 1, &step);
    bool given_up = rc == 0 && step.ret_map.count > 0;
    cluster_map_fini(&step.ret_map);
    if (given_up) {
        return diag_set(diag, CAIRN_E_IO, "%s was removed as the leftover of a dead writer",
                        key + 2);
    }
    /* A head that exists with all its tails keeps them; reading it back shows that. */
    return diag_set(diag, CAIRN_E_OUTCOME_UNKNOWN,
                    "%s was changed while it was being published; try again", key + 2);
}

int rados_list_settle_small(struct rados_store *store, const struct store_name *name,
                            const struct rados_tails *tails, struct diag *diag)
{
    char key[RADOS_KEY_MAX];
    uint8_t count[4];
    struct rados_shard shard;
    struct diag why = DIAG_INIT;
    rados_list_smalls(store, &name->run, name->id, &shard);
    rados_key_tails('t', name, tails->name, key);
    store_u32(count, tails->count);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = key, .data = count, .bytes = sizeof(count)},
        {.kind = STEP_KEY_REMOVE, .key = key}};
    int rc = rados_shard_call(store, &shard, 2, steps);
    if (rc == -ECANCELED || rc == -ENOENT) {
        return not_settled(store, &shard, name, tails, diag);
    }
    if (rc == 0) {
        return 0;
    }
    int code = rados_error(rc, true, "cannot complete a small document", &why);
    return diag_set(diag, CAIRN_E_OUTCOME_UNKNOWN, "%s", diag_text(&why, code));
}

int rados_list_doom_small(struct rados_store *store, const struct store_name *name,
                          const struct rados_tails *tails, struct diag *diag)
{
    char key[RADOS_KEY_MAX];
    uint8_t mark[RADOS_MARK_BYTES], count[4];
    struct rados_shard shard;
    rados_list_smalls(store, &name->run, name->id, &shard);
    rados_key_tails('d', name, tails->name, key);
    rados_list_mark(store, mark);
    store_u32(count, tails->count);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_SET, .key = MARK, .data = mark, .bytes = sizeof(mark)},
        {.kind = STEP_KEY_SET, .key = key, .data = count, .bytes = sizeof(count)}};
    int rc = rados_shard_call(store, &shard, 2, steps);
    return rc == 0
               ? 0
               : rados_error(rc, true, "cannot note the documents that are to be removed", diag);
}

void rados_list_leave_small(struct rados_store *store, const struct store_name *name,
                            const struct rados_tails *tails)
{
    char key[RADOS_KEY_MAX], tail_key[RADOS_KEY_MAX];
    struct rados_shard shard;
    rados_list_smalls(store, &name->run, name->id, &shard);
    rados_key_small(name, key);
    rados_key_tails('d', name, tails != NULL ? tails->name : 0, tail_key);
    struct cluster_step steps[] = {{.kind = STEP_KEY_REMOVE, .key = key},
                                   {.kind = STEP_KEY_REMOVE, .key = tail_key}};
    size_t count = tails != NULL && tails->count > 0 ? 2 : 1;
    err_ignore(rados_shard_call(store, &shard, count,
                                steps)); /* an entry for nothing stays; gc removes it later */
    rados_known_drop_small(store, name);
}

/* --- list ------------------------------------------------------------------------------------- */

/* Calls each(req, key) for every key of the list; for none if the list does not exist. */
static int each_key(struct rados_store *store, const struct rados_shard *place,
                    struct store_req *req, int (*each)(struct store_req *req, const char *key))
{
    struct rados_pages pages = {.space = place->space, .object = place->object};
    int rc = 0;
    while (rc == 0 && rados_pages_next(store, &pages)) {
        for (size_t i = 0; rc == 0 && i < pages.map.count; i++) {
            rc = each(req, pages.map.pairs[i].key);
        }
    }
    cluster_map_fini(&pages.map);
    if (pages.failure == -EIO) {
        return diag_set(
            &req->diag, CAIRN_E_IO,
            "no copy of the list of stored checkpoints, %s in namespace %s, can be read; no "
            "checkpoint needs the list, and `rados rm -N %s %s -p POOL` removes it",
            place->object, place->space, place->space, place->object);
    }
    if (pages.failure != 0 && pages.failure != -ENOENT) {
        return rados_error(pages.failure, false, "cannot list the stored checkpoints", &req->diag);
    }
    return rc;
}

static int broken(struct store_req *req, const char *key)
{
    return diag_set(&req->diag, CAIRN_E_DAMAGED,
                    "the list of stored checkpoints holds '%s', which is not an entry", key);
}

/* Appends the checkpoint that the key names to the request's list. */
static int add_ckpt(struct store_req *req, const char *key)
{
    const char *at = key;
    struct ckpt_id id;
    if (!digits_read_hex(&at, 16, &id.term) || !digits_skip(&at, "-") ||
        !digits_read_hex(&at, 16, &id.step) || *at != '\0') {
        return broken(req, key);
    }
    struct ckpt_id *grown = realloc(req->ret_ckpts, (req->ret_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return diag_no_memory(&req->diag, "a list of %zu checkpoints", req->ret_count);
    }
    req->ret_ckpts = grown;
    grown[req->ret_count++] = id;
    return 0;
}

int rados_op_list_ckpts(struct rados_store *store, struct store_req *req)
{
    struct rados_shard place;
    stored_of(store, &req->run, &place);
    req->ret_ckpts = calloc(1, sizeof(*req->ret_ckpts)); /* never NULL on success */
    req->ret_count = 0;
    int rc = req->ret_ckpts != NULL
                 /* Sorted, because the numbers have one width. */
                 ? each_key(store, &place, req, add_ckpt)
                 : diag_no_memory(&req->diag, "a list");
    if (rc != 0) {
        free(req->ret_ckpts);
        req->ret_ckpts = NULL;
    }
    return rc;
}

/* Returns true for a key that only a sweep needs, and that is no small thing. */
static bool is_note(const char *key)
{
    return strcmp(key, MARK) == 0 || (strchr("txd", key[0]) != NULL && key[1] == '/');
}

/* Appends the small object that the key names to the request's list. */
static int add_small(struct store_req *req, const char *key)
{
    struct store_name name = {.run = req->run, .id = req->id};
    if (is_note(key)) {
        return 0;
    }
    if (!rados_key_parse_small(key, &name)) {
        return broken(req, key);
    }
    struct store_name *grown = realloc(req->ret_smalls, (req->ret_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return diag_no_memory(&req->diag, "a list of %zu small things", req->ret_count);
    }
    req->ret_smalls = grown;
    grown[req->ret_count++] = name;
    return 0;
}

int rados_op_list_small(struct rados_store *store, struct store_req *req)
{
    struct rados_shard place;
    rados_list_smalls(store, &req->run, req->id, &place);
    req->ret_smalls = calloc(1, sizeof(*req->ret_smalls)); /* never NULL on success */
    req->ret_count = 0;
    int rc = req->ret_smalls != NULL ? each_key(store, &place, req, add_small)
                                     : diag_no_memory(&req->diag, "a list");
    if (rc != 0) {
        free(req->ret_smalls);
        req->ret_smalls = NULL;
        return rc;
    }
    qsort(req->ret_smalls, req->ret_count, sizeof(*req->ret_smalls), store_order_smalls);
    return 0;
}
