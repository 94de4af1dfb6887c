/* SPDX-License-Identifier: Apache-2.0
 *
 * A save under way, as its files share it; its states are in save_machine_private.h. All arrays are
 * allocated once, with the layout; nothing is allocated per chunk. Loop's thread; works touch only
 * what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_PRIVATE_H
#define CAIRN_SAVE_SAVE_PRIVATE_H

#include "engine/operations.h"
#include "pack/base_part.h"
#include "pipeline/payload.h"
#include "save/save.h"
#include "save/save_agree_private.h"
#include "save/save_machine_private.h"
#include "share/layout.h"
#include "snapshot/snapshot.h"

enum { SAVE_SLOTS = 32, SAVE_DIGESTS = 4, SAVE_DIGESTS_COPYING = 2, SAVE_LEAD = 6, SAVE_TRIES = 3 };
/* With a base it is not known before the digest whether a payload needs credit at all: looking
 * further ahead keeps the window of credit full. */
enum { SAVE_LEAD_BASE = 16 };
#define SAVE_SHARED UINT32_MAX /* in place of an envelope's index: the base has the same chunk */

struct save;

enum object_state { OBJECT_IDLE, OBJECT_SENDING, OBJECT_ENDED, OBJECT_DURABLE };

struct save_object { /* a run of the layout's payloads, less what of them is not sent */
    struct save *save;
    struct request request; /* its stream: DATA, OBJECT_END, and what the server says to them */
    enum object_state state;
    bool has_sequence; /* it was sent at least in part, under `sequence` */
    bool cut;          /* payload_end is final; only the last object is not */
    uint32_t sequence; /* of the last try */
    uint32_t payload_first, payload_end;
    uint32_t failures;
    uint32_t slots_busy; /* payloads of it that a socket borrows */
    /* of the present try */
    uint32_t next_payload, piece_count;
    uint64_t data_bytes, plain_bytes;
};

enum payload_state { PAYLOAD_IDLE, PAYLOAD_BUSY, PAYLOAD_READY };

struct save_payload { /* what becomes of one of the layout's payloads */
    enum payload_state state;
    bool from_side;    /* its bytes are not the arena's */
    struct side *side; /* that has them; NULL: the socket has taken them, or they are the arena's */
    uint32_t bytes, new_count; /* that are sent: stored bytes, chunks; none where all are shared */
    uint32_t new_plain_bytes, shared_plain_bytes;
    uint32_t object;
    uint64_t at; /* in its object */
};

enum save_way { WAY_OPEN, WAY_SOCKET, WAY_HAND }; /* how its bytes go; OPEN: not decided yet */

struct save_slot { /* a payload on its way through the connection */
    struct conn_out out;
    struct save *save;
    struct side *side;          /* given back when the socket has it */
    struct save_object *object; /* whose payload it is; NULL: a frame of the part */
    uint64_t bytes;
    bool busy;
};

struct save_digest { /* work: writes the envelopes of one payload, and into side and encoder */
    struct work work;
    struct save *save;
    uint32_t payload;
    bool busy;
    struct side *side;           /* NULL: nothing is encoded or packed anew */
    struct kit_encoder *encoder; /* NULL: raw */
    bool again;                  /* with the encodings of the first time */
    struct payload_seal seal;
};

struct save_part { /* work: reads layout, set and envelopes (final by then), writes the rest of this
                    */
    struct work work;
    struct buf buf;
    struct sha256 sha256;
    struct diag diag;
    int status;
    bool running, made, stale; /* stale: an object will change, make it again */
    bool doubtful; /* another one was sealed before: which of them the server took is not known */
    uint64_t sent; /* bytes handed to the connection, on the stream of the SEAL */
};

struct answer { /* what came for the request of the present state */
    bool asked, come;
    int code;
    struct diag diag;
    struct msg_opened opened; /* without what it points to */
    uint32_t outcome_state;
    int outcome_code;
};

