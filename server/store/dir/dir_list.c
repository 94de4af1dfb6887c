/* SPDX-License-Identifier: Apache-2.0
 *
 * What is stored, for garbage collection: the checkpoints of a run that have anything, and the
 * small things of one of them. Temporaries are not seen: they go with their writer or at the next
 * start.
 */
#include "dir_private.h"

#include "base/check.h"
#include "store/store_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nothing there is an empty list. */
static int list_folder(struct dir_store *store, const char *path, struct dir_entries *ret,
                       struct diag *diag)
{
    struct diag why = DIAG_INIT;
    struct dir_at at;
    int rc = dir_at_open(store, path, &at, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return 0;
    }
    if (rc == 0) {
        rc = dir_entries_list(store, &at, ret, &why);
        dir_at_close(store, &at);
    }
    return rc == 0 ? 0 : diag_copy(diag, &why);
}

/* --- small things ----------------------------------------------------------------------------- */

int dir_op_list_small(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX];
    struct dir_entries entries = {0};
    dir_path_checkpoint(&req->run, req->id, path);
    int rc = list_folder(store, path, &entries, &req->diag);
    if (rc != 0) {
        return rc;
    }
    struct store_name *list = calloc(entries.count + 1, sizeof(*list));
    size_t count = 0;
    for (size_t i = 0; list != NULL && i < entries.count; i++) {
        struct store_name name = {.run = req->run, .id = req->id};
        if (entries.entries[i].kind == VFS_FILE &&
            dir_parse_small(entries.entries[i].name, &name)) {
            list[count++] = name;
        }
    }
    dir_entries_fini(&entries);
    if (list == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of small things");
    }
    qsort(list, count, sizeof(*list), store_order_smalls);
    req->ret_smalls = list;
    req->ret_count = count;
    return 0;
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static size_t add_ckpts(const struct dir_entries *entries, size_t count, struct ckpt_id *list)
{
    for (size_t i = 0; i < entries->count; i++) {
        struct ckpt_id id;
        if (entries->entries[i].kind == VFS_DIR && dir_parse_ckpt(entries->entries[i].name, &id)) {
            list[count++] = id;
        }
    }
    return count;
}

/* A checkpoint that has parts and objects has two folders. */
int dir_op_list_ckpts(struct dir_store *store, struct store_req *req)
{
    static const char *const folders[] = {"objects", "checkpoints"};
    struct dir_entries entries[ARRAY_LEN(folders)] = {{0}};
    char path[DIR_PATH_MAX];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(folders); i++) {
        int n = snprintf(path, sizeof(path), "runs/%s/%s/%s", req->run.project, req->run.run,
                         folders[i]);
        CHECK(n > 0 && n < DIR_PATH_MAX);
        rc = list_folder(store, path, &entries[i], &req->diag);
    }
    struct ckpt_id *list =
        rc == 0 ? calloc(entries[0].count + entries[1].count + 1, sizeof(*list)) : NULL;
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        count = list != NULL ? add_ckpts(&entries[i], count, list) : 0;
        dir_entries_fini(&entries[i]);
    }
    if (rc == 0 && list == NULL) {
        rc = diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of checkpoints");
    }
    if (rc != 0) {
        return rc;
    }
    qsort(list, count, sizeof(*list), store_order_ckpts);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || !ckpt_id_equal(list[kept - 1], list[i])) {
            list[kept++] = list[i];
        }
    }
    req->ret_ckpts = list;
    req->ret_count = kept;
    return 0;
}
