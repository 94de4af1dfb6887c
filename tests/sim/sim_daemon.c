/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons come and go: STARTING -> UP -> ENDING -> gone. A killed one is torn down as an ordered
 * one is, with all its calls failing; the next one starts beside it. Opening a store on a cluster
 * waits for it, and so runs as a work that may wait. One thread.
 */
#include "sim_daemon.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "net/stream.h"
#include "session/server.h"
#include "sim_mutant.h"
#include "sim_upkeep.h"
#include "store/dir/store_dir.h"
#include "store/rados/store_rados.h"
#include "support/store_fault.h"

struct sim_daemon {
    struct scene *scene;
    struct scene_seat *seat;
    struct list link;
    struct sim_host *host;
    struct store *store;
    struct sim_way *way; /* to the cluster; the store's */
    struct work opening;
    bool is_opening;
    int open_status;
    struct diag open_diag;
    struct catalog *catalog;
    struct server *server;
    struct sim_upkeep *upkeep; /* NULL if the store is not tended, or once the upkeep has ended */
    uint64_t grace_ms;         /* of the server, when the upkeep has ended */
    struct listener *listener;
    bool ready, ending, gone;
};

/* --- the end, from top to bottom -------------------------------------------------- */

static void on_store_closed(void *user)
{
    struct sim_daemon *daemon = user;
    daemon->store = NULL;
    daemon->way = NULL;
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

static void on_care_closed(void *user)
{
    struct sim_daemon *daemon = user;
    daemon->upkeep = NULL;
    server_stop(daemon->server, daemon->grace_ms, on_server_stopped, daemon);
}

static void daemon_end(struct sim_daemon *daemon, uint64_t grace_ms)
{
    listener_close(daemon->listener);
    daemon->listener = NULL;
    daemon->grace_ms = grace_ms;
    if (daemon->ending) {
        if (daemon->server && !daemon->upkeep) {
            server_stop(daemon->server, grace_ms, on_server_stopped, daemon); /* hurry */
        }
        return;
    }
    daemon->ending = true;
    if (daemon->is_opening) {
        return; /* on_opened goes on with the end */
    }
    if (daemon->upkeep) {
        upkeep_close(daemon->upkeep, on_care_closed, daemon);
    } else if (daemon->server) {
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

static void listen_now(struct sim_daemon *daemon)
{
    struct scene *scene = daemon->scene;
    struct net_addr addr = {.family = NET_TCP, .port = SCENE_PORT};
    struct diag diag = DIAG_INIT;
    snprintf(addr.host, sizeof addr.host, "%s", daemon->seat->name);
    if (scene->local && daemon->seat == &scene->seats[0]) {
        addr = (struct net_addr){.family = NET_UNIX};
        snprintf(addr.host, sizeof addr.host, "/%s", daemon->seat->name);
    }
    struct net *net = sim_net(daemon->host);
    must(scene, net->ops->listen(net, &addr, 0, on_accept, daemon, &daemon->listener, NULL, &diag),
         &diag);
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
                                     .encode_lanes = 2,
                                     .agent = "cairnd sim"};
    must(scene, server_new(&options, &daemon->server, &mine), &mine);
    daemon->ready = true;
    daemon->upkeep = scene->tended ? upkeep_new(scene, daemon->host, daemon->catalog) : NULL;
    if (!sim_is_dead(daemon->host)) {
        listen_now(daemon);
    }
}

static void open_catalog(struct sim_daemon *daemon)
{
    struct scene *scene = daemon->scene;
    struct diag diag = DIAG_INIT;
    struct catalog_options options = {.chunk_bytes = SCENE_CHUNK_BYTES,
                                      .restore_drain_ms = 1000,
                                      .ready = on_catalog_ready,
                                      .user = daemon,
                                      .pool = sim_pool(daemon->host),
                                      .cache_bytes = scene->cache_bytes,
                                      .upload_bytes = scene->cache_bytes,
                                      .deadline_ms_max = scene->deadline_ms_max,
                                      .full_every = 5,
                                      .poll_ms = scene->poll_ms,
                                      .page_bytes = 512};
    must(scene, catalog_new(sim_loop(daemon->host), daemon->store, &options, &daemon->catalog),
         &diag);
}

static void take_store(struct sim_daemon *daemon)
{
    struct scene *scene = daemon->scene;
    struct diag diag = DIAG_INIT;
    daemon->store->caps.object_bytes_preferred = scene->object_bytes;
    /* A start on a full disk is served without being counted. */
    if (!scene->shared &&
        daemon->store->caps.epoch < scene->daemon_epoch + !scene->disk_was_harmed) {
        scene_fail(scene, "the store's epoch did not grow: %llu after %llu",
                   (unsigned long long)daemon->store->caps.epoch,
                   (unsigned long long)scene->daemon_epoch);
    }
    scene->daemon_epoch = daemon->store->caps.epoch;
    daemon->store = mutant_on_store(scene->mutant, sim_loop(daemon->host), daemon->store);
    must(scene, store_fault_new(sim_loop(daemon->host), daemon->store, &daemon->store), &diag);
}

static void not_opened(struct sim_daemon *daemon, int status, const struct diag *diag)
{
    struct scene *scene = daemon->scene;
    bool locked = status == CAIRN_E_STORE_LOCKED && !list_is_empty(&scene->daemons_ending);
    if (!locked && !sim_is_dead(daemon->host) && !scene->disk_was_harmed) {
        must(scene, status, diag);
    }
    scene_tell(scene, "%s does not start: %s", daemon->seat->name, diag->text);
    daemon_end(daemon, 0);
}

/* --- a store on a cluster --------------------------------------------------------- */

static void run_opening(struct work *work)
{
    struct sim_daemon *daemon = container_of(work, struct sim_daemon, opening);
    struct store_rados_options options = {.loop = sim_loop(daemon->host),
                                          .pool = sim_waiting_pool(daemon->host),
                                          .cluster = sim_way_cluster(daemon->way),
                                          .create = true};
    daemon->open_status = store_rados_new(&options, &daemon->store, &daemon->open_diag);
}

static void on_opened(struct work *work)
{
    struct sim_daemon *daemon = container_of(work, struct sim_daemon, opening);
    daemon->is_opening = false;
    if (daemon->open_status != 0) {
        daemon->way = NULL; /* went with the store */
        bool was_ending = daemon->ending;
        daemon->ending = false;
        if (was_ending) {
            daemon_end(daemon, 0);
        } else {
            not_opened(daemon, daemon->open_status, &daemon->open_diag);
        }
        return;
    }
    take_store(daemon);
    if (daemon->ending) {
        store_close(daemon->store, on_store_closed, daemon);
    } else {
        open_catalog(daemon);
    }
}

static void open_shared(struct sim_daemon *daemon)
{
    struct scene *scene = daemon->scene;
    daemon->way =
        sim_way_new(scene->sim, daemon->host, scene->cluster, &scene->weather, scene->mutant);
    sim_way_block(daemon->way, daemon->seat->is_mute, daemon->seat->is_deaf);
    if (!scene->healed && scene->fault_count > 0 && sim_chance(scene->sim, 12)) {
        sim_way_kill_at(daemon->way, 1 + sim_below(scene->sim, 2), sim_chance(scene->sim, 2));
    }
    daemon->is_opening = true;
    daemon->opening = (struct work){.run = run_opening, .done = on_opened};
    work_submit(sim_waiting_pool(daemon->host), &daemon->opening);
}

/* --- a store on a disk ------------------------------------------------------------ */

static void open_own(struct sim_daemon *daemon)
{
    struct scene *scene = daemon->scene;
    struct diag diag = DIAG_INIT;
    if (!scene->healed && sim_chance(scene->sim, 12)) {
        sim_kill_at_vfs_call(daemon->host, 1 + sim_below(scene->sim, 60)); /* while starting */
    }
    struct store_dir_options options = {.loop = sim_loop(daemon->host),
                                        .pool = sim_pool(daemon->host),
                                        .vfs = sim_vfs(daemon->host),
                                        .path = "/store",
                                        .create = true,
                                        .snapshot_every = scene->snapshot_every};
    mutant_on_host(scene->mutant, daemon->host);
    int status = store_dir_new(&options, &daemon->store, &diag);
    if (status != 0) {
        not_opened(daemon, status, &diag);
        return;
    }
    take_store(daemon);
    open_catalog(daemon);
}

static void daemon_start(struct scene *scene, struct scene_seat *seat)
{
    struct sim_daemon *daemon = calloc(1, sizeof *daemon);
    CHECK(daemon);
    daemon->scene = scene;
    daemon->seat = seat;
    daemon->host = scene_host(scene, seat->name, scene->shared ? NULL : scene->disk);
    seat->daemon = daemon;
    if (scene->shared) {
        open_shared(daemon);
    } else {
        open_own(daemon);
    }
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

static void lose_power(struct scene *scene)
{
    list_each (node, &scene->daemons_ending) {
        sim_kill(list_item(node, struct sim_daemon, link)->host, SIM_RESET);
    }
    if (scene->lose_all) {
        sim_disk_crash_lose_all(scene->disk);
    } else {
        sim_disk_crash(scene->disk);
    }
}

static void tick_seat(struct scene *scene, struct scene_seat *seat)
{
    struct sim_daemon *daemon = seat->daemon;
    if (!daemon) {
        if (!scene->over && scene_now_ms(scene) >= seat->start_ms) {
            daemon_start(scene, seat);
        }
        return;
    }
    if (sim_is_dead(daemon->host)) {
        scene_tell(scene, "%s is dead%s", seat->name,
                   scene->power_loss ? ", so is the machine" : "");
        if (scene->power_loss && !scene->shared) {
            lose_power(scene);
        }
        scene->power_loss = scene->lose_all = false;
        daemon_end(daemon, 0);
    }
    if (daemon->ending) {
        list_add_tail(&scene->daemons_ending, &daemon->link);
        seat->daemon = NULL;
        seat->start_ms =
            scene_now_ms(scene) + sim_below(scene->sim, sim_chance(scene->sim, 4) ? 4000 : 400);
    }
}

void daemon_tick(struct scene *scene)
{
    bury(scene);
    for (unsigned i = 0; i < scene->seat_count; i++) {
        tick_seat(scene, &scene->seats[i]);
    }
}

/* --- harm ------------------------------------------------------------------------- */

static struct scene_seat *seat_at(struct scene *scene, uint64_t arg)
{
    return &scene->seats[(arg >> 3) % scene->seat_count];
}

struct sim_upkeep *daemon_care(struct scene *scene, uint64_t seat)
{
    struct sim_daemon *daemon = scene->seats[seat].daemon;
    bool is_there = daemon && !daemon->ending && !sim_is_dead(daemon->host);
    return is_there ? daemon->upkeep : NULL;
}

const char *daemon_name(struct scene *scene, uint64_t arg) { return seat_at(scene, arg)->name; }

void daemon_kill(struct scene *scene, uint64_t arg, enum sim_death death)
{
    struct sim_daemon *daemon = seat_at(scene, arg)->daemon;
    if (daemon) {
        sim_kill(daemon->host, death);
    }
}

void daemon_kill_all(struct scene *scene)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        if (scene->seats[i].daemon) {
            sim_kill(scene->seats[i].daemon->host, SIM_RESET);
        }
    }
}

void daemon_kill_at_call(struct scene *scene, uint64_t arg, uint64_t call)
{
    struct sim_daemon *daemon = seat_at(scene, arg)->daemon;
    if (daemon && daemon->way) {
        sim_way_kill_at(daemon->way, call % 60, arg % 2 == 1);
    } else if (daemon) {
        sim_kill_at_vfs_call(daemon->host, call);
    }
}

void daemon_pause(struct scene *scene, uint64_t arg, uint64_t ms)
{
    struct sim_daemon *daemon = seat_at(scene, arg)->daemon;
    if (daemon) {
        sim_pause(daemon->host, ms);
    }
}

void daemon_part(struct scene *scene, uint64_t arg, bool mute, bool deaf)
{
    struct scene_seat *seat = seat_at(scene, arg);
    seat->is_mute = mute;
    seat->is_deaf = deaf;
    if (seat->daemon && seat->daemon->way) {
        sim_way_block(seat->daemon->way, mute, deaf);
    }
}

void daemon_harm_store(struct scene *scene, uint64_t arg)
{
    static const enum store_op ops[] = {STORE_RECORD_UPDATE, STORE_PUBLISH, STORE_SEAL,
                                        STORE_WRITE,         STORE_CREATE,  STORE_RECORD_GET,
                                        STORE_LIST_OBJECTS};
    static const int codes[] = {CAIRN_E_IO, CAIRN_E_TIMED_OUT, CAIRN_E_NO_SPACE};
    struct store_fault_rule rule = {.op = ops[arg % 7], .skip = (unsigned)(arg >> 4) % 6};
    struct sim_daemon *daemon = seat_at(scene, arg)->daemon;
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
    if (daemon && daemon->store && !daemon->is_opening) {
        err_ignore(store_fault_add(daemon->store, &rule)); /* 16 at once are enough */
    }
}

void daemon_heal_stores(struct scene *scene)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        struct sim_daemon *daemon = scene->seats[i].daemon;
        scene->seats[i].is_mute = scene->seats[i].is_deaf = false;
        if (daemon && daemon->store && !daemon->is_opening) {
            store_fault_clear(daemon->store);
        }
        if (daemon && daemon->way) {
            sim_way_kill_at(daemon->way, 0, false);
            sim_way_block(daemon->way, false, false);
        } else if (daemon) {
            sim_kill_at_vfs_call(daemon->host, 0);
        }
    }
}

