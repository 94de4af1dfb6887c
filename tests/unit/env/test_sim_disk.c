/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated disk loses exactly what a real one may lose. Method: the same small write history
 * and a power loss under many seeds, counting what survived: synced always, unsynced sometimes.
 */
#include <stdio.h>

#include "env_fixture.h"

enum { SEEDS = 400, BYTES = 4096 };

struct machine {
    struct sim *sim;
    struct sim_host *host;
    struct sim_disk *disk;
    struct vfs *vfs;
    vfs_fd dir;
};

static struct machine boot(struct sim *sim, struct sim_disk *disk)
{
    struct machine m = {.sim = sim, .host = sim_host_new(sim, "host", disk)};

    m.disk = sim_host_disk(m.host);
    m.vfs = sim_vfs(m.host);
    assert_int_equal(m.vfs->ops->open_root(m.vfs, "/store", &m.dir, NULL), 0);
    return m;
}

static vfs_fd make(struct machine *m, const char *name, uint8_t fill)
{
    uint8_t data[BYTES];
    vfs_fd fd = -1;

    memset(data, fill, sizeof data);
    assert_int_equal(
        m->vfs->ops->open(m->vfs, m->dir, name, VFS_READ | VFS_WRITE | VFS_CREATE_EXCL, &fd, NULL),
        0);
    assert_int_equal(m->vfs->ops->pwrite(m->vfs, fd, 0, sizeof data, data, NULL), 0);
    return fd;
}

static void sync_fd(struct machine *m, vfs_fd fd)
{
    assert_int_equal(m->vfs->ops->fsync(m->vfs, fd, NULL), 0);
}

static struct machine crash(struct machine *m)
{
    sim_kill(m->host, SIM_SILENT);
    sim_disk_crash(m->disk);
    return boot(m->sim, m->disk);
}

/* How many of the file's sectors hold fill; -1: no such file. */
static int sectors(struct machine *m, const char *name, uint8_t fill)
{
    uint8_t data[BYTES], expected[512];
    size_t bytes = 0;
    vfs_fd fd = -1;
    int count = 0;

    if (m->vfs->ops->open(m->vfs, m->dir, name, VFS_READ, &fd, NULL)) {
        return -1;
    }
    memset(expected, fill, sizeof expected);
    assert_int_equal(m->vfs->ops->pread(m->vfs, fd, 0, sizeof data, data, &bytes, NULL), 0);
    for (size_t at = 0; at + 512 <= bytes; at += 512) {
        count += memcmp(data + at, expected, 512) == 0;
    }
    assert_int_equal(m->vfs->ops->close(m->vfs, fd, NULL), 0);
    return count;
}

TEST(test_a_crash_loses_only_what_was_not_synced)
{
    unsigned lost_entry = 0, kept_entry = 0, lost_data = 0, kept_data = 0, torn = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim *sim = sim_new(seed);
        struct machine m = boot(sim, NULL), after;
        int found;

        sync_fd(&m, make(&m, "synced", 1));
        make(&m, "data-unsynced", 2);
        sync_fd(&m, m.dir);
        sync_fd(&m, make(&m, "entry-unsynced", 3));
        after = crash(&m);
        assert_int_equal(sectors(&after, "synced", 1), 8);
        found = sectors(&after, "data-unsynced", 2);
        assert_true(found >= 0);
        lost_data += found == 0;
        kept_data += found == 8;
        torn += found > 0 && found < 8;
        found = sectors(&after, "entry-unsynced", 3);
        assert_true(found == -1 || found == 8);
        lost_entry += found == -1;
        kept_entry += found == 8;
        sim_free(sim);
    }
    assert_true(lost_entry > SEEDS / 10 && kept_entry > SEEDS / 10);
    assert_true(lost_data > SEEDS / 10 && kept_data > SEEDS / 10);
    assert_true(torn > SEEDS / 50);
}

