/* SPDX-License-Identifier: Apache-2.0
 *
 * ingest: objects on their way to the store. A writer is the contribution of one client process to
 * one opening of a checkpoint: its objects, and the envelopes of the objects that are already
 * durable, which its part is checked against. A writer outlives connections, because the client may
 * resume, and it ends when the save ends. The crc and the plain digest of every chunk are checked
 * here before its object can be sealed. One loop's thread; digests are computed on the verify pool.
 */
#ifndef CAIRN_INGEST_INGEST_H
#define CAIRN_INGEST_INGEST_H

#include "base/trace.h"
#include "format/envelope.h"
#include "format/part.h"
#include "ingest/credit.h"
#include "ingest/mapped.h"
#include "run/part_refs.h"
#include "run/run.h"
#include "wire/msg.h"

struct ingest;
struct writer;

/* Callbacks to the session; all NULL while no session is attached. `stream` is that of the DATA or
 * OBJECT_END frame. */
struct writer_events {
    void (*on_durable)(void *user, uint32_t stream, const struct object_id *id);
    void (*on_failed)(void *user, uint32_t stream, const struct object_id *id, int code,
                      const char *text);
};

struct ingest_options {
    struct loop *loop;
    struct store *store;
    struct work_pool *pool;
    struct credit *credit;
    uint32_t lanes; /* workers that encode at the same time; each uses encode_pool_lane_bytes() */
};
int MUST_USE ingest_new(const struct ingest_options *options, struct ingest **ret);
/* Called after every session is closed. Drops the writers at once; their durable objects stay in
 * the store, and the record decides about them. Calls idle when no writer and no request is left.
 */
void ingest_close(struct ingest *ingest, void (*idle)(void *user), void *user);
void ingest_free(struct ingest *ingest);
uint64_t ingest_bytes_in(const struct ingest *ingest);
/* The part of it that was read from arenas that clients handed over. */
uint64_t ingest_bytes_mapped(const struct ingest *ingest);
/* Progress of one writer of an open save, for people. */
struct ingest_row {
    const struct run_name *run; /* borrowed until the next turn of the loop */
    struct ckpt_id id;
    uint32_t rank;
    uint64_t received_bytes, durable_bytes, age_ms, quiet_ms;
    bool connected, handed_over;
};
void ingest_progress(const struct ingest *ingest,
                     void (*row)(void *user, const struct ingest_row *row), void *user);
/* Returns true if descriptions have run so far ahead of the disk that no more should be read.
 * `room` is called when that has passed. */
bool ingest_is_full(const struct ingest *ingest);
void ingest_on_room(struct ingest *ingest, void (*room)(void *user), void *user);
/* Returns true if a rank's contribution that needs no connection any more is being finished. */
bool ingest_is_finishing(const struct ingest *ingest);

struct writer_key {
    struct run *run;
    struct ckpt_id id;
    uint64_t open_id, writer;
    uint32_t rank;
    char trace[TRACE_ID_BYTES]; /* of a save that rank 0 opens, for the log; "" if none */
};

/* Gives the writer of that key, and makes it if it is new. It watches the save and frees itself
 * when the save has ended. The events replace those of an earlier session. */
int MUST_USE ingest_attach(struct ingest *ingest, const struct writer_key *key,
                           const struct writer_events *events, void *user, struct writer **ret);
/* Called when the session ends or has no more interest in the writer. Objects that are not sealed
 * are dropped, and no event comes any more. */
void writer_detach(struct writer *writer, void *user);
/* Returns another reference, without events; writer_detach(writer, NULL) ends it. */
struct writer *writer_hold(struct writer *writer);
/* Returns true once the save has ended. The pointer that ingest_attach() gave stays valid until
 * writer_detach(). */
bool writer_is_over(const struct writer *writer);
/* Called when the rank's whole part is there: counts the time since its first payload. */
void writer_transferred(struct writer *writer);

struct payload {
    uint32_t stream, bytes; /* of the DATA frame */
    uint8_t *data;          /* a buffer of credit */
};

/* Takes one payload of an object; takes the buffer even on failure. Returns PROTOCOL or TOO_LARGE
 * if the peer broke a rule. */
int MUST_USE writer_data(struct writer *writer, const struct msg_data *data,
                         const struct payload *payload, struct diag *diag);
/* Takes a payload that lies in an arena. It is written from there, and its crc and digest are
 * computed here. Borrows `mapped`. */
struct described {
    uint32_t stream;
    struct mapped *mapped;
    bool packs; /* negotiated: what the client says about encoding, dtypes and digests is used */
};
int MUST_USE writer_describe(struct writer *writer, const struct msg_describe *describe,
                             const struct described *described, struct diag *diag);
/* Called when the client has sent the last payload of an object, which can be sealed when
 * everything before it is written. */
int MUST_USE writer_end(struct writer *writer, uint32_t stream, const struct msg_object_end *end,
                        struct diag *diag);

/* A question for the sequences of the durable objects, ascending. After a restart of the daemon the
 * store is listed and footers are read. done is called once, later; inside the call only if there
 * is no memory to ask, and with ABORTED from writer_detach(). The sequences are borrowed during the
 * callback. Unlinking the request cancels it. */
struct writer_have {
    void (*done)(struct writer_have *have, int status, const struct diag *diag, size_t count,
                 const uint32_t *sequences);
    /* Only objects for which the fate of each described chunk is known. The chunks of other objects
     * are found again by their digests when they are described anew. */
    bool placed;
    /* 1 + the least sequence of this opening, or 0 if that is not known. Chunks are found by digest
     * only from that sequence on, because the objects of an earlier opening of this step belong to
     * gc. */
    uint32_t from;
    struct list link;
};
void writer_have(struct writer *writer, struct writer_have *have);

/* Returns true if the part names objects of another writer. */
bool writer_has_refs(const struct writer *writer, const struct part *part);
/* Checks that every chunk of the part was verified here and is durable, or is one of the base.
 * `refs` is NULL if there is no base. Returns INVALID, naming the first chunk for which this does
 * not hold. */
int MUST_USE writer_check_part(const struct writer *writer, const struct part *part,
                               const struct part_refs *refs, struct diag *diag);

/* --- hand-over: all of this writer's data is here or described; its part comes with the call -- */

struct hand_over;

/* What the writer needs to seal without its session. `part` is malloc'ed; a successful call takes
 * it, and put_part() gives it back at the end. */
struct hand_over_options {
    struct token token;
    uint32_t world_size;
    struct ckpt_id base; /* the base that the part may refer to; term 0 if none */
    uint8_t *part;
    uint64_t part_bytes;
    void (*put_part)(void *user, uint8_t *part, uint64_t bytes);
    void *user;
    struct work_pool *pool;
};
/* Told once, never inside the call. Unlinking it cancels it. */
struct hand_over_wait {
    void (*done)(struct hand_over_wait *wait, int status, const struct diag *diag);
    struct list link;
    uint64_t stored_bytes, shared_bytes; /* results */
};
/* From this call on the writer needs no client: when its objects are durable, the described chunks
 * of the part get their crcs and digests, and the part is published and sealed. Returns BUSY if a
 * hand-over of this writer is already running. */
int MUST_USE writer_hand_over(struct writer *writer, const struct hand_over_options *options,
                              struct hand_over_wait *wait, struct diag *diag);

#endif
