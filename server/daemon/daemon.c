/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the daemon, from bottom to top: they are started in that order, and daemon_end.c
 * ends them in reverse. Main thread, blocking; after loop_uv_run() everything happens in callbacks,
 * until the last of them stops the loop.
 */
#include "daemon/daemon_private.h"

#include "base/check.h"
#include "base/log.h"
#include "daemon/listeners_http.h"
#include "env/prompt.h"
#include "hash/hash.h"
#include "net/stream.h"
#include "pipeline/encode_pool.h"
#include "store/open/store_open.h"
#include "store/wrap/store_wrap.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* How often the record is read while a request waits for an update of another daemon. */
enum { SHARED_POLL_MS = 100 };

/* --- readiness --- */

void daemon_notify_ready(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    static const char text[] = "READY=1";
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(addr.sun_path)) {
        return;
    }
    memcpy(addr.sun_path, path, strlen(path));
    if (path[0] == '@') {
        addr.sun_path[0] = '\0';
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (sendto(fd, text, sizeof(text) - 1, MSG_NOSIGNAL, (struct sockaddr *)&addr, length) < 0) {
        LOG(LOG_WARN, "daemon", "the service manager could not be notified",
            ls("err", strerror(errno)));
    }
    close(fd);
}

/* --- the beginning, from bottom to top ------------------------------------------------------ */

static uint32_t encode_lanes(const struct config *config)
{
    uint64_t lanes = config->encode_bytes / encode_pool_lane_bytes();
    return (uint32_t)min_u64(lanes, min_u64(config->verify_threads, ENCODE_POOL_ENCODERS));
}

int daemon_start_retention(struct daemon *daemon)
{
    CHECK(!daemon->retain);
    CHECK(daemon->catalog != NULL);
    struct retain_options options = {.loop = daemon->loop,
                                     .catalog = daemon->catalog,
                                     .table = &daemon->config->retention,
                                     .interval_ms = daemon->config->retention_ms,
                                     .report = upkeep_log_retention,
                                     .tell_use = server_tell_use,
                                     .server = daemon->server,
                                     .user = daemon};
    return options.interval_ms > 0 ? retain_new(&options, &daemon->retain) : 0;
}

static void tell_state(void *user, struct store_state *ret)
{
    const struct daemon *daemon = user;
    CHECK(daemon->store); /* the server has its catalogue */
    store_watch_state(daemon->store, ret);
}

int daemon_start_server(struct daemon *daemon)
{
    CHECK(!daemon->server);
    const struct config *config = daemon->config;
    struct server_options options = {.loop = daemon->loop,
                                     .catalog = daemon->catalog,
                                     .verify_pool = daemon->verify_pool,
                                     .buffer_bytes_total = config->buffer_bytes,
                                     .sessions_max = (uint32_t)config->sessions_max,
                                     .heartbeat_ms = (uint32_t)config->heartbeat_ms,
                                     .dead_after_ms = (uint32_t)config->dead_after_ms,
                                     .login_ms = (uint32_t)config->login_ms,
                                     .grant_idle_ms = (uint32_t)config->grant_idle_ms,
                                     .rank_grace_ms = (uint32_t)config->rank_grace_ms,
                                     .part_bytes_total = config->part_bytes,
                                     .message_bytes_total = config->message_bytes,
                                     .quotas = &config->quotas,
                                     .policies = &config->retention,
                                     .policies_every_ms = &config->retention_ms,
                                     .encode_lanes = encode_lanes(config),
                                     .agent = "cairnd " CAIRN_VERSION,
                                     .store_state = tell_state,
                                     .store_user = daemon,
                                     .config_error = daemon->reload_error};
    int status = server_new(&options, &daemon->server, &daemon->diag);
    if (status != 0) {
        return status;
    }
    struct listeners_options listen = {
        .loop = daemon->loop, .net = daemon->net, .config = config, .server = daemon->server};
    return listeners_new(&listen, &daemon->listeners, &daemon->diag);
}

static int start_upkeep(struct daemon *daemon)
{
    CHECK(!daemon->upkeep);
    CHECK(daemon->server != NULL);
    CHECK(daemon->store != NULL);
    const struct config *config = daemon->config;
    struct upkeep_options upkeep = {.loop = daemon->loop,
                                    .catalog = daemon->catalog,
                                    .server = daemon->server,
                                    .config = config,
                                    .listeners = daemon->listeners,
                                    .store_state = tell_state,
                                    .store_user = daemon};
    return daemon->store->caps.read_only ? 0 : upkeep_new(&upkeep, &daemon->upkeep, &daemon->diag);
}

/* Starts the monitoring first, so that it can show a daemon that waits for its store. */
static int start_web(struct daemon *daemon)
{
    const struct config *config = daemon->config;
    struct listeners_http http;
    if (config->http_listen[0] == '\0') {
        return 0;
    }
    int status = listeners_http(config, &http, &daemon->diag);
    if (config->tls_cert[0] != '\0') { /* without the file there is no such metric */
        err_ignore(tls_certificate_ends(config->tls_cert, &daemon->certificate_ends_s, NULL));
    }
    daemon->begun_wall_ns = loop_wall_ns(daemon->loop);
    struct web_options options = {.addr = &http.addr,
                                  .tls_cert = http.cert,
                                  .tls_key = http.key,
                                  .tls_ca = http.ca,
                                  .token = http.token,
                                  .trusts_all = http.trusts_all,
                                  .quotas = &config->quotas,
                                  .loop = daemon->loop,
                                  .begun_wall_ns = daemon->begun_wall_ns};
    if (status == 0) {
        status = web_new(&options, &daemon->web, &daemon->diag);
    }
    listeners_http_fini(&http);
    return status;
}

