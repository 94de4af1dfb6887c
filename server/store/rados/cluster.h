/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster: the little of RADOS that the store needs: objects in two pools, each with bytes and an
 * ordered map of keys (omap), and compound operations that happen as a whole or not at all on one
 * object. A table of functions, so that tests put a fake behind it that answers late, never, full,
 * or does a thing after it said that it timed out (tests/support/cluster_fake.c). The real one is
 * cluster_rados.c. Any thread.
 */
#ifndef CAIRN_STORE_RADOS_CLUSTER_H
#define CAIRN_STORE_RADOS_CLUSTER_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cluster;

enum cluster_pool {
    CLUSTER_META, /* replicated: records, indexes, parts, pages, manifests */
    CLUSTER_DATA, /* replicated or erasure-coded: pieces of objects */
    CLUSTER_POOLS
};

enum { CLUSTER_NAMESPACE_MAX = 256, CLUSTER_OBJECT_NAME_MAX = 512 };

enum cluster_step_kind {
    /* steps that change; all of a call, or none */
    STEP_CREATE,     /* EEXIST when the object is there */
    STEP_ENSURE,     /* made when it is not there; for the steps behind it it is */
    STEP_EXISTS,     /* ENOENT when it is not */
    STEP_WRITE_FULL, /* its bytes become these */
    STEP_REMOVE,     /* ENOENT when it is not there */
    STEP_KEY_IS,     /* ECANCELED unless `key` has these bytes; 0 bytes: unless it is absent */
    STEP_KEY_SET,
    STEP_KEY_REMOVE, /* absent: no error */
    /* steps that look; ENOENT when the object is not there */
    STEP_STAT, /* ret_bytes */
    STEP_READ, /* up to `bytes` from `offset` into `into`; ret_bytes */
    STEP_KEYS, /* keys that begin with `key` and come behind `after`: ret_map */
    STEP_KEY   /* the one key, if it is there: ret_map */
};

struct cluster_pair {
    char *key;
    size_t bytes;
    uint8_t *data;
};
struct cluster_map { /* cluster_map_fini frees */
    size_t count;
    struct cluster_pair *pairs; /* ascending */
    bool more;                  /* there are further ones: ask again behind the last */
};
void cluster_map_fini(struct cluster_map *map);
/* Takes copies. NO_MEMORY. */
int MUST_USE cluster_map_add(struct cluster_map *map, const char *key, size_t bytes,
                             const void *data);

struct cluster_step {
    enum cluster_step_kind kind;
    const char *key, *after;
    uint64_t offset;
    size_t bytes;
    const void *data; /* of the changing ones; borrowed until wait returns */
    void *into;
    uint64_t ret_bytes;
    struct cluster_map ret_map;
};

/* One compound operation on one object. Looking and changing steps do not mix. */
struct cluster_call {
    enum cluster_pool pool;
    const char *space; /* RADOS namespace */
    const char *object;
    size_t step_count;
    struct cluster_step *steps;
    void *impl; /* the implementation's, from start to wait */
};

struct cluster_usage {
    uint64_t total_bytes, free_bytes;
};

struct cluster_ops {
    void (*start)(struct cluster *cluster, struct cluster_call *call);
    /* 0 or a negative errno. -ETIMEDOUT of a change: whether it happened, or will, is unknown. */
    int (*wait)(struct cluster *cluster, struct cluster_call *call);
    int (*usage)(struct cluster *cluster, struct cluster_usage *ret);
    /* A command to the monitor, as JSON: its answer, malloc'ed, ends with NUL. NULL in clusters
     * that have no monitor. Negative errno; EACCES: the user may not. */
    int (*ask)(struct cluster *cluster, const char *command, char **ret, size_t *ret_bytes);
    void (*close)(struct cluster *cluster);
};

struct cluster {
    const struct cluster_ops *ops;
};

static inline void cluster_start(struct cluster *cluster, struct cluster_call *call)
{
    cluster->ops->start(cluster, call);
}
static inline int MUST_USE cluster_wait(struct cluster *cluster, struct cluster_call *call)
{
    return cluster->ops->wait(cluster, call);
}
static inline int MUST_USE cluster_do(struct cluster *cluster, struct cluster_call *call)
{
    cluster_start(cluster, call);
    return cluster_wait(cluster, call);
}

/* --- the real one -------------------------------------------------------------------------------
 */

enum { CLUSTER_RELEASE_MIN = 14 }; /* nautilus: what the store's operations need of all OSDs */
/* UNSUPPORTED below it, with the remedy; what a cluster says of itself as a number. */
int MUST_USE cluster_release_check(int release, struct diag *diag);

struct cluster_rados_options {
    const char *conf;       /* ceph.conf; NULL: CEPH_CONF or the usual places */
    const char *user;       /* cephx user without "client."; NULL: "cairn" */
    const char *keyring;    /* NULL: as the configuration says */
    const char *meta_pool;  /* replicated */
    const char *data_pool;  /* NULL: meta_pool */
    uint64_t op_timeout_ms; /* of one operation; 0: 10,000 */
};

/* Blocks until the monitors have answered, at most op_timeout_ms. CONFIG (no such pool, no such
 * file), AUTH (wrong key, no keyring), UNREACHABLE (no monitor), UNSUPPORTED (an old cluster). */
int MUST_USE cluster_rados_new(const struct cluster_rados_options *options, struct cluster **ret,
                               struct diag *diag);

#endif
