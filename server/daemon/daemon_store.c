/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of the daemon: it is opened, or tried again and again while a cluster is out of reach,
 * and gets the decorators that count and watch. Main thread, before and in callbacks of the loop.
 */
#include "daemon/daemon_private.h"

#include "base/check.h"
#include "base/log.h"
#include "hash/hash.h"
#include "store/open/store_open.h"
#include "store/wrap/store_wrap.h"

#include <stdio.h>
#include <unistd.h>

/* Pause between two tries to reach a cluster. */
enum { OPEN_AGAIN_MS = 3000 };

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

/* Opens a store on this host. It either opens at once or ends the start. */
static int open_store(struct daemon *daemon, const struct store_open_options *options)
{
    struct store *store = NULL;
    int status = store_open(options, &store, &daemon->diag);
    if (status == 0) {
        status = watch_store(daemon, store);
        return status != 0 ? status : daemon_open_catalog(daemon);
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
        status = status != 0 ? status : daemon_open_catalog(daemon);
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
        daemon->status = daemon_start_server(daemon);
        if (daemon->status != 0) {
            daemon_end(daemon, 0);
            return;
        }
        LOG(LOG_ERROR, "daemon", "the store cannot be opened yet; the daemon keeps trying",
            ls("store", daemon->config->store_url), ls("code", err_name(diag->code)),
            ls("err", diag->text));
        daemon_notify_ready();
    }
    CHECK(daemon->server != NULL);
    CHECK(!daemon->catalog);
    server_wait(daemon->server, diag);
    daemon_show_web(daemon, false);
}

int daemon_open(struct daemon *daemon)
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
