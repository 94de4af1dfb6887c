/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two files of the real vfs share: the calls about names (vfs_posix_dir.c), which the
 * table in vfs_posix.c lists.
 */
#ifndef CAIRN_ENV_VFS_POSIX_PRIVATE_H
#define CAIRN_ENV_VFS_POSIX_PRIVATE_H

#include "base/failpoint.h"
#include "vfs.h"

#include <sys/types.h>

/* Returns the code with which a test wants the named call to fail; 0 in builds without fail
 * points. */
static inline int MUST_USE vfs_posix_fail_point(const char *name, struct diag *diag)
{
    int code = FAILPOINT(name);

    return code ? diag_set(diag, code, "fail point %s", name) : 0;
}
/* Returns INVALID for a name that is empty or absolute, or has a "..". */
int MUST_USE vfs_posix_check_name(const char *name, struct diag *diag);
/* Opens as openat does, but follows no link in any component if the kernel can do that (Linux 5.6).
 * Returns -1 with errno on failure. */
int vfs_posix_openat(vfs_fd dir, const char *name, int flags, mode_t mode);

int MUST_USE vfs_posix_fstat(struct vfs *vfs, vfs_fd fd, struct vfs_stat *ret, struct diag *diag);
int MUST_USE vfs_posix_stat(struct vfs *vfs, vfs_fd dir, const char *name, struct vfs_stat *ret,
                            struct diag *diag);
int MUST_USE vfs_posix_mkdir(struct vfs *vfs, vfs_fd dir, const char *name, struct diag *diag);
int MUST_USE vfs_posix_rename(struct vfs *vfs, vfs_fd from_dir, const char *from, vfs_fd to_dir,
                              const char *to, struct diag *diag);
int MUST_USE vfs_posix_exchange(struct vfs *vfs, vfs_fd dir, const char *name, const char *with,
                                struct diag *diag);
int MUST_USE vfs_posix_unlink(struct vfs *vfs, vfs_fd dir, const char *name, bool is_dir,
                              struct diag *diag);
int MUST_USE vfs_posix_list(struct vfs *vfs, vfs_fd dir,
                            int (*each)(void *user, const char *name, enum vfs_kind kind),
                            void *user, struct diag *diag);
int MUST_USE vfs_posix_space(struct vfs *vfs, vfs_fd dir, struct vfs_space *ret, struct diag *diag);

#endif
