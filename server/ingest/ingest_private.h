/* SPDX-License-Identifier: Apache-2.0
 *
 * What ingest.c (writers), in_object.c (one object's way to the store), in_mapped.c (payloads that
 * lie in an arena), in_look.c (what is done with their bytes), hand_over.c (a rank's end without
 * its session), hand_fill.c (its part) and ingest_have.c (what is durable already) share.
 */
#ifndef CAIRN_INGEST_INGEST_PRIVATE_H
#define CAIRN_INGEST_INGEST_PRIVATE_H

#include "ingest/ingest.h"
#include "pipeline/encode_kit.h"
#include "pipeline/payload.h"
#include "wire/msg.h"

/* What was learnt of the tensors of all runs: a fixed table, in which the last one to come has a
 * place that several want. */
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
    uint32_t pending; /* writers and requests that are alive */
    uint64_t bytes_in;
    struct loop *loop;
    /* in_mapped.c */
    uint32_t mapped_writes, mapped_digests; /* under way */
    uint64_t mapped_bytes;                  /* of the writes */
    uint32_t digests_waiting;
    uint64_t described_bytes; /* memory of the descriptions that are not done */
    bool was_full;
    struct encode_kit kit;   /* lanes for what is encoded or packed anew; the rate of the store */
    uint32_t lanes;          /* 0: nothing is */
    struct learnt *learnt;   /* NULL: nothing yet */
    uint32_t mapped_objects; /* described, and alive */
    struct timer hold;
    void (*room)(void *user);
    void *room_user;
    void (*idle)(void *user);
    void *idle_user;
};

/* What became of a chunk that was described. */
enum in_where { WHERE_OPEN, WHERE_STORED, WHERE_BASE, WHERE_OLDER };
struct in_piece {
    uint64_t at; /* in its object, as it was described */
    enum in_where where;
    uint32_t envelope;    /* STORED: of its object */
    uint32_t older;       /* OLDER: the first of writer.recovered with its bytes */
    struct digest digest; /* BASE: the base's chunk at the same place has it */
};

struct durable { /* of a sealed object; of one whose chunks are all elsewhere, none is stored */
    uint32_t sequence, envelope_count, piece_count;
    struct envelope *envelopes; /* owned, by offset */
    struct in_piece *pieces;    /* owned, as they were described; NULL: chunks are where the client
                                   put them, or it was found in the store */
};

struct recovered { /* a chunk of an object whose pieces are not known any more */
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
    void *user;       /* NULL: detached */
    bool over, known; /* the save ended; durable is complete (asked the store, or never lost it) */
    bool asking;
    struct run_watch watch;
    bool watching;
    uint32_t next_sequence; /* below it: used already */
    struct list objects;    /* in_object.link */
    size_t durable_count, durable_cap;
    struct durable *durables;        /* by sequence */
    struct list haves;               /* writer_have.link */
    uint32_t refs;                   /* in_objects, a running have, a hand-over */
    struct list to_write, to_digest; /* in_write: described, not begun */
    uint64_t described_ms;           /* when the newest description came */
    struct hand_over *hand;          /* NULL: none is going on */
    uint64_t received_bytes, durable_bytes, began_ms, fed_ms; /* for people; since it was made */
    struct recovered *recovered; /* by digest and place; workers read it, it does not change */
    size_t recovered_count;
};

enum in_state { IN_CREATING, IN_WRITING, IN_FOOTER, IN_SEALING, IN_FAILED, IN_ABORTING };

struct in_object {
    struct list link;
    struct writer *writer;
    struct object_id id;
    enum in_state state;
    bool created, ended;
    bool quiet;           /* its session is gone: nobody is told */
    bool described;       /* its payloads lie in an arena; else they came by the socket */
    bool busy;            /* `req` is out */
    uint32_t pending;     /* writes between their payload and the disk */
    uint32_t stream;      /* of the newest frame */
    uint64_t bytes_max;   /* reserved at the store, footer included */
    uint64_t next_offset; /* as the client says: where the next payload of it belongs */
    uint64_t place_next;  /* where the next described one is written */
    uint32_t chunk_count; /* that came or were described */
    uint32_t envelope_count, envelope_cap, piece_cap;
    struct envelope *envelopes; /* of what is stored */
    struct in_piece *pieces;    /* of a described one, chunk_count of them */
    struct list ready;          /* in_write.link: verified, waiting for CREATE */
    uint8_t *footer;
    struct store_req req; /* create, footer, seal, abort: one at a time */
};

