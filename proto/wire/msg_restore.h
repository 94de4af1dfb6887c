/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a restore: session, verdict, fetch, plan, read. Part of msg.h, which has the
 * rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_RESTORE_H
#define CAIRN_WIRE_MSG_RESTORE_H

#include "format/box.h"
#include "msg_list.h"

/* A rank joins the restore session of (token, ordinal); a viewer only resolves. -> RESOLVED; its
 * `empty` means that the run is proven to have no checkpoint. */
struct msg_restore {
    uint32_t ordinal;
    struct selector selector;
    bool allow_older;
    uint64_t wait_ms;
};
/* The checkpoint to restore, the same for all ranks of the session. */
struct msg_resolved {
    bool empty, fell_back;
    struct ckpt_id id;
    uint32_t try_count;
    uint64_t newest_term;
    struct ckpt_info info;
};
/* code 0 means that this rank has verified everything that it wanted. -> VERDICT, when all ranks
 * have reported or the session has moved on. */
struct msg_report {
    uint32_t ordinal, try_count;
    int32_t code;
    const char *reason;
    uint64_t wait_ms;
};
/* The result of a try. If it neither succeeded nor failed, id names the older checkpoint to try
 * next. */
struct msg_verdict {
    bool done; /* all ranks have verified it */
    bool fell_back;
    int32_t code; /* != 0 means that the restore has failed for all */
    const char *text;
    struct ckpt_id id;
    uint32_t try_count;
    uint64_t newest_term;
    struct ckpt_info info;
};

/* A manifest, page or part, as it is stored. -> BYTES frames, with their payloads in order; the
 * last has offset + payload == total. */
struct msg_fetch {
    struct ckpt_id id;
    uint32_t kind /* enum store_kind values: 1 manifest, 2 part, 3 page */;
    uint32_t number;
};
/* A piece of a document; the payload has its bytes. */
struct msg_bytes {
    uint64_t offset, total_bytes;
};

/* Asks which stored chunks make up the wanted boxes. -> PLAN_REPLY frames, whose payload is
 * plan_read records (plan.h); the final one has `last` set. ERROR names a tensor that is missing or
 * differs. */
struct plan_want {
    bool is_blob;
    const char *name, *coordinate;
    uint32_t dtype;
    struct shape shape;
    struct box box;
};
struct msg_plan {
    struct ckpt_id id;
    uint32_t want_count;
    struct plan_want *wants;
};
struct msg_plan_reply {
    uint32_t record_count;
    bool last;
};

/* A range of an object, as it is stored. -> READ_REPLY with exactly that payload (<=
 * payload_max). */
struct msg_read {
    struct object_id object;
    uint64_t offset;
    uint32_t bytes;
    /* 0 means as above. Otherwise the range goes into the client's memory at landing_offset, and
     * offset and bytes are whole pages. -> LANDED */
    uint64_t landing_id, landing_offset;
    bool to_end; /* the object must end with the range: a longer one is DAMAGED */
};
struct msg_read_reply {
    uint32_t bytes;
};
/* A descriptor of memory goes with the frame. -> LANDING with the same landing_id, once it is
 * mapped; after ERROR, reads use the socket. bytes 0 takes the memory away again. */
struct msg_landing {
    uint64_t landing_id, bytes;
};
struct msg_landed {
    uint32_t bytes;
};

#endif
