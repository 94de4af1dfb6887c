/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a save: opening, credit, data, objects, part, seal, outcome, abort. Part of
 * msg.h, which has the rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_SAVE_H
#define CAIRN_WIRE_MSG_SAVE_H

#include "format/envelope.h"
#include "format/manifest.h"

/* Rank 0's makes the opening, the others' wait for it (at most wait_ms). open_id: random, the same
 * in every retry of this save. -> OPENED */
struct msg_open {
    uint64_t step;
    uint32_t ordinal;
    struct ckpt_id parent;
    uint64_t newest_seen, open_id, deadline_ms, wait_ms;
    struct xxh128 list_hash;
    uint32_t metadata_bytes;
    const uint8_t *metadata;
    uint32_t tag_count;
    const char **tags;
    uint32_t metric_count;
    struct metric *metrics;
    bool full; /* without a base */
    /* Of this rank's last save that was committed: training stood still, and it took to be durable.
     * Both 0: there is none yet, or it was told before. */
    uint64_t blocked_ms, persist_ms;
    /* By rank 0: of the whole state, as far as it is registered there; 0: not told. */
    uint64_t plain_bytes;
};
enum { OPENED_SPARSE_MAX = 4096 };
struct msg_opened {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t state /* enum save_state of core */;
    bool sealed, new_term, new_lineage;
    uint64_t seq, deadline_ms, chunk_bytes;
    struct uuid run_uuid;
    struct ckpt_id base; /* `base_id`: what the part may refer through; term 0: nothing older */
    uint32_t sparse_count;
    struct object_id *sparse; /* ascending: objects of the base that are not to be referred to */
};

/* Credit: the client says how many more payload buffers it could use; the server hands them out. No
 * stream, no reply. A DATA frame uses up one. Grants of a connection die with it. */
struct msg_want {
    uint32_t buffers;
};
struct msg_grant {
    uint32_t buffers;
};

/* Payload: stored bytes of one chunk, or of several small ones packed; envelope offsets are
 * relative to the payload. offset: of the payload in the object, a multiple of LIMIT_ALIGN_BYTES.
 * object_bytes: what the whole object will have, footer included, so that the store reserves just
 * that; 0: not known; the first frame's counts.
 * No reply; failures come as ERROR with the stream of the DATA frame and void the object: the
 * client sends that object again under a new sequence. */
struct msg_data {
    struct object_id object;
    uint64_t offset, object_bytes;
    uint32_t envelope_count;
    struct envelope *envelopes;
};
/* All chunks of the object were sent. -> OBJECT_DURABLE when it is on stable storage under its
 * name. */
struct msg_object_end {
    struct object_id object;
    uint64_t data_bytes;
    uint32_t envelope_count;
};
struct msg_object_durable {
    struct object_id object;
};
/* After a reconnect: which objects of (id, rank, writer) are durable? -> HELD */
struct msg_have {
    struct ckpt_id id;
    uint32_t rank;
    uint64_t writer;
    bool placed; /* of what was described, only what the server knows the places of */
    /* 1 + the least sequence that an object of this opening can have; 0: it is not known, and no
     * chunk is found again by its digest. What an earlier opening left is nobody's, and gc's. */
    uint32_t from;
};
struct msg_held {
    uint32_t count;
    uint32_t *sequences;
};

/* The part's bytes in order, in frames with payload; then SEAL. PART has no reply. A PART at offset
 * 0 starts over. */
struct msg_part {
    struct ckpt_id id;
    uint64_t open_id, offset, total_bytes;
};
/* -> SEALED once the seal is in the record */
struct msg_seal {
    struct ckpt_id id;
    uint64_t open_id;
    uint64_t part_bytes;
    struct sha256 part_sha256;
};
struct msg_sealed {
    struct ckpt_id id;
    uint64_t stored_bytes, shared_bytes; /* of a COMPLETE: new bytes, plain bytes of what the base
                                            had */
};
/* -> OUTCOME when the save is committed or aborted */
struct msg_wait {
    struct ckpt_id id;
    uint64_t open_id;
};
/* -> OUTCOME: what is true now: committed, if that had won */
struct msg_abort {
    struct ckpt_id id;
    uint64_t open_id;
    int32_t code;
    const char *reason;
};
struct msg_outcome {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t state;
    int32_t code;
    const char *text;
    uint64_t seq;
};

/* --- hand-over: PROTOCOL.md 5 --- */

/* A descriptor of the client's arena goes with the frame. -> ARENA with the same arena_id, once it
 * is mapped; ERROR: not taken, use DATA. Takes the place of the one before on this connection. */
struct msg_arena {
    uint64_t arena_id, bytes;
};
/* DATA whose payload lies in the arena: data's envelopes have no crc yet, and no digest, or that of
 * the base's chunk at the same place, to which the server refers where the bytes have it. No reply;
 * failures as DATA's. */
struct msg_describe {
    struct msg_data data;
    uint64_t arena_id, arena_offset;
    uint32_t bytes;       /* of the payload, without padding */
    uint32_t encode;      /* enum encode_mode */
    uint32_t dtype_count; /* as many as envelopes, or none */
    uint32_t *dtypes;     /* 0: a blob's bytes */
    uint32_t tensor;      /* chunks of one number are alike: what is learnt of one holds for all */
};
/* Everything of this rank was described, and its part was sent, without the crcs and digests of
 * what was described. -> HANDED at once, then SEALED */
struct msg_complete {
    struct ckpt_id id;
    uint64_t open_id, part_bytes;
};
struct msg_handed {
    struct ckpt_id id;
};

#endif