struct save {
    struct engine_op op; /* of engine->saves */
    struct sm sm;
    struct engine *engine;
    struct engine_save *user;
    struct registered *set;
    uint64_t number; /* among the engine's operations */
    struct save_agree agree;
    struct save_check check;
    struct layout layout;
    struct snapshot snapshot;
    struct work reserve; /* work: arena_reserve */
    struct diag reserve_diag;
    int reserve_status;
    uint8_t *extent; /* NULL: none, or in waves */
    /* A lot is what the layout calls an object: a run of payloads that have their place together.
     */
    uint8_t **places;        /* by lot, where its first payload lies; NULL: not there (any more) */
    uint32_t first_sequence; /* its objects have no smaller one */
    uint32_t placed;         /* lots before this one got a place */
    uint32_t *lots_left;     /* in waves, by lot: payloads that are still needed */
    uint8_t *given;          /* in waves, by payload: 1 when it is needed no more */
    struct watch watch;      /* of a lazy save that verifies */
    struct diag declined;    /* code not 0: this rank found no room, and tells the others */
    struct timer timer;      /* the deadline, then the grace for the truth */
    struct timer retry;
    struct post post;
    struct request request;
    struct answer answer;
    struct diag why; /* the last refusal for the moment; code 0: none since */
    uint64_t end_ms;
    uint64_t told_blocked_ms, told_persist_ms; /* what its OPEN says of the save before */
    uint64_t begun_ms, free_ms; /* the call; when the caller could go on (0: not yet) */
    uint32_t chunk_bytes_seen;  /* laid out for this chunk size */
    bool laid_out, stage_begun, staged, reserving, copying, opened, seal_sent, lost, grace, named;
    bool waves;    /* each lot has an extent of its own */
    bool admitted; /* it may wait for its turn: there was room, or its policy is to wait */
    bool watched;  /* the digests before the copy are made, or none are asked for */
    bool released, hurry;
    bool ended; /* the server said so while objects were on their way */
    bool tell_released, tell_staged, tell_done;
    /* save_hand.c */
    enum save_way way;
    bool described;   /* the daemon was told to read our memory */
    bool packed;      /* it may store what was described elsewhere than we said, or not at all */
    bool decided;     /* the server has said what became of the opening */
    bool stage_waits; /* all is copied; "staged" waits for the daemon's word */
    struct timer stage_lag;
    int status; /* what it will end with; 0 so far: well */
    int staged_status;
    uint64_t opening; /* open_id that we draw */
    uint64_t open_id; /* of the opening that we take part in */
    struct uuid run_uuid;
    uint32_t seal_tries;
    /* save_stream.c */
    struct scratch scratch; /* the arrays */
    struct save_object *objects;
    uint64_t object_bytes_most;
    uint32_t object_count, assigned; /* payloads below it are in a cut object, or not sent */
    struct save_payload *payloads;   /* by the layout's */
    struct envelope *envelopes;      /* those of a payload's new pieces from its piece_first on;
                                        offsets relative to what is sent of it */
    uint32_t *envelope_of;           /* by piece; SAVE_SHARED */
    uint32_t digest_next, digests_running, slots_busy;
    uint32_t object_at; /* no object before it needs sending */
    uint32_t durable_count;
    struct encode_state *states; /* NULL: all stays raw */
    /* save_base.c */
    struct ckpt_id base_id; /* as the server named it; term 0: none */
    struct base_part *base; /* NULL: nothing is referred to */
    uint32_t *base_of;      /* by piece: 1 + index of the base's chunk at its place */
    bool base_known;        /* digests may begin */
    bool fetching;
    struct engine_call fetch;
    uint32_t sparse_count;
    struct object_id *sparse; /* of the base; nothing in them is referred to */
    uint64_t shared_bytes, stored_bytes;
    bool told; /* the daemon has said what it shared */
    struct save_digest digests[SAVE_DIGESTS];
    struct save_slot slots[SAVE_SLOTS];
    struct save_part part;
};

