/* SPDX-License-Identifier: Apache-2.0
 *
 * A save that is under way, as its files share it; its states are in save_machine_private.h. All
 * arrays are allocated once, with the layout; nothing is allocated per chunk. Loop's thread; works
 * touch only what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_PRIVATE_H
#define CAIRN_SAVE_SAVE_PRIVATE_H

#include "engine/operations.h"
#include "pack/base_part.h"
#include "pipeline/payload.h"
#include "save/save.h"
#include "save/save_check_private.h"
#include "save/save_machine_private.h"
#include "share/layout.h"
#include "snapshot/snapshot.h"

enum { SAVE_SLOTS = 32, SAVE_DIGESTS = 4, SAVE_DIGESTS_COPYING = 2, SAVE_LEAD = 6, SAVE_TRIES = 3 };
/* The lead with a base. Only the digest shows if a payload needs credit at all, so looking further
 * ahead keeps the window of credit full. */
enum { SAVE_LEAD_BASE = 16 };
/* Stands in place of an envelope's index: the base has the same chunk. */
#define SAVE_SHARED UINT32_MAX

struct save;

enum object_state { OBJECT_IDLE, OBJECT_SENDING, OBJECT_ENDED, OBJECT_DURABLE };

struct save_object { /* a run of the layout's payloads, without those that are not sent */
    struct save *save;
    /* Its stream carries DATA, OBJECT_END and the server's answers to them. */
    struct request request;
    enum object_state state;
    bool has_sequence; /* it was sent at least in part, under `sequence` */
    bool cut;          /* payload_end is final; only the last object may be open */
    uint32_t sequence; /* of the last try; each try has a new one */
    uint32_t payload_first, payload_end;
    uint32_t failures;   /* how often the server has refused it */
    uint32_t slots_busy; /* payloads of it that a socket borrows */
    /* State of the present try. */
    uint32_t next_payload, piece_count;
    uint64_t data_bytes, plain_bytes;
};

enum payload_state { PAYLOAD_IDLE, PAYLOAD_BUSY, PAYLOAD_READY };

struct save_payload {         /* the state of one of the layout's payloads */
    enum payload_state state; /* what is sent of it lies in a side buffer, not in the arena */
    /* The side buffer that has the bytes. NULL if they are the arena's, or if the socket has taken
     * them. */
    bool from_side;
    struct side *side; /* holds its bytes; NULL if they are the arena's or the socket's */
    /* What is sent of it: stored bytes and chunks. Both are 0 if the base has all of them. */
    uint32_t bytes, new_count;
    /* new_plain_bytes and shared_plain_bytes add up to the plain bytes of the payload. */
    uint32_t new_plain_bytes, shared_plain_bytes;
    uint32_t object; /* the object that it is in, once sent */
    uint64_t at;     /* its offset in that object */
};

/* How the bytes of a save go; OPEN means not decided yet. */
enum save_way { WAY_OPEN, WAY_SOCKET, WAY_HAND };

struct save_slot { /* a payload on its way through the connection */
    struct conn_out out;
    struct save *save;
    struct side *side;          /* given back when the socket has taken its bytes */
    struct save_object *object; /* the object of the payload; NULL for a frame of the part */
    uint64_t bytes;
    bool busy;
};

struct save_digest { /* work: writes the envelopes of one payload, and into side and encoder */
    struct work work;
    struct save *save;
    uint32_t payload;
    bool busy;
    struct side *side;           /* NULL if nothing is encoded or packed anew */
    struct kit_encoder *encoder; /* NULL means raw */
    bool again;                  /* it is made again, with the encodings of the first time */
    struct payload_seal seal;
};

/* The part of this rank. The work reads layout, set and envelopes, which are final by then, and
 * writes the other fields. */
struct save_part {
    struct work work;
    struct buf buf;
    struct sha256 sha256;
    struct diag diag;
    int status;
    bool running, made, stale; /* stale: an object will change, so it must be made again */
    /* Another part was sealed before this one, so it is not known which of them the server took. */
    bool doubtful;
    uint64_t sent; /* bytes given to the connection, on the stream of the SEAL */
};

struct answer { /* the reply to the request of the present state */
    /* asked: the state has sent its request. come: the reply is
     * there. */
    bool asked, come;
    int code;
    struct diag diag;
    struct msg_opened opened; /* without the arrays that it points to */
    uint32_t outcome_state;
    int outcome_code;
};

