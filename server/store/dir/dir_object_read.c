/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealed objects: read, stat, list, delete. Invariant: a read gives exactly the bytes asked for, or
 * an error. Reads are direct: the pages of a checkpoint would only push the trainer's own pages out
 * of the cache, and a check must read the disk (L17, L23). An unaligned range, or only its
 * unaligned end, which an encoded chunk may have anywhere, goes through an aligned buffer.
 */
#include "dir_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <stdlib.h>
#include <string.h>

enum { BOUNCE_BYTES = 256 << 10 };

/* An object, found by its name. */
struct place {
    struct dir_at at;
    char name[DIR_NAME_MAX];
    struct vfs_stat stat;
};

static int not_here(struct store_req *req, const char *path, const char *name)
{
    return diag_set(&req->diag, CAIRN_E_NOT_FOUND, "object %s/%s is not in the store", path, name);
}

/* Finds the file of a sealed object and opens its directory. The caller closes it. */
static int find_place(struct dir_store *store, struct store_req *req, struct place *ret)
{
    char path[DIR_PATH_MAX];
    struct diag why = DIAG_INIT;
    struct ckpt_id id = {req->object.term, req->object.step};
    dir_path_objects(&req->run, id, path);
    dir_name_object(&req->object, ret->name);
    if (dir_object_is_open(store, &req->run, &req->object)) {
        return not_here(req, path, ret->name);
    }
    int rc = dir_at_open(store, path, &ret->at, &why);
    if (rc == 0) {
        rc = dir_stat_file(store, &ret->at, ret->name, &ret->stat, &why);
        if (rc != 0) {
            dir_at_close(store, &ret->at);
        }
    }
    if (rc == CAIRN_E_NOT_FOUND) {
        return not_here(req, path, ret->name);
    }
    return rc == 0 ? 0 : diag_copy(&req->diag, &why);
}

/* --- read ------------------------------------------------------------------------------------- */

static int read_exactly(struct dir_store *store, vfs_fd fd, uint64_t offset, size_t bytes,
                        void *data)
{
    size_t got = 0;
    int rc = store->vfs->ops->pread(store->vfs, fd, offset, bytes, data, &got, NULL);
    return rc ? rc : got == bytes ? 0 : CAIRN_E_DAMAGED;
}

/* Reads through an aligned buffer, one slice at a time. The last slice may end with the file. */
static int read_bounced(struct dir_store *store, vfs_fd fd, uint64_t from_byte,
                        const struct store_req *req)
{
    uint8_t *bounce = aligned_alloc(LIMIT_ALIGN_BYTES, BOUNCE_BYTES);
    uint64_t at = from_byte, end = req->offset + req->bytes;
    int rc = bounce != NULL ? 0 : CAIRN_E_NO_MEMORY;
    while (rc == 0 && at < end) {
        uint64_t from = at / LIMIT_ALIGN_BYTES * LIMIT_ALIGN_BYTES;
        uint64_t to = min_u64(round_up_u64(end, LIMIT_ALIGN_BYTES), from + BOUNCE_BYTES);
        uint64_t wanted = min_u64(end, to) - at;
        size_t got = 0;
        rc = store->vfs->ops->pread(store->vfs, fd, from, to - from, bounce, &got, NULL);
        if (rc == 0 && got < at - from + wanted) {
            rc = CAIRN_E_DAMAGED;
        }
        if (rc == 0) {
            memcpy((uint8_t *)req->data + (at - req->offset), bounce + (at - from), wanted);
            at += wanted;
        }
    }
    free(bounce);
    return rc;
}

/* Reads the range: past the page cache as far as it is aligned, the rest through an aligned buffer.
 */
static int read_once(struct dir_store *store, const struct place *place,
                     const struct store_req *req, struct diag *diag)
{
    vfs_fd fd;
    int rc = FAILPOINT("dir.read");
    rc = rc ? rc
            : store->vfs->ops->open(store->vfs, place->at.fd, place->name, VFS_READ | VFS_DIRECT,
                                    &fd, diag);
    if (rc != 0) {
        return rc;
    }
    bool begins_aligned = ((uintptr_t)req->data | req->offset) % LIMIT_ALIGN_BYTES == 0;
    size_t whole = begins_aligned ? req->bytes / LIMIT_ALIGN_BYTES * LIMIT_ALIGN_BYTES : 0;
    if (!store->vfs->ops->is_direct(store->vfs, fd)) {
        whole = req->bytes;
    }
    if (whole > 0) {
        rc = read_exactly(store, fd, req->offset, whole, req->data);
    }
    if (rc == 0 && whole < req->bytes) {
        rc = read_bounced(store, fd, req->offset + whole, req);
    }
    err_ignore(store->vfs->ops->close(store->vfs, fd, NULL)); /* nothing was written through it */
    return rc;
}