/* save_stage.c: the state QUEUE, and the copy */
void save_set_released(struct save *save); /* the caller need not wait any more; once */
/* Lazy: may its caller go on? */
void save_check_released(struct save *save);
void save_check_copied(struct save *save); /* digests or copy are made: staged when both are */
void save_stage_go(struct save *save);     /* once it is decided what to copy: as far as it comes */
/* How long a committed save took, and what the next OPEN says of it. */
void save_times_keep(struct save *save);
void save_times_tell(struct save *save, struct msg_open *io);
void save_set_staged(struct save *save, int status);
/* The copy goes no further; what runs of it ends. */
void save_stage_stop(struct save *save);

/* save_room.c: its places in the arena */
int MUST_USE save_room_lay_out(struct save *save, struct diag *diag);
/* True when there is room to begin; otherwise it is being made, or somebody gives some back. */
bool save_room_take(struct save *save);
/* Could it begin now? Takes the room where that is certain. */
bool save_room_is_free(struct save *save);
/* In waves: what is durable of the object, and not on its way through a socket, is needed no more.
 */
void save_room_release(struct save *save, const struct save_object *object);
/* In waves: these payloads are not sent at all. */
void save_room_release_range(struct save *save, uint32_t from, uint32_t to);
/* False: bytes of the object were given up, since it was durable. */
bool save_room_has(const struct save *save, const struct save_object *object);
/* In waves an object ends with the lot that it began in. */
bool save_room_ends(const struct save *save, const struct save_object *object, uint32_t payload);
/* Somebody gave room back: what rests in a save in waves goes on. */
void save_room_more(struct save *save);
void save_room_give(struct save *save);
uint8_t *save_payload_data(const struct save *save, uint32_t payload);

/* save_digest.c */
void save_digest_init(struct save *save);
void save_digest_start(struct save *save);
/* No worker runs any more: gives back what the payloads hold. */
void save_digest_fini(struct save *save);

/* save_stream.c */
void save_pump(struct save *save);
uint64_t save_unsent(const struct save *save); /* payloads that it could use credit for */
int MUST_USE save_stream_init(struct save *save, struct diag *diag);
/* The payload that is to be sent next; where none is, the first that is not assigned. */
uint32_t save_stream_position(const struct save *save);
struct save_object *save_stream_object(struct save *save); /* to be sent next; NULL: none begun */
/* The connection is gone: what is not durable will be sent again. */
void save_stream_down(struct save *save);
/* Nothing of it counts as durable any more. */
void save_stream_restart(struct save *save);
/* The server holds these, and no others. */
void save_stream_held(struct save *save, const struct msg_held *held);
void save_stream_forget(struct save *save);
bool save_stream_is_durable(const struct save *save);

/* save_hand.c */
void save_hand_init(struct save *save);
/* True when it is settled how the bytes go, and they may. */
bool save_hand_choose(struct save *save);
void save_hand_prepare(struct save *save); /* what is copied may be described */
void save_hand_describe(struct save *save, const struct save_object *object,
                        const struct msg_data *data, uint32_t payload);
/* A reply: notes what the daemon has made of it, when it has sealed. */
void save_hand_sealed(struct save *save, const struct msg *msg);
/* Under this transport, with this daemon, may it go by hand? Whether it has a base is asked when
 * that is known. */
bool save_hand_may(const struct save *save);
bool save_hand_packs(const struct save *save);        /* does the daemon compare and encode it? */
bool save_hand_is_described(const struct save *save); /* and every object ended */
void save_hand_complete(struct save *save);           /* COMPLETE in place of SEAL */
/* All is copied: "staged" is told now, or when the daemon can go on without us. */
void save_hand_stage(struct save *save);
void save_hand_staged(struct save *save); /* need not wait any more */
/* Memory goes back to the arena, which is retired where the daemon may still read it. */
void save_hand_give(struct save *save, uint8_t *place);

/* save_part.c */
void save_part_make(struct save *save);
void save_part_void(struct save *save);
/* Sends what slots allow; true when the last frame is with the connection. */
bool save_part_send(struct save *save);

#endif
