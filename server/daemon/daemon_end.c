/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of the daemon: its parts are closed from top to bottom, each when the one above it has
 * ended. A store that gives no answer keeps its requests, and with them every part that waits for
 * one; then the process ends at a deadline without it, which is to the store what a crash is.
 */
#include "daemon/daemon_private.h"

#include "base/check.h"
#include "base/log.h"

#include <unistd.h>

/* How long the end may take beyond the grace, and how long after a second signal. Together with the
 * default of [daemon] grace this is less than TimeoutStopSec of deploy/cairnd.service. */
enum { END_MS = 15000, HURRIED_MS = 5000 };

static void close_next(struct daemon *daemon);

static void on_upkeep_closed(void *user)
{
    struct daemon *daemon = user;
    daemon->upkeep = NULL;
    close_next(daemon);
}

static void on_server_stopped(void *user)
{
    struct daemon *daemon = user;
    CHECK(!daemon->upkeep);
    CHECK(daemon_is_ending(daemon));
    server_free(daemon->server);
    daemon->server = NULL;
    close_next(daemon);
}

static void on_catalog_closed(void *user)
{
    struct daemon *daemon = user;
    CHECK(!daemon->server);
    CHECK(daemon->store != NULL);
    daemon->catalog = NULL;
    close_next(daemon);
}

static void on_opener_closed(void *user)
{
    struct daemon *daemon = user;
    CHECK(!daemon->store);
    daemon->opener = NULL;
    close_next(daemon);
}

static void on_web_closed(void *user)
{
    struct daemon *daemon = user;
    daemon->web = NULL;
    if (!daemon->upkeep && !daemon->server && !daemon->catalog && !daemon->opener) {
        close_next(daemon); /* it was the last that could use the store */
    }
}

static void on_store_closed(void *user)
{
    struct daemon *daemon = user;
    CHECK(!daemon->catalog);
    daemon->store = NULL;
    close_next(daemon);
}

/* Closes the uppermost part that is left, whose callback calls this again. Scrub and gc end first,
 * so that open saves have the disk for themselves. */
static void close_next(struct daemon *daemon)
{
    CHECK(daemon_is_ending(daemon));
    if (daemon->upkeep) {
        upkeep_close(daemon->upkeep, on_upkeep_closed, daemon);
    } else if (daemon->server) {
        server_stop(daemon->server, daemon->phase == DAEMON_HURRIES ? 0 : daemon->grace_ms,
                    on_server_stopped, daemon);
    } else if (daemon->catalog) {
        catalog_close(daemon->catalog, on_catalog_closed, daemon);
    } else if (daemon->opener) {
        opener_close(daemon->opener, on_opener_closed, daemon);
    } else if (daemon->web) {
        return; /* on_web_closed() goes on */
    } else if (daemon->store) {
        store_close(daemon->store, on_store_closed, daemon);
    } else {
        timer_stop(&daemon->deadline);
        loop_uv_stop(daemon->loop);
    }
}

static void on_deadline(struct timer *timer)
{
    struct daemon *daemon = container_of(timer, struct daemon, deadline);
    CHECK(daemon_is_ending(daemon));
    LOG(LOG_ERROR, "daemon",
        "the daemon ends without waiting for its store any longer; what was durable stays",
        ls("store", daemon->config->store_url));
    _exit(
        err_exit_status(CAIRN_E_TIMED_OUT)); /* threads that wait for the store cannot be joined */
}

void daemon_end_init(struct daemon *daemon)
{
    timer_init(&daemon->deadline, daemon->loop, on_deadline);
}

void daemon_end(struct daemon *daemon, uint64_t grace_ms)
{
    CHECK(!daemon_is_ending(daemon));
    daemon->phase = DAEMON_ENDS;
    daemon->grace_ms = grace_ms;
    timer_start(&daemon->deadline, grace_ms + END_MS);
    listeners_free(daemon->listeners);
    daemon->listeners = NULL;
    if (daemon->web) { /* it looks at no other part from now on, and may wait for the store */
        web_close(daemon->web, on_web_closed, daemon);
    }
    retain_free(daemon->retain);
    daemon->retain = NULL;
    close_next(daemon);
}

void daemon_on_signal(void *user, int signum)
{
    struct daemon *daemon = user;
    switch (daemon->phase) {
    case DAEMON_STARTS:
    case DAEMON_READY:
        LOG(LOG_INFO, "daemon", "stopping", li("signal", signum),
            lf("grace_s", (double)daemon->config->grace_ms / 1000.0));
        daemon_end(daemon, daemon->config->grace_ms);
        break;
    case DAEMON_ENDS:
        LOG(LOG_WARN, "daemon", "a second signal came; open saves are aborted now",
            li("signal", signum));
        daemon->phase = DAEMON_HURRIES;
        timer_start(&daemon->deadline, HURRIED_MS);
        if (!daemon->upkeep && daemon->server) {
            server_stop(daemon->server, 0, on_server_stopped, daemon);
        }
        break;
    case DAEMON_HURRIES:
        break; /* the deadline is near */
    }
}

void daemon_finish(struct daemon *daemon)
{
    if (daemon->web || daemon->store) { /* after a start that failed */
        daemon_end(daemon, 0);
        loop_uv_run(daemon->loop);
    }
    CHECK(!daemon->upkeep);
    CHECK(!daemon->store);
    work_threads_free(daemon->verify_pool);
    work_threads_free(daemon->store_pool);
    net_uv_free(daemon->net);
    if (daemon->loop) {
        loop_uv_free(daemon->loop);
    }
}
