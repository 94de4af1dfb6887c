/* SPDX-License-Identifier: Apache-2.0
 *
 * What ingest.c (writers), in_object.c (one object's way to the store), in_mapped.c (payloads that
 * lie in an arena), hand_over.c (a rank's end without its session) and ingest_have.c (what is
 * durable already) share.
 */
#ifndef CAIRN_SESSION_INGEST_PRIVATE_H
#define CAIRN_SESSION_INGEST_PRIVATE_H

#include "session/ingest.h"
#include "wire/msg.h"

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
    uint32_t digests_waiting;
    uint64_t described_bytes; /* memory of the descriptions that are not done */
    bool pumping, was_full;
    struct timer hold;
    void (*room)(void *user);
    void *room_user;
    void (*idle)(void *user);
    void *idle_user;
};

struct durable { /* of a sealed object */
    uint32_t sequence, envelope_count;
    struct envelope *envelopes; /* owned, by offset */
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
};

enum in_state { IN_CREATING, IN_WRITING, IN_FOOTER, IN_SEALING, IN_FAILED, IN_ABORTING };

struct in_object {
    struct list link;
    struct writer *writer;
    struct object_id id;
    enum in_state state;
    bool created, ended;
    bool quiet;         /* its session is gone: nobody is told */
    bool described;     /* its payloads lie in an arena; else they came by the socket */
    bool busy;          /* `req` is out */
    uint32_t pending;   /* writes between their payload and the disk */
    uint32_t stream;    /* of the newest frame */
    uint64_t bytes_max; /* reserved at the store, footer included */
    uint64_t next_offset;
    uint32_t envelope_count, envelope_cap;
    struct envelope *envelopes;
    struct list ready; /* in_write.link: verified, waiting for CREATE */
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
    struct list digest_link; /* writer.to_digest */
    unsigned parts_left;     /* of a described one: the write, the digest */
    uint64_t offset;
    uint32_t payload_bytes, envelope_first, envelope_count;
    int status;
    struct diag diag;
    struct envelope envelopes[]; /* offsets relative to the payload, ascending */
};

/* in_object.c */
/* What is checked and kept of every payload: place, chunks, headers; *ret gets them too. The rest
 * of it is the caller's. */
int MUST_USE in_object_take(struct in_object *object, const struct msg_data *data, uint32_t bytes,
                            struct in_write **ret, struct diag *diag);
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
int MUST_USE in_object_describe(struct in_object *object, const struct msg_data *data,
                                const struct described *described, struct diag *diag);
/* The store has done, or will never do, what was asked for a described payload. */
void mapped_written(struct in_write *write, int status, const struct diag *diag);
void mapped_drop(struct in_object *object); /* what of it has not begun */
void mapped_pump(struct ingest *ingest);
void mapped_hold_over(struct timer *timer);

/* hand_over.c */
void hand_over_look(struct writer *writer); /* an object became durable, or failed */
void hand_over_cancel(struct writer *writer);

/* ingest_have.c */
void writer_have_begin(struct writer *writer); /* somebody waits, and nothing stands in the way */

/* ingest.c */
struct in_object *writer_find_object(struct writer *writer, uint32_t sequence);
const struct durable *writer_find_durable(const struct writer *writer, uint32_t sequence);
const struct envelope *durable_find(const struct durable *durable, uint64_t offset);
bool writer_owns(const struct writer *writer, const struct object_id *id);
int MUST_USE writer_add_durable(struct writer *writer, uint32_t sequence, uint32_t count,
                                struct envelope *take_envelopes);
void writer_ref(struct writer *writer);
void writer_unref(struct writer *writer); /* frees a detached, finished one */

#endif
