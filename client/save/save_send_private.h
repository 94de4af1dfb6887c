/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a save on their way to the server: its objects and payloads, which both ways share,
 * and the interface of a way. A payload is made ready (prepare) and goes (offer) in order; an
 * object ends where the next payload would make it too long. All arrays are allocated once, with
 * the layout; nothing is allocated per chunk. Loop's thread; works touch only what their comment
 * says.
 */
#ifndef CAIRN_SAVE_SAVE_SEND_PRIVATE_H
#define CAIRN_SAVE_SAVE_SEND_PRIVATE_H

#include "pipeline/payload.h"
#include "save/save_base.h"
#include "snapshot/snapshot.h"

enum { SAVE_SLOTS = 32, SAVE_DIGESTS = 4, SAVE_TRIES = 3 };
/* Stands in place of an envelope's index: the base has the same chunk. */
#define SAVE_SHARED UINT32_MAX

struct save_send;

enum object_state { OBJECT_IDLE, OBJECT_SENDING, OBJECT_ENDED, OBJECT_DURABLE };

struct save_object { /* a run of the layout's payloads, without those that are not sent */
    struct save_send *send;
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

struct save_payload { /* the state of one of the layout's payloads */
    enum payload_state state;
    bool from_buffer; /* the bytes to send lie in an encode buffer, not in the arena */
    struct encode_buffer
        *buffer; /* holds its bytes; NULL if they are the arena's or the socket's */
    /* Stored bytes and chunks that are sent. Both are 0 if the base has all chunks of the payload.
     */
    uint32_t bytes, new_count;
    /* new_plain_bytes and shared_plain_bytes add up to the plain bytes of the payload. */
    uint32_t new_plain_bytes, shared_plain_bytes;
    uint32_t object; /* the object that it is in, once sent */
    uint64_t at;     /* its offset in that object */
};

struct save_slot { /* bytes on their way through the connection */
    struct conn_out out;
    struct save_send *send;
    struct encode_buffer *buffer; /* given back when the socket has taken its bytes */
    struct save_object *object;   /* the object of the payload; NULL for a frame of the part */
    uint64_t bytes;
    bool busy;
};

struct save_digest { /* work: writes the envelopes of one payload, and into buffer and encoder */
    struct work work;
    struct save_send *send;
    uint32_t payload;
    bool busy;
    struct encode_buffer *buffer; /* NULL if nothing is encoded or packed anew */
    struct pool_encoder *encoder; /* NULL means raw */
    bool again;                   /* it is made again, with the encodings of the first time */
    struct payload_seal seal;
};

/* A way for the bytes of a save. save_stream.c has the socket, save_hand.c the hand-over. */
struct save_way {
    /* Digests are made in this process, so its own part is what the server has. */
    bool digests_here;
    bool takes_credit; /* each payload needs a grant of the server */
    /* Makes what is copied ready to go, as far ahead as is of use. */
    void (*prepare)(struct save_send *send);
    /* Returns whether a payload that is ready can go now; NULL if it always can. */
    bool (*has_place)(const struct save_send *send);
    /* Lets a payload of the object go. */
    void (*offer)(struct save_send *send, struct save_object *object, const struct msg *data,
                  uint32_t payload);
    /* Called when nothing more can go at the moment; may be NULL. */
    void (*rest)(struct save_send *send);
    /* Returns whether all is on its way, so that the part may be made. */
    bool (*ended)(const struct save_send *send);
    /* Asks for the end of the save on the stream of the request. `seal` describes the part. */
    void (*complete)(struct save_send *send, struct request *request, const struct msg_seal *seal);
    /* Takes HANDED and SEALED, the server's word on a save that was completed; may be NULL. Without
     * it there is no HANDED. */
    void (*told)(struct save_send *send, const struct msg *msg);
};
extern const struct save_way save_way_socket, save_way_hand;

/* What the server said of the save while its bytes were going. */
enum send_word {
    WORD_NONE,
    WORD_HANDED, /* the daemon can finish alone */
    WORD_OVER    /* the save is over; the outcome says why */
};

struct save_send {
    struct save_common *common;
    struct save_room *room;
    struct save_base *base;
    const struct snapshot *snapshot; /* the copy, which may be under way */
    const struct save_way *way;      /* NULL while it is not decided */
    enum send_word word;
    uint32_t round; /* begins with 1; goes up when an object will change, so that a part made before
                       is void */
    struct save_object *objects;
    uint64_t object_bytes_most;
    /* Payloads before `assigned` are in a cut object, or are not sent. */
    uint32_t object_count, assigned;
    uint32_t object_at; /* no object before this one needs sending */
    uint32_t durable_count;
    struct save_payload *payloads; /* by the layout's payload */
    /* The envelopes of a payload's new pieces begin at its piece_first; offsets count from the
     * start of what is sent of it. */
    struct envelope *envelopes;
    uint32_t *envelope_of; /* by piece: index in envelopes, or SAVE_SHARED */
    uint32_t digest_next, digests_running, slots_busy;
    struct encode_state *states; /* by tensor, the last for blobs; NULL if all stays raw */
    uint64_t shared_bytes;       /* found in the base */
    /* The daemon may store what was described at another place than we said, or not at all. */
    bool packed;
    bool is_counted; /* shared_bytes is known: counted here, or told by the daemon */
    struct save_digest digests[SAVE_DIGESTS];
    struct save_slot slots[SAVE_SLOTS];
};

/* save_objects.c */
/* Called when the save is laid out: allocates all arrays. Fails with NO_MEMORY. */
int MUST_USE save_objects_lay_out(struct save_send *send, struct diag *diag);
struct object_id save_object_id(const struct save_send *send, uint32_t object);
/* Lets payloads go until nothing more can be done now. The way must be decided. */
void save_objects_pump(struct save_send *send);
/* Returns how many payloads of those that are left are known to be sent, up to ENGINE_WINDOW. */
uint64_t save_objects_unsent(const struct save_send *send);
/* Returns the payload that is sent next or, if no object is begun, the first that is not
 * assigned. */
uint32_t save_objects_position(const struct save_send *send);
/* Returns the object to be sent next, or NULL if none is begun. */
struct save_object *save_objects_next(struct save_send *send);
/* Gives the payload that goes next, or the end. Returns false if that one is not ready yet. */
bool save_objects_find(const struct save_send *send, const struct save_object *object,
                       uint32_t *ret);
/* In waves: gives back the payloads of the object if it is durable and no socket sends from it. */
void save_objects_release(struct save_send *send, const struct save_object *object);
/* Called when the connection is lost: everything that is not durable will be sent again. */
void save_objects_down(struct save_send *send);
/* Forgets that anything is durable. */
void save_objects_restart(struct save_send *send);
/* Takes the server's list of the objects that it holds; it holds no others. Returns PROTOCOL if the
 * list names an object that was never ended. */
int MUST_USE save_objects_held(struct save_send *send, const struct msg_held *held,
                               struct diag *diag);
void save_objects_forget(struct save_send *send); /* no reply is waited for any more */
bool save_objects_are_durable(const struct save_send *send);

/* save_digest.c */
void save_digest_init(struct save_send *send);
/* Hands payloads to workers, not far ahead of the sending, which then finds the bytes in the
 * cache. */
void save_digest_start(struct save_send *send);
/* Called after the last worker has ended. Gives the buffers of the payloads back to the pool, and
 * keeps what adaptive encoding has learnt of each tensor. */
void save_digest_fini(struct save_send *send);

/* save_stream.c */
struct save_slot *save_slot_take(struct save_send *send); /* NULL if all are in use */

/* save_hand.c */
/* Returns whether the save may be handed over, with this transport and this daemon. If it has a
 * base matters only later. */
bool save_hand_may(const struct save_send *send);
/* Returns whether the daemon compares and encodes what it is handed. */
bool save_hand_packs(const struct save_send *send);

/* save_way.c */
/* Decides which way the bytes go. Returns true if that is settled and they may go. Fails the save
 * if the transport that the caller demands is not to be had. */
bool save_way_choose(struct save_send *send);
/* Makes what is copied ready to go. Does nothing before the way is decided. */
void save_way_prepare(struct save_send *send);
/* Returns whether everything is on its way. */
bool save_way_has_ended(const struct save_send *send);
/* Returns whether comparing with the base is of use. Counts the saves that did not compare. */
bool save_way_compares(const struct save_send *send);

#endif
