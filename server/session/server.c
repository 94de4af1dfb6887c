/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a server: its options, the drain when it stops, and the end when no session, request
 * or writer is left.
 */
#include "session/session_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

enum { SHED_LEAST_BYTES = 64 << 10 }; /* no session is closed for less than this */

static void on_ingest_idle(void *user);

/* Called when all sessions together hold more than their budget: closes the session that holds
 * most. A client that asked for nothing unusual resumes on another connection; one that does not
 * read its replies loses them. */
static void on_shed(struct post *post)
{
    struct server *server = container_of(post, struct server, shed);
    while (server->message_bytes > server->options.message_bytes_total) {
        struct session *most = NULL;
        uint64_t most_bytes = SHED_LEAST_BYTES;
        list_each (node, &server->sessions) {
            struct session *session = list_item(node, struct session, link);
            uint64_t bytes = session->request_bytes + conn_held_bytes(session->conn);
            if (bytes > most_bytes) {
                most = session;
                most_bytes = bytes;
            }
        }
        if (!most) {
            return;
        }
        session_log(most, LOG_WARN, "connection closed",
                    "[memory] messages is used up, and this connection holds most of it");
        session_close(most, false);
    }
}

static void on_stopped(struct post *post)
{
    struct server *server = container_of(post, struct server, stopped_post);
    void (*stopped)(void *) = server->stopped;
    CHECK(server->closing);
    CHECK(server->session_count == 0);
    CHECK(server->request_count == 0);
    server->stopped = NULL;
    if (stopped) {
        stopped(server->stopped_user);
    }
}

/* Closes every session and then the ingest. Called when the grace is over. */
static void close_all(struct server *server)
{
    if (server->closing) {
        return;
    }
    server->closing = true;
    timer_stop(&server->grace);
    absent_end(server);
    list_each_safe (node, &server->sessions) {
        struct session *session = list_item(node, struct session, link);
        conn_send_error(
            session->conn, 0, CAIRN_E_SHUTTING_DOWN,
            "the server is stopping; try again, or connect to another server of the same store");
        session_close(session, true);
    }
    CHECK(list_is_empty(&server->sessions));
    CHECK(list_is_empty(&server->absents));
    if (server->ingest) {
        ingest_close(server->ingest, on_ingest_idle, server);
    } else {
        on_ingest_idle(server);
    }
}

static void on_ingest_idle(void *user)
{
    struct server *server = user;
    CHECK(server->closing);
    CHECK(!server->ingest_idle);
    server->ingest_idle = true;
    server_check_stopped(server);
}

/* Returns true if a session has an open save, or a save is being finished. */
static bool has_saves(const struct server *server)
{
    list_each (node, &server->sessions) {
        struct session *session = list_item(node, struct session, link);
        session_reap_saves(session);
        if (!list_is_empty(&session->saves)) {
            return true;
        }
    }
    return server->ingest && ingest_is_finishing(server->ingest);
}

enum { GRACE_STEP_MS = 50 };

/* Ends the grace when no session has an open save, or when its time is over. */
static void on_grace(struct timer *timer)
{
    struct server *server = container_of(timer, struct server, grace);
    if (!has_saves(server) || loop_now_ms(server->options.loop) >= server->grace_until_ms) {
        close_all(server);
    } else {
        timer_start(timer, GRACE_STEP_MS);
    }
}

int server_new(const struct server_options *options, struct server **ret, struct diag *diag)
{
    CHECK(options->loop != NULL);
    CHECK(options->verify_pool != NULL);
    struct server *server = calloc(1, sizeof(*server));
    if (!server) {
        return diag_no_memory(diag, "the server");
    }
    server->options = *options;
    if (server->options.buffer_bytes == 0) {
        server->options.buffer_bytes = LIMIT_CHUNK_BYTES;
    }
    if (server->options.message_bytes_total == 0) {
        server->options.message_bytes_total = MIB(64);
    }
    list_init(&server->sessions);
    list_init(&server->absents);
    list_init(&server->mapped);
    list_init(&server->landings);
    agree_book_init(&server->agrees, AGREE_BUDGET_BYTES);
    server->stopped_post.cb = on_stopped;
    server->shed.cb = on_shed;
    server->begun_ms = loop_now_ms(options->loop);
    timer_init(&server->grace, options->loop, on_grace);
    int status = credit_init(&server->credit, options->buffer_bytes_total,
                             server->options.buffer_bytes, diag);
    if (status != 0) {
        free(server);
        return status;
    }
    if (options->catalog) {
        server->options.catalog = NULL;
        status = server_open(server, options->catalog, diag);
    }
    if (status != 0) {
        credit_fini(&server->credit);
        free(server);
        return status;
    }
    *ret = server;
    return 0;
}

int server_open(struct server *server, struct catalog *catalog, struct diag *diag)
{
    CHECK(catalog != NULL);
    CHECK(!server->options.catalog);
    CHECK(!server->ingest);
    struct ingest_options ingest = {.loop = server->options.loop,
                                    .store = catalog_store(catalog),
                                    .pool = server->options.verify_pool,
                                    .credit = &server->credit,
                                    .lanes = server->options.encode_lanes};
    int status = ingest_new(&ingest, &server->ingest);
    if (status != 0) {
        return diag_set(diag, status, "there is not enough memory for the server");
    }
    ingest_on_room(server->ingest, session_room, server);
    server->options.catalog = catalog;
    return 0;
}

void server_wait(struct server *server, const struct diag *why)
{
    CHECK(why->code != 0);
    CHECK(!server->options.catalog);
    if (server->waits_why.code == 0) {
        server->waits_ms = loop_now_ms(server->options.loop);
    }
    server->waits_why = *why;
}

void server_stop(struct server *server, uint64_t grace_ms, void (*done)(void *user), void *user)
{
    server->stopped = done;
    server->stopped_user = user;
    server->stopping = true;
    server->grace_until_ms = loop_now_ms(server->options.loop) + grace_ms;
    if (!server->closing) {
        timer_start(&server->grace, 0);
    }
}

void server_set_maintenance(struct server *server, struct scrub *scrub, struct gc *gc)
{
    server->scrub = scrub;
    server->gc = gc;
}

void server_set_peers(struct server *server, size_t count, const struct server_peer *peers)
{
    server->peers = peers;
    server->peer_count = count;
}

void server_set_repair(struct server *server, struct repair *repair) { server->repair = repair; }

void server_free(struct server *server)
{
    if (server) {
        CHECK(server->session_count == 0);
        CHECK(server->network_count == 0);
        CHECK(server->request_count == 0);
        CHECK(server->part_bytes_used == 0);
        CHECK(server->agrees.bytes_used == 0);
        CHECK(list_is_empty(&server->landings));
        CHECK(list_is_empty(&server->mapped));
        if (server->ingest) {
            ingest_free(server->ingest);
        }
        credit_fini(&server->credit);
        free(server->trash);
        free(server);
    }
}

void server_tell_use(void *server, const struct run_name *run, struct event_forget *ret)
{
    server_use_beside(server, run, NULL, ret);
}
