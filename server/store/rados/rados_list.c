/* SPDX-License-Identifier: Apache-2.0
 *
 * What is stored, for garbage collection. RADOS lists whole pools only, so what is made is entered
 * before it is made: checkpoints as keys of `stored/<run>`, the small things of one as keys of
 * `smalls/<run>/<term>-<step>`. An entry may stand for nothing (a crash in between); nothing is
 * without an entry. Objects have their own index (rados_index.c).
 */
#include "rados_private.h"

#include "base/check.h"
#include "base/digits.h"
#include "store/store_order.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place {
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
};

static const char *const kinds[] = {
    [STORE_MANIFEST] = "manifest", [STORE_PART] = "part", [STORE_PAGE] = "page"};

static void place_of_ckpts(const struct rados_store *store, const struct run_name *run,
                           struct place *ret)
{
    rados_space_of(store, run, ret->space);
    snprintf(ret->object, sizeof(ret->object), "stored/%s", run->run);
}

static void place_of_smalls(const struct rados_store *store, const struct run_name *run,
                            struct ckpt_id id, struct place *ret)
{
    rados_space_of(store, run, ret->space);
    snprintf(ret->object, sizeof(ret->object), "smalls/%s/%" PRIu64 "-%" PRIu64, run->run, id.term,
             id.step);
}

static int call(struct rados_store *store, const struct place *place, struct cluster_step *step)
{
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = place->space,
                                .object = place->object,
                                .step_count = 1,
                                .steps = step};
    return cluster_do(store->cluster, &call);
}

static void key_of_small(const struct store_name *name, char ret[RADOS_KEY_MAX])
{
    snprintf(ret, RADOS_KEY_MAX, "%s-%u-%016" PRIx64, kinds[name->kind], name->number, name->tag);
}

/* --- enter, leave ----------------------------------------------------------------------------- */

static bool is_known(struct rados_store *store, const struct rados_entered *entered, bool learn)
{
    pthread_mutex_lock(&store->lock);
    bool known = false;
    for (size_t i = 0; i < RADOS_ENTERED_KEPT && !known; i++) {
        const struct rados_entered *have = &store->entered[i];
        known = ckpt_id_equal(have->id, entered->id) &&
                strcmp(have->run.project, entered->run.project) == 0 &&
                strcmp(have->run.run, entered->run.run) == 0;
    }
    if (learn && !known) {
        store->entered[store->entered_next++ % RADOS_ENTERED_KEPT] = *entered;
    }
    pthread_mutex_unlock(&store->lock);
    return known;
}

int rados_list_enter(struct rados_store *store, const struct run_name *run, struct ckpt_id id,
                     struct diag *diag)
{
    const struct rados_entered entered = {.run = *run, .id = id};
    char key[RADOS_KEY_MAX];
    struct place place;
    if (is_known(store, &entered, false)) {
        return 0;
    }
    place_of_ckpts(store, run, &place);
    snprintf(key, sizeof(key), "%016" PRIx64 "-%016" PRIx64, id.term, id.step);
    struct cluster_step step = {.kind = STEP_KEY_SET, .key = key, .data = "", .bytes = 0};
    int rc = call(store, &place, &step);
    if (rc != 0) {
        return rados_error(rc, false, "enter a checkpoint in the list", diag);
    }
    is_known(store, &entered, true);
    return 0;
}

int rados_list_enter_small(struct rados_store *store, const struct store_name *name,
                           struct diag *diag)
{
    char key[RADOS_KEY_MAX];
    struct place place;
    int rc = rados_list_enter(store, &name->run, name->id, diag);
    if (rc != 0) {
        return rc;
    }
    place_of_smalls(store, &name->run, name->id, &place);
    key_of_small(name, key);
    struct cluster_step step = {.kind = STEP_KEY_SET, .key = key, .data = "", .bytes = 0};
    rc = call(store, &place, &step);
    return rc == 0 ? 0 : rados_error(rc, false, "enter a small thing in the list", diag);
}

