/* SPDX-License-Identifier: Apache-2.0
 *
 * store_dir: the directory store. Straight-line blocking code over struct vfs, run on a work pool;
 * it survives the death of the process and of the machine at any moment, and the death of the disk
 * only if the disk does. Layout, and the rules L1 to L28 that it keeps: README.md.
 */
#ifndef CAIRN_STORE_DIR_H
#define CAIRN_STORE_DIR_H

#include "env/vfs.h"
#include "store/store.h"

/* Free bytes that new objects may not use, for manifests, records and deletion (L19). */
#define STORE_DIR_RESERVE_BYTES (UINT64_C(256) << 20)

struct store_dir_options {
    struct loop *loop;      /* where operations complete */
    struct work_pool *pool; /* runs them */
    struct vfs *vfs;
    const char *path; /* copied */
    bool create; /* make the store where there is none: the directory must be absent or empty */
    const char *remedy; /* where there is none; NULL: the path is wrong */
    bool force_fs;      /* accept tmpfs and network file systems ("--single-writer") */
    bool read_only; /* no lock, no write at all: sees what is published, beside a daemon or without
                       one */
    const struct uuid *expected_uuid; /* NULL: any; otherwise another store is STORE_MISMATCH */
    /* For salvage: a store record of which nothing whole is left is made again where runs are, with
     * the expected uuid or a new one (read_only: in memory), and this says so. NULL: DAMAGED. */
    struct diag *salvaged;
    uint64_t reserve_bytes;  /* used as it is; the daemon's default is STORE_DIR_RESERVE_BYTES */
    unsigned snapshot_every; /* updates of a record between snapshots; 0: 64 */
    unsigned copy_after_ms;  /* from an update until it is in the second place too; 0: 100 */
};

/* Opens the store at path. Blocks the caller for the start-up: lock, store record, new epoch,
 * removal of older epochs' temporaries; may be killed at any point and started again. NO_STORE,
 * STORE_LOCKED, STORE_FEATURES, STORE_MISMATCH, UNSUPPORTED (file system), NOT_EMPTY (create),
 * DAMAGED, DENIED, IO. store_close() frees. */
int MUST_USE store_dir_new(const struct store_dir_options *options, struct store **ret,
                           struct diag *diag);

#endif
