/* SPDX-License-Identifier: Apache-2.0
 *
 * The file calls do what the directory store's rules need: exclusive creation, no-replace rename,
 * full transfers, locks, named errors. Method: the same calls on the real and on the simulated
 * disk.
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env_fixture.h"

static vfs_fd make(struct env *env, const char *name, const char *text)
{
    vfs_fd fd = -1;

    assert_int_equal(env->vfs->ops->open(env->vfs, env->dir, name,
                                         VFS_READ | VFS_WRITE | VFS_CREATE_EXCL, &fd, NULL),
                     0);
    assert_int_equal(env->vfs->ops->pwrite(env->vfs, fd, 0, strlen(text), text, NULL), 0);
    return fd;
}

static void close_fd(struct env *env, vfs_fd fd)
{
    assert_int_equal(env->vfs->ops->close(env->vfs, fd, NULL), 0);
}

static int open_fd(struct env *env, const char *name, unsigned flags, vfs_fd *ret,
                   struct diag *diag)
{
    return env->vfs->ops->open(env->vfs, env->dir, name, flags, ret, diag);
}

ENV_TESTS(test_create_is_exclusive)
{
    struct diag diag = DIAG_INIT;
    struct vfs_stat st;
    vfs_fd fd = make(env, "a", "hello"), other = -1;

    assert_int_equal(open_fd(env, "a", VFS_WRITE | VFS_CREATE_EXCL, &other, &diag), CAIRN_E_EXISTS);
    assert_non_null(strstr(diag.text, "a"));
    assert_int_equal(open_fd(env, "b", VFS_READ, &other, NULL), CAIRN_E_NOT_FOUND);
    assert_int_equal(env->vfs->ops->fstat(env->vfs, fd, &st, NULL), 0);
    assert_int_equal(st.bytes, 5);
    assert_int_equal(st.kind, VFS_FILE);
    assert_int_equal(st.mode, 0600);
    assert_int_equal(env->vfs->ops->chmod(env->vfs, fd, 0440, NULL), 0);
    assert_int_equal(env->vfs->ops->stat(env->vfs, env->dir, "a", &st, NULL), 0);
    assert_int_equal(st.mode, 0440);
    close_fd(env, fd);
}

ENV_TESTS(test_reads_stop_only_at_the_end)
{
    char text[8] = {0};
    size_t bytes = 99;
    vfs_fd fd = make(env, "a", "hello");

    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 1, 3, text, &bytes, NULL), 0);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "ell", 3);
    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 3, 8, text, &bytes, NULL), 0);
    assert_int_equal(bytes, 2);
    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 5, 8, text, &bytes, NULL), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(env->vfs->ops->pwrite(env->vfs, fd, 7, 1, "!", NULL), 0); /* leaves a hole */
    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 5, 8, text, &bytes, NULL), 0);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "\0\0!", 3);
    assert_int_equal(env->vfs->ops->truncate(env->vfs, fd, 2, NULL), 0);
    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 0, 8, text, &bytes, NULL), 0);
    assert_int_equal(bytes, 2);
    assert_int_equal(env->vfs->ops->fsync(env->vfs, fd, NULL), 0);
    close_fd(env, fd);
}