void rados_list_leave_small(struct rados_store *store, const struct store_name *name)
{
    char key[RADOS_KEY_MAX];
    struct place place;
    place_of_smalls(store, &name->run, name->id, &place);
    key_of_small(name, key);
    struct cluster_step step = {.kind = STEP_KEY_REMOVE, .key = key};
    err_ignore(call(store, &place, &step)); /* an entry for nothing; gc comes by again */
}

/* --- list ------------------------------------------------------------------------------------- */

/* Calls each(req, key) for every key of the place; none when it is not there. */
static int each_key(struct rados_store *store, const struct place *place, struct store_req *req,
                    int (*each)(struct store_req *req, const char *key))
{
    char after[RADOS_KEY_MAX] = "";
    bool more = true;
    int rc = 0;
    while (rc == 0 && more) {
        struct cluster_step step = {.kind = STEP_KEYS, .after = after};
        rc = call(store, place, &step);
        if (rc != 0) {
            return rc == -ENOENT ? 0 : rados_error(rc, false, "list what is stored", &req->diag);
        }
        const struct cluster_map *map = &step.ret_map;
        for (size_t i = 0; rc == 0 && i < map->count; i++) {
            rc = each(req, map->pairs[i].key);
        }
        more = map->more && map->count > 0;
        if (more) {
            snprintf(after, sizeof(after), "%s", map->pairs[map->count - 1].key);
        }
        cluster_map_fini(&step.ret_map);
    }
    return rc;
}

static int broken(struct store_req *req, const char *key)
{
    return diag_set(&req->diag, CAIRN_E_DAMAGED, "the list of what is stored holds '%s'", key);
}

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
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of %zu checkpoints", req->ret_count);
    }
    req->ret_ckpts = grown;
    grown[req->ret_count++] = id;
    return 0;
}

int rados_op_list_ckpts(struct rados_store *store, struct store_req *req)
{
    struct place place;
    place_of_ckpts(store, &req->run, &place);
    req->ret_ckpts = calloc(1, sizeof(*req->ret_ckpts)); /* never NULL on success */
    req->ret_count = 0;
    int rc = req->ret_ckpts != NULL
                 ? each_key(store, &place, req, add_ckpt) /* in order: the numbers have one width */
                 : diag_set(&req->diag, CAIRN_E_NO_MEMORY, "no memory for a list");
    if (rc != 0) {
        free(req->ret_ckpts);
        req->ret_ckpts = NULL;
    }
    return rc;
}

static bool parse_small(const char *key, struct store_name *ret)
{
    for (size_t kind = STORE_MANIFEST; kind < ARRAY_LEN(kinds); kind++) {
        const char *at = key;
        uint64_t number, tag;
        if (digits_skip(&at, kinds[kind]) && digits_skip(&at, "-") &&
            digits_read_decimal(&at, UINT32_MAX, &number) && digits_skip(&at, "-") &&
            digits_read_hex(&at, 16, &tag) && *at == '\0') {
            ret->kind = (enum store_kind)kind;
            ret->number = (uint32_t)number;
            ret->tag = tag;
            return true;
        }
    }
    return false;
}

static int add_small(struct store_req *req, const char *key)
{
    struct store_name name = {.run = req->run, .id = req->id};
    if (!parse_small(key, &name)) {
        return broken(req, key);
    }
    struct store_name *grown = realloc(req->ret_smalls, (req->ret_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of %zu small things", req->ret_count);
    }
    req->ret_smalls = grown;
    grown[req->ret_count++] = name;
    return 0;
}

int rados_op_list_small(struct rados_store *store, struct store_req *req)
{
    struct place place;
    place_of_smalls(store, &req->run, req->id, &place);
    req->ret_smalls = calloc(1, sizeof(*req->ret_smalls)); /* never NULL on success */
    req->ret_count = 0;
    int rc = req->ret_smalls != NULL
                 ? each_key(store, &place, req, add_small)
                 : diag_set(&req->diag, CAIRN_E_NO_MEMORY, "no memory for a list");
    if (rc != 0) {
        free(req->ret_smalls);
        req->ret_smalls = NULL;
        return rc;
    }
    qsort(req->ret_smalls, req->ret_count, sizeof(*req->ret_smalls), store_order_smalls);
    return 0;
}
