/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the daemon, from bottom to top: they are started in that order, and daemon_end.c
 * ends them in reverse. Main thread, blocking; after loop_uv_run() everything happens in callbacks,
 * until the last of them stops the loop.
 */
#include "daemon/daemon_private.h"

#include "base/check.h"
#include "base/failpoint.h"
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* How often the record is read while a request waits for an update of another daemon. */
enum { SHARED_POLL_MS = 100 };
/* Pause between two tries to reach a cluster. */
enum { OPEN_AGAIN_MS = 3000 };

/* --- readiness --- */

/* Tells systemd (Type=notify) that the daemon is ready, without its library: one datagram to
 * $NOTIFY_SOCKET. */
static void notify_ready(void)
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

static int start_retention(struct daemon *daemon)
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

/* Starts the server and its listeners, with or without a store. */
static int start_server(struct daemon *daemon)
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
                                     .store_user = daemon};
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
    status = status != 0 ? status : web_new(&options, &daemon->web, &daemon->diag);
    listeners_http_fini(&http);
    return status;
}

/* Gives the monitoring its sources. `ready` means that the store is open, and so is everything that
 * depends on it. */
static void show_web(struct daemon *daemon, bool ready)
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
        web_look_at(daemon->web, &source, addresses);
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
                                : start_server(daemon);
        status = status != 0 ? status : start_upkeep(daemon);
        status = status != 0 ? status : start_retention(daemon);
    }
    daemon->status = status;
    if (status != 0) {
        daemon_end(daemon, 0);
        return;
    }
    daemon->phase = DAEMON_READY;
    show_web(daemon, true);
    char uuid[33];
    hex_encode(sizeof(daemon->store->caps.uuid), &daemon->store->caps.uuid, uuid);
    LOG(LOG_INFO, "daemon", "ready", ls("store", daemon->config->store_url), ls("store_uuid", uuid),
        lu("epoch", daemon->store->caps.epoch), ls("version", CAIRN_VERSION));
    notify_ready();
}

/* Puts the counting decorator in front of the store. */
static int count_store(struct daemon *daemon)
{
    struct store *counted = NULL;
    int status = store_count_new(daemon->loop, daemon->store, &counted, &daemon->store_counts);
    if (status != 0) {
        return diag_set(&daemon->diag, status,
                        "there is not enough memory for the counters of the store");
    }
    daemon->store = counted;
    return 0;
}

/* Called when the store begins to refuse, or serves again. A store that refuses may lack room, so
 * garbage collection looks at it at once. */
static void on_store_changed(void *user, bool is_ill, const struct diag *refusal)
{
    struct daemon *daemon = user;
    if (is_ill) {
        LOG(LOG_ERROR, "store", "the store refuses writes; saves are refused until it works again",
            ls("code", err_name(refusal->code)), ls("err", diag_text(refusal, refusal->code)));
        if (daemon->upkeep) {
            upkeep_press(daemon->upkeep);
        }
    } else {
        LOG(LOG_INFO, "store", "the store takes writes again");
    }
}

/* --- SIGHUP --------------------------------------------------------------------------------- */

void daemon_set_log(const struct config *config)
{
    enum log_level level = LOG_INFO;
    enum log_format format = LOG_TEXT;
    /* config_check() has checked both words. */
    err_ignore(log_parse_level(config->log_level, &level));
    err_ignore(log_parse_format(config->log_format, &format));
    log_setup(level, format);
}

/* Called for each key that differs after a reload of the configuration. Counts those that wait for
 * a restart. */
static void on_differs(void *user, const char *section, const char *name, bool is_taken)
{
    unsigned *waiting = user;
    if (is_taken) {
        LOG(LOG_INFO, "config", "a changed setting is in effect", ls("section", section),
            ls("key", name[0] != '\0' ? name : NULL));
    } else {
        ++*waiting;
        LOG(LOG_WARN, "config", "a changed setting takes effect only after a restart",
            ls("section", section), ls("key", name));
    }
}

/* Passes on the new configuration to parts that do not read it each time. Retention may begin, end,
 * or go on with another interval. */
static int apply_config(struct daemon *daemon)
{
    const struct config *config = daemon->config;
    if (daemon->upkeep) {
        upkeep_reload(daemon->upkeep);
    }
    if (!daemon->retain) {
        int status = FAILPOINT("daemon.retention");
        return status == 0 && daemon->phase == DAEMON_READY ? start_retention(daemon) : status;
    }
    if (config->retention_ms > 0) {
        retain_set_interval(daemon->retain, config->retention_ms);
        return 0;
    }
    retain_free(daemon->retain);
    daemon->retain = NULL;
    return 0;
}

