/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and calls that the files of this folder share: the server, the session, the saves that a
 * session takes part in, and the requests that wait for the driver, the store or a worker. A
 * request outlives its session only as an orphan (session NULL) that frees itself when its
 * completion comes.
 */
#ifndef CAIRN_SESSION_SESSION_PRIVATE_H
#define CAIRN_SESSION_SESSION_PRIVATE_H

#include "core/event.h"
#include "gc/gc.h"
#include "ingest/credit.h"
#include "ingest/ingest.h"
#include "net/conn.h"
#include "run/run_info.h"
#include "session/agree.h"
#include "session/request_private.h"
#include "session/server.h"

struct server {
    struct server_options options;
    struct credit credit;
    struct ingest *ingest;
    struct agree_book agrees;
    struct list sessions;
    struct list absents;                   /* of absent.c */
    uint32_t session_count, request_count; /* request_count includes orphans */
    uint32_t network_count;                /* sessions that did not come by a Unix socket */
    uint64_t message_bytes; /* messages and requests of all sessions, and replies that wait */
    struct post shed;       /* runs when message_bytes is above its budget */
    uint64_t part_bytes_used, bytes_out;
    uint8_t *trash; /* buffer_bytes for payloads that nobody wants; NULL until the first */
    bool stopping, closing, ingest_idle;
    struct list mapped;   /* arenas that clients have handed over (mapped.h) */
    struct list landings; /* requests for which the store reads into a landing */
    uint64_t grace_until_ms;
    struct timer grace;
    struct scrub *scrub; /* NULL if there is none (server_set_maintenance) */
    struct gc *gc;
    const struct server_peer *peers; /* server_set_peers */
    size_t peer_count;
    struct repair *repair;       /* NULL if there is none (server_set_repair) */
    uint64_t begun_ms, waits_ms; /* waits_ms: since when it has had no store */
    struct diag waits_why;
    struct post stopped_post;
    void (*stopped)(void *user);
    void *stopped_user;
};

struct idle_check { /* the findings of the last check for stuck sessions */
    bool held, sending, unread;
    uint64_t data_frames, sent_bytes;
};

enum session_state { SESSION_NEW, SESSION_GREETED, SESSION_JOINED };

/* Size of the replies that wait for their peer: above HIGH the session is not read, below LOW it is
 * read again. */
enum { QUEUE_HIGH_BYTES = 1 << 20, QUEUE_LOW_BYTES = 256 << 10 };

/* The reasons why a session is not being read. */
enum session_pause {
    PAUSE_INGEST = 1u << 0,   /* its descriptions are too far ahead of the disk */
    PAUSE_MESSAGES = 1u << 1, /* it does not take its replies, or asks for too much at once */
};

enum { SESSION_LABEL_BYTES = 64 };
struct session_save { /* a save that the rank of this session takes part in */
    struct list link;
    struct session *session;
    struct ckpt_id id;
    uint64_t open_id;
    struct writer *writer;
    struct agree *agree; /* NULL until it has sent something about its lists */
    struct ckpt_id base; /* the base that the part may refer to; term 0 if none */
    uint8_t *part;       /* the part that is being received; NULL before */
    uint64_t part_bytes, part_at;
    bool part_refused; /* there was no room for the part; the rest of it is dropped */
};

struct session {
    struct list link;
    uint64_t id; /* for logs */
    struct server *server;
    struct conn *conn;
    enum session_state state;
    bool joining, viewer;
    bool hands_over;     /* negotiated: hands over arenas instead of sending bytes */
    bool packs;          /* negotiated: described data may be encoded, and may refer to a base */
    bool knows_capitals; /* negotiated: names of runs may have capitals */
    bool is_local;       /* it came by a Unix socket */
    unsigned pauses;     /* bits of enum session_pause; 0 while it is being read */
    uint32_t request_count;
    uint64_t request_bytes; /* the share of server->message_bytes that its requests hold */
    struct mapped *mapped;  /* the newest arena: a reference, or NULL */
    bool lands;             /* negotiated: reads may go into the client's memory */
    struct mapped *landing; /* that memory: a reference, or NULL */
    uint32_t landing_reads; /* reads into it that are under way */
    struct msg_join join;   /* holds no pointers: its label is dropped */
    struct run *run;
    struct credit_user credit;
    void *receiving; /* the buffer of credit that conn writes a payload into, or NULL */
    struct session_save *part_receiving; /* the save whose part conn writes into, or NULL */
    /* Memory that conn writes a part into whose save has gone meanwhile. */
    uint8_t *part_left;
    uint64_t part_left_bytes;
    struct list saves, requests;
    struct {
        uint32_t ordinal;
        uint64_t begun_ms; /* 0 if none is under way */
    } restore;             /* the restore of the rank 0 that this session is */
    /* patience: how long a JOIN waits while the store refuses. */
    struct timer login, idle, patience;
    uint64_t data_frames;
    struct idle_check last_check;
    char peer[96], label[SESSION_LABEL_BYTES]; /* label: host and job, as the client states them */
};

/* Returns the session of a rank of the run that is connected, or NULL. */
static inline const struct session *server_rank_of(const struct server *server,
                                                   const struct run_name *run)
{
    list_each (node, &server->sessions) {
        const struct session *session = list_item(node, struct session, link);
        if (session->state == SESSION_JOINED && !session->viewer &&
            run_name_equal(&session->join.run, run)) {
            return session;
        }
    }
    return NULL;
}

