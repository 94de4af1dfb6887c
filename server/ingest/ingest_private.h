/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and calls that the files of this folder share. They are in the order in which they call
 * each other, the lowest first; ingest.c is the root.
 */
#ifndef CAIRN_INGEST_INGEST_PRIVATE_H
#define CAIRN_INGEST_INGEST_PRIVATE_H

#include "base/sm.h"
#include "ingest/ingest.h"
#include "pipeline/encode_pool.h"
#include "pipeline/payload.h"
#include "wire/msg.h"

/* What adaptive encoding has learnt about the tensors of all runs, in a table of fixed size. If two
 * tensors share a slot, the later one replaces the earlier one. */
enum { LEARNT_ENTRIES = 4096 };
struct learnt {
    uint64_t key;
    struct encode_state state;
};

struct ingest {
    struct store *store;
    struct work_pool *pool;
    struct credit *credit;
    struct list writers;
    uint32_t pending;                /* writers and requests that exist */
    uint64_t bytes_in, bytes_mapped; /* bytes_mapped: the part of bytes_in that lay in arenas */
    struct loop *loop;
    /* of in_mapped.c: */
    uint32_t mapped_writes, mapped_digests; /* under way */
    uint64_t mapped_bytes;                  /* of the writes under way */
    uint32_t digests_waiting;
    uint64_t described_bytes; /* memory of the descriptions that are not finished */
    bool was_full;
    struct encode_pool
        encode_pool;         /* lanes for encoding and packing; the measured rate of the store */
    uint32_t lanes;          /* 0 if nothing is encoded */
    struct learnt *learnt;   /* LEARNT_ENTRIES of them; NULL until the first */
    uint32_t mapped_objects; /* objects with descriptions that exist */
    struct timer hold;
    void (*room)(void *user);
    void *room_user;
    void (*idle)(void *user);
    void *idle_user;
};

/* What became of a described chunk: not decided yet, stored in its object, found in the base, or
 * found in an object that was durable before. */
enum in_where { WHERE_OPEN, WHERE_STORED, WHERE_BASE, WHERE_OLDER };
struct in_piece {
    uint64_t at; /* offset in its object, as described */
    enum in_where where;
    uint32_t envelope;    /* STORED: index of the envelope in its object */
    uint32_t older;       /* OLDER: index of the first entry of writer.recovered with its bytes */
    struct digest digest; /* BASE: digest of the base's chunk at the same place */
};

/* A sealed object. If all its chunks are stored elsewhere, the object itself is not stored. */
struct durable {
    uint32_t sequence, envelope_count, piece_count;
    struct envelope *envelopes; /* owned, sorted by offset */
    /* Owned, in the order of the descriptions. NULL if the chunks are where the client put them, or
     * if the object was found in the store. */
    struct in_piece *pieces;
};

/* A chunk of an object whose pieces are not known any more, because the daemon has restarted. */
struct recovered {
    struct digest digest;
    uint32_t plain_bytes, sequence;
    uint64_t offset;
};

struct writer {
    struct list link;
    struct ingest *ingest;
    struct writer_key key;
    struct run_name run;
    struct writer_events events;
    void *user;  /* NULL while detached */
    bool over;   /* the save has ended */
    bool asking; /* the store is being asked for durable objects */
    struct run_watch watch;
    bool watching;
    uint32_t next_sequence; /* sequences below it were used already */
    struct list objects;    /* in_object.link */
    size_t durable_count, durable_cap;
    struct durable *durables;        /* sorted by sequence */
    struct list haves;               /* writer_have.link */
    uint32_t refs;                   /* held by in_objects, a running have and a hand-over */
    struct list to_write, to_digest; /* mapped_write: described and not begun */
    uint64_t described_ms;           /* time of the newest description */
    struct hand_over *hand;          /* NULL if no hand-over is running */
    struct post *settled;            /* posted by writer_settled(); NULL if nobody waits */
    /* Since the writer was made; first_ms is 0 before the first payload, and once it was used. */
    uint64_t received_bytes, durable_bytes, began_ms, first_ms, fed_ms;
    struct recovered *recovered; /* sorted by digest and place; immutable, so workers may read it */
    size_t recovered_count;
};

/* The state of an object at the store; in_object.c has the drawing. */
enum in_state {
    IN_FILLING,
    IN_CREATING,
    IN_WRITING,
    IN_FOOTER,
    IN_SEALING,
    IN_DURABLE,
    IN_FAILED,
    IN_ABORTING,
    IN_GONE
};

