/* SPDX-License-Identifier: Apache-2.0
 *
 * A repaired object or small thing trades its name with the damaged one. Invariant: the name is
 * never missing, and never names half a file. Both files are sealed and durable under names of
 * their own, and the exchange is one rename. Nothing is removed here: afterwards the damaged bytes
 * have the other name, which no table contains, so garbage collection removes them later.
 */
#include "dir_private.h"

#include "base/failpoint.h"

/* The two names, both in the checkpoint's directory. */
struct trade {
    struct dir_at at;
    char name[DIR_NAME_MAX], with[DIR_NAME_MAX];
};

static int is_written(struct dir_store *store, struct store_req *req, const struct object_id *id)
{
    return dir_object_is_open(store, &req->run, id)
               ? diag_set(&req->diag, CAIRN_E_BUSY, "object %u of rank %u is still being written",
                          id->sequence, id->rank)
               : 0;
}

/* Finds the two names that the request exchanges, and opens their directory. */
static int find_trade(struct dir_store *store, struct store_req *req, struct trade *ret)
{
    char path[DIR_PATH_MAX];
    int rc = 0;
    if (req->name.kind != 0) {
        struct store_name with = req->name;
        with.tag = req->with_tag;
        dir_path_checkpoint(&req->name.run, req->name.id, path);
        dir_name_small(&req->name, ret->name);
        dir_name_small(&with, ret->with);
    } else {
        struct ckpt_id id = {req->object.term, req->object.step};
        dir_path_objects(&req->run, id, path);
        dir_name_object(&req->object, ret->name);
        dir_name_object(&req->with_object, ret->with);
        rc = is_written(store, req, &req->object);
        rc = rc ? rc : is_written(store, req, &req->with_object);
    }
    rc = rc ? rc : dir_check_broken(store, path, &req->diag);
    return rc ? rc : dir_at_open(store, path, &ret->at, &req->diag);
}

/* Exchanges the two names. If only the new one is there, it is renamed instead. */
static int trade_names(struct dir_store *store, struct trade *trade, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    struct vfs_stat stat;
    struct diag why = DIAG_INIT;
    int rc = dir_stat_file(store, &trade->at, trade->with, &stat, diag);
    if (rc != 0) {
        return rc;
    }
    rc = dir_stat_file(store, &trade->at, trade->name, &stat, &why);
    if (rc != 0 && rc != CAIRN_E_NOT_FOUND) {
        return diag_set(diag, rc, "%s", diag_text(&why, rc));
    }
    int point = FAILPOINT("dir.exchange");
    if (point != 0) {
        return diag_set(diag, point, "%s/%s: fail point dir.exchange", trade->at.path, trade->name);
    }
    return rc == 0
               ? vfs->ops->exchange(vfs, trade->at.fd, trade->name, trade->with, diag)
               : vfs->ops->rename(vfs, trade->at.fd, trade->with, trade->at.fd, trade->name, diag);
}

int dir_op_exchange(struct dir_store *store, struct store_req *req)
{
    struct trade trade;
    int rc = find_trade(store, req, &trade);
    if (rc != 0) {
        return rc;
    }
    rc = trade_names(store, &trade, &req->diag);
    if (rc == 0) {
        struct diag why = DIAG_INIT;
        int sync_rc = dir_sync_now(store, &trade.at, &why); /* L8 */
        if (sync_rc != 0) {
            rc = diag_set(&req->diag, CAIRN_E_OUTCOME_UNKNOWN,
                          "%s/%s was exchanged, but the exchange may not survive a power cut: %s",
                          trade.at.path, trade.name, diag_text(&why, sync_rc));
        }
    }
    dir_at_close(store, &trade.at);
    return rc;
}