ENV_TESTS(test_direct_files_take_aligned_and_odd_transfers)
{
    enum { BYTES = 8192 };
    uint8_t *page = aligned_alloc(4096, BYTES), *back = aligned_alloc(4096, BYTES);
    size_t bytes = 0;
    vfs_fd fd = -1;

    assert_non_null(page);
    assert_non_null(back);
    memset(page, 0x5a, BYTES);
    assert_int_equal(
        open_fd(env, "d", VFS_READ | VFS_WRITE | VFS_CREATE_EXCL | VFS_DIRECT, &fd, NULL), 0);
    assert_int_equal(env->vfs->ops->allocate(env->vfs, fd, BYTES, NULL), 0);
    assert_int_equal(env->vfs->ops->pwrite(env->vfs, fd, 0, BYTES, page, NULL), 0);
    assert_int_equal(env->vfs->ops->truncate(env->vfs, fd, 5000, NULL), 0);
    assert_int_equal(env->vfs->ops->fsync(env->vfs, fd, NULL), 0);
    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 0, BYTES, back, &bytes, NULL), 0);
    assert_int_equal(bytes, 5000);
    assert_memory_equal(back, page, 5000);
    assert_int_equal(env->vfs->ops->pread(env->vfs, fd, 3, 1001, back + 1, &bytes, NULL), 0);
    assert_int_equal(bytes, 1001);
    assert_false(env->vfs->ops->is_direct(env->vfs, fd)); /* gave it up for that */
    assert_int_equal(env->vfs->ops->pwrite(env->vfs, fd, 5000, 3, "end", NULL), 0);
    close_fd(env, fd);
    free(page);
    free(back);
}

ENV_TESTS(test_two_files_exchange_their_names)
{
    char text[4];
    size_t bytes;
    vfs_fd a = make(env, "a", "one"), b = make(env, "b", "two"), now = -1;

    assert_int_equal(env->vfs->ops->exchange(env->vfs, env->dir, "a", "b", NULL), 0);
    assert_int_equal(env->vfs->ops->open(env->vfs, env->dir, "a", VFS_READ, &now, NULL), 0);
    assert_int_equal(env->vfs->ops->pread(env->vfs, now, 0, 3, text, &bytes, NULL), 0);
    assert_memory_equal(text, "two", 3);
    close_fd(env, now);
    assert_int_equal(env->vfs->ops->exchange(env->vfs, env->dir, "a", "none", NULL),
                     CAIRN_E_NOT_FOUND);
    assert_int_equal(env->vfs->ops->exchange(env->vfs, env->dir, "none", "a", NULL),
                     CAIRN_E_NOT_FOUND);
    close_fd(env, a);
    close_fd(env, b);
}

ENV_TESTS(test_rename_never_replaces)
{
    struct vfs_stat st;
    char text[4];
    size_t bytes;
    vfs_fd a = make(env, "a", "one"), b = make(env, "b", "two");

    assert_int_equal(env->vfs->ops->mkdir(env->vfs, env->dir, "sub", NULL), 0);
    assert_int_equal(env->vfs->ops->mkdir(env->vfs, env->dir, "sub", NULL), CAIRN_E_EXISTS);
    assert_int_equal(env->vfs->ops->rename(env->vfs, env->dir, "a", env->dir, "b", NULL),
                     CAIRN_E_EXISTS);
    assert_int_equal(env->vfs->ops->rename(env->vfs, env->dir, "none", env->dir, "c", NULL),
                     CAIRN_E_NOT_FOUND);
    assert_int_equal(env->vfs->ops->pread(env->vfs, b, 0, 3, text, &bytes, NULL), 0);
    assert_memory_equal(text, "two", 3);
    assert_int_equal(env->vfs->ops->rename(env->vfs, env->dir, "a", env->dir, "sub/c", NULL), 0);
    assert_int_equal(env->vfs->ops->stat(env->vfs, env->dir, "a", &st, NULL), CAIRN_E_NOT_FOUND);
    assert_int_equal(env->vfs->ops->stat(env->vfs, env->dir, "sub/c", &st, NULL), 0);
    assert_int_equal(env->vfs->ops->rename(env->vfs, env->dir, "sub", env->dir, "moved", NULL), 0);
    assert_int_equal(env->vfs->ops->stat(env->vfs, env->dir, "moved/c", &st, NULL), 0);
    close_fd(env, a);
    close_fd(env, b);
}

static int count_entry(void *user, const char *name, enum vfs_kind kind)
{
    unsigned *seen = user;

    *seen |= 1u << (name[0] - 'a');
    assert_int_equal(kind, name[0] == 's' ? VFS_DIR : VFS_FILE);
    return name[0] == 'x' ? CAIRN_E_CANCELLED : 0;
}

