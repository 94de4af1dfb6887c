/* SPDX-License-Identifier: Apache-2.0
 *
 * server: everything between a listener and the runs: sessions, the byte budget that they share,
 * who is connected as which rank, and the writers whose objects are on their way to the store. One
 * loop's thread.
 */
#ifndef CAIRN_SESSION_SERVER_H
#define CAIRN_SESSION_SERVER_H

#include "env/work.h"
#include "net/stream.h"
#include "run/run.h"
#include "run/run_usage.h"
#include "store/store_state.h"

struct server;

struct server_options {
    struct loop *loop;
    struct catalog *catalog; /* borrowed; outlives the server. NULL: there is none yet, and until
                              * server_open() the server says what server_wait() told it */
    struct work_pool *verify_pool; /* digests of what comes in */
    uint64_t buffer_bytes_total;   /* the byte budget of payload buffers; at least 4 of them */
    uint32_t buffer_bytes; /* of each, and the most of a payload; 0: LIMIT_CHUNK_BYTES. No less than
                              the chunks of the runs: the simulator's are small */
    uint64_t message_bytes_total; /* messages and requests of all sessions, and replies that wait
                                   * to be taken; the session that holds most is closed above it.
                                   * 0: 64 MiB */
    uint32_t sessions_max;        /* an eighth of them is for Unix sockets only */
    uint32_t heartbeat_ms, dead_after_ms;
    uint32_t login_ms;      /* from accept to JOIN (or a first list) */
    uint32_t grant_idle_ms; /* a session that holds granted buffers and sends nothing for this long
                               is closed */
    uint32_t rank_grace_ms; /* a rank that is gone for so long fails its attempt's open saves; 0:
                               only their deadlines do */
    uint32_t encode_lanes;  /* encode_kit_lane_bytes() each; 0: what is handed over stays raw */
    uint64_t part_bytes_total; /* memory for parts that are being received, over all sessions */
    const struct quota_table *quotas; /* borrowed; NULL: none */
    const char *agent;                /* "cairnd 0.1.0" */
    /* How the store is, for SERVER_STATUS; NULL: nobody watches it. */
    void (*store_state)(void *user, struct store_state *ret);
    void *store_user;
};
struct scrub;
struct gc;
/* What this server does for its store, and may be asked about; NULL: it does not. Borrowed until
 * they are set to NULL again. */
void server_set_care(struct server *server, struct scrub *scrub, struct gc *gc);

struct repair;
/* The same of its repairs. */
void server_set_repair(struct server *server, struct repair *repair);

int MUST_USE server_new(const struct server_options *options, struct server **ret,
                        struct diag *diag);
/* A server without a store, and why: all but HELLO and SERVER is UNREACHABLE. */
void server_wait(struct server *server, const struct diag *why);
/* The store is there: once, where options.catalog was NULL. */
int MUST_USE server_open(struct server *server, struct catalog *catalog, struct diag *diag);
/* Takes the stream. Where sessions_max is reached, the oldest connection without a login makes
 * room; where there is none, the stream is refused with BUSY. */
void server_accept(struct server *server, struct stream *stream);
/* New saves are refused with SHUTTING_DOWN; saves that were opened may end within grace_ms; then
 * every session is closed. done: nothing of the server is left running; server_free may follow. */
void server_stop(struct server *server, uint64_t grace_ms, void (*done)(void *user), void *user);
void server_free(struct server *server);

struct health_word;
/* How the server is. usage: what the store has just said of itself; NULL: nothing. */
void server_health(struct server *server, const struct store_usage *usage, struct health_word *ret);

struct server_stats {
    uint32_t sessions, saves_open;
    uint64_t buffers_free, buffers_total, bytes_in, bytes_out;
    uint64_t message_bytes; /* of message_bytes_total */
};
void server_stats(const struct server *server, struct server_stats *ret);

#endif
