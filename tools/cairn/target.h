/* SPDX-License-Identifier: Apache-2.0
 *
 * target: the directory that a restore makes: <dir>.partial while it is written, <dir> once
 * everything in it is on stable storage. Names inside it are ours or checked; nothing is followed
 * or replaced.
 */
#ifndef CAIRN_TOOLS_TARGET_H
#define CAIRN_TOOLS_TARGET_H

#include "base/buf.h"
#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

struct target {
    char path[4000], partial[4096];
    int dir; /* of partial */
};

/* Begins a target beside `path`. Returns NOT_EMPTY if the directory holds something, or EXISTS if a
 * .partial of another restore is there. */
int MUST_USE target_begin(const char *path, struct target *ret, struct diag *diag);
/* Creates a file for writing and reading back. Its name has only letters, digits, '.', '_', '-' and
 * '='; target_name() turns others into '_'. */
int MUST_USE target_create(struct target *target, const char *name, int *ret_fd, struct diag *diag);
struct target_piece {
    const char *name; /* of the file, for errors */
    uint64_t offset;
    size_t bytes;
    const void *data;
};
int MUST_USE target_write(int fd, const struct target_piece *piece, struct diag *diag);
/* fsync and close; the descriptor is gone in any case. `status` is what became of the writes: an
 * error of theirs is returned. */
int MUST_USE target_close(int fd, const char *name, int status, struct diag *diag);
/* Creates, writes and closes a file. */
int MUST_USE target_put(struct target *target, const char *name, const struct buf *buf,
                        struct diag *diag);
void target_name(const char *text, size_t bytes, char *ret);
/* fsync of the directory, rename into place, fsync of the parent. After a failure target_abort()
 * removes what there is; only where the parent could not be synced all of it is in place. */
int MUST_USE target_commit(struct target *target, struct diag *diag);
/* A disk that became full: names it, and what to do. Before target_abort(). */
void target_explain(const struct target *target, int status, struct diag *diag);
/* Removes the files and the .partial. Nothing after a target_commit() that was good. */
void target_abort(struct target *target);

#endif
