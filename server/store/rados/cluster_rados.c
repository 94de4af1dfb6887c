/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster over librados: one client, and one I/O context for each pool and namespace that was ever
 * used. Calls are asynchronous in librados, and the store's threads wait for them, so the number
 * of these threads is the depth. Every wait is bounded; without settings librados would wait for
 * ever.
 */
#include "cluster.h"

#include "base/check.h"

#include <errno.h>
#include <pthread.h>
#include <rados/librados.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OP_TIMEOUT_MS = 10000, KEYS_A_CALL = 1024 };

struct space { /* an I/O context */
    struct space *next;
    enum cluster_pool pool;
    rados_ioctx_t io;
    char name[CLUSTER_NAMESPACE_MAX];
};

struct real {
    struct cluster base;
    rados_t rados;
    char *pools[CLUSTER_POOLS];
    pthread_mutex_t lock; /* guards spaces */
    struct space *spaces;
};

struct step_result { /* what librados fills in for a step that reads */
    int status;
    size_t bytes;
    time_t time;
    uint64_t size;
    rados_omap_iter_t iter;
    unsigned char more;
};

struct flight {
    rados_completion_t completion;
    rados_write_op_t write;
    rados_read_op_t read;
    int status; /* of starting the call */
    struct step_result results[];
};

static struct real *real_of(struct cluster *cluster) { return (struct real *)cluster; }

/* Returns the I/O context of a namespace in a pool. A context is made once and kept until the
 * cluster is closed. */
static int find_space(struct real *real, enum cluster_pool pool, const char *name,
                      rados_ioctx_t *ret)
{
    int rc = 0;
    pthread_mutex_lock(&real->lock);
    struct space *space = real->spaces;
    while (space && (space->pool != pool || strcmp(space->name, name) != 0)) {
        space = space->next;
    }
    if (!space) {
        space = calloc(1, sizeof(*space));
        rc = space ? rados_ioctx_create(real->rados, real->pools[pool], &space->io) : -ENOMEM;
        if (rc == 0) {
            space->pool = pool;
            snprintf(space->name, sizeof(space->name), "%s", name);
            rados_ioctx_set_namespace(space->io, space->name);
            rados_set_pool_full_try(space->io); /* a full pool answers instead of waiting */
            space->next = real->spaces;
            real->spaces = space;
        } else {
            free(space);
        }
    }
    if (rc == 0) {
        *ret = space->io;
    }
    pthread_mutex_unlock(&real->lock);
    return rc;
}

static bool is_change(enum cluster_step_kind kind) { return kind < STEP_STAT; }

/* Adds a step that changes the object to the operation. */
static void add_change(rados_write_op_t op, const struct cluster_step *step)
{
    const char *data = step->bytes > 0 ? step->data : "";
    switch (step->kind) {
    case STEP_CREATE:
        rados_write_op_create(op, LIBRADOS_CREATE_EXCLUSIVE, NULL);
        break;
    case STEP_ENSURE:
        rados_write_op_create(op, LIBRADOS_CREATE_IDEMPOTENT, NULL);
        break;
    case STEP_EXISTS:
        rados_write_op_assert_exists(op);
        break;
    case STEP_WRITE_FULL:
        rados_write_op_write_full(op, data, step->bytes);
        break;
    case STEP_REMOVE:
        rados_write_op_remove(op);
        break;
    case STEP_KEY_IS:
        rados_write_op_omap_cmp(op, step->key, LIBRADOS_CMPXATTR_OP_EQ, data, step->bytes, NULL);
        break;
    case STEP_KEY_SET:
        rados_write_op_omap_set(op, &step->key, &data, &step->bytes, 1);
        break;
    case STEP_KEY_REMOVE:
        rados_write_op_omap_rm_keys(op, &step->key, 1);
        break;
    case STEP_STAT:
    case STEP_READ:
    case STEP_KEYS:
    case STEP_KEY:
        CHECK(false); /* not a change */
    }
}

