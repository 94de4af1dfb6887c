/* SPDX-License-Identifier: Apache-2.0
 *
 * Removes at a start the temporaries of this and older epochs, and empty directories of
 * checkpoints. It only removes, in any order, so it may be killed and begun again at any point
 * (L21). A run whose folders cannot be read keeps its temporaries, and the other runs are served.
 * Runs once, under the store's lock, before the first operation.
 */
#include "dir_private.h"

#include "base/failpoint.h"

#include <stdio.h>
#include <stdlib.h>

/* Opens a directory and lists it. Returns CAIRN_E_NOT_FOUND, without a text, if it is missing. */
static int open_and_list(struct dir_store *store, const char *path, struct dir_at *ret_at,
                         struct dir_entries *ret, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int rc = dir_at_open(store, path, ret_at, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return rc; /* this is no failure to the callers */
    }
    if (rc != 0) {
        return diag_copy(diag, &why);
    }
    rc = dir_entries_list(store, ret_at, ret, diag);
    if (rc != 0) {
        dir_at_close(store, ret_at);
    }
    return rc;
}

/* Removes the temporaries of one directory. *ret_left is the number of entries that stay. */
static int sweep_folder(struct dir_store *store, const char *path, size_t *ret_left,
                        struct diag *diag)
{
    struct dir_at at;
    struct dir_entries entries = {0};
    uint64_t epoch;
    size_t left = 0;
    int rc = open_and_list(store, path, &at, &entries, diag);
    if (rc == CAIRN_E_NOT_FOUND) {
        *ret_left = 1;
        return 0;
    }
    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        const struct dir_entry *entry = &entries.entries[i];
        if (entry->kind != VFS_FILE || !dir_name_is_temp(entry->name, &epoch)) {
            left++;
        } else if (epoch > store->base.caps.epoch) {
            left++;
            dir_note(store, "a temporary file belongs to a newer epoch of the store: %.60s/%.40s",
                     path, entry->name);
        } else {
            rc = FAILPOINT("dir.sweep");
            rc = rc ? rc : store->vfs->ops->unlink(store->vfs, at.fd, entry->name, false, diag);
        }
    }
    dir_entries_fini(&entries);
    dir_at_close(store, &at);
    *ret_left = left;
    return rc ? diag_set(diag, rc, "sweep of %s", path) : 0;
}

/* Sweeps runs/p/r/objects or runs/p/r/checkpoints, which have a directory for each checkpoint. */
static int sweep_checkpoints(struct dir_store *store, const char *path, struct diag *diag)
{
    char inner[DIR_PATH_MAX + 260];
    struct dir_at at;
    struct dir_entries entries = {0};
    size_t left = 0;
    int rc = open_and_list(store, path, &at, &entries, diag);
    if (rc != 0) {
        return rc == CAIRN_E_NOT_FOUND ? 0 : rc;
    }
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        int n = snprintf(inner, sizeof(inner), "%s/%s", path, entries.entries[i].name);
        if (entries.entries[i].kind != VFS_DIR || n >= DIR_PATH_MAX) {
            continue; /* not a checkpoint's folder */
        }
        rc = sweep_folder(store, inner, &left, diag);
        if (rc == 0 && left == 0) {
            err_ignore(store->vfs->ops->unlink(store->vfs, at.fd, entries.entries[i].name, true,
                                               NULL)); /* only for tidiness */
        }
    }
    dir_entries_fini(&entries);
    dir_at_close(store, &at);
    return rc;
}

static int sweep_run(struct dir_store *store, const struct run_name *run, struct diag *diag)
{
    char path[DIR_PATH_MAX], copy_path[DIR_PATH_MAX];
    size_t left;
    dir_path_record(run, path);
    dir_path_copy_of(path, copy_path);
    int rc = sweep_folder(store, path, &left, diag);
    rc = rc ? rc : sweep_folder(store, copy_path, &left, diag);
    snprintf(path, sizeof(path), "runs/%s/%s/objects", run->project, run->run);
    rc = rc ? rc : sweep_checkpoints(store, path, diag);
    snprintf(path, sizeof(path), "runs/%s/%s/checkpoints", run->project, run->run);
    return rc ? rc : sweep_checkpoints(store, path, diag);
}

/* Notes a failure in the store's health and goes on: leftovers are no reason not to start. Returns
 * an error only if there is no memory. */
static int pass_over(struct dir_store *store, int status, const struct diag *why, struct diag *diag)
{
    if (status == CAIRN_E_NO_MEMORY) {
        return diag_copy(diag, why);
    }
    if (status != 0) {
        dir_note(store, "%s", diag_text(why, status));
    }
    return 0;
}

int dir_sweep(struct dir_store *store, struct diag *diag)
{
    struct dir_names names = {0};
    struct diag why = DIAG_INIT;
    size_t left;
    int rc = sweep_folder(store, "store", &left, &why);
    rc = rc ? rc : sweep_folder(store, "copy/store", &left, &why);
    rc = pass_over(store, rc, &why, diag);
    diag_clear(&why);
    rc = rc ? rc : pass_over(store, dir_names_list(store, &names, &why), &why, diag);
    for (size_t i = 0; rc == 0 && i < names.count; i++) {
        diag_clear(&why);
        rc = pass_over(store, sweep_run(store, &names.names[i], &why), &why, diag);
    }
    free(names.names);
    return rc;
}

/* Finds nothing: a start removes temporaries of older epochs, and those of this epoch are removed
 * with their object. */
int dir_op_sweep(struct dir_store *store, struct store_req *req)
{
    (void)store;
    req->ret_count = 0;
    return 0;
}