/* --- the end ---------------------------------------------------------------------- */

void daemon_stop(struct scene *scene, uint64_t arg, uint64_t grace_ms)
{
    struct sim_daemon *daemon = seat_at(scene, arg)->daemon;
    if (daemon && !sim_is_dead(daemon->host)) {
        daemon_end(daemon, grace_ms);
    }
}

void daemon_stop_all(struct scene *scene, uint64_t grace_ms)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        daemon_stop(scene, (uint64_t)i << 3, grace_ms);
    }
}

/* I8: with nobody connected, all buffers are back. */
void daemon_check_idle(struct scene *scene)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        struct sim_daemon *daemon = scene->seats[i].daemon;
        struct server_stats stats;
        if (!daemon || !daemon->server || daemon->ending) {
            continue;
        }
        server_stats(daemon->server, &stats);
        if (stats.sessions != 0 || stats.saves_open != 0 ||
            stats.buffers_free != stats.buffers_total) {
            scene_fail(scene, "I8: %s is idle and has %u sessions, %u saves, %llu of %llu buffers",
                       scene->seats[i].name, stats.sessions, stats.saves_open,
                       (unsigned long long)stats.buffers_free,
                       (unsigned long long)stats.buffers_total);
        }
    }
}

bool daemon_are_up(struct scene *scene)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        const struct sim_daemon *daemon = scene->seats[i].daemon;
        if (!daemon || !daemon->ready || daemon->ending || sim_is_dead(daemon->host)) {
            return false;
        }
    }
    return true;
}

bool daemon_is_gone(struct scene *scene)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        if (scene->seats[i].daemon) {
            return false;
        }
    }
    return list_is_empty(&scene->daemons_ending);
}