struct in_object;
struct in_write;

/* One of the two ways that payloads come. An object's payloads all come the same way. */
struct in_way {
    /* Called when the store has done the write, or never will: ends it. */
    void (*end_write)(struct in_write *write, int status, const struct diag *diag);
    /* Drops the payloads that nobody has begun to write. */
    void (*drop)(struct in_object *object);
    /* Called when the object is durable. */
    void (*durable)(struct in_object *object);
    /* Called when the object is freed. */
    void (*leave)(struct in_object *object);
};

struct in_object {
    struct list link;
    struct writer *writer;
    struct object_id id;
    const struct in_way *way; /* NULL before the first payload was taken */
    struct sm sm;             /* in_state */
    bool created;             /* it exists at the store */
    bool ended;               /* the client has sent its last payload */
    bool quiet;               /* its session is gone: no event is sent */
    bool busy;                /* req is at the store */
    bool whole;               /* its only payload and the footer are one write */
    uint32_t pending;         /* writes whose payload has come and is not on the disk yet */
    uint32_t known;           /* of these, verified and placed: only the disk is waited for */
    uint32_t stream;          /* stream of the newest frame */
    uint64_t bytes_max;       /* reserved at the store, including the footer */
    uint64_t next_offset;     /* by the client's numbering: where the next payload begins */
    uint64_t stored_bytes;    /* end of the payloads that have a place in the store's object */
    uint32_t chunk_count;     /* chunks that came or were described */
    uint32_t envelope_count, envelope_cap, piece_cap;
    struct envelope *envelopes; /* of the stored chunks */
    struct in_piece *pieces;    /* chunk_count of them if they were described, else NULL */
    struct list ready;          /* in_write.link: waits for CREATE */
    uint8_t *footer;
    struct store_req req; /* for create, footer, seal and abort, one at a time */
};

/* A payload on its way to the store. */
struct in_write {
    struct list link; /* in object.ready or writer.to_write */
    struct in_object *object;
    struct store_req req;
    /* A buffer of credit, or memory of an arena (read-only) or of an encode buffer. */
    uint8_t *payload;
    uint64_t offset; /* in the object */
    uint32_t payload_bytes, envelope_count;
    struct envelope *envelopes; /* sorted; offsets are relative to the payload */
    bool known;                 /* counted in object.known */
};

/* Whether a described payload is packed: compared with what is durable, and encoded. */
enum packing {
    PACK_NOT,   /* it is digested beside its write */
    PACK_FIRST, /* before its write */
    PACK_DONE   /* that is done; the rest has to be written */
};

/* A payload that lies in an arena; in_mapped.c. */
struct mapped_write {
    struct in_write base;
    struct list digest_link; /* in writer.to_digest */
    struct mapped *mapped;   /* a reference */
    enum packing pack;
    unsigned parts_left; /* steps that are not finished: the write, the digest */
    struct work work;
    int status; /* of the work */
    struct diag diag;
    enum encode_mode encode;
    uint64_t tensor; /* key in the table of learnt */
    uint32_t piece_first, envelope_first;
    uint32_t counted_bytes;       /* its share of mapped_bytes while it is under way */
    struct encode_buffer *buffer; /* memory of its stored bytes, if they are not in the arena */
    struct pool_encoder *encoder; /* while a worker uses it */
    struct payload_seal seal;
    /* The writer's as they were when the worker began. */
    const struct recovered *recovered;
    size_t recovered_count;
    struct in_piece *pieces;     /* the fate of each chunk; the memory is behind the envelopes */
    uint32_t *dtypes;            /* behind the pieces */
    struct envelope envelopes[]; /* base.envelopes */
};

/* --- writer.c ------------------------------------------------------------------------------- */
struct in_object *writer_find_object(struct writer *writer, uint32_t sequence);
const struct durable *writer_find_durable(const struct writer *writer, uint32_t sequence);
const struct envelope *durable_find(const struct durable *durable, uint64_t offset);
/* Returns the piece that was described at that offset, or NULL. */
const struct in_piece *durable_piece(const struct durable *durable, uint64_t at);
bool writer_owns(const struct writer *writer, const struct object_id *id);
/* Adds a durable object. Takes its arrays, even on failure. Of two reports of one object the one
 * with pieces stays. */
int MUST_USE writer_add_durable(struct writer *writer, const struct durable *durable);
void writer_ref(struct writer *writer);
void writer_unref(struct writer *writer); /* frees a writer that is detached and finished */

