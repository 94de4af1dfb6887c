/* SPDX-License-Identifier: Apache-2.0
 *
 * store_bed: a store of any kind under test, on a real loop and pool or in the simulated world, and
 * blocking forms of its operations. Opening again is a restart; what survives it is the kind's
 * medium.
 */
#ifndef CAIRN_TEST_STORE_BED_H
#define CAIRN_TEST_STORE_BED_H

#include "env/loop.h"
#include "env/vfs.h"
#include "env/work.h"
#include "sim/env/sim.h"
#include "store/dir/store_dir.h"
#include "store/rados/store_rados.h"
#include "store/store.h"
#include "support/cluster_fake.h"
#include "support/store_fault.h"
#include "support/store_memory.h"
#include "support/unit_test.h"

enum bed_kind { BED_MEMORY, BED_DIR, BED_DIR_SIM, BED_RADOS, BED_CEPH };

struct bed {
    enum bed_kind kind;
    struct loop *loop;
    struct work_pool *pool;
    struct vfs *vfs;
    struct store *store; /* NULL while closed */
    struct memory_medium *medium;
    struct fake_medium *cluster; /* BED_RADOS */
    char space[64];              /* BED_CEPH */
    char path[512];              /* of the directory store */
    struct sim *sim;
    struct sim_host *host;
    struct sim_disk *disk;
    uint64_t reserve_bytes; /* options of the next open */
    unsigned snapshot_every;
    unsigned copy_after_ms; /* on a real disk not before the end, so that tests have one order */
    const struct uuid *expected_uuid;
    const char *data_pool; /* BED_RADOS: by its name */
    struct diag *salvaged; /* BED_RADOS: a store's record that is lost is made again */
    bool is_not_forced;    /* without force_fs */
};

/* "memory", "dir", "dir-sim", "rados" (a fake cluster) or "ceph" (the cluster that CEPH_CONF names,
 * in a namespace of its own). */
enum bed_kind bed_kind_parse(const char *name);
/* parent: where a directory store is made (a new directory in it); "" for $TMPDIR or /tmp. */
void bed_init(struct bed *bed, enum bed_kind kind, const char *parent, uint64_t seed);
/* Closes the store if it is open and removes everything. */
void bed_fini(struct bed *bed);
/* Removes a file, or a folder with all that is below it; false when it cannot. */
bool bed_remove(const char *path);
/* cmocka's: *state is a bed of its own, with a store on a fake cluster that is open. */
void bed_setup_rados(struct bed *bed);
/* cmocka's: ends a bed that was allocated, whoever set it up. */
int bed_open(struct bed *bed, bool create, bool read_only, struct diag *diag);
void bed_open_ok(struct bed *bed); /* open, made if missing; fails the test when it cannot */
void bed_close(struct bed *bed);
void bed_reopen(struct bed *bed);
/* BED_DIR_SIM: the process dies, the machine too (lose_all: the worst legal loss), a new one
 * starts. The store is left closed. */
void bed_crash(struct bed *bed, bool lose_all);
/* BED_DIR_SIM: only the process dies; what it wrote is still in the machine's cache. */
void bed_kill(struct bed *bed);

/* Submits and runs the loop until the request is done; returns its status. */
int bed_do(struct bed *bed, struct store_req *req);
/* The same for several at once. */
void bed_do_all(struct bed *bed, size_t count, struct store_req *reqs);

/* --- operations on the run "p/r", checkpoint (1, step) ---------------------------------------- */

struct run_name bed_run(void);
struct object_id bed_object(uint64_t step, uint32_t rank, uint32_t sequence);
struct store_name bed_name(uint64_t step, enum store_kind kind, uint32_t number, uint64_t tag);
/* bytes of a pattern that depends on seed; aligned; free() it. */
uint8_t *bed_bytes(size_t bytes, unsigned seed);

int bed_create(struct bed *bed, struct object_id id, uint64_t bytes_max);
int bed_write(struct bed *bed, struct object_id id, uint64_t offset, size_t bytes, unsigned seed);
int bed_seal(struct bed *bed, struct object_id id);
int bed_abort(struct bed *bed, struct object_id id);
int bed_stat(struct bed *bed, struct object_id id, uint64_t *ret_bytes);
int bed_read(struct bed *bed, struct object_id id, uint64_t offset, size_t bytes, void *data);
/* The same where the object must end with the range. */
int bed_read_to_end(struct bed *bed, struct object_id id, uint64_t offset, size_t bytes,
                    void *data);
int bed_delete(struct bed *bed, struct object_id id);
/* Creates, writes and seals `bytes` of pattern `seed`; the first failure, after an abort. */
int bed_put_object(struct bed *bed, struct object_id id, size_t bytes, unsigned seed);
/* 0 when the object is there and whole; NOT_FOUND; anything else is wrong. */
int bed_check_object(struct bed *bed, struct object_id id, size_t bytes, unsigned seed);
size_t bed_count_objects(struct bed *bed, uint64_t step); /* fails the test when it cannot */

int bed_publish(struct bed *bed, struct store_name name, size_t bytes, unsigned seed);
/* 0 when it is there with this content; DIGEST_MISMATCH with another; NOT_FOUND ... */
int bed_check_small(struct bed *bed, struct store_name name, size_t bytes, unsigned seed);
int bed_delete_small(struct bed *bed, struct store_name name);

/* Sets key to value (a string; NULL removes), guarded by key's present value (NULL: absent) if
 * is_guarded. */
struct bed_change {
    const char *key, *value;
    bool is_guarded;
    const char *was;
};
int bed_update(struct bed *bed, const struct bed_change *change, uint64_t *ret_version);
/* The same without a guard. */
int bed_set(struct bed *bed, const char *key, const char *value);
/* Sets key to the number, which must succeed. */
void bed_number(struct bed *bed, const char *key, unsigned number);
/* The record of p/r; the caller frees it. */
int bed_record(struct bed *bed, struct record **ret);
/* Does the record hold key with this value (NULL: not hold it)? Fails the test if it cannot be
 * read. */
bool bed_has(struct bed *bed, const char *key, const char *value);
uint64_t bed_version(struct bed *bed); /* of the record; fails the test if it cannot be read */

#endif
