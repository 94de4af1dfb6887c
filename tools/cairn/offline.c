/* SPDX-License-Identifier: Apache-2.0
 *
 * See offline.h.
 */
#include "offline.h"

#include "repair/repair.h"
#include "session/server.h"
#include "system/offline_store.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER_BYTES = 32 << 20, NEVER_MS = 1 << 30 };

struct offline {
    struct offline_store at;
    struct net *net;
    struct server *server;
    struct repair *repair;
    const char *repair_from;
};

static int open_server(struct offline *offline, struct diag *diag)
{
    struct server_options options = {.loop = offline->at.loop,
                                     .catalog = offline->at.catalog,
                                     .verify_pool = offline->at.pool,
                                     .buffer_bytes_total = BUFFER_BYTES,
                                     .sessions_max = 4,
                                     .heartbeat_ms = NEVER_MS,
                                     .dead_after_ms = 2 * (NEVER_MS - 1),
                                     .login_ms = NEVER_MS,
                                     .grant_idle_ms = NEVER_MS,
                                     .part_bytes_total = 1,
                                     .agent = "cairn --store"};
    return server_new(&options, &offline->server, diag);
}

static int open_mirror(void *user, struct loop *loop, struct work_pool *pool, struct store **ret,
                       struct diag *diag)
{
    const struct offline *offline = user;
    struct store_open_options options = {
        .loop = loop, .pool = pool, .url = offline->repair_from, .read_only = true};
    int status = store_open(&options, ret, diag);
    if (status != 0) {
        diag_add(diag, "cannot read the mirror --from %s", options.url);
    }
    return status;
}

static int open_repair(struct offline *offline, struct diag *diag)
{
    const char *from = offline->repair_from;
    int status = from ? store_url_check(from, diag) : 0;
    if (status != 0) {
        return status;
    }
    struct repair_options options = {.loop = offline->at.loop,
                                     .catalog = offline->at.catalog,
                                     .open_mirror = from ? open_mirror : NULL,
                                     .mirror_threads = from ? store_url_threads_min(from) + 1 : 0,
                                     .mirror_first = true,
                                     .mirror = from,
                                     .user = offline};
    status = repair_new(&options, &offline->repair, diag);
    if (status == 0) {
        server_set_repair(offline->server, offline->repair);
    }
    return status;
}

int offline_new(const struct offline_options *options, struct offline **ret, struct diag *diag)
{
    struct offline *offline = calloc(1, sizeof(*offline));
    if (!offline) {
        return diag_no_memory(diag, "reading the store");
    }
    *offline =
        (struct offline){.at = {.loop = options->loop, .pool = options->pool}, .net = options->net};
    struct store_open_options open = {.url = options->store, .read_only = !options->writable};
    int status = offline_store_open(&offline->at, &open, diag);
    status = status != 0 ? status : open_server(offline, diag);
    if (status == 0 && options->repairs) {
        offline->repair_from = options->repair_from;
        status = open_repair(offline, diag);
    }
    if (status != 0) {
        offline_free(offline);
        return status;
    }
    *ret = offline;
    return 0;
}

void offline_free(struct offline *offline)
{
    if (!offline) {
        return;
    }
    if (offline->repair) {
        server_set_repair(offline->server, NULL);
        repair_close(offline->repair, offline_store_wake, &offline->at);
        offline_store_wait(&offline->at);
    }
    if (offline->server) {
        server_stop(offline->server, 0, offline_store_wake, &offline->at);
        offline_store_wait(&offline->at);
        server_free(offline->server);
    }
    offline_store_close(&offline->at);
    free(offline);
}

int offline_dial(void *user, struct sock **ret, struct diag *diag)
{
    struct offline *offline = user;
    struct sock *ours = NULL;
    struct stream *stream = NULL;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return diag_errno(diag, errno, "cannot create a socket pair");
    }
    int status = net_uv_adopt(offline->net, pair[0], &ours, diag);
    if (status == 0) {
        status = stream_plain_new(ours, &stream, diag);
    }
    if (status != 0) {
        close(pair[1]);
        return status;
    }
    server_accept(offline->server, stream);
    return net_uv_adopt(offline->net, pair[1], ret, diag);
}

/* --- the record, for verify ------------------------------------------------------------------- */

struct record_check {
    struct store_req req;
    struct run_snapshot_req snapshot;
    struct offline *offline;
    int status;
    struct diag diag;
};

static void on_record(struct store_req *req)
{
    offline_store_wake(&container_of(req, struct record_check, req)->offline->at);
}

static void on_state(struct run_snapshot_req *req)
{
    struct record_check *check = container_of(req, struct record_check, snapshot);
    check->status = req->status == 0 ? state_unrecorded_check(req->state, &check->diag) : 0;
    req->run = NULL; /* answered; a record that cannot be read is told by joining the run */
    offline_store_wake(&check->offline->at);
}

/* Checks that the record of the run knows all of its checkpoints that are stored. */
static int check_beside(struct record_check *check, const struct run_name *name, struct diag *diag)
{
    struct run *run = catalog_run(check->offline->at.catalog, name);
    if (!run) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to read the run's record");
    }
    check->snapshot = (struct run_snapshot_req){.done = on_state};
    run_snapshot(run, &check->snapshot);
    offline_store_wait(&check->offline->at);
    catalog_release(run);
    return check->status != 0 ? diag_set(diag, check->status, "%s", check->diag.text) : 0;
}

int offline_check_record(struct offline *offline, const struct run_name *run, bool *ret_salvage,
                         struct diag *diag)
{
    struct record_check check = {
        .offline = offline,
        .req = {.op = STORE_RECORD_GET, .from_medium = true, .done = on_record}};
    if (run) {
        check.req.run = *run;
    }
    store_submit(offline->at.store, &check.req);
    offline_store_wait(&offline->at);
    record_free(check.req.ret_record);
    int status = check.req.status;
    bool lost = check.req.ret_lost_from != 0;
    *ret_salvage = lost;
    if (lost &&
        (check.req.diag.code == CAIRN_E_IO ||
         check.req.diag.code == CAIRN_E_DENIED)) { /* it may be read again: its text says more */
        return diag_set(diag, CAIRN_E_IO, "%s", check.req.diag.text);
    }
    if (store_record_is_damaged(&check.req)) {
        return diag_set(diag, CAIRN_E_DAMAGED, "%s", diag_text(&check.req.diag, CAIRN_E_DAMAGED));
    }
    if (status != 0) {
        return diag_set(diag, status, "%s", diag_text(&check.req.diag, status));
    }
    status = run ? check_beside(&check, run, diag) : 0;
    *ret_salvage = status == CAIRN_E_DAMAGED;
    return status;
}
