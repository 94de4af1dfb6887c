/* SPDX-License-Identifier: Apache-2.0
 *
 * File calls keep their order, so that a sealed object is whole on the medium, and one directory
 * fsync serves all seals that wait for it (L1, L2, L4, L7 to L9); only objects are written and read
 * directly (L17, L23). Method: a vfs in front of the real one that writes down what passes.
 *
 *     test_store_order DIRECTORY
 */
#include "store/store_bed.h"

#include "base/check.h"

#include <pthread.h>
#include <stdio.h>

/* One at a time; the pool's threads write, so under a lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char trace[4096];
    unsigned renames, dir_syncs, hold_until_renames;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct vfs_ops spy_ops;
static struct vfs spy = {.ops = &spy_ops};

static void note(const char *what)
{
    pthread_mutex_lock(&seen.lock);
    size_t bytes = strlen(seen.trace);
    snprintf(seen.trace + bytes, sizeof(seen.trace) - bytes, "%s ", what);
    pthread_mutex_unlock(&seen.lock);
}

static int spy_open(struct vfs *vfs, vfs_fd dir, const char *name, unsigned flags, vfs_fd *ret,
                    struct diag *diag)
{
    if (flags & VFS_DIRECT) {
        note("direct");
    }
    if (flags & VFS_CREATE_EXCL) {
        note(strncmp(name, ".tmp-", 5) == 0 ? "create" : "CREATE-IN-PLACE");
    }
    return vfs_posix()->ops->open(vfs_posix(), dir, name, flags, ret, diag);
}

static int spy_pwrite(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, const void *data,
                      struct diag *diag)
{
    note("write");
    return vfs_posix()->ops->pwrite(vfs_posix(), fd, offset, bytes, data, diag);
}

static int spy_allocate(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag)
{
    note("allocate");
    return vfs_posix()->ops->allocate(vfs_posix(), fd, bytes, diag);
}

static int spy_fsync(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    struct vfs_stat stat;
    int rc = vfs_posix()->ops->fstat(vfs_posix(), fd, &stat, diag);
    if (rc != 0 || stat.kind != VFS_DIR) {
        note("fsync");
        return rc ? rc : vfs_posix()->ops->fsync(vfs_posix(), fd, diag);
    }
    note("fsync-dir");
    pthread_mutex_lock(&seen.lock);
    seen.dir_syncs++;
    while (seen.renames < seen.hold_until_renames) {
        pthread_cond_wait(&seen.changed, &seen.lock);
    }
    pthread_mutex_unlock(&seen.lock);
    return vfs_posix()->ops->fsync(vfs_posix(), fd, diag);
}

static int spy_rename(struct vfs *vfs, vfs_fd from_dir, const char *from, vfs_fd to_dir,
                      const char *to, struct diag *diag)
{
    note("rename");
    int rc = vfs_posix()->ops->rename(vfs_posix(), from_dir, from, to_dir, to, diag);
    pthread_mutex_lock(&seen.lock);
    seen.renames++;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
    return rc;
}

static void setup(struct bed *bed)
{
    bed_init(bed, BED_DIR, unit_test_argument(1), 1);
    spy_ops = *vfs_posix()->ops;
    spy_ops.open = spy_open;
    spy_ops.pwrite = spy_pwrite;
    spy_ops.allocate = spy_allocate;
    spy_ops.fsync = spy_fsync;
    spy_ops.rename = spy_rename;
    bed->vfs = &spy;
    bed_open_ok(bed);
}

static void forget(void)
{
    seen.trace[0] = 0;
    seen.renames = seen.dir_syncs = seen.hold_until_renames = 0;
}

#define BED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

BED_TEST(an_object_is_made_in_order)
{
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 8192, 1), 0);
    forget(); /* the directories are there now */
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 2), 8192, 1), 0);
    assert_string_equal(seen.trace, "direct create allocate write fsync rename fsync-dir ");
    forget();
    assert_int_equal(bed_check_object(bed, bed_object(5, 0, 2), 8192, 1), 0);
    assert_string_equal(seen.trace, "direct ");
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 0, 1), 100, 1), 0);
    forget();
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 1, 1), 100, 1), 0);
    assert_string_equal(seen.trace, "create write fsync rename fsync-dir ");
}

/* Goal: the first write of a save waits for no fsync, and the first seal for that of the folder's
 * own name, before it gives the object's. Method: the calls of two objects of a new step. */
BED_TEST(a_new_folder_is_synced_by_the_first_seal)
{
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 8192, 1), 0);
    forget(); /* the folder of all steps is durable now, that of step 6 is not there */
    assert_int_equal(bed_create(bed, bed_object(6, 0, 1), 4096), 0);
    assert_int_equal(bed_create(bed, bed_object(6, 1, 1), 4096), 0);
    assert_int_equal(bed_write(bed, bed_object(6, 0, 1), 0, 4096, 1), 0);
    assert_string_equal(seen.trace, "direct create allocate direct create allocate write ");
    forget();
    assert_int_equal(bed_seal(bed, bed_object(6, 0, 1)), 0);
    assert_string_equal(seen.trace, "fsync fsync-dir rename fsync-dir ");
    assert_int_equal(bed_write(bed, bed_object(6, 1, 1), 0, 4096, 1), 0);
    forget();
    assert_int_equal(bed_seal(bed, bed_object(6, 1, 1)), 0);
    assert_string_equal(seen.trace, "fsync rename fsync-dir ");
}

BED_TEST(an_update_is_published_like_any_object)
{
    assert_int_equal(bed_set(bed, "k", "v"), 0);
    forget();
    assert_int_equal(bed_set(bed, "k", "v"), 0);
    assert_string_equal(seen.trace, "create write fsync rename fsync-dir ");
}

/* Goal (L9): three seals that come during a directory fsync share the next one. Method: the first
 * directory fsync is held until all four have renamed. */
BED_TEST(seals_share_a_directory_fsync)
{
    enum { COUNT = 4 }; /* as many as the pool has threads */
    struct store_req reqs[COUNT];
    assert_int_equal(bed_put_object(bed, bed_object(5, COUNT, 1), 4096, 1), 0); /* the folder */
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(bed_create(bed, bed_object(5, i, 1), 4096), 0);
        assert_int_equal(bed_write(bed, bed_object(5, i, 1), 0, 4096, i), 0);
        reqs[i] =
            (struct store_req){.op = STORE_SEAL, .run = bed_run(), .object = bed_object(5, i, 1)};
    }
    forget();
    seen.hold_until_renames = COUNT;
    bed_do_all(bed, COUNT, reqs);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(reqs[i].status, 0);
        assert_int_equal(bed_check_object(bed, bed_object(5, i, 1), 4096, i), 0);
    }
    assert_int_equal(seen.dir_syncs, 2);
    forget();
}