/* Adds a step that reads the object to the operation. Its results are put into `result`. */
static void add_read(rados_read_op_t op, const struct cluster_step *step,
                     struct step_result *result)
{
    size_t key_bytes = step->key ? strlen(step->key) : 0;
    if (step->kind == STEP_STAT) {
        rados_read_op_stat(op, &result->size, &result->time, &result->status);
    } else if (step->kind == STEP_READ) {
        rados_read_op_read(op, step->offset, step->bytes, step->into, &result->bytes,
                           &result->status);
    } else if (step->kind == STEP_KEYS) {
        rados_read_op_omap_get_vals2(op, step->after ? step->after : "", step->key ? step->key : "",
                                     KEYS_A_CALL, &result->iter, &result->more, &result->status);
    } else {
        CHECK(step->kind == STEP_KEY);
        rados_read_op_omap_get_vals_by_keys2(op, &step->key, 1, &key_bytes, &result->iter,
                                             &result->status);
    }
}

/* Starts the call. An error is kept, and real_wait() returns it. */
static void real_start(struct cluster *cluster, struct cluster_call *call)
{
    struct flight *flight =
        calloc(1, sizeof(*flight) + call->step_count * sizeof(flight->results[0]));
    rados_ioctx_t io;
    call->impl = flight;
    if (!flight) {
        return; /* real_wait() reports it */
    }
    flight->status = find_space(real_of(cluster), call->pool, call->space, &io);
    if (flight->status == 0) {
        flight->status = rados_aio_create_completion2(NULL, NULL, &flight->completion);
    }
    if (flight->status != 0) {
        return;
    }
    CHECK(call->step_count > 0);
    bool change = is_change(call->steps[0].kind);
    if (change) {
        flight->write = rados_create_write_op();
        for (size_t i = 0; i < call->step_count; i++) {
            add_change(flight->write, &call->steps[i]);
        }
        flight->status = rados_aio_write_op_operate(
            flight->write, io, flight->completion, call->object, NULL, LIBRADOS_OPERATION_FULL_TRY);
    } else {
        flight->read = rados_create_read_op();
        for (size_t i = 0; i < call->step_count; i++) {
            add_read(flight->read, &call->steps[i], &flight->results[i]);
        }
        flight->status =
            rados_aio_read_op_operate(flight->read, io, flight->completion, call->object, 0);
    }
}

static int take_map(rados_omap_iter_t iter, struct cluster_map *ret)
{
    char *key, *data;
    size_t key_bytes, bytes;
    while (rados_omap_get_next2(iter, &key, &data, &key_bytes, &bytes) == 0 && key) {
        if (cluster_map_add(ret, key, bytes, data) != 0) {
            return -ENOMEM;
        }
    }
    return 0;
}

static int take_result(struct cluster_step *step, const struct step_result *result)
{
    if (result->status != 0) {
        return result->status;
    }
    step->ret_bytes = step->kind == STEP_STAT ? result->size : result->bytes;
    if (step->kind == STEP_KEYS || step->kind == STEP_KEY) {
        step->ret_map.more = result->more != 0;
        return take_map(result->iter, &step->ret_map);
    }
    return 0;
}

/* Frees the call with what librados holds for its `steps` steps. */
static void free_flight(struct flight *flight, size_t steps)
{
    for (size_t i = 0; i < steps; i++) {
        if (flight->results[i].iter) {
            rados_omap_get_end(flight->results[i].iter);
        }
    }
    if (flight->write) {
        rados_release_write_op(flight->write);
    }
    if (flight->read) {
        rados_release_read_op(flight->read);
    }
    if (flight->completion) {
        rados_aio_release(flight->completion);
    }
    free(flight);
}

/* Waits for the call to end and takes its results. Returns 0 or a negative errno value. */
static int real_wait(struct cluster *cluster, struct cluster_call *call)
{
    struct flight *flight = call->impl;
    (void)cluster;
    if (!flight) {
        return -ENOMEM;
    }
    int rc = flight->status;
    if (rc == 0) {
        rados_aio_wait_for_complete(flight->completion); /* bounded by rados_osd_op_timeout */
        rc = rados_aio_get_return_value(flight->completion);
    }
    for (size_t i = 0; rc >= 0 && flight->read && i < call->step_count; i++) {
        rc = take_result(&call->steps[i], &flight->results[i]);
    }
    if (rc != 0) {
        for (size_t i = 0; i < call->step_count; i++) {
            cluster_map_fini(&call->steps[i].ret_map);
        }
    }
    free_flight(flight, call->step_count);
    call->impl = NULL;
    return rc < 0 ? rc : 0;
}

