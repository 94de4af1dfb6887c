/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists what is stored: all runs; and for garbage collection the checkpoints of a run of which
 * anything is stored, and the small things of one of them. Temporaries are not listed; their writer
 * or the next start removes them. A run is listed if anything of it exists, so that a run whose
 * record was lost can be told from one that never existed.
 */
#include "dir_record_private.h"

#include "base/array.h"
#include "base/check.h"
#include "store/store_order.h"

#include <stdio.h>
#include <stdlib.h>

/* Lists a folder. If it does not exist, the list is empty. */
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
        return diag_no_memory(&req->diag, "a list of small things");
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

/* Makes it durable that folders are gone from this one. Removing does not (a name that a crash
 * brings back is removed again), so a list that has to hold after a crash does. */
static int make_lasting(struct dir_store *store, const char *path, struct diag *diag)
{
    struct dir_at at;
    struct diag why = DIAG_INIT;
    int rc = store->read_only ? CAIRN_E_NOT_FOUND : dir_at_open(store, path, &at, &why);
    if (rc == CAIRN_E_NOT_FOUND) {
        return 0;
    }
    if (rc == 0) {
        rc = dir_sync_now(store, &at, &why);
        dir_at_close(store, &at);
    }
    return rc == 0 ? 0 : diag_copy(diag, &why);
}

/* Lists the checkpoints of a run. A checkpoint that has parts and objects has two folders, and is
 * listed once. */
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
        rc = rc != 0 || !req->lasting ? rc : make_lasting(store, path, &req->diag);
    }
    struct ckpt_id *list =
        rc == 0 ? calloc(entries[0].count + entries[1].count + 1, sizeof(*list)) : NULL;
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        count = list != NULL ? add_ckpts(&entries[i], count, list) : 0;
        dir_entries_fini(&entries[i]);
    }
    if (rc == 0 && list == NULL) {
        rc = diag_no_memory(&req->diag, "a list of checkpoints");
    }
    if (rc != 0) {
        return rc;
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

/* --- runs ------------------------------------------------------------------------------------- */

/* Appends a run to the list. Returns 0 or CAIRN_E_NO_MEMORY. */
static int add_run(struct dir_names *list, const struct run_name *name)
{
    struct run_name *grown = array_room(list->names, list->count, &list->cap, sizeof(*grown));
    if (grown == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    list->names = grown;
    list->names[list->count++] = *name;
    return 0;
}

/* Adds the runs of one project in one tree. */
static int add_project(struct dir_store *store, const char *tree, const char *project,
                       struct dir_names *list, struct diag *diag)
{
    char path[DIR_PATH_MAX];
    struct dir_entries entries = {0};
    struct run_name name;
    int n = snprintf(path, sizeof(path), "%s/%s", tree, project);
    CHECK(n > 0 && n < DIR_PATH_MAX);
    int rc = list_folder(store, path, &entries, diag);
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        if (entries.entries[i].kind == VFS_DIR &&
            run_name_set(project, entries.entries[i].name, &name, NULL) == 0) {
            rc = add_run(list, &name);
        }
    }
    dir_entries_fini(&entries);
    return rc;
}

/* Adds the runs of one tree. The other tree may list a run that this one cannot, so the caller
 * reports an error only if both trees fail. */
static int add_tree(struct dir_store *store, const char *tree, struct dir_names *list,
                    struct diag *diag)
{
    struct dir_entries projects = {0};
    struct run_name name;
    int failed = 0;
    int rc = list_folder(store, tree, &projects, diag);
    for (size_t i = 0; rc == 0 && i < projects.count; i++) {
        const char *project = projects.entries[i].name;
        struct diag why = DIAG_INIT;
        if (projects.entries[i].kind != VFS_DIR || run_name_set(project, "x", &name, NULL) != 0) {
            continue; /* not a project's folder */
        }
        int project_rc = add_project(store, tree, project, list, &why);
        rc = project_rc == CAIRN_E_NO_MEMORY ? project_rc : 0;
        if (project_rc != 0 && failed == 0) {
            failed = diag_copy(diag, &why);
        }
    }
    dir_entries_fini(&projects);
    return rc ? rc : failed;
}

int dir_names_list(struct dir_store *store, struct dir_names *ret, struct diag *diag)
{
    struct dir_names list = {0};
    struct diag why[2] = {DIAG_INIT, DIAG_INIT};
    size_t kept = 0;
    int first = add_tree(store, "runs", &list, &why[0]);
    size_t of_first = list.count;
    int second = first == CAIRN_E_NO_MEMORY ? first : add_tree(store, "copy/runs", &list, &why[1]);
    if (second == CAIRN_E_NO_MEMORY || (first != 0 && list.count == of_first)) {
        free(list.names);
        return diag_set(diag, first ? first : second, "cannot list the runs: %s",
                        diag_text(&why[first == 0], first ? first : second));
    }
    if (first != 0 || second != 0) {
        dir_note(store, "%s", diag_text(&why[first == 0], first ? first : second));
    }
    if (list.count > 0) {
        qsort(list.names, list.count, sizeof(*list.names), run_name_order);
    }
    for (size_t i = 0; i < list.count; i++) {
        if (kept == 0 || !run_name_equal(&list.names[kept - 1], &list.names[i])) {
            list.names[kept++] = list.names[i];
        }
    }
    list.count = kept;
    *ret = list;
    return 0;
}

/* Tells whether the run has a record, a copy of one, or a checkpoint. A run that cannot be examined
 * counts as having something: a request for it gets the error, and the other runs are listed. */
static int has_anything(struct dir_store *store, const struct run_name *run, bool *ret)
{
    static const char *const folders[] = {"objects", "checkpoints"};
    char path[DIR_PATH_MAX];
    dir_path_record(run, path);
    int rc = dir_record_exists(store, path, ret, NULL);
    for (size_t i = 0; rc == 0 && !*ret && i < ARRAY_LEN(folders); i++) {
        struct dir_entries entries = {0};
        struct ckpt_id id;
        int n = snprintf(path, sizeof(path), "runs/%s/%s/%s", run->project, run->run, folders[i]);
        CHECK(n > 0 && n < DIR_PATH_MAX);
        rc = list_folder(store, path, &entries, NULL);
        for (size_t k = 0; k < entries.count; k++) {
            *ret = *ret || (entries.entries[k].kind == VFS_DIR &&
                            dir_parse_ckpt(entries.entries[k].name, &id));
        }
        dir_entries_fini(&entries);
    }
    *ret = *ret || rc != 0;
    return rc == CAIRN_E_NO_MEMORY ? rc : 0;
}

int dir_op_list_runs(struct dir_store *store, struct store_req *req)
{
    struct dir_names list = {0};
    size_t kept = 0;
    int rc = dir_names_list(store, &list, &req->diag);
    for (size_t i = 0; rc == 0 && i < list.count; i++) {
        bool is_there = false;
        rc = has_anything(store, &list.names[i], &is_there);
        if (is_there) {
            list.names[kept++] = list.names[i];
        }
    }
    struct run_name *names = list.names != NULL ? list.names : calloc(1, sizeof(*names));
    if (rc != 0 || names == NULL) {
        free(names);
        return diag_set(&req->diag, rc ? rc : CAIRN_E_NO_MEMORY, "list of runs");
    }
    req->ret_runs = names;
    req->ret_count = kept;
    return 0;
}
