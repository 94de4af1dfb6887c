/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a session share: the session itself, the saves that it takes part in, and the
 * requests that wait for the driver, the store or a worker. A request outlives its session only as
 * an orphan (session NULL) that frees itself when its completion comes.
 */
#ifndef CAIRN_SESSION_SESSION_PRIVATE_H
#define CAIRN_SESSION_SESSION_PRIVATE_H

#include "ingest/credit.h"
#include "ingest/ingest.h"
#include "net/conn.h"
#include "run/part_refs.h"
#include "run/run_base.h"
#include "run/run_fetch.h"
#include "run/run_info.h"
#include "run/run_plan.h"
#include "run/run_usage.h"
#include "session/agree.h"
#include "session/server.h"

struct server {
    struct server_options options;
    struct credit credit;
    struct ingest *ingest;
    struct agree_book agrees;
    struct list sessions;
    struct list absents;                   /* absent.c */
    uint32_t session_count, request_count; /* requests: orphans included */
    uint32_t network_count;                /* sessions that did not come by a Unix socket */
    uint64_t message_bytes; /* messages and requests of all sessions, and replies that wait */
    struct post shed;       /* message_bytes is above its budget */
    uint64_t part_bytes_used, bytes_out;
    bool stopping, closing, ingest_idle;
    struct list mapped;   /* arenas that clients handed over (mapped.h) */
    struct list landings; /* requests whose bytes the store is putting into a landing */
    uint64_t grace_until_ms;
    struct timer grace;
    struct scrub *scrub; /* NULL: none (server_set_care) */
    struct gc *gc;
    struct repair *repair;       /* NULL: none (server_set_repair) */
    uint64_t begun_ms, waits_ms; /* waits_ms: since when it is without a store */
    struct diag waits_why;
    struct post stopped_post;
    void (*stopped)(void *user);
    void *stopped_user;
};

struct idle_look { /* what the last look for stuck sessions saw */
    bool held, sending, unread;
    uint64_t data_frames, sent_bytes;
};

enum session_state { SESSION_NEW, SESSION_GREETED, SESSION_JOINED };

/* Replies that wait for their peer: above HIGH a session is not read, below LOW it is again. */
enum { QUEUE_HIGH_BYTES = 1 << 20, QUEUE_LOW_BYTES = 256 << 10 };

/* Why a session is not read for the moment. */
enum session_pause {
    PAUSE_INGEST = 1u << 0,   /* its descriptions are far ahead of the disk */
    PAUSE_MESSAGES = 1u << 1, /* it does not take its replies, or asks for too much at once */
};

enum { SESSION_LABEL_BYTES = 64 };
struct session_save { /* a save that this session's rank takes part in */
    struct list link;
    struct session *session;
    struct ckpt_id id;
    uint64_t open_id;
    struct writer *writer;
    struct agree *agree; /* NULL: it has said nothing of its lists */
    struct ckpt_id base; /* what the part may refer through; term 0: nothing older */
    uint8_t *part;       /* being received; NULL before */
    uint64_t part_bytes, part_at;
};

struct session {
    struct list link;
    uint64_t id; /* for logs */
    struct server *server;
    struct conn *conn;
    enum session_state state;
    bool joining, viewer;
    bool hands_over; /* negotiated: arenas instead of bytes */
    bool packs;      /* negotiated: what is described may be encoded, and refer to a base */
    bool is_local;   /* it came by a Unix socket */
    unsigned pauses; /* enum session_pause; 0: it is read */
    uint32_t request_count;
    uint64_t request_bytes; /* its part of server->message_bytes that requests hold */
    struct mapped *mapped;  /* the newest arena; a reference, or NULL */
    bool lands;             /* negotiated: reads may go into the client's memory */
    struct mapped *landing; /* where; a reference, or NULL */
    uint32_t landing_reads; /* under way */
    struct msg_join join;   /* no pointers: label is dropped */
    struct run *run;
    struct credit_user credit;
    void *receiving; /* the payload buffer that conn writes into, when it is credit's */
    struct session_save *part_receiving; /* whose part conn writes into */
    uint8_t *part_left; /* what conn writes into though its save is gone, or never was */
    uint64_t part_left_bytes;
    struct list saves, requests;
    struct timer login, idle, patience; /* patience: of JOIN, with a store that refuses */
    uint64_t data_frames;
    struct idle_look last_look;
    char peer[96], label[SESSION_LABEL_BYTES]; /* label: as the client says: host, job */
};