/* Asks the monitors. The answer in `*ret` ends with a 0 byte that does not count, and the caller
 * frees it. */
static int real_ask(struct cluster *cluster, const char *command, char **ret, size_t *ret_bytes)
{
    char *out = NULL, *said = NULL;
    size_t out_bytes = 0, said_bytes = 0;
    int rc = rados_mon_command(real_of(cluster)->rados, &command, 1, "", 0, &out, &out_bytes, &said,
                               &said_bytes);
    char *copy = rc == 0 ? malloc(out_bytes + 1) : NULL;
    if (copy != NULL) {
        if (out_bytes > 0) {
            memcpy(copy, out, out_bytes);
        }
        copy[out_bytes] = '\0';
        *ret = copy;
        *ret_bytes = out_bytes;
    }
    rados_buffer_free(out);
    rados_buffer_free(said);
    return rc == 0 && copy == NULL ? -ENOMEM : rc;
}

/* A user that may not ask the monitors is told the cluster's raw space. */
static int real_usage(struct cluster *cluster, struct cluster_usage *ret)
{
    struct real *real = real_of(cluster);
    struct rados_cluster_stat_t stat;
    char *df = NULL;
    size_t bytes = 0;
    int rc = real_ask(cluster, CLUSTER_ASK_DF, &df, &bytes);
    bool is_read = rc == 0 && cluster_usage_read(bytes, df, (const char *const *)real->pools, ret);
    free(df);
    if (is_read || (rc != 0 && rc != -EACCES && rc != -EPERM)) {
        return rc;
    }
    rc = rados_cluster_stat(real->rados, &stat);
    if (rc == 0) {
        *ret = (struct cluster_usage){.total_bytes = stat.kb * 1024,
                                      .free_bytes = stat.kb_avail * 1024,
                                      .records_free_bytes = stat.kb_avail * 1024,
                                      .is_raw = true};
    }
    return rc;
}

/* Closes the connection and frees the cluster. */
static void real_close(struct cluster *cluster)
{
    struct real *real = real_of(cluster);
    while (real->spaces) {
        struct space *space = real->spaces;
        real->spaces = space->next;
        rados_ioctx_destroy(space->io);
        free(space);
    }
    if (real->rados) {
        rados_shutdown(real->rados);
    }
    pthread_mutex_destroy(&real->lock);
    for (size_t i = 0; i < CLUSTER_POOLS; i++) {
        free(real->pools[i]);
    }
    free(real);
}

static const struct cluster_ops real_ops = {.start = real_start,
                                            .wait = real_wait,
                                            .usage = real_usage,
                                            .ask = real_ask,
                                            .close = real_close};

/* Sets the options of librados. Its times are seconds. objecter_timeout is below the time-out of an
 * operation, because otherwise a client whose OSDs have all moved never asks for a new map. */
static int configure(struct real *real, const struct cluster_rados_options *options,
                     struct diag *diag)
{
    char seconds[32];
    uint64_t timeout_ms = options->op_timeout_ms > 0 ? options->op_timeout_ms : OP_TIMEOUT_MS;
    snprintf(seconds, sizeof(seconds), "%llu", (unsigned long long)(timeout_ms + 999) / 1000);
    const char *const settings[][2] = {
        {"rados_osd_op_timeout", seconds}, {"rados_mon_op_timeout", seconds},
        {"client_mount_timeout", seconds}, {"objecter_timeout", "2"},
        {"objecter_tick_interval", "1"},   {"objecter_inflight_op_bytes", "1073741824"},
        {"objecter_inflight_ops", "8192"}, {"log_to_stderr", "false"},
        {"err_to_stderr", "false"},        {"log_file", ""},
        {"keyring", options->keyring},
    };
    if (rados_conf_read_file(real->rados, options->conf) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "cannot read the Ceph configuration %s; name the file with ?conf=/path in "
                        "the store's URL, or in CEPH_CONF",
                        options->conf ? options->conf : "in its usual places");
    }
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (settings[i][1] && rados_conf_set(real->rados, settings[i][0], settings[i][1]) != 0) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "this version of librados has no setting %s; install a newer librados",
                            settings[i][0]);
        }
    }
    return 0;
}