TEST(test_a_rename_is_kept_or_lost_as_a_whole)
{
    unsigned lost = 0, kept = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim *sim = sim_new(seed);
        struct machine m = boot(sim, NULL), after;
        vfs_fd sub = -1;
        bool is_old, is_new;

        assert_int_equal(m.vfs->ops->mkdir(m.vfs, m.dir, "sub", NULL), 0);
        assert_int_equal(
            m.vfs->ops->open(m.vfs, m.dir, "sub", VFS_READ | VFS_DIRECTORY, &sub, NULL), 0);
        sync_fd(&m, make(&m, "tmp", 1));
        sync_fd(&m, m.dir);
        assert_int_equal(m.vfs->ops->rename(m.vfs, m.dir, "tmp", sub, "final", NULL), 0);
        if (seed % 3 == 0) { /* either directory's fsync takes the whole rename along */
            sync_fd(&m, seed % 2 ? sub : m.dir);
        }
        after = crash(&m);
        is_old = sectors(&after, "tmp", 1) == 8;
        is_new = sectors(&after, "sub/final", 1) == 8;
        assert_true(is_old != is_new);
        if (seed % 3 == 0) {
            assert_true(is_new);
        } else {
            lost += is_old;
            kept += is_new;
        }
        sim_free(sim);
    }
    assert_true(lost > SEEDS / 10 && kept > SEEDS / 10);
}

TEST(test_an_unlink_without_sync_may_come_back)
{
    unsigned back = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim *sim = sim_new(seed);
        struct machine m = boot(sim, NULL), after;

        sync_fd(&m, make(&m, "a", 1));
        sync_fd(&m, make(&m, "b", 1));
        sync_fd(&m, m.dir);
        assert_int_equal(m.vfs->ops->unlink(m.vfs, m.dir, "a", false, NULL), 0);
        sync_fd(&m, m.dir);
        assert_int_equal(m.vfs->ops->unlink(m.vfs, m.dir, "b", false, NULL), 0);
        after = crash(&m);
        assert_int_equal(sectors(&after, "a", 1), -1);
        back += sectors(&after, "b", 1) == 8;
        sim_free(sim);
    }
    assert_true(back > SEEDS / 10 && back < SEEDS);
}

TEST(test_a_killed_process_keeps_the_page_cache_and_loses_its_lock)
{
    struct sim *sim = sim_new(5);
    struct machine m = boot(sim, NULL), next;
    struct vfs_stat st;
    vfs_fd lock = -1, again = -1;

    make(&m, "a", 1);
    assert_int_equal(
        m.vfs->ops->open(m.vfs, m.dir, "lock", VFS_READ | VFS_WRITE | VFS_CREATE, &lock, NULL), 0);
    assert_int_equal(m.vfs->ops->lock(m.vfs, lock, NULL), 0);
    sim_kill(m.host, SIM_RESET);
    assert_int_equal(m.vfs->ops->unlink(m.vfs, m.dir, "a", false, NULL), CAIRN_E_IO);
    assert_int_equal(m.vfs->ops->close(m.vfs, lock, NULL), CAIRN_E_IO);
    next = boot(sim, m.disk);
    assert_int_equal(next.vfs->ops->stat(next.vfs, next.dir, "a", &st, NULL), 0);
    assert_int_equal(sectors(&next, "a", 1), 8); /* no power loss: nothing is lost */
    assert_int_equal(
        next.vfs->ops->open(next.vfs, next.dir, "lock", VFS_READ | VFS_WRITE, &again, NULL), 0);
    assert_int_equal(next.vfs->ops->lock(next.vfs, again, NULL), 0);
    sim_free(sim);
}

