/* SPDX-License-Identifier: Apache-2.0
 *
 * What daemon.c and the other files of the same stem share: the parts of the daemon, from bottom to
 * top.
 */
#ifndef CAIRN_DAEMON_DAEMON_PRIVATE_H
#define CAIRN_DAEMON_DAEMON_PRIVATE_H

#include "daemon/daemon.h"
#include "daemon/listeners.h"
#include "daemon/opener.h"
#include "daemon/upkeep.h"
#include "session/health.h"
#include "session/server.h"
#include "web/web.h"

enum daemon_phase {
    DAEMON_STARTS,
    DAEMON_READY,
    DAEMON_ENDS,   /* open saves may still end */
    DAEMON_HURRIES /* a second signal came: open saves are aborted */
};

struct daemon {
    const struct daemon_options *options;
    const struct config *config; /* of the options */
    struct loop *loop;
    struct net *net;
    struct work_pool *store_pool, *verify_pool;
    struct opener *opener; /* of a cluster, until its store is open */
    struct uuid expected;
    struct store *store; /* the store's outermost decorator: its watch */
    struct catalog *catalog;
    struct server *server;
    struct retain *retain;
    struct upkeep *upkeep;
    const struct store_counts *store_counts; /* owned by the store */
    struct web *web;
    int64_t begun_wall_ns;
    int64_t certificate_ends_s; /* of the one in use; 0 if there is none, or it was not read */
    struct listeners *listeners;
    enum daemon_phase phase;
    struct timer deadline; /* of the end */
    uint64_t grace_ms;
    int status;
    struct diag diag;
    char reload_error[HEALTH_TEXT_BYTES]; /* what the last SIGHUP could not take; "" if nothing */
    char no_store[STORE_URL_MAX + 128];   /* the remedy of NO_STORE */
};

static inline bool daemon_is_ending(const struct daemon *daemon)
{
    return daemon->phase >= DAEMON_ENDS;
}

/* daemon.c */
/* Tells systemd (Type=notify) that the daemon is ready, without its library: one datagram to
 * $NOTIFY_SOCKET. */
void daemon_notify_ready(void);
/* Starts the server and its listeners, with or without a store. */
int MUST_USE daemon_start_server(struct daemon *daemon);
/* Starts retention if it has an interval. */
int MUST_USE daemon_start_retention(struct daemon *daemon);
/* Makes the catalogue over the store; the rest of the daemon starts when it is loaded. */
int MUST_USE daemon_open_catalog(struct daemon *daemon);
/* Gives the monitoring its sources. `ready` means that the store is open, and so is everything that
 * depends on it. */
void daemon_show_web(struct daemon *daemon, bool ready);

/* daemon_store.c */
/* Begins to open the store: a directory at once, a cluster with an opener, which tries until it is
 * in reach. daemon_open_catalog() follows. */
int MUST_USE daemon_open(struct daemon *daemon);

/* daemon_reload.c */
/* Reads the configuration again. Nothing is taken from a file with a mistake. */
void daemon_on_reload(void *user, int signum);

/* daemon_end.c */
/* Called once, when there is a loop. */
void daemon_end_init(struct daemon *daemon);
/* Begins the end; open saves have grace_ms. The last part that has ended stops the loop. */
void daemon_end(struct daemon *daemon, uint64_t grace_ms);
/* Called on SIGTERM and SIGINT. The first signal begins the grace, a second one ends it. */
void daemon_on_signal(void *user, int signum);
/* Frees what is left when the loop has ended, or when the start has failed. */
void daemon_finish(struct daemon *daemon);

#endif