/* Invariant: the fields are changed on the loop's thread only. A work holds its own member, and the
 * save is not freed before every work has ended (DRAIN). */
struct save {
    struct save_common common;
    struct sm sm;
    struct save_agree agree;
    struct save_check check;
    struct layout layout;
    struct snapshot snapshot;
    struct work reserve; /* work: arena_reserve, writes reserve_diag and reserve_status */
    struct diag reserve_diag;
    int reserve_status;
    uint8_t *extent; /* NULL if it has none, or goes in waves */
    /* The layout's objects are called lots here: a lot is a run of payloads that have their place
     * in the arena together. */
    /* By lot: where its first payload lies. NULL if it has no place yet, or no more. */
    uint8_t **places;
    uint32_t first_sequence; /* no object of this save has a smaller sequence */
    uint32_t placed;         /* lots before this one have had a place */
    uint32_t *lots_left;     /* in waves, by lot: payloads that are still needed */
    uint8_t *given;          /* in waves, by payload: 1 once it is not needed any more */
    struct watch watch;      /* for a lazy save that detects changes */
    /* If its code is not 0, this rank found no room, and tells the other ranks so. */
    struct diag declined;
    struct timer timer; /* first the deadline, then the grace for the server's word */
    struct timer retry;
    struct post post;
    struct request request;
    struct answer answer;
    struct diag why; /* the last refusal for the moment; code 0 means none since */
    /* Durations of the previous save, as its OPEN tells them. */
    uint64_t told_blocked_ms, told_persist_ms;
    uint64_t free_ms; /* when the caller could go on; 0 means not yet */
    /* laid_out: layout and arrays exist. stage_begun: the copy has begun. staged: on_staged is due
     * or was called. reserving: the arena is being enlarged. copying: the copy or its digests run.
     * lost: the connection went. grace: the server is not waited for any longer. named: the diag
     * names the rank. */
    bool laid_out, stage_begun, staged, reserving, copying, lost, grace, named;
    bool copied;
    bool waves;    /* each lot has an extent of its own */
    bool admitted; /* it may wait for its turn: there was room, or its policy is to wait */
    bool watched;  /* the digests before the copy are made, or none are asked for */
    bool released, hurry;
    bool ended; /* the server said that the save is over while objects were being sent */
    bool tell_released, tell_staged, tell_done;
    /* save_hand.c */
    enum save_way way;
    bool described; /* the daemon was told to read our memory */
    /* The daemon may store what was described at another place than we said, or not at all. */
    bool packed;
    bool stage_waits; /* all is copied, and "staged" waits for the daemon's word */
    struct timer stage_lag;
    int staged_status;
    uint64_t opening; /* the open_id that this rank has drawn */
    uint32_t seal_tries;
    /* save_stream.c */
    struct scratch scratch; /* owns the arrays */
    struct save_object *objects;
    uint64_t object_bytes_most;
    /* Payloads before `assigned` are in a cut object, or are not sent. */
    uint32_t object_count, assigned;
    struct save_payload *payloads; /* by the layout's payload */
    /* The envelopes of a payload's new pieces begin at its piece_first; offsets count from the
     * start of what is sent of it. */
    struct envelope *envelopes;
    uint32_t *envelope_of; /* by piece: index in envelopes, or SAVE_SHARED */
    uint32_t digest_next, digests_running, slots_busy;
    uint32_t object_at; /* no object before this one needs sending */
    uint32_t durable_count;
    struct encode_state *states; /* by tensor, the last for blobs; NULL if all stays raw */
    /* save_base.c */
    struct ckpt_id base_id; /* as the server named it; term 0 means none */
    struct base_part *base; /* a reference; NULL if nothing is referred to */
    uint32_t *base_of;      /* by piece: 1 + index of the base's chunk at its place, or 0 */
    bool base_known;        /* the base is known, or known to be none: digests may begin */
    bool fetching;
    struct engine_call fetch;
    uint32_t sparse_count;
    struct object_id *sparse; /* objects of the base that must not be referred to */
    uint64_t shared_bytes, stored_bytes;
    bool told; /* the daemon has said what it shared */
    struct save_digest digests[SAVE_DIGESTS];
    struct save_slot slots[SAVE_SLOTS];
    struct save_part part;
};

/* save_stage.c: the state QUEUE, and the copy. */
void save_set_released(struct save *save); /* tells the caller, once, that it may go on */
/* Tells the caller of a lazy save that it may go on, if everything that it must wait for is
 * done. */