int dir_op_read(struct dir_store *store, struct store_req *req)
{
    struct place place;
    uint64_t end;
    int rc = find_place(store, req, &place);
    if (rc != 0) {
        return rc;
    }
    if (!add_u64(req->offset, req->bytes, &end) || end > place.stat.bytes ||
        (req->to_end && end != place.stat.bytes)) {
        rc = diag_set(&req->diag, CAIRN_E_DAMAGED,
                      "object %s/%s has %llu bytes, but %llu bytes at %llu were requested",
                      place.at.path, place.name, (unsigned long long)place.stat.bytes,
                      (unsigned long long)req->bytes, (unsigned long long)req->offset);
    } else if (req->bytes > 0) {
        rc = read_once(store, &place, req, NULL);
        rc = rc == CAIRN_E_IO ? read_once(store, &place, req, NULL)
                              : rc; /* L22: once more, with a fresh descriptor */
        if (rc != 0) {
            diag_set(&req->diag, rc, "cannot read %llu bytes at %llu of object %s/%s: %s",
                     (unsigned long long)req->bytes, (unsigned long long)req->offset, place.at.path,
                     place.name, err_text(rc));
        }
    }
    dir_at_close(store, &place.at);
    return rc;
}

int dir_op_stat(struct dir_store *store, struct store_req *req)
{
    struct place place;
    int rc = find_place(store, req, &place);
    if (rc != 0) {
        return rc;
    }
    rc = dir_sync_once(store, &place.at, &req->diag); /* L11: the caller may rely on it */
    dir_at_close(store, &place.at);
    if (rc == 0) {
        req->ret_bytes = place.stat.bytes;
    }
    return rc;
}

/* --- list, delete ----------------------------------------------------------------------------- */

/* Fills the list of req with the entries that are sealed objects. */
static int pick_objects(struct dir_store *store, struct store_req *req,
                        const struct dir_entries *entries)
{
    struct object_id *list = calloc(entries->count + 1, sizeof(*list));
    if (list == NULL) {
        return diag_no_memory(&req->diag, "a list of %zu objects", entries->count);
    }
    size_t count = 0;
    for (size_t i = 0; i < entries->count; i++) {
        struct object_id id = {.term = req->id.term, .step = req->id.step};
        if (!dir_parse_object(entries->entries[i].name, &id) ||
            dir_object_is_open(store, &req->run, &id)) {
            continue;
        }
        if (entries->entries[i].kind != VFS_FILE) {
            free(list);
            return diag_set(&req->diag, CAIRN_E_DAMAGED,
                            "%s of step %llu is not a regular file; remove it",
                            entries->entries[i].name, (unsigned long long)req->id.step);
        }
        list[count++] = id;
    }
    qsort(list, count, sizeof(*list), object_id_order);
    req->ret_objects = list;
    req->ret_count = count;
    return 0;
}

int dir_op_list_objects(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX];
    struct dir_at at;
    struct dir_entries entries = {0};
    struct diag why = DIAG_INIT;
    dir_path_objects(&req->run, req->id, path);
    int rc = dir_at_open(store, path, &at, &why);
    if (rc == 0) {
        rc = dir_entries_list(store, &at, &entries, &why);
        dir_at_close(store, &at);
    } else if (rc == CAIRN_E_NOT_FOUND) {
        rc = 0;
    }
    if (rc != 0) {
        return diag_copy(&req->diag, &why);
    }
    rc = pick_objects(store, req, &entries);
    dir_entries_fini(&entries);
    return rc;
}

int dir_op_delete_object(struct dir_store *store, struct store_req *req)
{
    struct place place;
    int rc = find_place(store, req, &place);
    if (rc != 0) {
        return rc;
    }
    dir_at_close(store, &place.at);
    return dir_remove_file(store, &req->run, place.at.path, place.name, &req->diag);
}
