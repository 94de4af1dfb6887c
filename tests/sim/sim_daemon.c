/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons come and go: STARTING -> UP -> ENDING -> gone. A killed one is torn down as an ordered
 * one is, with all its calls failing; the next one starts beside it. One thread.
 */
#include "sim_daemon.h"

#include <stdlib.h>

#include "base/check.h"
#include "net/stream.h"
#include "session/server.h"
#include "sim_mutant.h"
#include "store/dir/store_dir.h"
#include "store/wrap/store_wrap.h"

struct sim_daemon {
    struct scene *scene;
    struct list link;
    struct sim_host *host;
    struct store *store;
    struct catalog *catalog;
    struct server *server;
    struct listener *listener;
    bool ready, ending, gone;
};

/* --- the end, from top to bottom -------------------------------------------------- */

static void on_store_closed(void *user)
{
    struct sim_daemon *daemon = user;
    daemon->store = NULL;
    daemon->gone = true;
}

static void on_catalog_closed(void *user)
{
    struct sim_daemon *daemon = user;
    daemon->catalog = NULL;
    store_close(daemon->store, on_store_closed, daemon);
}

static void on_server_stopped(void *user)
{
    struct sim_daemon *daemon = user;
    server_free(daemon->server);
    daemon->server = NULL;
    catalog_close(daemon->catalog, on_catalog_closed, daemon);
}

static void daemon_end(struct sim_daemon *daemon, uint64_t grace_ms)
{
    listener_close(daemon->listener);
    daemon->listener = NULL;
    if (daemon->ending) {
        if (daemon->server) {
            server_stop(daemon->server, grace_ms, on_server_stopped, daemon); /* hurry */
        }
        return;
    }
    daemon->ending = true;
    if (daemon->server) {
        server_stop(daemon->server, grace_ms, on_server_stopped, daemon);
    } else if (daemon->catalog) {
        catalog_close(daemon->catalog, on_catalog_closed, daemon);
    } else if (daemon->store) {
        store_close(daemon->store, on_store_closed, daemon);
    } else {
        daemon->gone = true;
    }
}

/* --- the beginning, from bottom to top -------------------------------------------- */

static void on_accept(void *user, struct sock *sock)
{
    struct sim_daemon *daemon = user;
    struct stream *stream;
    if (stream_plain_new(sock, &stream, NULL) == 0) {
        server_accept(daemon->server, stream);
    }
}

static void must(struct scene *scene, int status, const struct diag *diag)
{
    if (status != 0) {
        scene_fail(scene, "the daemon does not start: %s: %s", err_name(status), diag->text);
    }
}

static void on_catalog_ready(void *user, int status, const struct diag *diag)
{
    struct sim_daemon *daemon = user;
    struct scene *scene = daemon->scene;
    struct diag mine = DIAG_INIT;
    if (daemon->ending) {
        return;
    }
    if (status != 0) {
        if (!sim_is_dead(daemon->host) && !scene->disk_was_harmed) {
            must(scene, status, diag);
        }
        daemon_end(daemon, 0);
        return;
    }
    struct server_options options = {.loop = sim_loop(daemon->host),
                                     .catalog = daemon->catalog,
                                     .verify_pool = sim_pool(daemon->host),
                                     .buffer_bytes_total = 4 * SCENE_BUFFER_BYTES,
                                     .buffer_bytes = SCENE_BUFFER_BYTES,
                                     .sessions_max = scene->sessions_max,
                                     .heartbeat_ms = 500,
                                     .dead_after_ms = 2000,
                                     .login_ms = 3000,
                                     .grant_idle_ms = 3000,
                                     .rank_grace_ms = 6000,
                                     .part_bytes_total = scene->part_bytes,
                                     .agent = "cairnd sim"};
    must(scene, server_new(&options, &daemon->server, &mine), &mine);
    daemon->ready = true;
    if (!sim_is_dead(daemon->host)) {
        struct net_addr addr = {.family = NET_TCP, .host = "server", .port = SCENE_PORT};
        if (scene->local) {
            addr = (struct net_addr){.family = NET_UNIX, .host = "/server"};
        }
        struct net *net = sim_net(daemon->host);
        must(scene,
             net->ops->listen(net, &addr, 0, on_accept, daemon, &daemon->listener, NULL, &mine),
             &mine);
    }
}

static int open_store(struct sim_daemon *daemon, struct diag *diag)
{
    struct scene *scene = daemon->scene;
    struct store_dir_options options = {.loop = sim_loop(daemon->host),
                                        .pool = sim_pool(daemon->host),
                                        .vfs = sim_vfs(daemon->host),
                                        .path = "/store",
                                        .create = true,
                                        .snapshot_every = scene->snapshot_every};
    mutant_on_host(scene->mutant, daemon->host);
    int status = store_dir_new(&options, &daemon->store, diag);
    if (status == 0) {
        daemon->store->caps.object_bytes_preferred = scene->object_bytes;
        if (daemon->store->caps.epoch <= scene->daemon_epoch) {
            scene_fail(scene, "the store's epoch did not grow: %llu after %llu",
                       (unsigned long long)daemon->store->caps.epoch,
                       (unsigned long long)scene->daemon_epoch);
        }
        scene->daemon_epoch = daemon->store->caps.epoch;
        daemon->store = mutant_on_store(scene->mutant, sim_loop(daemon->host), daemon->store);
        must(scene, store_fault_new(sim_loop(daemon->host), daemon->store, &daemon->store), diag);
    }
    return status;
}