/* server_tell_use(), without the session that asks. */
static inline void server_use_beside(const struct server *server, const struct run_name *run,
                                     const struct session *asking, struct event_forget *ret)
{
    list_each (node, &server->sessions) {
        const struct session *session = list_item(node, struct session, link);
        ret->living = ret->living || (session->state == SESSION_JOINED &&
                                      run_name_equal(&session->join.run, run) && session != asking);
    }
    if (server->gc) {
        gc_schedule(server->gc, &ret->cycle_ms, &ret->keep_cycles);
    }
}

/* request.c */
/* Stops and resumes reading. A session is read while it has no reason to pause. */
void session_pause(struct session *session, enum session_pause why);
void session_resume(struct session *session, enum session_pause why);
/* Called when a message was handled. Stops reading if the session holds too much; a peer that never
 * takes its replies would otherwise make the server keep all of them. */
void session_stop_if_full(struct session *session);
void session_read_if_room(struct session *session);
void session_log(const struct session *session, int level, const char *msg, const char *err);
/* Called when the last session, request or writer may have gone. */
void server_check_stopped(struct server *server);

/* session.c */
/* Returns a session without a connection, or NULL if there is no memory. */
struct session *session_new(struct server *server);
/* Called when session->conn is set: the session enters the server's list and has to log in. */
void session_begin(struct session *session, bool is_local);
/* Ends the connection and everything that the session holds, and frees it. */
void session_close(struct session *session, bool flush);
/* Called when the connection has ended by itself or has broken the rules. Closes the session with a
 * line in the log. */
void session_closed(struct session *session, int status, const struct diag *diag);

/* session_save.c */
struct session_save *session_find_save(struct session *session, struct ckpt_id id);
/* Finds the save whose part a client says is all sent. Returns NULL if there is none that can be
 * sealed; the client has its answer then. */
struct session_save *session_save_to_seal(struct session *session, uint32_t stream,
                                          struct ckpt_id id, uint64_t open_id);
void session_drop_saves(struct session *session);
void session_free_part(struct session_save *save);
void session_free_part_left(struct session *session);
/* Frees saves that are over. */
void session_reap_saves(struct session *session);

/* DATA and PART: the first function gives the memory for the payload, the second takes the
 * payload. */
int MUST_USE session_data_buffer(struct session *session, const struct frame *frame,
                                 const struct msg *msg, void **ret, struct diag *diag);
int MUST_USE session_data(struct session *session, const struct frame *frame, const struct msg *msg,
                          void *payload, struct diag *diag);
int MUST_USE session_part_buffer(struct session *session, const struct frame *frame,
                                 const struct msg *msg, void **ret, struct diag *diag);
void session_part(struct session *session, const struct frame *frame);

/* session_save.c: answers OPEN, once the core has said what the state of the save is. It is
 * u.open.run.done. */
void session_opened(struct run_req *req);
/* Answers OPEN after a FIND_OPEN that looked for an existing opening. `own` means that it is the
 * opening of this OPEN. Returns false if there is none; nothing was answered then. */
bool session_found_answers(struct run_req *found, bool own);
/* session_quota.c: submits the OPEN of rank 0 in u.open.run, unless the project is over its quota.
 * In that case the step is opened and aborted at once, so that every rank hears why. */
void session_open_by_quota(struct request *request);

/* session_part.c: gives the whole part that was received. The caller owns it (it stays counted in
 * part_bytes_used). Returns PROTOCOL if the part was not complete, or did not have `bytes` bytes,
 * when the message named `what` came. */
int MUST_USE session_take_part(struct session_save *save, const char *what, uint64_t bytes,
                               uint8_t **ret, struct diag *diag);

/* session_restore.c: reads from the store what the request asks for. */
void session_read(struct request *request, void *data, void (*done)(struct store_req *req));
/* session_land.c */
void session_offer_landing(struct session *session, uint64_t *features);
void session_end_landing(struct session *session);
/* Handles a READ that names a place in the landing. After an error the client has broken the rules,
 * and the request is freed. */
int MUST_USE session_read_landing(struct request *request, struct diag *diag);

/* session_hand.c */
void session_offer_hand_over(struct session *session, uint64_t *features);
void session_end_hand_over(struct session *session);
void session_room(void *server); /* reads the sessions again that wait for room */

/* session_mark.c */
/* Writes the actor of a change, for the chain: first the identity that the connection proves, then
 * the one that the client claims, which anybody can claim. A long proven name is not cut in favour
 * of a claim. */
void session_actor(const struct session *session, const char *claimed, size_t size, char *ret);
/* Returns the same in the request's memory, or NULL if there is none. */
const char *session_actor_copy(struct request *request, const char *claimed);

/* absent.c */
/* Copies as much of a text for people as a label holds, cut between characters. */
/* Returns whether the client can read this name: an older one knows no capitals. */
static inline bool session_may_name(const struct session *session, const struct run_name *name)
{
    return session->knows_capitals || !run_name_has_capitals(name);
}
void session_clip_label(const char *text, char ret[SESSION_LABEL_BYTES]);
/* Called when a joined session ends. Its rank counts as missing from now on, if other ranks of its
 * attempt are connected. */
void absent_left(struct session *session);
void absent_joined(struct session *session);
void absent_end(struct server *server); /* no rank counts as missing any more */

/* session_join.c: notes that rank 0 of an attempt has ended in order. */
void session_leave(struct session *session);

#endif
