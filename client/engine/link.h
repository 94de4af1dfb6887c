/* SPDX-License-Identifier: Apache-2.0
 *
 * link: the engine's one connection: dial, TLS, HELLO, JOIN, heartbeat, and again after a loss,
 * with back-off. It numbers requests, hands their replies to them, tells all of them when the
 * connection is lost, and counts credit. It knows nothing of saves and restores. Loop's thread.
 */
#ifndef CAIRN_ENGINE_LINK_H
#define CAIRN_ENGINE_LINK_H

#include "base/list.h"
#include "base/sm.h"
#include "engine/engine.h"
#include "net/conn.h"

enum { LINK_BUCKETS = 64 };

struct request;

/* Same result rule as conn_handler's: non-zero closes the connection (the peer broke the protocol).
 */
struct request_ops {
    /* A reply, or ERROR (which ends the request: it is out of the table already). */
    int (*on_reply)(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag);
    int (*on_payload)(struct request *request, const struct frame *frame, const struct msg *msg,
                      void *payload, struct diag *diag); /* NULL: its replies have none */
    /* The connection is gone, and with it the request: out of the table. */
    void (*on_lost)(struct request *request);
};

struct request {
    struct list link;
    const struct request_ops *ops;
    uint32_t stream; /* 0: not in the table */
    bool receiving;  /* conn writes into a buffer that on_reply named */
};

struct link {
    struct sm sm;
    struct engine *engine;
    struct conn *conn; /* NULL: none */
    struct list buckets[LINK_BUCKETS];
    uint32_t next_stream;
    struct request *receiving; /* whose payload is coming; NULL: nobody's */
    size_t server_idx;
    uint64_t draw; /* where one that is no rank begins */
    uint32_t backoff_ms;
    uint64_t began_ms;  /* of the first connect */
    struct timer timer; /* of the state: attempt, back-off */
    bool joined_once, answered, stopped;
    bool gathered, moving; /* asked to be at the first server; on the way to another by choice */
    bool hands_over;       /* agreed on: this connection takes descriptors */
    bool hands_packed;     /* and what is handed over is compared and encoded there */
    bool lands;            /* agreed on: what is read may come into memory of ours */
    uint8_t *trash;        /* payloads that nobody waits for any more */
    struct msg_welcome welcome; /* without its strings */
    struct msg_joined joined;
    uint32_t credits, credits_asked;
    uint64_t dialed_ms; /* when the present try began */
    bool server_said;   /* the last failure is a server's own word */
    /* Why the last connection failed, and why the first one of the row did that has not ended yet;
     * code 0: none did. */
    struct diag diag, first;
    int status; /* final failure */
};

void link_init(struct link *link, struct engine *engine);
void link_start(struct link *link);
/* Drops the connection and stops for good; requests get on_lost. */
void link_stop(struct link *link);
/* Somebody new waits for the connection: the back-off begins anew, so that an operation does not
 * pass its deadline asleep while the server is back. */
void link_hurry(struct link *link);
bool link_is_up(const struct link *link);
/* Why there is no connection: the first cause since there was one, and the last. */
void link_say_why(const struct link *link, size_t bytes, char *ret);
/* Puts the request into the table under a new stream; the link must be up. */
void link_add(struct link *link, struct request *request);
/* Adds and sends. */
void link_ask(struct link *link, struct request *request, const struct msg *msg);
/* The same with a descriptor, which is taken; where hands_over or lands. */
void link_ask_fd(struct link *link, struct request *request, const struct msg *msg, int fd);
/* Sends on the request's stream (0: none). */
void link_send(struct link *link, const struct request *request, const struct msg *msg);
void link_send_payload(struct link *link, const struct request *request, const struct msg *msg,
                       struct conn_out *out);
/* Ends a request, whether in the table or not. If its payload is on its way into its buffer, the
 * connection goes. */
void link_forget(struct link *link, struct request *request);
/* Of several servers: ranks are spread over them, each at its home (its number, modulo), from where
 * they go on to the next when one does not answer. Before ranks have agreed on who writes what they
 * gather at the first one, since a server compares only what it is told; then they spread again.
 * Does nothing where nothing is to be done, or where something else goes on over the connection. */
void link_gather(struct link *link);
void link_spread(struct link *link);
/* Gives the connection up; reconnects. */
void link_reset(struct link *link, int status, const char *why);

#endif