void save_check_released(struct save *save);
void save_check_copied(struct save *save); /* digests or copy are complete; stages when both are */
void save_stage_go(struct save *save); /* once it is decided what to copy: goes as far as it can */
/* Keeps how long a committed save took, for the next OPEN to tell. */
void save_times_keep(struct save *save);
void save_times_tell(struct save *save, struct msg_open *io);
void save_set_staged(struct save *save, int status);
/* Stops the copy; pieces that are being copied still end. */
void save_stage_stop(struct save *save);

/* save_room.c: its places in the arena. */
int MUST_USE save_room_lay_out(struct save *save, struct diag *diag);
/* Takes room, and returns whether there is enough to begin. If not, room is being made, or another
 * save will give some back. */
bool save_room_take(struct save *save);
/* Returns whether the save could begin now, and then has its room where that can be taken
 * already. */
bool save_room_is_free(struct save *save);
/* In waves: gives back the payloads of the object if it is durable and no socket sends from it. */
void save_room_release(struct save *save, const struct save_object *object);
/* In waves: gives back payloads that are not sent at all. */
void save_room_release_range(struct save *save, uint32_t from, uint32_t to);
/* Returns false if bytes of the object were given up, because it was durable. */
bool save_room_has(const struct save *save, const struct save_object *object);
/* In waves an object ends with the lot that it began in. Returns whether the payload begins another
 * lot. */
bool save_room_ends(const struct save *save, const struct save_object *object, uint32_t payload);
/* Called when another save gave room back: a save in waves that was resting goes on. */
void save_room_more(struct save *save);
void save_room_give(struct save *save);
uint8_t *save_payload_data(const struct save *save, uint32_t payload);

/* save_digest.c */
void save_digest_init(struct save *save);
void save_digest_start(struct save *save);
/* Called when no worker runs any more. Gives back what the payloads hold, and keeps what was
 * learnt. */
void save_digest_fini(struct save *save);

/* save_stream.c */
void save_pump(struct save *save);
uint64_t save_unsent(const struct save *save); /* how many payloads could use credit */
int MUST_USE save_stream_init(struct save *save, struct diag *diag);
/* Returns the payload that is sent next or, if no object is begun, the first that is not
 * assigned. */
uint32_t save_stream_position(const struct save *save);
/* Returns the object to be sent next, or NULL if none is begun. */
struct save_object *save_stream_object(struct save *save);
/* Called when the connection is lost: everything that is not durable will be sent again. */
void save_stream_down(struct save *save);
/* Forgets that anything is durable. */
void save_stream_restart(struct save *save);
/* Takes the server's list of the objects that it holds; it holds no others. */
void save_stream_held(struct save *save, const struct msg_held *held);
void save_stream_forget(struct save *save);
bool save_stream_is_durable(const struct save *save);

/* save_hand.c */
void save_hand_init(struct save *save);
/* Decides how the bytes go. Returns true if that is settled and they may be sent. */
bool save_hand_choose(struct save *save);
/* Makes the envelopes of what is copied, so that it may be described. */
void save_hand_prepare(struct save *save);
void save_hand_describe(struct save *save, const struct save_object *object,
                        const struct msg_data *data, uint32_t payload);
/* Notes from the SEALED reply what the daemon has stored. */
void save_hand_sealed(struct save *save, const struct msg *msg);
/* Returns whether the save may be handed over, with this transport and this daemon. If it has a
 * base matters only later. */
bool save_hand_may(const struct save *save);
/* Returns whether the daemon compares and encodes what it is handed. */
bool save_hand_packs(const struct save *save);
/* Returns whether everything is described, and every object ended. */
bool save_hand_is_described(const struct save *save);
void save_hand_complete(struct save *save); /* sends COMPLETE in place of SEAL */
/* Called when everything is copied. Tells "staged" now, or when the daemon can go on without this
 * process. */
void save_hand_stage(struct save *save);
void save_hand_staged(struct save *save); /* tells "staged" if it was waiting */
/* Gives memory back to the arena, or retires it if the daemon may still read it. */
void save_hand_give(struct save *save, uint8_t *place);

/* save_part.c */
void save_part_make(struct save *save);
void save_part_void(struct save *save);
/* Sends as much of the part as there are slots. Returns true when the connection has the last
 * frame. */
bool save_part_send(struct save *save);

#endif
