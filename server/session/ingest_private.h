/* SPDX-License-Identifier: Apache-2.0
 *
 * What ingest.c (writers), in_object.c (one object's way to the store) and ingest_have.c (what is
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
    struct durable *durables; /* by sequence */
    struct list haves;        /* writer_have.link */
    uint32_t refs;            /* in_objects and a running have */
};

enum in_state { IN_CREATING, IN_WRITING, IN_FOOTER, IN_SEALING, IN_FAILED, IN_ABORTING };

struct in_object {
    struct list link;
    struct writer *writer;
    struct object_id id;
    enum in_state state;
    bool created, ended;
    bool quiet;         /* its session is gone: nobody is told */
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

/* in_object.c */
/* first: of its first DATA. NULL: out of memory. */
struct in_object *in_object_new(struct writer *writer, const struct msg_data *first);
/* Takes payload. What comes for an object that has failed is dropped: its ERROR is on the way. */
int MUST_USE in_object_data(struct in_object *object, const struct msg_data *data,
                            const struct payload *payload, struct diag *diag);
bool in_object_has_failed(const struct in_object *object);
void in_object_end(struct in_object *object);
void in_object_drop(struct in_object *object); /* quietly: the session is gone */

/* ingest.c */
int MUST_USE writer_add_durable(struct writer *writer, uint32_t sequence, uint32_t count,
                                struct envelope *take_envelopes);
void writer_ref(struct writer *writer);
void writer_unref(struct writer *writer); /* frees a detached, finished one */

#endif
