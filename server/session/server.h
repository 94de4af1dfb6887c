/* SPDX-License-Identifier: Apache-2.0
 *
 * server: everything between a listener and the runs: the sessions, the byte budget that they
 * share, the table of connected ranks, and the writers whose objects are on their way to the store.
 * One loop's thread.
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
    /* Borrowed; outlives the server. NULL if there is no store yet; until server_open() the server
     * then answers with the reason that server_wait() has given it. */
    struct catalog *catalog;
    struct work_pool *verify_pool; /* digests of incoming data */
    uint64_t buffer_bytes_total;   /* the byte budget of payload buffers; at least 4 of them */
    /* Size of a buffer, and of the largest payload; 0 means LIMIT_CHUNK_BYTES. Not less than the
     * chunks of the runs. The simulator uses small ones. */
    uint32_t buffer_bytes;
    /* Budget for messages and requests of all sessions, and for replies that wait to be sent; above
     * it, the session that holds most is closed. 0 means 64 MiB. */
    uint64_t message_bytes_total;
    uint32_t sessions_max; /* an eighth of them is reserved for Unix sockets */
    uint32_t heartbeat_ms, dead_after_ms;
    uint32_t login_ms; /* from accept to JOIN (or to the first LIST) */
    /* A session that holds granted buffers and sends nothing for this long is closed. */
    uint32_t grant_idle_ms;
    /* A rank that has been gone for this long fails the open saves of its attempt; 0 means that
     * only their deadlines do. */
    uint32_t rank_grace_ms;
    /* Each uses encode_pool_lane_bytes(); 0 means that handed-over data stays raw. */
    uint32_t encode_lanes;
    uint64_t part_bytes_total; /* memory for parts that are being received, over all sessions */
    const struct quota_table *quotas; /* borrowed; NULL if there are none */
    /* The policies of the configuration, and how often the daemon applies policies; borrowed; NULL
     * if there are none. */
    const struct policy_table *policies;
    const uint64_t *policies_every_ms;
    const char *agent; /* "cairnd 0.1.0" */
    /* Gives the state of the store, for SERVER_STATUS; NULL if nobody watches it. */
    void (*store_state)(void *user, struct store_state *ret);
    void *store_user;
    /* What the last SIGHUP could not take, "" if nothing; borrowed; NULL if none is taken. */
    const char *config_error;
};
struct scrub;
struct gc;
/* Sets the scrub and gc that clients may ask about; NULL if this server has none. They are borrowed
 * until they are set to NULL again. */
void server_set_maintenance(struct server *server, struct scrub *scrub, struct gc *gc);

/* A daemon of a store that several use. Its texts are borrowed like the list. */
struct server_peer {
    const char *name;      /* host:pid */
    const char *addresses; /* where it can be reached, with spaces between; "" if it did not say */
    int64_t seen_wall_ms;  /* its last sign of life, by its own clock; 0 if it is not known */
    bool is_self, scrubs, collects;
};
/* Sets the daemons that clients are told of, this one among them; none for a store of one. The list
 * is borrowed until the next call. */
void server_set_peers(struct server *server, size_t count, const struct server_peer *peers);

struct repair;
/* Sets the repair that clients may ask for, in the same way. */
void server_set_repair(struct server *server, struct repair *repair);

/* Makes the server. The options are copied. Without options.catalog it has no store until
 * server_open(). Returns NO_MEMORY, or the error of server_open(). */
int MUST_USE server_new(const struct server_options *options, struct server **ret,
                        struct diag *diag);
/* Makes the server answer everything but HELLO and SERVER with UNREACHABLE and this reason, because
 * it has no store yet. */
void server_wait(struct server *server, const struct diag *why);
/* Called once, if options.catalog was NULL, when the store is there. */
int MUST_USE server_open(struct server *server, struct catalog *catalog, struct diag *diag);
/* Takes the stream and starts a session. If sessions_max is reached, the oldest connection without
 * a login is closed to make room; if there is none, the stream is refused with BUSY. */
void server_accept(struct server *server, struct stream *stream);
/* Stops the server. New saves are refused with SHUTTING_DOWN, saves that were opened may end within
 * grace_ms, and then every session is closed. `done` is called when nothing of the server is
 * running any more; server_free() may follow. */
void server_stop(struct server *server, uint64_t grace_ms, void (*done)(void *user), void *user);
void server_free(struct server *server);

struct event_forget;
/* Fills in what the struct server knows of the use of a run: whether ranks or viewers are connected
 * to it, and the schedule of garbage collection, which counts how long nobody was. */
void server_tell_use(void *server, const struct run_name *run, struct event_forget *ret);

struct ingest_row;
/* Calls row() for each rank that is bringing something to an open save. */
void server_progress(const struct server *server,
                     void (*row)(void *user, const struct ingest_row *row), void *user);

struct health_word;
/* Gives the health of the server. `usage` is what the store has just reported about itself; it may
 * be NULL. */
void server_health(struct server *server, const struct store_usage *usage, struct health_word *ret);

struct server_stats {
    uint32_t sessions, saves_open;
    uint64_t buffers_free, buffers_total, bytes_in, bytes_out;
    uint64_t bytes_mapped;  /* the part of bytes_in that was read from clients' arenas */
    uint64_t message_bytes; /* used bytes of message_bytes_total */
    uint64_t requests;      /* that have no answer yet, of all sessions */
    uint64_t buffer_waits;  /* sessions that wait for a payload buffer */
};
void server_stats(const struct server *server, struct server_stats *ret);

#endif