/* Returns PROTOCOL if the object is not this writer's. */
int MUST_USE writer_check_id(const struct writer *writer, const struct object_id *id,
                             struct diag *diag);
/* Called when an object has become durable or has failed: tells the hand-over. */
void writer_settled(struct writer *writer);

/* --- in_object.c ---------------------------------------------------------------------------- */

/* Returns an object for its first payload `first`, or NULL if there is no memory. */
struct in_object *in_object_new(struct writer *writer, const struct msg_data *first);
/* Checks that a payload continues its object, that its chunks fill it, and that the object stays
 * within its limits. */
int MUST_USE in_object_check(const struct in_object *object, const struct msg_data *data,
                             uint32_t payload_bytes, struct diag *diag);
/* Appends the envelopes of a payload that lies at `offset`, for the object's footer. */
int MUST_USE in_object_keep(struct in_object *object, uint32_t count,
                            const struct envelope *envelopes, uint64_t offset, struct diag *diag);
/* Counts a payload, whose write the caller has made, as taken, and copies its envelopes. */
void in_object_enter(struct in_object *object, struct in_write *write, const struct msg_data *data);
/* Returns `items` with room for `needed` items; the memory may move. Returns NULL if there is no
 * memory; the items are unchanged then. */
void *in_object_room(void *items, uint32_t needed, size_t item_bytes, uint32_t *io_cap);
/* Called with the first write, which is ready: creates the object at the store. */
void in_object_create(struct in_object *object);
void in_write_submit(struct in_write *write);
void in_write_known(struct in_write *write); /* what the footer says of its chunks is final */
void in_write_leave(struct in_write *write); /* it is on the disk, or never will be */
void in_object_fail(struct in_object *object, int code, const char *text);
bool in_object_has_failed(const struct in_object *object);
/* Called when something has changed that the object's state may wait for. May free the object. */
void in_object_advance(struct in_object *object);
void in_object_end(struct in_object *object);
/* Called when the save has ended while the object was under way. Tells the session, so that the
 * client does not wait for an answer. */
void in_object_tell_ended(struct in_object *object);
void in_object_drop(struct in_object *object); /* sends no event: the session is gone */

/* --- in_socket.c ---------------------------------------------------------------------------- */

/* Takes a payload of the object. Payloads of an object that has failed are dropped, because the
 * client is about to receive its ERROR. */
int MUST_USE socket_take(struct in_object *object, const struct msg_data *data,
                         const struct payload *payload, struct diag *diag);

/* --- in_pack.c ------------------------------------------------------------------------------ */

/* Returns true if the digest of the payload has to be known before it is written, as far as can be
 * said now. */
bool pack_is_due(const struct ingest *ingest, const struct mapped_write *write);
/* Prepares the payload for a worker. Returns false if the memory that it needs is in use at the
 * moment. */
bool pack_begin(struct mapped_write *write);
void pack_run(struct work *work); /* on a worker */
/* Gives back the memory that is not needed any more, and learns from the sample. */
void pack_end(struct mapped_write *write);

/* --- in_mapped.c ---------------------------------------------------------------------------- */

int MUST_USE mapped_take(struct in_object *object, const struct msg_describe *describe,
                         const struct described *described, struct diag *diag);
void mapped_pump(struct ingest *ingest); /* starts as many writes and digests as may run */
void mapped_hold_over(struct timer *timer);

/* --- ingest_have.c -------------------------------------------------------------------------- */
void writer_have_begin(struct writer *writer); /* called when a question waits and can be asked */

/* --- part_fill.c ---------------------------------------------------------------------------- */
struct part_fill {
    struct part *part;                   /* changed in place: described chunks become stored ones */
    const struct part *base;             /* NULL if no chunk refers to a base */
    struct scratch *scratch;             /* has room for part_fill_bytes() */
    uint64_t stored_bytes, shared_bytes; /* results */
};
size_t part_fill_bytes(const struct writer *writer, const struct part *part,
                       const struct part *base);
bool part_fill_needs_base(const struct writer *writer, const struct part *part);
/* Returns true if both parts give the same bytes to the same tensors and blobs, wherever these are
 * stored. */
bool part_is_alike(const struct part *a, const struct part *b);
/* Fills in the part. Returns INVALID if the base has no such chunk at the same place. */
int MUST_USE part_fill(const struct writer *writer, struct part_fill *fill, struct diag *diag);

/* --- hand_over.c ---------------------------------------------------------------------------- */
void hand_over_cancel(struct writer *writer);

#endif
