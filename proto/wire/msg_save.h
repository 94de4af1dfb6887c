/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a save: opening, credit, data, objects, part, seal, outcome, abort. Part of
 * msg.h, which has the rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_SAVE_H
#define CAIRN_WIRE_MSG_SAVE_H

#include "format/envelope.h"
#include "format/manifest.h"

/* Rank 0's OPEN makes the opening, and those of the other ranks wait for it, at most wait_ms.
 * open_id is random, and the same in every retry of this save. -> OPENED */
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
    /* Durations of this rank's last committed save: how long training was blocked, and how long the
     * checkpoint took to become durable. Both are 0 if there is none yet, or if they were told
     * before. */
    uint64_t blocked_ms, persist_ms;
    /* From rank 0: the bytes of the whole state, as far as that rank has registered it; 0 means not
     * told. */
    uint64_t plain_bytes;
};
enum { OPENED_SPARSE_MAX = 4096 };
/* The opening that this rank takes part in, with what it may refer to. */
struct msg_opened {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t state /* enum save_state of core */;
    bool sealed, new_term, new_lineage;
    uint64_t seq, deadline_ms, chunk_bytes;
    struct uuid run_uuid;
    struct ckpt_id base; /* `base_id`: what the part may refer to; term 0 means nothing older */
    uint32_t sparse_count;
    struct object_id *sparse; /* ascending: objects of the base that must not be referred to */
};

/* Credit: the client says how many more payload buffers it could use, and the server grants them.
 * No stream, no reply. A DATA frame uses up one. The grants of a connection end with it. */
struct msg_want {
    uint32_t buffers;
};
struct msg_grant {
    uint32_t buffers;
};

/* The payload is the stored bytes of one chunk, or of several small ones that are packed; offsets
 * of envelopes are relative to it. offset is that of the payload in the object, a multiple of
 * LIMIT_ALIGN_BYTES. object_bytes is the length that the whole object will have, with its footer,
 * so that the store reserves exactly that; 0 means not known, and the first frame's value counts.
 * There is no reply. A failure comes as ERROR on the stream of the DATA frame and voids the object,
 * which the client then sends again under a new sequence. */
struct msg_data {
    struct object_id object;
    uint64_t offset, object_bytes;
    uint32_t envelope_count;
    struct envelope *envelopes;
};
/* All chunks of the object were sent. -> OBJECT_DURABLE, when it is on stable storage under its
 * name. */
struct msg_object_end {
    struct object_id object;
    uint64_t data_bytes;
    uint32_t envelope_count;
};
/* The answer to OBJECT_END. */
struct msg_object_durable {
    struct object_id object;
};
/* Asks after a reconnect which objects of (id, rank, writer) are durable. -> HELD */
struct msg_have {
    struct ckpt_id id;
    uint32_t rank;
    uint64_t writer;
    bool placed; /* of what was described, only objects whose places the server knows */
    /* 1 + the least sequence that an object of this opening can have. 0 means that it is not known,
     * and then no chunk is found again by its digest. Objects that an earlier opening left belong
     * to no save, and gc removes them. */
    uint32_t from;
};
/* The answer to HAVE: sequences of durable objects, and no others. */
struct msg_held {
    uint32_t count;
    uint32_t *sequences;
};

/* The bytes of the part in order, in frames with payload; SEAL follows. PART has no reply. A PART
 * at offset 0 starts over. */
struct msg_part {
    struct ckpt_id id;
    uint64_t open_id, offset, total_bytes;
};
/* -> SEALED, once the seal is in the record. */
struct msg_seal {
    struct ckpt_id id;
    uint64_t open_id;
    uint64_t part_bytes;
    struct sha256 part_sha256;
};
/* The answer to SEAL and to COMPLETE. */
struct msg_sealed {
    struct ckpt_id id;
    /* For a COMPLETE: the new bytes, and the plain bytes of chunks that the base had. */
    uint64_t stored_bytes, shared_bytes;
};
/* -> OUTCOME, when the save is committed or aborted. */
struct msg_wait {
    struct ckpt_id id;
    uint64_t open_id;
};
/* -> OUTCOME, which says what is true now: committed, if that came first. */
struct msg_abort {
    struct ckpt_id id;
    uint64_t open_id;
    int32_t code;
    const char *reason;
};
/* What became of a save. State OPEN means that the server cannot tell now. */
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
 * is mapped; ERROR means that it was not taken, and DATA is to be used. It replaces the arena that
 * came before on this connection. */
struct msg_arena {
    uint64_t arena_id, bytes;
};
/* DATA whose payload lies in the arena. Its envelopes have no crc yet, and no digest, or that of
 * the base's chunk at the same place, to which the server refers if the bytes have that digest. No
 * reply; failures as for DATA. */
struct msg_describe {
    struct msg_data data;
    uint64_t arena_id, arena_offset;
    uint32_t bytes;       /* as many as envelopes, or none */
    uint32_t encode;      /* 0 means the bytes of a blob */
    uint32_t dtype_count; /* what is learnt from one chunk holds for all with the same number */
    uint32_t *dtypes;     /* 0 means the bytes of a blob */
    uint32_t tensor;      /* chunks of one number are alike: what is learnt of one holds for all */
};
/* Everything of this rank was described, and its part was sent, without the crcs and digests of
 * what was described. -> HANDED at once, then SEALED. */
struct msg_complete {
    struct ckpt_id id;
    uint64_t open_id, part_bytes;
};
/* The first answer to COMPLETE: the client may end, and the save goes on. */
struct msg_handed {
    struct ckpt_id id;
};

#endif
