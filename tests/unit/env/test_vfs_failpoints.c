/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fail point of the real vfs makes its call fail with the code asked for and without effect,
 * and says its name. Method: the environment variable, set before the first call.
 */
#include <stdio.h>
#include <unistd.h>

#include "env/vfs.h"
#include "support/unit_test.h"

static struct vfs *vfs;
static vfs_fd dir = -1, file = -1;

static int hit(unsigned call, struct diag *diag)
{
    char byte = 0;
    size_t bytes;
    vfs_fd fd;

    switch (call) {
    case 0:
        return vfs->ops->open(vfs, dir, "new", VFS_WRITE | VFS_CREATE_EXCL, &fd, diag);
    case 1:
        return vfs->ops->pwrite(vfs, file, 0, 1, "x", diag);
    case 2:
        return vfs->ops->pread(vfs, file, 0, 1, &byte, &bytes, diag);
    case 3:
        return vfs->ops->fsync(vfs, file, diag);
    case 4:
        return vfs->ops->fsync(vfs, dir, diag);
    case 5:
        return vfs->ops->allocate(vfs, file, 10, diag);
    case 6:
        return vfs->ops->truncate(vfs, file, 10, diag);
    case 7:
        return vfs->ops->mkdir(vfs, dir, "sub", diag);
    case 8:
        return vfs->ops->rename(vfs, dir, "file", dir, "other", diag);
    case 9:
        return vfs->ops->exchange(vfs, dir, "file", "other", diag);
    default:
        return vfs->ops->unlink(vfs, dir, "file", false, diag);
    }
}

static const char *const names[] = {"vfs.open",    "vfs.pwrite",   "vfs.pread",    "vfs.fsync",
                                    "vfs.dirsync", "vfs.allocate", "vfs.truncate", "vfs.mkdir",
                                    "vfs.rename",  "vfs.exchange", "vfs.unlink"};

static int set_fail_points(void **state)
{
    char all[400] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s=error:NO_SPACE@%d;", names[i],
                 i == 0 ? 2 : 1);
    }
    return setenv("CAIRN_FAILPOINTS", all, 1);
}

UNIT_TEST_GROUP(set_fail_points, NULL)

TEST(test_each_point_fails_its_call_without_effect)
{
    char path[] = "/tmp/cairn-vfs-XXXXXX";
    struct vfs_stat st;

    vfs = vfs_posix();
    assert_non_null(mkdtemp(path));
    assert_int_equal(vfs->ops->open_root(vfs, path, &dir, NULL), 0);
    /* vfs.open fails at its second hit only: the first opens the file to work on. */
    assert_int_equal(
        vfs->ops->open(vfs, dir, "file", VFS_READ | VFS_WRITE | VFS_CREATE_EXCL, &file, NULL), 0);
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct diag diag = DIAG_INIT;

        assert_int_equal(hit(i, &diag), CAIRN_E_NO_SPACE);
        assert_non_null(strstr(diag.text, names[i]));
    }
    assert_int_equal(vfs->ops->stat(vfs, dir, "new", &st, NULL), CAIRN_E_NOT_FOUND);
    assert_int_equal(vfs->ops->stat(vfs, dir, "sub", &st, NULL), CAIRN_E_NOT_FOUND);
    assert_int_equal(vfs->ops->stat(vfs, dir, "file", &st, NULL), 0);
    assert_int_equal(st.bytes, 0);
    assert_int_equal(hit(10, NULL), 0); /* the second time it works */
    assert_int_equal(vfs->ops->close(vfs, file, NULL), 0);
    assert_int_equal(vfs->ops->close(vfs, dir, NULL), 0);
    assert_int_equal(rmdir(path), 0);
}
