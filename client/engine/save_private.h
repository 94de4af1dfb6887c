/* SPDX-License-Identifier: Apache-2.0
 *
 * A save under way, as its files share it: save.c decides (the state machine), save_stream.c
 * digests and sends objects, save_part.c builds and sends the part. All arrays are allocated once,
 * with the layout; nothing is allocated per chunk. Loop's thread; works touch only what their
 * comment says.
 */
#ifndef CAIRN_ENGINE_SAVE_PRIVATE_H
#define CAIRN_ENGINE_SAVE_PRIVATE_H

#include "engine/engine_private.h"
#include "engine/layout.h"
#include "engine/snapshot.h"

enum { SAVE_SLOTS = 32, SAVE_DIGESTS = 4, SAVE_DIGESTS_COPYING = 2, SAVE_LEAD = 6, SAVE_TRIES = 3 };

struct save;

enum object_state { OBJECT_IDLE, OBJECT_SENDING, OBJECT_ENDED, OBJECT_DURABLE };

struct save_object {
    struct save *save;
    struct request request; /* its stream: DATA, OBJECT_END, and what the server says to them */
    enum object_state state;
    bool has_sequence;     /* it was sent at least in part, under `sequence` */
    uint32_t sequence;     /* of the last try */
    uint32_t next_payload; /* relative to the object's first */
    uint32_t failures;
};

struct save_slot { /* a payload on its way through the connection */
    struct conn_out out;
    struct save *save;
    uint64_t bytes;
    bool busy, is_data;
};

struct save_digest { /* work: writes the envelopes of one payload */
    struct work work;
    struct save *save;
    uint32_t payload;
    bool busy;
};

struct save_part { /* work: reads layout, set and envelopes (final by then), writes the rest of this
                    */
    struct work work;
    struct buf buf;
    struct sha256 sha256;
    struct diag diag;
    int status;
    bool running, made, stale; /* stale: an object will change, make it again */
    uint64_t sent;             /* bytes handed to the connection, on the stream of the SEAL */
};

struct answer { /* what came for the request of the present state */
    bool asked, come;
    int code;
    struct diag diag;
    enum msg_type type;
    struct msg_opened opened;
    uint32_t outcome_state;
    int outcome_code;
};

struct save {
    struct list link; /* engine->saves */
    struct sm sm;
    struct engine *engine;
    struct engine_save *user;
    struct registered *set;
    struct layout layout;
    struct snapshot snapshot;
    struct work reserve; /* work: arena_reserve */
    struct diag reserve_diag;
    int reserve_status;
    uint8_t *extent;    /* NULL: none */
    struct timer timer; /* the deadline, then the grace for the truth */
    struct timer retry;
    struct post post;
    struct request request;
    struct answer answer;
    uint64_t end_ms;
    uint32_t chunk_bytes_seen; /* laid out for this chunk size */
    bool laid_out, staged, reserving, copying, opened, seal_sent, lost, grace;
    bool tell_staged, tell_done;
    int status; /* what it will end with; 0 so far: well */
    int staged_status;
    uint64_t opening; /* open_id that we draw */
    uint64_t open_id; /* of the opening that we take part in */
    struct uuid run_uuid;
    uint32_t seal_tries;
    /* save_stream.c */
    struct scratch scratch; /* the arrays */
    struct save_object *objects;
    struct envelope *envelopes; /* by piece; offsets relative to the payload */
    uint8_t *digested;          /* by payload: 1 when its envelopes are made */
    uint32_t digest_next, digests_running, slots_busy;
    uint32_t object_at; /* no object before it needs sending */
    uint32_t durable_count;
    struct save_digest digests[SAVE_DIGESTS];
    struct save_slot slots[SAVE_SLOTS];
    struct save_part part;
};

/* save.c */
enum {
    SV_QUEUE,
    SV_LINK,
    SV_OPEN,
    SV_HAVE,
    SV_SEND,
    SV_PART,
    SV_SEAL,
    SV_WAIT,
    SV_ABORT,
    SV_DRAIN,
    SV_END
};
void save_move(struct save *save, unsigned state); /* ends the request of the present state */
bool save_is_sending(const struct save *save);
bool save_has_failed(const struct save *save);
struct object_id save_object_id(const struct save *save, uint32_t object);
struct save_slot *save_slot_take(struct save *save); /* NULL: all are under way */

/* save_stage.c: the state QUEUE, and the copy */
enum sm_result save_on_queue(struct sm *sm);
void save_set_staged(struct save *save, int status);

/* save_stream.c */
int MUST_USE save_stream_init(struct save *save, struct diag *diag);
void save_digest_start(struct save *save);
/* The connection is gone: what is not durable will be sent again. */
void save_stream_down(struct save *save);
/* The server holds these, and no others. */
void save_stream_held(struct save *save, const struct msg_held *held);
void save_stream_forget(struct save *save);
bool save_stream_is_durable(const struct save *save);

/* save_part.c */
void save_part_make(struct save *save);
void save_part_void(struct save *save);
/* Sends what slots allow; true when the last frame is with the connection. */
bool save_part_send(struct save *save);

#endif