/* Returns an error that says what to do about a failed connection. `rc` is a negative errno value.
 */
static int explain_connect(int rc, const char *user, struct diag *diag)
{
    switch (-rc) {
    case EACCES:
    case EPERM:
        return diag_set(diag, CAIRN_E_AUTH,
                        "the Ceph cluster refuses the key of client.%s; create the user and its "
                        "keyring again with deploy/ceph/make-user",
                        user);
    case ENOENT:
        return diag_set(diag, CAIRN_E_AUTH,
                        "no keyring with a key of client.%s was found; name it with ?keyring=/path",
                        user);
    case EOPNOTSUPP:
        return diag_set(diag, CAIRN_E_AUTH,
                        "client.%s cannot authenticate to the Ceph cluster: check that it has a "
                        "keyring, and that the cluster uses cephx",
                        user);
    default:
        return diag_set(diag, CAIRN_E_UNREACHABLE,
                        "no Ceph monitor answers (%s); check mon_host in the Ceph configuration, "
                        "and the network",
                        strerror(-rc));
    }
}

static int check_release(struct real *real, struct diag *diag)
{
    int8_t release = 0;
    int rc = rados_get_min_compatible_osd(real->rados, &release);
    return rc != 0 ? diag_set(diag, CAIRN_E_UNREACHABLE,
                              "cannot ask the Ceph cluster for its release: %s", strerror(-rc))
                   : cluster_release_check(release, diag);
}

/* Checks that both pools exist. Without a data pool of its own the meta pool is used for both. */
static int open_pools(struct real *real, const struct cluster_rados_options *options,
                      struct diag *diag)
{
    rados_ioctx_t io;
    real->pools[CLUSTER_META] = strdup(options->meta_pool);
    real->pools[CLUSTER_DATA] =
        strdup(options->data_pool ? options->data_pool : options->meta_pool);
    if (!real->pools[CLUSTER_META] || !real->pools[CLUSTER_DATA]) {
        return diag_no_memory(diag, "a Ceph client");
    }
    for (size_t i = 0; i < CLUSTER_POOLS; i++) {
        int rc = rados_ioctx_create(real->rados, real->pools[i], &io);
        if (rc != 0) {
            return diag_set(
                diag, rc == -ENOENT ? CAIRN_E_CONFIG : CAIRN_E_UNREACHABLE,
                "pool %s cannot be opened: %s; create it with `ceph osd pool create %s`",
                real->pools[i], rc == -ENOENT ? "there is no pool of that name" : strerror(-rc),
                real->pools[i]);
        }
        rados_ioctx_destroy(io);
    }
    return 0;
}

int cluster_rados_new(const struct cluster_rados_options *options, struct cluster **ret,
                      struct diag *diag)
{
    const char *user = options->user ? options->user : "cairn";
    struct real *real = calloc(1, sizeof(*real));
    if (!real) {
        return diag_no_memory(diag, "a Ceph client");
    }
    real->base.ops = &real_ops;
    CHECK(pthread_mutex_init(&real->lock, NULL) == 0);
    int rc = rados_create(&real->rados, user);
    if (rc != 0) {
        real->rados = NULL;
        rc = diag_set(diag, CAIRN_E_INTERNAL, "cannot create a Ceph client: %s", strerror(-rc));
    } else {
        rc = configure(real, options, diag);
    }
    if (rc == 0) {
        int connected = rados_connect(real->rados);
        rc = connected != 0 ? explain_connect(connected, user, diag) : check_release(real, diag);
    }
    if (rc == 0) {
        rc = open_pools(real, options, diag);
    }
    if (rc != 0) {
        real_close(&real->base);
        return rc;
    }
    *ret = &real->base;
    return 0;
}