/* Reloads the configuration on SIGHUP. Nothing is taken from a file with a mistake. */
static void on_reload(void *user, int signum)
{
    struct daemon *daemon = user;
    const struct daemon_options *options = daemon->options;
    struct diag diag = DIAG_INIT;
    unsigned waiting = 0;
    (void)signum;
    if (daemon_is_ending(daemon) || !options->reread) {
        return;
    }
    struct config *fresh = malloc(sizeof(*fresh));
    int status = fresh ? options->reread(options->user, fresh, &diag) : CAIRN_E_NO_MEMORY;
    if (status != 0) {
        LOG(LOG_ERROR, "config",
            "nothing of the configuration file is taken: the daemon keeps its old configuration",
            ls("code", err_name(status)), ls("err", diag_text(&diag, status)));
        free(fresh);
        return;
    }
    if (!log_enabled(LOG_INFO)) {
        daemon_set_log(fresh); /* the following lines use the more verbose of both levels */
    }
    config_reload(options->config, fresh, on_differs, &waiting);
    status = apply_config(daemon);
    if (daemon->phase == DAEMON_READY) {
        show_web(daemon, true);
    }
    LOG(LOG_INFO, "config", "the daemon has read its configuration again",
        lu("need_restart", waiting));
    if (status != 0) {
        LOG(LOG_ERROR, "config",
            "the new configuration is in effect, but [retention] could not be started: send SIGHUP "
            "again",
            ls("code", err_name(status)));
    }
    daemon_set_log(options->config);
    free(fresh);
}

/* Puts counts and watch between the store and its users. */
static int watch_store(struct daemon *daemon, struct store *store)
{
    CHECK(!daemon->store);
    struct store_watch_options watch = {.changed = on_store_changed, .user = daemon};
    daemon->store = store;
    int status = count_store(daemon);
    if (status != 0) {
        return status;
    }
    status = store_watch_new(daemon->loop, daemon->store, &watch, &daemon->store);
    return status == 0 ? 0
                       : diag_set(&daemon->diag, status,
                                  "there is not enough memory for watching the store");
}

/* Makes the catalogue over the store. on_catalog_ready() continues. */
static int open_catalog(struct daemon *daemon)
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

/* --- opening the store ---------------------------------------------------------------------- */

/* Opens a store on this host. It either opens at once or ends the start. */
static int open_store(struct daemon *daemon, const struct store_open_options *options)
{
    struct store *store = NULL;
    int status = store_open(options, &store, &daemon->diag);
    if (status == 0) {
        status = watch_store(daemon, store);
        return status != 0 ? status : open_catalog(daemon);
    }
    if (status == CAIRN_E_DENIED) {
        diag_add(&daemon->diag, "check that user %lu may write in %s", (unsigned long)geteuid(),
                 options->url);
    } else {
        diag_add(&daemon->diag, "open the store %s", options->url);
    }
    return status;
}

/* Called when the cluster is open, or can never be. */
static void on_opener_ended(void *user, int status, struct store *store, const struct diag *diag)
{
    struct daemon *daemon = user;
    struct opener *opener = daemon->opener;
    daemon->opener = NULL;
    if (status == 0) {
        status = watch_store(daemon, store);
        status = status != 0 ? status : open_catalog(daemon);
    } else {
        err_ignore(diag_copy(&daemon->diag, diag)); /* returned as the daemon's status */
        diag_add(&daemon->diag, "open the store %s", daemon->config->store_url);
    }
    opener_close(opener, NULL, NULL);
    daemon->status = status;
    if (status != 0) {
        daemon_end(daemon, 0);
    }
}

/* Called when a try to open the cluster has failed, because it is out of reach or refuses this
 * user. The daemon tells its clients, and goes on trying. */
static void on_opener_failed(void *user, const struct diag *diag)
{
    struct daemon *daemon = user;
    if (daemon_is_ending(daemon)) {
        return;
    }
    if (!daemon->server) {
        daemon->status = start_server(daemon);
        if (daemon->status != 0) {
            daemon_end(daemon, 0);
            return;
        }
        LOG(LOG_ERROR, "daemon", "the store cannot be opened yet; the daemon keeps trying",
            ls("store", daemon->config->store_url), ls("code", err_name(diag->code)),
            ls("err", diag->text));
        notify_ready();
    }
    CHECK(daemon->server != NULL);
    CHECK(!daemon->catalog);
    server_wait(daemon->server, diag);
    show_web(daemon, false);
}

/* Begins to open the store: a directory at once, a cluster with an opener, which tries until it is
 * in reach. */
static int begin_opening(struct daemon *daemon)
{
    const struct config *config = daemon->config;
    bool expected = config->store_uuid[0] != '\0' &&
                    hex_decode(sizeof(daemon->expected), config->store_uuid, &daemon->expected);
    snprintf(
        daemon->no_store, sizeof(daemon->no_store),
        "check that its disk is mounted; a new store is made once, with `cairn store create '%s'`",
        config->store_url);
    struct opener_options options = {.open = {.loop = daemon->loop,
                                              .pool = daemon->store_pool,
                                              .url = config->store_url,
                                              .remedy = daemon->no_store,
                                              .force_fs = config->store_force,
                                              .expected_uuid = expected ? &daemon->expected : NULL,
                                              .reserve_bytes = config->store_reserve},
                                     .again_ms = OPEN_AGAIN_MS,
                                     .ended = on_opener_ended,
                                     .failed = on_opener_failed,
                                     .user = daemon};
    if (!store_url_is_cluster(config->store_url)) {
        /* It opens at once, or fails and ends the daemon. */
        return open_store(daemon, &options.open);
    }
    int status = opener_new(&options, &daemon->opener);
    return status == 0 ? 0
                       : diag_set(&daemon->diag, status,
                                  "there is not enough memory for opening the store");
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
        status = loop_uv_on_signal(daemon->loop, SIGHUP, on_reload, daemon, &daemon->diag);
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
    status = status != 0 ? status : start_web(daemon);
    return status != 0 ? status : begin_opening(daemon);
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