struct request {
    struct list link;
    struct session *session; /* NULL: orphan */
    struct server *server;
    uint32_t stream;
    struct msg msg; /* a deep copy, in scratch */
    struct scratch scratch;
    uint64_t held_bytes; /* of the copy and this struct, as counted in message_bytes */
    void (*cancel)(
        struct request *request); /* the session goes; true to its name it makes the completion
                                   * impossible and frees, or leaves an orphan */
    union {
        struct run_req run;
        struct run_snapshot_req snapshot;
        struct run_watch watch;
        struct fetch_req fetch;
        struct plan_req plan;
        struct writer_have have;
        struct hand_over_wait hand;
        struct usage_walk usage;
        struct catalog_look look;
        struct {
            struct agree_wait wait;
            struct agree *agree; /* a reference */
        } agree;
        struct {
            struct credit_read credit;
            struct store_req store;
            struct conn_out out;
            void *buffer;
            struct mapped *landing; /* a reference: it goes there, no buffer is taken */
            /* session_land.c */
            uint8_t *room;       /* in landing */
            struct list reading; /* in server->landings while the store reads for it */
            struct list waiting; /* others that are given a copy of what comes */
            struct list with;    /* in the waiting of the one that reads */
            struct work copy;
            bool copies; /* a worker copies out of, or into, its room */
        } read;
        struct {
            struct store_req store;
            struct timer timer;
        } server;
        struct {
            struct work work;
            struct store_req store;
            struct run_req run;
            struct part part;
            struct scratch scratch;
            struct writer *writer;
            uint8_t *data;
            struct event_seal seal;
            struct diag diag;
            int status;
            bool running;           /* work, store or driver have it */
            unsigned tries;         /* at publishing, after an outcome that nobody knows */
            uint64_t adopted_bytes; /* of the part that the same process had published elsewhere */
            struct sha256 adopted_sha256;
            struct ckpt_id base;
            struct fetch_req fetch; /* the base's part of this rank */
            struct part_refs refs;
            struct scratch base_scratch; /* of refs */
        } seal;
    } u;
    struct base_req base;         /* OPEN: its third step */
    struct msg_opened opened;     /* its answer */
    struct run_snapshot_req info; /* a second step after run */
    struct run_req step;
    struct usage_walk usage; /* OPEN under a quota: its first step */
    struct diag refusal;     /* the quota's */
    bool too_large_if_full;  /* it is for a save without a base only */
    struct verdict verdict;
    bool running, sending; /* READ: store or socket have the buffer; FETCH, PLAN: a piece is with
                              the socket */
    uint64_t piece_at;
    uint8_t *piece_memory; /* PLAN: the encoded records */
    struct conn_out outs[1];
};

/* request.c */
/* Deep-copies msg. Returns NULL if there is no memory; an ERROR was sent then. */
struct request *request_new(struct session *session, uint32_t stream, const struct msg *msg);
void request_free(struct request *request);
void request_reply(struct request *request, const struct msg *reply); /* no effect for an orphan */
void request_error(struct request *request, int code, const struct diag *diag);
void request_send(struct request *request, const struct msg *reply, struct conn_out *out);
/* Makes the request an orphan: what completes later must call request_free. */
void request_orphan(struct request *request);
/* Reading stops while there is any reason for it. */
void session_pause(struct session *session, enum session_pause why);
void session_resume(struct session *session, enum session_pause why);
/* Called when a message was handled: stops reading if the session holds too much. A peer that never
 * takes its replies would otherwise make the server keep all of them. */
void session_stop_if_full(struct session *session);
void session_read_if_room(struct session *session);
void session_log(const struct session *session, int level, const char *msg, const char *err);
/* Called when the last session, request or writer may have gone. */
void server_check_stopped(struct server *server);

/* session.c */
/* Returns a session without a connection, or NULL if there is no memory. */
struct session *session_new(struct server *server);
/* Called when session->conn is there: the session takes its place and has to log in. */
void session_begin(struct session *session, bool is_local);
/* Ends the connection and everything that the session holds, and frees it. */
void session_close(struct session *session, bool flush);
/* The connection has ended by itself, or broke the rules: the same, with a line in the log. */
void session_closed(struct session *session, int status, const struct diag *diag);

/* session_save.c */
struct session_save *session_find_save(struct session *session, struct ckpt_id id);
void session_drop_saves(struct session *session);
void session_free_part(struct session_save *save);
void session_free_part_left(struct session *session);
/* Frees saves that are over. */
void session_reap_saves(struct session *session);

/* DATA and PART: where the payload goes, and what to do with it. */
int MUST_USE session_data_buffer(struct session *session, const struct frame *frame,
                                 const struct msg *msg, void **ret, struct diag *diag);
int MUST_USE session_data(struct session *session, const struct frame *frame, const struct msg *msg,
                          void *payload, struct diag *diag);
int MUST_USE session_part_buffer(struct session *session, const struct frame *frame,
                                 const struct msg *msg, void **ret, struct diag *diag);
void session_part(struct session *session, const struct frame *frame);

/* session_save.c: the answer to OPEN, once the core has said where the save stands; u.run.done. */
void session_opened(struct run_req *req);
/* The same where only an opening was looked for that is there already; own: it is the one that this
 * OPEN means. False: there is none, and nothing was answered. */
bool session_found_answers(struct run_req *found, bool own);
/* session_quota.c: submits the OPEN in u.run of rank 0 unless its project is over its quota; then
 * the step is opened and aborted, so that every rank hears why. */
void session_open_by_quota(struct request *request);

/* session_part.c: the whole part that was received, now the caller's (counted in part_bytes_used).
 * PROTOCOL: it is not whole, or not of `bytes` bytes, when what
 * (the message's name) came. */
int MUST_USE session_take_part(struct session_save *save, const char *what, uint64_t bytes,
                               uint8_t **ret, struct diag *diag);

/* session_land.c */
void session_offer_landing(struct session *session, uint64_t *features);
void session_end_landing(struct session *session);
/* READ of a request that names a place in the landing. Non-zero: the client broke the rules, and
 * the request is gone. */
int MUST_USE session_read_landing(struct request *request, struct diag *diag);

/* session_hand.c */
void session_offer_hand_over(struct session *session, uint64_t *features);
void session_end_hand_over(struct session *session);
void session_room(void *server); /* those who wait for room are read again */

/* session_mark.c */
/* Who asks, for the chain: what the connection proves first, then what the client says of itself,
 * which anybody can say. A long proven name is not cut for a claim's sake. */
void session_actor(const struct session *session, const char *claimed, size_t size, char *ret);

/* absent.c */
/* As much of a text for people as a label holds, cut between characters. */
void session_clip_label(const char *text, char ret[SESSION_LABEL_BYTES]);
/* A joined session ends: its rank is missed from now on, where others of its attempt are here. */
void absent_left(struct session *session);
void absent_joined(struct session *session);
void absent_end(struct server *server); /* nobody is missed any more */

#endif