TEST(test_a_failed_fsync_loses_the_data_for_good)
{
    unsigned lost = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim *sim = sim_new(seed);
        struct machine m = boot(sim, NULL), after;
        vfs_fd fd = make(&m, "a", 1);

        sync_fd(&m, m.dir);
        sim_disk_fail_next_fsync(m.disk);
        assert_int_equal(m.vfs->ops->fsync(m.vfs, fd, NULL), CAIRN_E_IO);
        sync_fd(&m, fd); /* says yes, as kernels do */
        after = crash(&m);
        lost += sectors(&after, "a", 1) == 0;
        sim_free(sim);
    }
    assert_int_equal(lost, SEEDS);
}

TEST(test_planned_failures)
{
    struct sim *sim = sim_new(9);
    struct machine m = boot(sim, NULL);
    uint64_t bytes = 0;
    uint8_t data[BYTES] = {0};
    vfs_fd fd;

    fd = make(&m, "a", 1);
    sim_disk_fail_call(m.disk, 2, CAIRN_E_IO);
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, 0, 1, "x", NULL), 0);
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, 0, 1, "y", NULL), CAIRN_E_IO);
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, 0, 1, "\1", NULL), 0);
    sim_disk_set_capacity(m.disk, sim_disk_used(m.disk) + 100);
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, 0, BYTES, data, NULL),
                     0); /* needs no new space */
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, BYTES, BYTES, data, NULL), CAIRN_E_NO_SPACE);
    assert_true(sim_disk_file_bytes(m.disk, "/store/a", &bytes));
    assert_int_equal(bytes, BYTES + 100); /* a part of it was written */
    assert_int_equal(m.vfs->ops->allocate(m.vfs, fd, 3 * BYTES, NULL), CAIRN_E_NO_SPACE);
    assert_int_equal(m.vfs->ops->unlink(m.vfs, m.dir, "a", false, NULL), 0);
    assert_int_equal(m.vfs->ops->close(m.vfs, fd, NULL), 0);
    assert_int_equal(sim_disk_used(m.disk), 0);
    sim_free(sim);
}

TEST(test_a_flipped_bit_is_read)
{
    struct sim *sim = sim_new(9);
    struct machine m = boot(sim, NULL), after;

    sync_fd(&m, make(&m, "a", 1));
    sync_fd(&m, m.dir);
    assert_false(sim_disk_flip(m.disk, "/store/a", BYTES, 0));
    assert_false(sim_disk_flip(m.disk, "/store/none", 0, 0));
    assert_true(sim_disk_flip(m.disk, "/store/a", 600, 3));
    assert_int_equal(sectors(&m, "a", 1), 7);
    after = crash(&m);
    assert_int_equal(sectors(&after, "a", 1), 7);
    sim_free(sim);
}

TEST(test_a_planned_death_stops_before_the_call)
{
    struct sim *sim = sim_new(3);
    struct machine m = boot(sim, NULL), next;
    uint8_t byte = 0;
    vfs_fd fd;

    fd = make(&m, "a", 1);
    sim_kill_at_vfs_call(m.host, 2);
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, 0, 1, &byte, NULL), 0);
    assert_int_equal(m.vfs->ops->pwrite(m.vfs, fd, 512, 1, &byte, NULL), CAIRN_E_IO);
    assert_true(sim_is_dead(m.host));
    next = boot(sim, m.disk);
    assert_int_equal(sectors(&next, "a", 1), 7);
    sim_free(sim);
}

static void collect(void *user, const char *path, uint64_t bytes)
{
    char *all = user;

    assert_int_equal(bytes, BYTES);
    snprintf(all + strlen(all), 200 - strlen(all), "%s ", path);
}

TEST(test_files_are_walked_in_order)
{
    struct sim *sim = sim_new(3);
    struct machine m = boot(sim, NULL);
    char all[200] = "";

    assert_int_equal(m.vfs->ops->mkdir(m.vfs, m.dir, "c", NULL), 0);
    make(&m, "z", 1);
    make(&m, "c/b", 1);
    make(&m, "a", 1);
    sim_disk_each_file(m.disk, collect, all);
    assert_string_equal(all, "/store/a /store/c/b /store/z ");
    sim_free(sim);
}
