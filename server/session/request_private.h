/* SPDX-License-Identifier: Apache-2.0
 *
 * A request: a message of a session whose answer needs the driver, the store or a worker, with what
 * its steps need. It belongs to the server's loop. A request outlives its session only as an orphan
 * (session NULL) that frees itself when its completion comes.
 */
#ifndef CAIRN_SESSION_REQUEST_PRIVATE_H
#define CAIRN_SESSION_REQUEST_PRIVATE_H

#include "ingest/credit.h"
#include "ingest/ingest.h"
#include "ingest/part_seal.h"
#include "net/conn.h"
#include "policy/policies.h"
#include "run/part_refs.h"
#include "run/run_base.h"
#include "run/run_fetch.h"
#include "run/run_plan.h"
#include "run/run_usage.h"
#include "session/agree.h"

struct session;
struct server;

/* OPEN. */
struct request_open {
    struct run_req run;
    struct run_snapshot_req info; /* the second step */
    struct base_req base;         /* the third step */
    struct msg_opened opened;     /* the answer */
    struct usage_walk usage;      /* under a quota: the first step */
    struct run_req abort;         /* of a save that the quota refuses */
    struct diag refusal;          /* why the quota refuses the save */
    bool too_large_if_full;       /* the save fits only if it has a base */
};

/* RESTORE and REPORT. */
struct request_restore {
    struct run_req run;
    struct run_snapshot_req info; /* before `run` in a REPORT, and after it for the answer */
};

/* MARK, REMOVE, ANNOTATE and POLICY. */
struct request_mark {
    struct policies_req policies;
    struct run_req run;
    struct run_snapshot_req info; /* before `run` in a MARK, and after it in an ANNOTATE */
    /* The policy of the run by which a MARK forgets. The texts are from scratch, or NULL. */
    enum policy_source source;
    const char *pattern, *text;
};

/* READ. */
struct request_read {
    struct credit_read credit;
    struct store_req store;
    struct conn_out out;
    void *buffer;
    bool running; /* the store or the socket has the buffer */
    /* A reference. The bytes go there, and no buffer is taken. */
    struct mapped *landing;
    /* session_land.c */
    uint8_t *room;       /* the place in landing */
    struct list reading; /* in server->landings while the store reads for it */
    struct list waiting; /* other requests that get a copy of the bytes */
    struct list with;    /* links it into `waiting` of the request that reads */
    struct work copy;
    bool copies; /* a worker copies out of its room, or into it */
};

/* SEAL. */
struct request_seal {
    struct work work;
    struct part_seal seal; /* the last step */
    struct part part;
    struct scratch scratch;
    struct writer *writer;
    uint8_t *data;
    struct diag diag;
    int status;
    bool running; /* a worker has it */
    struct ckpt_id base;
    struct fetch_req fetch; /* the part of this rank in the base */
    struct part_refs refs;
    struct scratch base_scratch; /* memory of refs */
};

/* An answer that goes in pieces (FETCH, PLAN), one at a time. */
struct request_pieces {
    struct conn_out out;
    bool sending;    /* the socket has a piece */
    uint64_t at;     /* where the next one begins */
    uint8_t *memory; /* PLAN: the encoded records */
};

/* A message whose answer needs the driver, the store or a worker. The type of msg says which member
 * of `u` is used. The request is freed when it is answered. */
struct request {
    struct list link;
    struct session *session; /* NULL for an orphan */
    struct server *server;
    uint32_t stream;
    struct msg msg; /* a deep copy, in scratch */
    struct scratch scratch;
    uint64_t held_bytes; /* of the copy and of this struct, as counted in message_bytes */
    /* Called when the session goes. It makes the completion impossible and frees the request, or it
     * leaves an orphan. */
    void (*cancel)(struct request *request);
    union {
        struct run_req run;
        struct run_snapshot_req snapshot;
        struct run_watch watch;
        struct fetch_req fetch;
        struct plan_req plan;
        struct writer_have have;
        struct hand_over_wait hand;
        struct usage_walk usage;
        struct catalog_refresh refresh;
        struct {
            struct agree_wait wait;
            struct agree *agree; /* a reference */
            /* LISTS and DIGESTS: the agreement has their keys, so the request has no message. */
            enum msg_type type;
            struct xxh128 group;
        } agree;
        struct {
            struct store_req store;
            struct timer timer;
        } server;
        struct request_open open;
        struct request_restore restore;
        struct request_mark mark;
        struct request_read read;
        struct request_seal seal;
    } u;
    struct request_pieces pieces;
};

/* Makes a request with a deep copy of msg, or without a message if msg is NULL. Returns NULL if
 * there is no memory; an ERROR was sent then. */
struct request *request_new(struct session *session, uint32_t stream, const struct msg *msg);
void request_free(struct request *request);
/* Does nothing for an orphan. */
void request_reply(struct request *request, const struct msg *reply);
void request_error(struct request *request, int code, const struct diag *diag);
/* Answers with the reply, or with the error if status is not 0, and frees the request. */
void request_end(struct request *request, int status, const struct msg *reply,
                 const struct diag *diag);
void request_send(struct request *request, const struct msg *reply, struct conn_out *out);
/* Returns the rank of the session, as an event of its attempt names it. */
struct attempt_rank session_rank(const struct session *session, uint32_t ordinal);
/* Makes the request an orphan. Its completion has to call request_free(). */
void request_orphan(struct request *request);

#endif
