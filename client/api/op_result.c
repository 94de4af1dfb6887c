/* SPDX-License-Identifier: Apache-2.0
 *
 * What an op shows of its progress and, once it is done, of its results: numbers, restored blobs,
 * metadata, and names that were missing or unexpected. Memory that it lends stays valid until the
 * op is freed. Any thread.
 */
#include "api_private.h"

#include <stdio.h>
#include <string.h>

static bool is_forked(const struct cairn_op *op) { return op->generation != fork_generation(); }

/* Returns 0 for a restore that has succeeded, else its error, or AGAIN while it runs. INVALID if
 * this is no restore. */
static int restore_check(struct cairn_op *op, struct diag *diag)
{
    if (op == NULL || (!is_forked(op) && op->is_save)) {
        return diag_set(diag, CAIRN_E_INVALID, "this operation is not a restore");
    }
    if (is_forked(op)) {
        return diag_set(diag, CAIRN_E_FORKED,
                        "this operation was started before fork() and belongs to the parent "
                        "process; wait for it there");
    }
    return op_wait(op, CAIRN_DONE, 0, diag);
}

void cairn_op_progress(const cairn_op_t *op, struct cairn_progress *io)
{
    struct cairn_progress progress = CAIRN_PROGRESS_INIT;
    if (op == NULL || io == NULL) {
        return;
    }
    if (op->is_save) {
        const struct engine_save *save = &op->u.save;
        progress.total_bytes = atomic_load(&save->total_bytes);
        progress.staged_bytes = atomic_load(&save->staged_bytes);
        progress.sent_bytes = atomic_load(&save->sent_bytes);
        progress.durable_bytes = atomic_load(&save->durable_bytes);
    } else {
        const struct engine_restore *restore = &op->u.restore;
        progress.total_bytes = atomic_load(&restore->total_bytes);
        progress.staged_bytes = atomic_load(&restore->done_bytes);
        progress.sent_bytes = progress.durable_bytes = progress.staged_bytes;
    }
    args_give(sizeof progress, &progress, io);
}

int cairn_op_result(cairn_op_t *op, struct cairn_result *io, struct cairn_error *err)
{
    struct diag diag = DIAG_INIT;
    struct cairn_result result = CAIRN_RESULT_INIT;
    if (op == NULL || io == NULL) {
        return error_fill(err, diag_set(&diag, CAIRN_E_INVALID, "the argument op or io is NULL"),
                          &diag);
    }
    if (is_forked(op)) {
        return error_fill(err,
                          diag_set(&diag, CAIRN_E_FORKED,
                                   "this operation was started before fork() and belongs to the "
                                   "parent process; wait for it there"),
                          &diag);
    }
    int rc = op_wait(op, CAIRN_DONE, 0, &diag);
    if (rc == 0) {
        const struct ckpt_id id = op->is_save ? op->u.save.id : op->u.restore.id;
        result.term = id.term;
        result.step = id.step;
        result.blocked_ns = op->blocked_ns;
        if (op->is_save) {
            result.new_lineage = op->u.save.new_lineage;
            result.plain_bytes = atomic_load(&op->u.save.total_bytes);
            result.stored_bytes = atomic_load(&op->u.save.stored_bytes);
        } else {
            result.fell_back = op->u.restore.fell_back;
            result.plain_bytes = atomic_load(&op->u.restore.total_bytes);
            result.stored_bytes = atomic_load(&op->u.restore.done_bytes);
        }
        args_give(sizeof result, &result, io);
    }
    return error_fill(err, rc, &diag);
}

int cairn_op_run_is_empty(cairn_op_t *op)
{
    return restore_check(op, NULL) == CAIRN_E_NOT_FOUND && op->u.restore.empty;
}

