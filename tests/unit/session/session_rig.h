/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of server/session share: a real server on a memory store in the simulator, and
 * peers: clients that send exactly what a test says, built on proto/net's conn, each on a host of
 * its own. Calls that wait run the simulator; they return NULL when the connection ended.
 */
#ifndef CAIRN_SESSION_RIG_H
#define CAIRN_SESSION_RIG_H

#include "net/conn.h"
#include "session/server.h"
#include "sim/env/sim.h"
#include "support/store_memory.h"

enum { RIG_CHUNK = 4096, RIG_INBOX = 256, RIG_CHUNKS = 64, RIG_OBJECTS = 8, RIG_HELD = 16 };

struct rig {
    struct sim *sim;
    struct sim_host *host;
    struct memory_medium *medium;
    struct store *store;
    struct catalog *catalog;
    struct server *server;
    struct listener *listener;
    struct server_options options; /* a test may change them before rig_start */
    struct token token;
    /* Before rig_start: another store than one in memory; and how often its record is read again,
     * where other daemons may write to it. */
    struct store *(*open_store)(struct rig *rig);
    uint64_t poll_ms;
    bool late;   /* the server begins without its catalogue; before rig_start */
    bool faulty; /* `store` is a store_fault; before rig_start */
    bool local;  /* a "Unix socket", on which descriptors pass; before rig_start */
    bool ready, stopped, closed;
    unsigned peers; /* names of their hosts */
};

void rig_init(struct rig *rig, uint64_t seed);
void rig_start(struct rig *rig);
void rig_stop(struct rig *rig, uint64_t grace_ms); /* until it has stopped; closes the rest too */
void rig_stop_begin(struct rig *rig, uint64_t grace_ms);
void rig_stop_end(struct rig *rig);
void rig_restart(struct rig *rig); /* the process dies; a new one on the same store */
void rig_fini(struct rig *rig);    /* checks that nothing is left anywhere */

struct peer_reply {
    enum msg_type type;
    uint32_t stream;
    struct msg msg; /* its pointers are dead, but for the copies below */
    char text[256];
    uint32_t count, sequences[RIG_HELD];
    uint32_t payload_bytes;
    uint8_t *payload; /* owned */
};

struct peer_object {
    uint32_t sequence, chunk_count;
};

struct peer {
    struct rig *rig;
    struct sim_host *host;
    struct sock *sock;
    struct conn *conn; /* NULL once it is over */
    uint32_t rank, world;
    uint64_t writer, features; /* that HELLO offers */
    uint32_t next_stream, credits, grants;
    uint64_t next_offset;  /* in the object that is being sent */
    uint64_t object_bytes; /* what DATA says of it */
    int status;            /* of the end */
    size_t reply_count, replies_seen;
    struct peer_reply replies[RIG_INBOX];
    void *payload;
    /* the save */
    struct ckpt_id id;
    uint64_t open_id;
    struct uuid run_uuid;
    uint32_t object_count, chunk_count;
    struct peer_object objects[RIG_OBJECTS]; /* that count for the part */
    struct envelope envelopes[RIG_CHUNKS];   /* of all chunks, offsets in their object */
    uint32_t in_object[RIG_CHUNKS];          /* index in objects */
    struct conn_out *out;
};

void peer_init(struct rig *rig, struct peer *peer, uint32_t rank, uint32_t world);
void peer_fini(struct peer *peer);
/* So many, of the ranks from 0 on. */
void peers_init(struct rig *rig, uint32_t count, struct peer *peers, uint32_t world);
void peers_fini(uint32_t count, struct peer *peers);
void peer_connect(struct peer *peer); /* also again: another connection of the same process */
void peer_drop(struct peer *peer);    /* closes at once */
/* Sends with a stream of its own, which is returned. */
uint32_t peer_send(struct peer *peer, struct msg msg);
void peer_send_payload(struct peer *peer, struct msg msg, size_t bytes, const void *data);
/* The next reply on that stream. */
const struct peer_reply *peer_await(struct peer *peer, uint32_t stream);
const struct peer_reply *peer_ask(struct peer *peer, struct msg msg);
bool peer_await_end(
    struct peer *peer); /* true: the server closed; peer->status and the last reply */
const struct peer_reply *peer_last(const struct peer *peer); /* the last ERROR on stream 0 or any */
bool peer_await_credits(struct peer *peer, uint32_t count);
/* The reply must be an ERROR with this code, whose text has these words. */
void peer_expect_error(const struct peer_reply *reply, int code, const char *words);
/* The server must close the connection, and say that last. */
void peer_expect_end(struct peer *peer, int code, const char *words);

/* Steps of a client's life; NULL or false when the connection ended. */
bool peer_hello(struct peer *peer);
struct msg peer_join_msg(const struct peer *peer);
bool peer_login(struct peer *peer);  /* connect, HELLO, JOIN as a rank */
bool peer_viewer(struct peer *peer); /* connect, HELLO, JOIN as a viewer of the same run */
struct msg peer_open_msg(const struct peer *peer, uint64_t step, uint64_t open_id);
bool peer_open(struct peer *peer, uint64_t step, uint64_t open_id);
void peer_begin(struct peer *peer, uint64_t step, uint64_t open_id); /* login and open */
/* Gives up the save; the answer. */
const struct peer_reply *peer_abort(struct peer *peer, int code, const char *reason);
/* Sends one chunk of RIG_CHUNK bytes of the object; spoil: a byte is changed on the way. */
void peer_chunk(struct peer *peer, uint32_t sequence, bool spoil);
uint32_t peer_end_object(struct peer *peer, uint32_t sequence, uint32_t chunks);
/* Chunks with credit, end, OBJECT_DURABLE. */
bool peer_object(struct peer *peer, uint32_t sequence, uint32_t chunks);
/* The part of all objects so far, encoded; the caller frees. */
uint8_t *peer_part(struct peer *peer, size_t *ret_bytes);
void peer_send_part(struct peer *peer, size_t bytes, const void *data);
const struct peer_reply *peer_seal(struct peer *peer, size_t bytes, const void *data);
const struct peer_reply *peer_seal_all(struct peer *peer); /* part, PART, SEAL */
const struct peer_reply *peer_outcome(struct peer *peer);
/* Login, open, `chunks` chunks in one object, seal. */
bool peer_save(struct peer *peer, uint64_t step, uint64_t open_id, uint32_t chunks);

#endif
