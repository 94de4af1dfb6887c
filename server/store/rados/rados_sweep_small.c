/* SPDX-License-Identifier: Apache-2.0
 *
 * The sweep of a checkpoint's small things: tails whose head was never made or is gone, because a
 * daemon died between the two. The list names them (rados_list.c).
 *
 * t/: if the head exists and names the tails, they belong to it, and only the entry is removed.
 * Otherwise a stone (a marker object) is laid where the head would be made; while it lies nobody
 * can make the head. The tails are removed, t/ becomes x/, and only then the stone is removed. A
 * slow publisher that makes its head after that finds its t/ gone, and reports that its thing is
 * void; a reader of that head finds that it is not whole. So a sweep needs no lock, and several may
 * run at the same time.
 *
 * x/: the tails are removed once more, for late writes, with the stone if it still lies, and with
 * the entry.
 *
 * d/: a removal that was cut short is completed.
 *
 * A list that holds nothing any more is removed as well.
 */
#include "rados_small.h"

#include <errno.h>
#include <string.h>

enum { TAILS_MAX = LIMIT_PART_BYTES / (1 << 20) };

/* Removes an entry. Returns 0 even if it is gone already. */
static int forget(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = pair->key, .data = pair->data, .bytes = pair->bytes},
        {.kind = STEP_KEY_REMOVE, .key = pair->key}};
    int rc = rados_shard_call(sweep->store, &sweep->shard, 2, steps);
    return rc == 0 || rc == -ECANCELED || rc == -ENOENT ? 0 : rados_sweep_failed(sweep, rc);
}

/* Gives up tails that no head names. The next sweep removes them once more. */
static int give_up(struct rados_sweep *sweep, const struct cluster_pair *pair,
                   const struct store_name *name, const struct rados_tails *tails)
{
    char swept[RADOS_KEY_MAX];
    rados_key_tails('x', name, tails->name, swept);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = pair->key, .data = pair->data, .bytes = pair->bytes},
        {.kind = STEP_KEY_REMOVE, .key = pair->key},
        {.kind = STEP_KEY_SET, .key = swept, .data = pair->data, .bytes = pair->bytes}};
    int rc = rados_small_drop_tails(sweep->store, name, tails, &sweep->req->diag);
    if (rc != 0) {
        return rc; /* the stone stays, and the next sweep goes on */
    }
    rc = rados_shard_call(sweep->store, &sweep->shard, 3, steps);
    /* Another sweep has given them up meanwhile. */
    if (rc != 0 && rc != -ECANCELED && rc != -ENOENT) {
        return rados_sweep_failed(sweep, rc);
    }
    sweep->is_used = true;
    sweep->has_given_up = true;
    return rados_small_unbury(sweep->store, name, tails, &sweep->req->diag);
}

/* Keeps the tails of a thing that exists. The thing is entered in the list again, because it may
 * have been removed from the list while its head was still to come. */
static int keep(struct rados_sweep *sweep, const struct cluster_pair *pair,
                const struct store_name *name)
{
    char key[RADOS_KEY_MAX];
    rados_key_small(name, key);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = pair->key, .data = pair->data, .bytes = pair->bytes},
        {.kind = STEP_KEY_REMOVE, .key = pair->key},
        {.kind = STEP_KEY_SET, .key = key, .data = "", .bytes = 0}};
    int rc = rados_shard_call(sweep->store, &sweep->shard, 3, steps);
    sweep->is_used = true;
    return rc == 0 || rc == -ECANCELED || rc == -ENOENT ? 0 : rados_sweep_failed(sweep, rc);
}

static int sweep_made(struct rados_sweep *sweep, const struct cluster_pair *pair,
                      const struct store_name *name, const struct rados_tails *tails)
{
    enum rados_burial burial;
    int rc = rados_small_bury(sweep->store, name, tails, &burial, &sweep->req->diag);
    if (rc != 0) {
        return rc;
    }
    sweep->is_used = sweep->is_used || burial == BURIAL_BUSY; /* for the next sweep */
    return burial == BURIAL_NAMED  ? keep(sweep, pair, name)
           : burial == BURIAL_DONE ? give_up(sweep, pair, name, tails)
                                   : 0;
}

/* Finishes a sweep or a removal that was begun before: deletes the tails that an entry x/ or d/
 * names, and for d/ the head before them. */
static int sweep_gone(struct rados_sweep *sweep, const struct cluster_pair *pair,
                      const struct store_name *name, const struct rados_tails *tails)
{
    struct diag *diag = &sweep->req->diag;
    int rc = pair->key[0] == 'd' ? rados_small_drop_head(sweep->store, name, diag) : 0;
    if (rc == 0) {
        rc = rados_small_drop_tails(sweep->store, name, tails, diag);
    }
    rc = rc != 0 ? rc : rados_small_unbury(sweep->store, name, tails, diag);
    return rc != 0 ? rc : forget(sweep, pair);
}

/* Sweeps an entry t/, x/ or d/. */
static int sweep_tails(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    struct store_name name = {.run = sweep->req->run, .id = sweep->req->id};
    struct rados_tails tails = {.count = pair->bytes == 4 ? load_u32(pair->data) : 0};
    struct diag *diag = &sweep->req->diag;
    if (!rados_key_parse_tails(pair->key, &name, &tails.name) || tails.count == 0 ||
        tails.count > TAILS_MAX) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the list of small documents holds '%s', which is not an entry", pair->key);
    }
    if (pair->key[0] == 'x' && sweep->has_given_up) { /* it may have been given up in this sweep */
        sweep->is_used = true;
        return 0;
    }
    int rc = pair->key[0] == 't' ? sweep_made(sweep, pair, &name, &tails)
                                 : sweep_gone(sweep, pair, &name, &tails);
    sweep->req->ret_count += rc == 0;
    return rc;
}

static int sweep_entry(struct rados_sweep *sweep, const struct cluster_pair *pair)
{
    if (strchr("txd", pair->key[0]) != NULL && pair->key[1] == '/') {
        return sweep_tails(sweep, pair);
    }
    sweep->is_used = true; /* a small thing */
    return 0;
}

int rados_sweep_smalls(struct rados_store *store, struct store_req *req, bool *io_used)
{
    struct rados_sweep sweep = {.store = store,
                                .req = req,
                                .what =
                                    "cannot remove the leftovers of a checkpoint's small documents",
                                .entry = sweep_entry,
                                .has_smalls = true};
    rados_list_smalls(store, &req->run, req->id, &sweep.shard);
    int rc = rados_sweep_walk(&sweep);
    *io_used = *io_used || sweep.is_used;
    return rc;
}
