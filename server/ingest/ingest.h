/* SPDX-License-Identifier: Apache-2.0
 *
 * ingest: objects on their way to the store. A writer is one client process's contribution to one
 * opening of a checkpoint: its objects, and the envelopes of those that are durable, against which
 * its part is checked. It outlives connections (the client resumes) and ends when the save ends.
 * Every chunk's crc and plain digest is checked here before its object can be sealed. One loop's
 * thread; digests on the verify pool.
 */
#ifndef CAIRN_INGEST_INGEST_H
#define CAIRN_INGEST_INGEST_H

#include "format/envelope.h"
#include "format/part.h"
#include "ingest/credit.h"
#include "ingest/mapped.h"
#include "run/part_refs.h"
#include "run/run.h"
#include "wire/msg.h"

struct ingest;
struct writer;

/* Who is told; all NULL while no session is attached. stream: of the DATA or OBJECT_END frame. */
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
    uint32_t lanes; /* workers that encode at a time; encode_kit_lane_bytes() each, when used */
};
int MUST_USE ingest_new(const struct ingest_options *options, struct ingest **ret);
/* idle: when no writer and no request is left; call after every session is closed. Drops the
 * writers at once (their durable objects stay in the store; the record decides). */
void ingest_close(struct ingest *ingest, void (*idle)(void *user), void *user);
void ingest_free(struct ingest *ingest);
uint64_t ingest_bytes_in(const struct ingest *ingest);
/* Who brings what to open saves, for people. */
struct ingest_row {
    const struct run_name *run; /* borrowed during the call */
    struct ckpt_id id;
    uint32_t rank;
    uint64_t received_bytes, durable_bytes, age_ms, quiet_ms;
    bool connected, handed_over;
};
void ingest_progress(const struct ingest *ingest,
                     void (*row)(void *user, const struct ingest_row *row), void *user);
/* Descriptions have run so far ahead of the disk that no more should be read; room is called when
 * that has passed. */
bool ingest_is_full(const struct ingest *ingest);
void ingest_on_room(struct ingest *ingest, void (*room)(void *user), void *user);
/* Is a rank's contribution being finished that needs no connection any more? */
bool ingest_is_finishing(const struct ingest *ingest);

struct writer_key {
    struct run *run;
    struct ckpt_id id;
    uint64_t open_id, writer;
    uint32_t rank;
};

/* The writer of that key, made when new; it watches the save and frees itself when that has ended.
 * events replace those of an earlier session. */
int MUST_USE ingest_attach(struct ingest *ingest, const struct writer_key *key,
                           const struct writer_events *events, void *user, struct writer **ret);
/* The session, or its interest, is gone: objects that are not sealed are dropped, and nobody is
 * told of them any more. */
void writer_detach(struct writer *writer, void *user);
/* Another reference without events; ended by writer_detach(writer, NULL). */
struct writer *writer_hold(struct writer *writer);
/* True once the save ended; the pointer given out by ingest_attach stays valid until writer_detach.
 */
bool writer_is_over(const struct writer *writer);

struct payload {
    uint32_t stream, bytes; /* of the DATA frame */
    uint8_t *data;          /* a buffer of credit's */
};

/* One payload of an object: takes the buffer, also on failure. PROTOCOL / TOO_LARGE: the peer broke
 * a rule. */
int MUST_USE writer_data(struct writer *writer, const struct msg_data *data,
                         const struct payload *payload, struct diag *diag);
/* The same with a payload that lies in an arena: written from there, crc and digest are made here.
 * Borrows mapped. */
struct described {
    uint32_t stream;
    struct mapped *mapped;
    bool packs; /* agreed on: what it says of encoding, dtypes and digests counts */
};
int MUST_USE writer_describe(struct writer *writer, const struct msg_describe *describe,
                             const struct described *described, struct diag *diag);
int MUST_USE writer_end(struct writer *writer, uint32_t stream, const struct msg_object_end *end,
                        struct diag *diag);

/* Sequences of durable objects, ascending; after a restart of the daemon the store is asked and
 * footers are read. done is called once, later (at once only when there is no memory to ask, and
 * with ABORTED by writer_detach); sequences are borrowed during the call. Cancelled by unlinking.
 */
struct writer_have {
    void (*done)(struct writer_have *have, int status, const struct diag *diag, size_t count,
                 const uint32_t *sequences);
    bool placed; /* only objects of which it is known what became of each chunk described; chunks of
                    the others are found again by their digests when they are described anew */
    uint32_t from; /* 1 + the least sequence of this opening, 0: not known. Only from there on are
                      chunks found by digest: what an earlier opening of this step left is gc's */
    struct list link;
};
void writer_have(struct writer *writer, struct writer_have *have);

/* Does the part name objects that are not this writer's? */
bool writer_has_refs(const struct writer *writer, const struct part *part);
/* Is every chunk of the part one that was verified here and is durable, or one of the base? refs
 * NULL: there is no base. INVALID names the first that is not. */
int MUST_USE writer_check_part(const struct writer *writer, const struct part *part,
                               const struct part_refs *refs, struct diag *diag);

/* --- hand-over: everything of this writer is here or described; its part follows --- */

struct hand_over;

/* What is needed to seal when the session is gone. part: malloc'ed, taken on success; given back by
 * put_part. */
struct hand_over_options {
    struct token token;
    uint32_t world_size;
    struct ckpt_id base; /* that it may refer to; term 0: none */
    uint8_t *part;
    uint64_t part_bytes;
    void (*put_part)(void *user, uint8_t *part, uint64_t bytes);
    void *user;
    struct work_pool *pool;
};
/* Told once, never inside the call; cancelled by unlinking. */
struct hand_over_wait {
    void (*done)(struct hand_over_wait *wait, int status, const struct diag *diag);
    struct list link;
    uint64_t stored_bytes, shared_bytes; /* results */
};
/* From here on the writer needs nobody: when its objects are durable, the chunks of the part that
 * were described get their crcs and digests, the part is published and sealed. BUSY: that is going
 * on already. */
int MUST_USE writer_hand_over(struct writer *writer, const struct hand_over_options *options,
                              struct hand_over_wait *wait, struct diag *diag);

#endif
