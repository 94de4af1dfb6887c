/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster: the part of RADOS that the store uses: objects in two pools, each with bytes and an
 * ordered map of keys (omap), and compound operations that are done on one object as a whole or not
 * at all. It is a table of functions, so that tests can use a fake that answers late, never, or
 * full, or that does something after it said that it had timed out (tests/support/cluster_fake.c).
 * The real one is cluster_rados.c. Any thread.
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
    /* Steps that change. A call does all of them or none. */
    STEP_CREATE,     /* EEXIST if the object is there */
    STEP_ENSURE,     /* makes the object if it is absent; the steps behind it see it */
    STEP_EXISTS,     /* ENOENT if the object is absent */
    STEP_WRITE_FULL, /* replaces all its bytes */
    STEP_REMOVE,     /* ENOENT if the object is absent */
    STEP_KEY_IS,     /* ECANCELED unless `key` has these bytes, or, with 0 bytes, is absent */
    STEP_KEY_SET,
    STEP_KEY_REMOVE, /* no error if it is absent */
    /* Steps that look. ENOENT if the object is absent. */
    STEP_STAT, /* sets ret_bytes */
    STEP_READ, /* reads up to `bytes` from `offset` into `into`; sets ret_bytes */
    STEP_KEYS, /* keys that begin with `key` and come behind `after`: ret_map */
    STEP_KEY   /* the one key, if it is there: ret_map */
};

struct cluster_pair {
    char *key;
    size_t bytes;
    uint8_t *data;
};
struct cluster_map { /* cluster_map_fini() frees it */
    size_t count;
    struct cluster_pair *pairs; /* sorted */
    bool more;                  /* there are further keys: ask again behind the last one */
};
void cluster_map_fini(struct cluster_map *map);
/* Adds copies of key and data. Returns NO_MEMORY if there is no memory. */
int MUST_USE cluster_map_add(struct cluster_map *map, const char *key, size_t bytes,
                             const void *data);

struct cluster_step {
    enum cluster_step_kind kind;
    const char *key, *after;
    uint64_t offset;
    size_t bytes;
    const void *data; /* of the changing steps; borrowed until wait returns */
    void *into;
    uint64_t ret_bytes;
    struct cluster_map ret_map;
};

/* One compound operation on one object. Its steps either all look or all change. */
struct cluster_call {
    enum cluster_pool pool;
    const char *space; /* the RADOS namespace */
    const char *object;
    size_t step_count;
    struct cluster_step *steps;
    void *impl; /* for the implementation, from start to wait */
};

struct cluster_usage {
    /* What clients can store in the pool of the pieces: copies and parity are counted out, and
     * quotas are kept. */
    uint64_t total_bytes, free_bytes;
    uint64_t records_free_bytes; /* the same of the pool of the records */
    bool is_raw; /* the user may not ask for the pools: it is the cluster's raw space, all of it */
};
/* The question to a monitor, and what its answer says about two pools. Returns false if one of them
 * is not in it. Pure. */
#define CLUSTER_ASK_DF "{\"prefix\":\"df\",\"detail\":\"detail\",\"format\":\"json\"}"
bool cluster_usage_read(size_t bytes, const char *df, const char *const pools[CLUSTER_POOLS],
                        struct cluster_usage *ret);

struct cluster_ops {
    void (*start)(struct cluster *cluster, struct cluster_call *call);
    /* Returns 0 or a negative errno. After -ETIMEDOUT of a change it is unknown whether the change
     * has happened or will happen. */
    int (*wait)(struct cluster *cluster, struct cluster_call *call);
    int (*usage)(struct cluster *cluster, struct cluster_usage *ret);
    /* Sends a command, as JSON, to the monitor. The answer is malloc'ed and ends with NUL.
     * Returns a negative errno; EACCES if the user may not send it. NULL in clusters that have no
     * monitor. */
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

/* --- the real one --------------------------------------------------------------------------- */

enum { CLUSTER_RELEASE_MIN = 14 }; /* nautilus: the store's operations need it on all OSDs */
/* Returns UNSUPPORTED, with the remedy, if the release number that the cluster reports is lower. */
int MUST_USE cluster_release_check(int release, struct diag *diag);

struct cluster_rados_options {
    const char *conf;       /* ceph.conf; NULL means CEPH_CONF or the usual places */
    const char *user;       /* cephx user without "client."; NULL means "cairn" */
    const char *keyring;    /* NULL means as the configuration says */
    const char *meta_pool;  /* replicated */
    const char *data_pool;  /* NULL means meta_pool */
    uint64_t op_timeout_ms; /* of one operation; 0 means 10,000 */
};

/* Connects to the cluster. Blocks until the monitors have answered, at most op_timeout_ms. Returns
 * CONFIG (no such pool, no such file), AUTH (wrong key, no keyring), UNREACHABLE (no monitor) or
 * UNSUPPORTED (an old cluster). */
int MUST_USE cluster_rados_new(const struct cluster_rados_options *options, struct cluster **ret,
                               struct diag *diag);

#endif
