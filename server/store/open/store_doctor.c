/* SPDX-License-Identifier: Apache-2.0
 *
 * store_doctor: see store_doctor.h.
 */
#include "store_doctor.h"

#include "base/check.h"
#include "env/vfs.h"
#include "hash/hash.h"
#include "store/dir/dir_doctor.h"
#include "store/rados/rados_doctor.h"
#include "store_url.h"

#include <stdlib.h>
#include <sys/timex.h>

struct asking { /* a request, or the end of the store, that is waited for */
    struct store_req req;
    struct loop *loop;
    bool done;
};

static void on_done(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    asking->done = true;
    loop_uv_stop(asking->loop);
}

static int ask(struct store *store, struct asking *asking)
{
    asking->req.done = on_done;
    store_submit(store, &asking->req);
    while (!asking->done) {
        loop_uv_run(asking->loop);
    }
    return asking->req.status;
}

static void on_closed(void *user)
{
    struct asking *closing = user;
    closing->done = true;
    loop_uv_stop(closing->loop);
}

static void close_store(struct store *store, struct loop *loop)
{
    struct asking closing = {.loop = loop};
    store_close(store, on_closed, &closing);
    while (!closing.done) {
        loop_uv_run(loop);
    }
}

/* Reads the record of a run from the medium. Counts it in `*io_good` or tells what is wrong with
 * it. */
static void check_run(const struct store_doctor_options *options, struct store *store,
                      const struct run_name *run, struct doctor *doctor, size_t *io_good)
{
    struct asking asking = {.loop = options->loop,
                            .req = {.op = STORE_RECORD_GET, .run = *run, .from_medium = true}};
    int rc = ask(store, &asking);
    bool missing = rc == 0 && record_version(asking.req.ret_record) == 0;
    record_free(asking.req.ret_record);
    if (rc == 0 && !missing && !store_record_is_damaged(&asking.req)) {
        ++*io_good;
        return;
    }
    if (missing && asking.req.diag.text[0] == '\0') {
        err_ignore(diag_set(&asking.req.diag, CAIRN_E_DAMAGED,
                            /* Reported below. */
                            "the store holds files of the run, but no record of it"));
    }
    char name[RUN_NAME_TEXT_MAX] = "the store's own";
    if (!store_is_own_record(run)) {
        run_name_format(run, name);
    }
    rc = rc != 0 ? rc : CAIRN_E_DAMAGED;
    const char *typed = store->caps.url;
    doctor_add(doctor, DOCTOR_UNSAFE, "records", "%s: %s: %s", name, err_name(rc),
               diag_text(&asking.req.diag, rc));
    doctor_remedy_of(doctor, rc, typed);
}

/* Reads the records of all runs and the store's own. */
static void check_records(const struct store_doctor_options *options, struct store *store,
                          struct doctor *doctor)
{
    struct asking asking = {.loop = options->loop, .req = {.op = STORE_LIST_RUNS}};
    const char *typed = store->caps.url;
    size_t good = 0, ignored = 0;
    int rc = ask(store, &asking);
    if (rc != 0) {
        doctor_add(doctor, DOCTOR_UNSAFE, "records", "%s: %s", err_name(rc),
                   diag_text(&asking.req.diag, rc));
        doctor_remedy_of(doctor, rc, typed);
        return;
    }
    for (size_t i = 0; i < asking.req.ret_count; i++) {
        check_run(options, store, &asking.req.ret_runs[i], doctor, &good);
    }
    check_run(options, store, &(struct run_name){{0}, {0}}, doctor, &ignored);
    doctor_add(doctor, DOCTOR_GOOD, "records", "%zu of %zu runs' records were read and are whole",
               good, asking.req.ret_count);
    free(asking.req.ret_runs);
}

/* Opens the store for reading and looks at it. */
static void check_store(const struct store_doctor_options *options, struct doctor *doctor)
{
    struct store_open_options open = {
        .loop = options->loop, .pool = options->pool, .url = options->url, .read_only = true};
    struct store *store;
    struct diag why = DIAG_INIT;
    char typed[STORE_URL_MAX];
    store_url_typed(options->url, sizeof(typed), typed);
    int rc = store_open(&open, &store, &why);
    if (rc == CAIRN_E_NO_STORE) {
        doctor_add(doctor, DOCTOR_WARNING, "store", "%s", diag_text(&why, rc));
        doctor_remedy(
            doctor,
            "check that its disk is mounted; if the place is right, run `cairn store create '%s'`",
            options->url);
        return;
    }
    if (rc != 0) {
        doctor_add(doctor, DOCTOR_UNSAFE, "store", "%s: %s", err_name(rc), diag_text(&why, rc));
        doctor_remedy_of(doctor, rc, typed);
        return;
    }
    char uuid[33];
    hex_encode(sizeof(store->caps.uuid), &store->caps.uuid, uuid);
    doctor_add(doctor, DOCTOR_GOOD, "store",
               "%s store %s, epoch %llu, has a format that this version knows", store->caps.name,
               uuid, (unsigned long long)store->caps.epoch);
    check_records(options, store, doctor);
    close_store(store, options->loop);
}

/* Tells whether anything keeps this host's clock right. */
static void check_host(struct doctor *doctor)
{
    struct timex timex = {0};
    bool known = adjtimex(&timex) >= 0;
    if (known && (timex.status & STA_UNSYNC) != 0) {
        doctor_add(doctor, DOCTOR_WARNING, "clock", "nothing synchronises this host's clock");
        doctor_remedy(doctor,
                      "run chrony or systemd-timesyncd (for a container, run it on the host)");
    } else if (known) {
        doctor_add(doctor, DOCTOR_GOOD, "clock", "this host's clock is synchronised");
    }
}

/* Looks at the Ceph cluster of the URL, before the store in it is opened. */
static int check_cluster(const struct store_doctor_options *options, struct doctor *doctor,
                         bool *ret_silent, struct diag *diag)
{
    struct store_url url;
    struct cluster *cluster;
    int rc = store_url_parse(options->url, &url, diag);
    rc = rc ? rc : cluster_rados_new(&url.cluster, &cluster, diag);
    if (rc != 0) {
        return rc;
    }
    struct rados_doctor_options rados = {.cluster = cluster,
                                         .user = url.cluster.user ? url.cluster.user : "cairn",
                                         .meta_pool = url.cluster.meta_pool,
                                         .data_pool = url.cluster.data_pool ? url.cluster.data_pool
                                                                            : url.cluster.meta_pool,
                                         .space = url.space};
    rc = rados_doctor(&rados, doctor, ret_silent, diag);
    cluster->ops->close(cluster);
    return rc;
}

int store_doctor(const struct store_doctor_options *options, struct doctor *doctor,
                 struct diag *diag)
{
    const char *path = store_url_path(options->url);
    struct dir_doctor_options dir = {
        .vfs = vfs_posix(), .path = path, .reserve_bytes = options->reserve_bytes};
    bool silent = false;
    int rc = store_url_check(options->url, diag);
    rc = rc             ? rc
         : path != NULL ? dir_doctor(&dir, doctor, diag)
                        : check_cluster(options, doctor, &silent, diag);
    if (rc == 0) {
        if (silent) {
            doctor_add(doctor, DOCTOR_UNSAFE, "store",
                       "the store was not examined, because the cluster's OSDs do not answer");
            doctor_remedy(doctor, "look at `ceph health detail`, then run this command again");
        } else {
            check_store(options, doctor);
        }
        check_host(doctor);
    }
    return rc;
}