struct in_write {     /* a payload on its way to the store */
    struct list link; /* object.ready, or writer.to_write */
    struct in_object *object;
    struct work work;
    struct store_req req;
    uint8_t *payload;      /* a buffer of credit's; of a described one: in its arena, not written */
    struct mapped *mapped; /* a reference; NULL: payload is a buffer */
    uint64_t offset;
    uint32_t payload_bytes, envelope_first, envelope_count;
    uint32_t counted_bytes; /* in mapped_bytes, while it is under way */
    int status;
    struct diag diag;
    /* of a described one */
    struct list digest_link; /* writer.to_digest */
    unsigned parts_left;     /* the write, the digest */
    bool is_look;            /* digest first: it may be known, or is encoded */
    bool is_looked;          /* that is done; what is left is to be written */
    enum encode_mode encode;
    uint64_t tensor; /* key of what is learnt */
    uint32_t piece_first;
    struct side *side;           /* where its stored bytes lie, when not in the arena */
    struct kit_encoder *encoder; /* while a worker has it */
    struct payload_seal seal;
    struct in_piece *pieces;     /* what became of each; behind the envelopes */
    uint32_t *dtypes;            /* behind the pieces */
    struct envelope envelopes[]; /* offsets relative to the payload, ascending */
};

/* in_object.c */
struct in_payload {
    const struct msg_data *data;
    uint32_t bytes;
    const struct msg_describe *describe; /* NULL: it came by the socket */
};
/* What is checked and kept of every payload: place, chunks, headers; *ret gets them too. The rest
 * of it is the caller's. The headers of a described one are not the object's before it is placed.
 */
int MUST_USE in_object_take(struct in_object *object, const struct in_payload *payload,
                            struct in_write **ret, struct diag *diag);
/* Gives a described payload its place behind those that have one. NO_MEMORY. */
int MUST_USE in_object_place(struct in_object *object, struct in_write *write);
void in_object_create(struct in_object *object); /* at the store; its ready ones follow */
void in_write_submit(struct in_write *write);
void in_object_fail(struct in_object *object, int code, const char *text);
void in_object_advance(struct in_object *object);
/* first: of its first DATA. NULL: out of memory. */
struct in_object *in_object_new(struct writer *writer, const struct msg_data *first);
/* Takes payload. What comes for an object that has failed is dropped: its ERROR is on the way. */
int MUST_USE in_object_data(struct in_object *object, const struct msg_data *data,
                            const struct payload *payload, struct diag *diag);
bool in_object_has_failed(const struct in_object *object);
void in_object_end(struct in_object *object);
/* The save ended while it was on its way: whoever sends it must not wait for an answer. */
void in_object_tell_ended(struct in_object *object);
void in_object_drop(struct in_object *object); /* quietly: the session is gone */

/* in_mapped.c */
int MUST_USE in_object_describe(struct in_object *object, const struct msg_describe *describe,
                                const struct described *described, struct diag *diag);
/* The store has done, or will never do, what was asked for a described payload. */
void mapped_written(struct in_write *write, int status, const struct diag *diag);
void mapped_drop(struct in_object *object); /* what of it has not begun */
void mapped_pump(struct ingest *ingest);
void mapped_hold_over(struct timer *timer);

/* in_look.c */
/* Must its digest be known before it is written, as far as can be said now? */
bool look_is_due(const struct ingest *ingest, const struct in_write *write);
/* False: the memory that it needs is taken at the moment. */
bool look_begin(struct in_write *write);
void look_run(struct work *work); /* on a worker */
/* Gives back what is not needed, and learns. */
void look_end(struct in_write *write);

/* hand_fill.c */
struct hand_fill {
    struct part *part;                   /* changed: what was described becomes what is stored */
    const struct part *base;             /* NULL: nothing refers to one */
    struct scratch *scratch;             /* has room for hand_fill_bytes() */
    uint64_t stored_bytes, shared_bytes; /* results */
};
size_t hand_fill_bytes(const struct writer *writer, const struct part *part,
                       const struct part *base);
bool hand_fill_needs_base(const struct writer *writer, const struct part *part);
/* Do both say the same bytes of the same tensors and blobs, wherever these are stored? */
bool hand_fill_is_alike(const struct part *a, const struct part *b);
/* INVALID: the base has no such chunk at the same place. */
int MUST_USE hand_fill(const struct writer *writer, struct hand_fill *fill, struct diag *diag);

/* hand_over.c */
void hand_over_look(struct writer *writer); /* an object became durable, or failed */
void hand_over_cancel(struct writer *writer);

/* ingest_have.c */
void writer_have_begin(struct writer *writer); /* somebody waits, and nothing stands in the way */

/* ingest.c */
struct in_object *writer_find_object(struct writer *writer, uint32_t sequence);
const struct durable *writer_find_durable(const struct writer *writer, uint32_t sequence);
const struct envelope *durable_find(const struct durable *durable, uint64_t offset);
/* The piece that was described there; NULL: none. */
const struct in_piece *durable_piece(const struct durable *durable, uint64_t at);
bool writer_owns(const struct writer *writer, const struct object_id *id);
/* Takes what it owns, also on failure. */
int MUST_USE writer_add_durable(struct writer *writer, const struct durable *durable);
void writer_ref(struct writer *writer);
void writer_unref(struct writer *writer); /* frees a detached, finished one */

#endif