ENV_TESTS(test_list_and_unlink)
{
    unsigned seen = 0;

    close_fd(env, make(env, "a", "1"));
    close_fd(env, make(env, "b", "2"));
    assert_int_equal(env->vfs->ops->mkdir(env->vfs, env->dir, "s", NULL), 0);
    close_fd(env, make(env, "s/c", "3"));
    assert_int_equal(env->vfs->ops->list(env->vfs, env->dir, count_entry, &seen, NULL), 0);
    assert_int_equal(seen, 1u | 2u | 1u << ('s' - 'a'));
    assert_int_equal(env->vfs->ops->unlink(env->vfs, env->dir, "s", true, NULL), CAIRN_E_NOT_EMPTY);
    assert_int_not_equal(env->vfs->ops->unlink(env->vfs, env->dir, "s", false, NULL), 0);
    assert_int_equal(env->vfs->ops->unlink(env->vfs, env->dir, "s/c", false, NULL), 0);
    assert_int_equal(env->vfs->ops->unlink(env->vfs, env->dir, "s", true, NULL), 0);
    assert_int_equal(env->vfs->ops->unlink(env->vfs, env->dir, "s", true, NULL), CAIRN_E_NOT_FOUND);
    close_fd(env, make(env, "x", ""));
    assert_int_equal(env->vfs->ops->list(env->vfs, env->dir, count_entry, &seen, NULL),
                     CAIRN_E_CANCELLED);
}

ENV_TESTS(test_names_stay_in_their_directory)
{
    static const char *const bad[] = {"", "/etc", "..", "../a", "a/..", "a/../b"};
    vfs_fd fd = -1;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(open_fd(env, bad[i], VFS_READ, &fd, NULL), CAIRN_E_INVALID);
        assert_int_equal(env->vfs->ops->mkdir(env->vfs, env->dir, bad[i], NULL), CAIRN_E_INVALID);
    }
    close_fd(env, make(env, "..a", "a dot name is a name"));
}

ENV_TESTS(test_lock_is_exclusive_and_ends_with_close)
{
    struct diag diag = DIAG_INIT;
    vfs_fd a = -1, b = -1;

    assert_int_equal(open_fd(env, "lock", VFS_READ | VFS_WRITE | VFS_CREATE, &a, NULL), 0);
    assert_int_equal(open_fd(env, "lock", VFS_READ | VFS_WRITE | VFS_CREATE, &b, NULL), 0);
    assert_int_equal(env->vfs->ops->lock(env->vfs, a, NULL), 0);
    assert_int_equal(env->vfs->ops->lock(env->vfs, b, &diag), CAIRN_E_BUSY);
    close_fd(env, a);
    assert_int_equal(env->vfs->ops->lock(env->vfs, b, NULL), 0);
    close_fd(env, b);
}

ENV_TESTS(test_space_names_the_file_system)
{
    struct vfs_space space = {0};

    assert_int_equal(env->vfs->ops->space(env->vfs, env->dir, &space, NULL), 0);
    assert_true(space.total_bytes > 0);
    assert_true(space.free_bytes <= space.total_bytes);
    assert_true(space.fs_type[0]);
    assert_false(space.is_network);
}

ENV_TEST(test_links_are_not_followed)
{
    struct diag diag = DIAG_INIT;
    char path[96];
    vfs_fd fd = -1;

    snprintf(path, sizeof path, "%s/link", env->path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/dirlink", env->path);
    assert_int_equal(symlink("/etc", path), 0);
    assert_int_equal(open_fd(env, "link", VFS_READ, &fd, &diag), CAIRN_E_IO);
    assert_non_null(strstr(diag.text, "symbolic link"));
    assert_int_not_equal(open_fd(env, "dirlink/passwd", VFS_READ, &fd, NULL), 0);
}