int cairn_op_blob(cairn_op_t *op, const char *name, const char *coordinate, const void **ret,
                  size_t *ret_bytes)
{
    int rc = restore_check(op, NULL);
    if (rc != 0) {
        return rc;
    }
    if (name == NULL || ret == NULL || ret_bytes == NULL) {
        return CAIRN_E_INVALID;
    }
    char own[32];
    int length = snprintf(own, sizeof own, "rank=%u", op->set->rank);
    CHECK(length > 0);
    for (size_t i = 0; i < op->u.restore.blobs.count; i++) {
        const struct restored_blob *blob = &op->u.restore.blobs.items[i];
        bool here = coordinate != NULL
                        ? strcmp(blob->coordinate, coordinate) == 0
                        : blob->coordinate[0] == '\0' || strcmp(blob->coordinate, own) == 0;
        if (here && strcmp(blob->name, name) == 0) {
            *ret = blob->data;
            *ret_bytes = blob->bytes;
            return 0;
        }
    }
    return CAIRN_E_NOT_FOUND;
}

int cairn_op_metadata(cairn_op_t *op, const void **ret, size_t *ret_bytes)
{
    int rc = restore_check(op, NULL);
    if (rc == 0 && (ret == NULL || ret_bytes == NULL)) {
        rc = CAIRN_E_INVALID;
    }
    if (rc == 0 && manifest_is_remade(&op->u.restore.manifest)) {
        rc = CAIRN_E_DAMAGED; /* it is not known whether it had any */
    }
    if (rc == 0) {
        *ret = op->u.restore.manifest.metadata;
        *ret_bytes = op->u.restore.manifest.metadata_bytes;
    }
    return rc;
}

/* Copies the idx-th of `count` entries into the caller's struct. NOT_FOUND past the end. */
static int give_entry(size_t count, const struct index_entry *entries, size_t idx,
                      struct cairn_local *io)
{
    if (!io) {
        return CAIRN_E_INVALID;
    }
    if (idx >= count) {
        return CAIRN_E_NOT_FOUND;
    }
    const struct index_entry *entry = &entries[idx];
    struct cairn_local local = {.size = io->size,
                                .name = entry->name,
                                .coordinate = entry->coordinate,
                                .plain_bytes = entry->plain_bytes};
    if (entry->kind == INDEX_BLOB) {
        local.kind = (int)entry->blob_kind;
    } else {
        local.dtype = (int)entry->dtype;
        local.ndim = entry->shape.ndim;
        CHECK(local.ndim <= ARRAY_LEN(local.shape));
        memcpy(local.shape, entry->shape.length, local.ndim * sizeof local.shape[0]);
    }
    args_give(sizeof local, &local, io);
    return 0;
}

int cairn_op_local(cairn_op_t *op, size_t idx, struct cairn_local *io)
{
    int rc = restore_check(op, NULL);
    return rc != 0 ? rc : give_entry(op->u.restore.local_count, op->u.restore.locals, idx, io);
}

int cairn_op_entry(cairn_op_t *op, size_t idx, struct cairn_local *io)
{
    int rc = restore_check(op, NULL);
    return rc != 0 ? rc : give_entry(op->u.restore.entry_count, op->u.restore.entries, idx, io);
}

const char *cairn_op_warning(cairn_op_t *op)
{
    if (cairn_op_result(op, &(struct cairn_result)CAIRN_RESULT_INIT, NULL) != 0 || !op->is_save ||
        op->u.save.warning.code == 0) {
        return NULL;
    }
    return op->u.save.warning.text;
}

/* Returns whether the op has lists of names; a restore that failed has them too, because they say
 * why. */
static bool has_names(struct cairn_op *op)
{
    int rc = restore_check(op, NULL);
    return rc != CAIRN_E_INVALID && rc != CAIRN_E_FORKED && rc != CAIRN_E_AGAIN;
}

const char *cairn_op_missing(cairn_op_t *op, size_t idx)
{
    return has_names(op) && idx < op->u.restore.missing_count ? op->u.restore.missing[idx] : NULL;
}

const char *cairn_op_unexpected(cairn_op_t *op, size_t idx)
{
    return has_names(op) && idx < op->u.restore.unexpected_count ? op->u.restore.unexpected[idx]
                                                                 : NULL;
}