void daemon_show_web(struct daemon *daemon, bool ready)
{
    struct metrics_source source = {.loop = daemon->loop,
                                    .server = daemon->server,
                                    .begun_wall_ns = daemon->begun_wall_ns,
                                    .certificate_ends_s = daemon->certificate_ends_s};
    if (ready) {
        source.catalog = daemon->catalog;
        source.retain = daemon->retain;
        source.store = daemon->store_counts;
    }
    if (ready && daemon->upkeep) {
        source.scrub = upkeep_scrub(daemon->upkeep);
        source.gc = upkeep_gc(daemon->upkeep);
    }
    char addresses[2048] = "";
    if (daemon->listeners) {
        listeners_addresses(daemon->listeners, daemon->config, sizeof(addresses), addresses);
    }
    if (daemon->web) {
        web_set_source(daemon->web, &source, addresses);
    }
}

/* Called when the catalogue is loaded: starts the rest of the daemon, and reports that it is
 * ready. */
static void on_catalog_ready(void *user, int status, const struct diag *diag)
{
    struct daemon *daemon = user;
    if (daemon_is_ending(daemon)) {
        return;
    }
    if (status != 0) {
        err_ignore(diag_copy(&daemon->diag, diag)); /* returned as the daemon's status */
    } else {
        status = daemon->server ? server_open(daemon->server, daemon->catalog, &daemon->diag)
                                : daemon_start_server(daemon);
    }
    if (status == 0) {
        status = start_upkeep(daemon);
    }
    if (status == 0) {
        status = daemon_start_retention(daemon);
    }
    daemon->status = status;
    if (status != 0) {
        daemon_end(daemon, 0);
        return;
    }
    daemon->phase = DAEMON_READY;
    daemon_show_web(daemon, true);
    char uuid[33];
    hex_encode(sizeof(daemon->store->caps.uuid), &daemon->store->caps.uuid, uuid);
    LOG(LOG_INFO, "daemon", "ready", ls("store", daemon->config->store_url), ls("store_uuid", uuid),
        lu("epoch", daemon->store->caps.epoch), ls("version", CAIRN_VERSION));
    daemon_notify_ready();
}

int daemon_open_catalog(struct daemon *daemon)
{
    CHECK(!daemon->catalog);
    CHECK(daemon->store != NULL);
    const struct config *config = daemon->config;
    struct catalog_options options = {.ready = on_catalog_ready,
                                      .user = daemon,
                                      .chunk_bytes = config->chunk_bytes,
                                      .restore_drain_ms = config->drain_ms,
                                      .deadline_ms_max = config->deadline_max_ms,
                                      .full_every =
                                          (uint32_t)min_u64(config->full_every, UINT32_MAX),
                                      .pool = daemon->verify_pool,
                                      .cache_bytes = config->cache_bytes,
                                      .poll_ms = daemon->store->caps.shared ? SHARED_POLL_MS : 0};
    return catalog_new(daemon->loop, daemon->store, &options, &daemon->catalog);
}

/* Starts the parts of the daemon from bottom to top. After an error, daemon_finish() ends those
 * that were started. */
static int start(struct daemon *daemon)
{
    static const int signals[] = {SIGTERM, SIGINT};
    const struct config *config = daemon->config;
    int status = loop_uv_new(&daemon->loop, &daemon->diag);
    if (status == 0) {
        daemon_end_init(daemon);
    }
    for (size_t i = 0; status == 0 && i < sizeof(signals) / sizeof(signals[0]); i++) {
        status =
            loop_uv_on_signal(daemon->loop, signals[i], daemon_on_signal, daemon, &daemon->diag);
    }
    if (status == 0) {
        status = loop_uv_on_signal(daemon->loop, SIGHUP, daemon_on_reload, daemon, &daemon->diag);
    }
    if (status == 0) {
        status = net_uv_new(daemon->loop, &daemon->net, &daemon->diag);
    }
    if (status == 0) {
        unsigned threads = (unsigned)config->store_threads;
        unsigned least = store_url_threads_min(config->store_url);
        threads = threads > least ? threads : least;
        status = work_threads_new(daemon->loop, threads, "cairn-store", &daemon->store_pool,
                                  &daemon->diag);
    }
    if (status == 0) {
        work_threads_be_prompt(daemon->store_pool);
        status = work_threads_new(daemon->loop, (unsigned)config->verify_threads, "cairn-verify",
                                  &daemon->verify_pool, &daemon->diag);
    }
    if (status == 0) {
        status = start_web(daemon);
    }
    return status != 0 ? status : daemon_open(daemon);
}

int daemon_run(const struct daemon_options *options, struct diag *diag)
{
    struct daemon daemon = {.options = options, .config = options->config};
    if (prctl(PR_SET_DUMPABLE, 0) != 0) {
        LOG(LOG_WARN, "daemon",
            "core dumps could not be disabled, so a crash could write secrets to a core file",
            ls("err", strerror(errno)));
    }
    int status = start(&daemon);
    if (status == 0) {
        thread_be_prompt();
        loop_uv_run(daemon.loop);
        status = daemon.status;
    }
    daemon_finish(&daemon);
    if (status != 0) {
        return diag_set(diag, status, "%s", diag_text(&daemon.diag, status));
    }
    LOG(LOG_INFO, "daemon", "the daemon has stopped cleanly");
    return 0;
}