static void daemon_start(struct scene *scene)
{
    struct sim_daemon *daemon = calloc(1, sizeof *daemon);
    struct diag diag = DIAG_INIT;
    CHECK(daemon);
    daemon->scene = scene;
    daemon->host = scene_host(scene, "server", scene->disk);
    if (!scene->healed && sim_chance(scene->sim, 12)) {
        sim_kill_at_vfs_call(daemon->host, 1 + sim_below(scene->sim, 60)); /* while starting */
    }
    scene->daemon = daemon;
    int status = open_store(daemon, &diag);
    if (status != 0) {
        bool locked = status == CAIRN_E_STORE_LOCKED && !list_is_empty(&scene->daemons_ending);
        if (!locked && !sim_is_dead(daemon->host) && !scene->disk_was_harmed) {
            must(scene, status, &diag);
        }
        scene_tell(scene, "the daemon does not start: %s", diag.text);
        daemon_end(daemon, 0);
        return;
    }
    struct catalog_options options = {.chunk_bytes = SCENE_CHUNK_BYTES,
                                      .restore_drain_ms = 1000,
                                      .ready = on_catalog_ready,
                                      .user = daemon,
                                      .pool = sim_pool(daemon->host),
                                      .cache_bytes = scene->cache_bytes,
                                      .upload_bytes = scene->cache_bytes,
                                      .deadline_ms_max = scene->deadline_ms_max,
                                      .full_every = 5,
                                      .page_bytes = 512};
    must(scene, catalog_new(sim_loop(daemon->host), daemon->store, &options, &daemon->catalog),
         &diag);
}

/* --- the supervisor --------------------------------------------------------------- */

static void bury(struct scene *scene)
{
    list_each_safe (node, &scene->daemons_ending) {
        struct sim_daemon *daemon = list_item(node, struct sim_daemon, link);
        if (daemon->gone) {
            list_remove(&daemon->link);
            free(daemon);
        }
    }
}

void daemon_tick(struct scene *scene)
{
    struct sim_daemon *daemon = scene->daemon;
    bury(scene);
    if (!daemon) {
        if (!scene->over && scene_now_ms(scene) >= scene->daemon_start_ms) {
            daemon_start(scene);
        }
        return;
    }
    if (sim_is_dead(daemon->host)) {
        scene_tell(scene, "the daemon is dead%s", scene->power_loss ? ", so is the machine" : "");
        if (scene->power_loss) {
            list_each (node, &scene->daemons_ending) {
                sim_kill(list_item(node, struct sim_daemon, link)->host, SIM_RESET);
            }
        }
        if (scene->power_loss && scene->lose_all) {
            sim_disk_crash_lose_all(scene->disk);
        } else if (scene->power_loss) {
            sim_disk_crash(scene->disk);
        }
        scene->power_loss = scene->lose_all = false;
        daemon_end(daemon, 0);
    }
    if (daemon->ending) {
        list_add_tail(&scene->daemons_ending, &daemon->link);
        scene->daemon = NULL;
        scene->daemon_start_ms =
            scene_now_ms(scene) + sim_below(scene->sim, sim_chance(scene->sim, 4) ? 4000 : 400);
    }
}

void daemon_kill(struct scene *scene, enum sim_death death)
{
    if (scene->daemon) {
        sim_kill(scene->daemon->host, death);
    }
}

void daemon_kill_at_call(struct scene *scene, uint64_t call)
{
    if (scene->daemon) {
        sim_kill_at_vfs_call(scene->daemon->host, call);
    }
}

void daemon_harm_store(struct scene *scene, uint64_t arg)
{
    static const enum store_op ops[] = {STORE_RECORD_UPDATE, STORE_PUBLISH, STORE_SEAL,
                                        STORE_WRITE,         STORE_CREATE,  STORE_RECORD_GET,
                                        STORE_LIST_OBJECTS};
    static const int codes[] = {CAIRN_E_IO, CAIRN_E_TIMED_OUT, CAIRN_E_NO_SPACE};
    struct store_fault_rule rule = {.op = ops[arg % 7], .skip = (unsigned)(arg >> 4) % 6};
    if (arg % 7 < 3 && arg & 0x400) {
        rule.kind = FAULT_LOST; /* done, but nobody learns of it */
    } else if (arg & 0x800) {
        rule.kind = FAULT_DELAY;
        rule.delay_ms = 1 + (arg >> 5) % 4000;
    } else {
        rule.kind = FAULT_FAIL;
        rule.code = codes[(arg >> 5) % 3];
    }
    rule.count = 1 + (unsigned)(arg >> 12) % 3;
    if (scene->daemon && scene->daemon->store) {
        err_ignore(store_fault_add(scene->daemon->store, &rule)); /* 16 at once are enough */
    }
}

void daemon_heal_store(struct scene *scene)
{
    if (scene->daemon && scene->daemon->store) {
        store_fault_clear(scene->daemon->store);
    }
}

void daemon_stop(struct scene *scene, uint64_t grace_ms)
{
    if (scene->daemon && !sim_is_dead(scene->daemon->host)) {
        daemon_end(scene->daemon, grace_ms);
    }
}

bool daemon_is_up(struct scene *scene)
{
    return scene->daemon && scene->daemon->ready && !scene->daemon->ending &&
           !sim_is_dead(scene->daemon->host);
}

/* I8: with nobody connected, all buffers are back. */
void daemon_check_idle(struct scene *scene)
{
    struct server_stats stats;
    server_stats(scene->daemon->server, &stats);
    if (stats.sessions != 0 || stats.saves_open != 0 || stats.buffers_free != stats.buffers_total) {
        scene_fail(scene, "I8: the idle daemon has %u sessions, %u saves, %llu of %llu buffers",
                   stats.sessions, stats.saves_open, (unsigned long long)stats.buffers_free,
                   (unsigned long long)stats.buffers_total);
    }
}

bool daemon_is_gone(struct scene *scene)
{
    return !scene->daemon && list_is_empty(&scene->daemons_ending);
}
