/* SPDX-License-Identifier: Apache-2.0
 *
 * store_open: see store_open.h.
 */
#include "store_open.h"

#include "env/vfs.h"
#include "store/dir/store_dir.h"
#include "store/rados/store_rados.h"
#include "store_url.h"

#include <string.h>

enum { DIR_THREADS = 1, RADOS_THREADS = 96 };

bool store_url_is_cluster(const char *url) { return store_url_path(url) == NULL; }

unsigned store_url_threads_min(const char *url)
{
    return store_url_is_cluster(url) ? RADOS_THREADS : DIR_THREADS;
}

/* Opens a store on Ceph. */
static int open_rados(const struct store_open_options *options, struct store **ret,
                      struct diag *diag)
{
    struct store_url parsed;
    struct store_rados_options rados = {.loop = options->loop,
                                        .pool = options->pool,
                                        .create = options->create,
                                        .remedy = options->remedy,
                                        .read_only = options->read_only,
                                        .expected_uuid = options->expected_uuid,
                                        .salvaged = options->salvaged};
    int status = store_url_parse(options->url, &parsed, diag);
    status = status != 0 ? status : cluster_rados_new(&parsed.cluster, &rados.cluster, diag);
    if (status != 0) {
        return status;
    }
    rados.space = parsed.space;
    const char *data_pool = parsed.cluster.data_pool;
    bool own_pool = data_pool != NULL && strcmp(data_pool, parsed.cluster.meta_pool) != 0;
    rados.data_pool = own_pool ? data_pool : NULL;
    return store_rados_new(&rados, ret, diag);
}

/* Opens a store in a directory. */
static int open_dir(const struct store_open_options *options, const char *path, struct store **ret,
                    struct diag *diag)
{
    struct store_dir_options dir = {.loop = options->loop,
                                    .pool = options->pool,
                                    .vfs = vfs_posix(),
                                    .path = path,
                                    .create = options->create,
                                    .remedy = options->remedy,
                                    .force_fs = options->force_fs,
                                    .read_only = options->read_only,
                                    .salvaged = options->salvaged,
                                    .expected_uuid = options->expected_uuid,
                                    .reserve_bytes = options->reserve_bytes};
    return store_dir_new(&dir, ret, diag);
}

int store_open(const struct store_open_options *options, struct store **ret, struct diag *diag)
{
    const char *path = store_url_path(options->url);
    int status = store_url_check(options->url, diag);
    if (status == 0) {
        status = path == NULL ? open_rados(options, ret, diag) : open_dir(options, path, ret, diag);
    }
    if (status == 0) {
        store_url_typed(options->url, sizeof((*ret)->caps.url), (*ret)->caps.url);
    }
    return status;
}
