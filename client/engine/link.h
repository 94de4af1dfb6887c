/* SPDX-License-Identifier: Apache-2.0
 *
 * link: the one connection of the engine. It dials, does TLS, HELLO, JOIN and the heartbeat, and
 * starts again with back-off after a loss. It numbers requests, hands each reply to its request,
 * tells all requests when the connection is lost, and counts credit. It knows nothing of saves and
 * restores. Loop's thread. */
#ifndef CAIRN_ENGINE_LINK_H
#define CAIRN_ENGINE_LINK_H

#include "base/list.h"
#include "base/sm.h"
#include "engine/engine.h"
#include "net/conn.h"

enum { LINK_BUCKETS = 64 };

struct request;

/* Callbacks of a request. on_reply and on_payload follow conn_handler's result rule: a non-zero
 * result means that the peer broke the protocol, and closes the connection. */
struct request_ops {
    /* Called for a message that may answer what was asked. ERROR ends the request, which is then
     * already out of the table. */
    int (*on_reply)(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag);
    /* Called when the payload of a reply is complete. NULL if the replies have no payload. */
    int (*on_payload)(struct request *request, const struct frame *frame, const struct msg *msg,
                      void *payload, struct diag *diag);
    /* Called when the connection is lost. The request is then already out of the table. */
    void (*on_lost)(struct request *request);
};

/* One request in the table, embedded in its owner. Its stream number connects it with its
 * replies. */
struct request {
    struct list link;
    const struct request_ops *ops;
    uint32_t stream;     /* 0 while it is not in the table */
    enum msg_type asked; /* sent last on the stream; 0 before that */
    bool receiving;      /* conn is writing into a buffer that on_reply named */
    bool was_broken;     /* a reply to it broke the protocol, which ends the connection */
};

/* The connection, embedded in the engine. Invariant: requests are in the table only while the link
 * is up, and credits are those of the present connection. */
struct link {
    struct sm sm;
    struct engine *engine;
    struct conn *conn; /* NULL while there is none */
    /* The table of requests, hashed by stream number. */
    struct list buckets[LINK_BUCKETS];
    uint32_t next_stream;
    struct request *receiving; /* the request whose payload is arriving, or NULL */
    size_t server_idx;
    uint64_t draw; /* random; where a client that is no rank begins in the list of servers */
    uint32_t backoff_ms;
    uint64_t began_ms;  /* when the first connect began */
    uint64_t turned_ms; /* when the connection came or went last; began_ms before the first */
    struct timer timer; /* of the present state: the attempt, or the back-off */
    /* joined_once: a JOIN has succeeded. answered: engine_on_final was called. stopped: link_stop
     * was called. cut: it is not to say BYE, which means an orderly end. */
    bool joined_once, answered, stopped, cut;
    /* gathered: link_gather has asked to be at the first server. moving: this connection is being
     * left for another server on purpose. */
    bool gathered, moving;
    bool hands_over;            /* agreed with the server: this connection takes descriptors */
    bool hands_packed;          /* agreed: the server compares and encodes what is handed over */
    bool lands;                 /* agreed: what is read may land in our memory */
    uint8_t *trash;             /* receives payloads whose request has ended */
    struct msg_welcome welcome; /* its strings are left out */
    struct msg_joined joined;
    /* Buffers of the server, one for each payload: granted and not used, and asked for but not
     * granted yet. */
    uint32_t credits, credits_asked;
    uint64_t dialed_ms; /* when the present attempt began */
    bool server_said;   /* the last failure was reported by a server itself */
    /* Why the last connection failed, and why the first one failed since the link was last up. A
     * code of 0 means that none did. */
    struct diag diag, first;
    int status; /* the final failure */
};

/* Prepares the link. link_start begins to connect, at the next turn of the loop. */
void link_init(struct link *link, struct engine *engine);
void link_start(struct link *link);
/* Drops the connection and stops for good; every request gets on_lost. */
void link_stop(struct link *link);
/* Begins the back-off anew, because a new operation waits for the connection. Otherwise it could
 * pass its deadline asleep while the server is already back. */
void link_hurry(struct link *link);
bool link_is_up(const struct link *link);
/* Returns whether no server has been heard for so long that a caller who does not want to wait for
 * one should go on. While there is a connection, that is known only after a few calls, between
 * which the loop has turned. */
bool link_is_away(struct link *link);
/* Writes why there is no connection: the first cause since there was one, and the last. */
void link_say_why(const struct link *link, size_t bytes, char *ret);
/* Puts the request into the table under a new stream number. The link must be up. */
void link_add(struct link *link, struct request *request);
/* Adds the request to the table and sends its message. */
void link_ask(struct link *link, struct request *request, const struct msg *msg);
/* Does the same with a descriptor, which it takes. Only where the server agreed (hands_over or
 * lands). */
void link_ask_fd(struct link *link, struct request *request, const struct msg *msg, int fd);
/* Sends a message on the stream of the request. A NULL request means stream 0. */
void link_send(struct link *link, struct request *request, const struct msg *msg);
void link_send_payload(struct link *link, struct request *request, const struct msg *msg,
                       struct conn_out *out);
/* Ends a request, whether it is in the table or not. If its payload is arriving in its buffer, the
 * connection is closed, so that nothing is written there later. */
void link_forget(struct link *link, struct request *request);
/* Moves the link between servers, where there are several. Ranks are spread over the servers: the
 * home of a rank is its number modulo their count, and it goes on to the next one when a server
 * does not answer. Before ranks have agreed on who writes what, link_gather brings them all to the
 * first server, because a server compares only the lists that it receives; link_spread brings them
 * home again. Both do nothing if the link is not up, or is already there. They reset the
 * connection, so the caller checks first that no other operation needs it. */
void link_gather(struct link *link);
void link_spread(struct link *link);
/* Gives up the connection, with this reason, and reconnects. */
void link_reset(struct link *link, int status, const char *why);

#endif
