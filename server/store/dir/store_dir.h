/* SPDX-License-Identifier: Apache-2.0
 *
 * store_dir: the directory store. Straight-line blocking code over struct vfs, run on a work pool.
 * It survives the death of the process and of the machine at any moment, and the death of the disk
 * only if the disk does. Layout, and the rules L1 to L28 that it keeps: README.md.
 */
#ifndef CAIRN_STORE_DIR_H
#define CAIRN_STORE_DIR_H

#include "env/vfs.h"
#include "store/store.h"

/* Free bytes that new objects may not use; they are for manifests, records and deletion (L19). */
#define STORE_DIR_RESERVE_BYTES (UINT64_C(256) << 20)

struct store_dir_options {
    struct loop *loop;      /* operations complete on it */
    struct work_pool *pool; /* operations run on it */
    struct vfs *vfs;
    const char *path; /* copied */
    bool create;      /* make the store if there is none: the directory must be absent or empty */
    /* The advice of NO_STORE; NULL says that the path is wrong. */
    const char *remedy;
    bool force_fs; /* accept tmpfs and network file systems ("--single-writer") */
    /* Takes no lock and writes nothing: sees what is published, beside a daemon or without one. */
    bool read_only;
    const struct uuid *expected_uuid; /* NULL accepts any store; another store is STORE_MISMATCH */
    /* Not NULL for salvage: if nothing of the store record is whole and there are runs, the record
     * is made again, with the expected uuid or a new one, and the diag says so. With read_only it
     * is made in memory alone. With NULL such a store is DAMAGED. */
    struct diag *salvaged;
    uint64_t reserve_bytes;  /* used as it is; the daemon's default is STORE_DIR_RESERVE_BYTES */
    unsigned snapshot_every; /* updates of a record between two snapshots; 0 means 64 */
    unsigned copy_after_ms;  /* from an update until its copy; 0 means 100 */
};

/* Opens the store at path. Blocks for the start-up: lock, store record, new epoch, and removal of
 * the temporaries of older epochs. It may be killed at any point and started again. Returns
 * NO_STORE, STORE_LOCKED, STORE_FEATURES, STORE_MISMATCH, UNSUPPORTED (file system), NOT_EMPTY
 * (create), DAMAGED, DENIED or IO. store_close() frees. */
int MUST_USE store_dir_new(const struct store_dir_options *options, struct store **ret,
                           struct diag *diag);

#endif
