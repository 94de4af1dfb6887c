/* SPDX-License-Identifier: Apache-2.0
 *
 * msg: every control message as a struct; msg_encode and msg_decode turn them into protobuf and
 * back (generated code stays in this folder). Fields, limits and comments of the structs are in
 * messages.def. Walks and rules: PROTOCOL.md. Pure.
 *
 * A request carries a stream number that the client chooses (> 0, never used again on a
 * connection). Every request gets exactly one final reply on that stream: one of those that the
 * REPLY rows of the .def files name, or ERROR. Strings and bytes of a decoded message live in the
 * scratch given to msg_decode.
 */
#ifndef CAIRN_WIRE_MSG_H
#define CAIRN_WIRE_MSG_H

#include "format/box.h"
#include "format/entries.h"
#include "format/envelope.h"
#include "format/manifest.h"

/* MSG_HELLO = 1, and so on: the name and number of each message of messages.def. */
enum msg_type {
#define MESSAGE(number, NAME, name, Pb, payload)      MSG_##NAME = (number),
#define EMPTY(number, NAME, name, Pb)                 MSG_##NAME = (number),
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb) MSG_##NAME = (number),
#include "messages.def"
};

enum { WIRE_VERSION_MIN = 1, WIRE_VERSION_MAX = 1 };

/* Most entries of the arrays in messages. */
enum {
    OPENED_SPARSE_MAX = 4096,
    MSG_KEYS_MAX = 16384,
    MSG_FINDINGS_MAX = 64,
    MSG_GC_RUNS_MAX = 1000,
    MSG_DAEMONS_MAX = 64,
    MSG_MARK_SELECTORS_MAX = 1000,
    MSG_MARK_OPTIONS_MAX = 64,
    MSG_MARK_RECORDS_MAX = 20000
};

/* The state of a checkpoint, as the record has it: ckpt_info.state. */
enum ckpt_state {
    CKPT_NONE = 0,
    CKPT_OPEN = 1,
    CKPT_COMMITTED = 2,
    CKPT_ABORTED = 3,
    CKPT_FORGOTTEN = 4
};
/* AGREE.check: whether replicas are compared, and what a difference does to the save. */
enum msg_check { CHECK_NONE, CHECK_WARN, CHECK_FAIL };
/* AGREED.verdicts: what the server says of one group. */
enum msg_agree_verdict {
    AGREE_KEEP = 1,   /* all copied by what was agreed before, and that stays */
    AGREE_ALIKE = 2,  /* none copied, and the lists are equal: divide them anew */
    AGREE_ANEW = 3,   /* none copied, and the lists differ: send LISTS */
    AGREE_MIXED = 4,  /* some copied, and some have other lists: send LISTS */
    AGREE_UNKNOWN = 5 /* the server cannot tell, because its memory is bounded */
};
/* MARK.kind. */
enum msg_mark_kind { MSG_MARK_FORGET = 1, MSG_MARK_UNDELETE, MSG_MARK_PIN, MSG_MARK_UNPIN };
/* POLICY.kind. */
enum msg_policy_kind { MSG_POLICY_SHOW = 1, MSG_POLICY_SET, MSG_POLICY_REMOVE };
/* LOG_REPLY: the kind of a row that is not of the chain: a restore has ended. */
enum { LOG_RESTORE = 64 };
/* SCRUB.rate. */
#define SCRUB_UNLIMITED UINT64_MAX
/* SERVER_STATUS.health. Red means that the server cannot do its work, yellow that an operator
 * should look, unknown that the server is older than these words. */
enum server_health {
    SERVER_HEALTH_UNKNOWN,
    SERVER_GREEN,
    SERVER_YELLOW,
    SERVER_RED,
};
/* Returns "green" and so on, or "unknown" for any other value. */
const char *server_health_name(uint32_t health);

/* The structs of messages.def. */
#define WIRE_STRUCTS
#define MESSAGE(number, NAME, name, Pb, payload) struct msg_##name {
#define PART(type, name, Pb)                     struct type {
#define END \
    }       \
    ;
#define VALUE(n, kind, type, p, f) type f;
#define FIXED_IF(n, type, f, when) type f;
#define TEXT(n, f)                 const char *f;
#define NAME(n, f, least, most)    const char *f;
#define DATA(n, f, count, most) \
    uint32_t count;             \
    const uint8_t *f;
#define HAS(f)                             bool has_##f;
#define SUB(n, type, Pb, p, f, when, need) struct type f;
#define LIST(n, type, Pb, f, count, most) \
    uint32_t count;                       \
    struct type *f;
#define TAGS(n, f, count) \
    uint32_t count;       \
    const char **f;
#define NUMBERS(n, f, count, most) \
    uint32_t count;                \
    uint32_t *f;
#define PACKED_AS(n, kind, type, p, f, count, most) \
    uint32_t count;                                 \
    type *f;
#define PACKED_TOO(n, kind, type, f, count) type *f;
#include "messages.def"
#undef WIRE_STRUCTS

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

/* HOLDERS and COMPARED: rows of a key and a set of members (bit i of byte i / 8 is member i). In
 * HOLDERS, these members divide the tensor among them; a row with a division means that the ranks
 * of that division write it as they did then; a tensor without a row stays as the rank said, or is
 * divided by the whole group. In COMPARED, the members have the same bytes; a tensor that differs
 * has a row for each such class, the largest first. The frames end with `last`; code != 0 means
 * that there is no answer, and why. */
struct msg_sets {
    uint32_t count;
    struct msg_set {
        struct xxh128 key; /* in HOLDERS; 0 means none */
        uint64_t division; /* in HOLDERS; 0 means none */
        uint32_t bytes;
        const uint8_t *bits;
    } * rows;
    bool last;
    int32_t code;
    const char *text;
};

/* PLAN.wants: a box of a tensor, or a blob. */
struct plan_want {
    bool is_blob;
    const char *name, *coordinate;
    uint32_t dtype;
    struct shape shape;
    struct box box;
};

/* MARKED.records: what became of one checkpoint, and why. */
struct msg_mark_record {
    struct ckpt_id id;
    int64_t wall_ns;
    uint64_t reasons; /* core/retention.h */
    uint32_t outcome; /* core/commit.h, enum mark_outcome; unknown values are passed on */
};

/* One message; type says which member of u is valid. */
struct msg {
    enum msg_type type;
    union {
#define MESSAGE(number, NAME, name, Pb, payload)      struct msg_##name name;
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb) struct type name;
#include "messages.def"
    } u;
};

/* Returns the name of a message, or NULL for a number that is no message. */
const char *msg_name(uint32_t type);
bool msg_has_payload(uint32_t type);
/* Returns whether this type may answer that request. ERROR may answer any. */
bool msg_is_reply(uint32_t request, uint32_t reply);
/* Appends the protobuf bytes of the message. */
void msg_encode(const struct msg *msg, struct buf *buf);
/* Checks the rules of messages.def. A decoded message keeps them; a sender asks before it encodes.
 * PROTOCOL or INVALID, with a text that names message and field. */
int MUST_USE msg_check(const struct msg *msg, struct diag *diag);
/* Decodes a message, and checks everything that it can show alone (lengths, UTF-8, names, enum
 * values, counts). UNSUPPORTED means an unknown type; PROTOCOL and INVALID name the field. Memory
 * comes from scratch, and protobuf's own is bounded by a budget. */
int MUST_USE msg_decode(uint32_t type, size_t bytes, const uint8_t *data, struct scratch *scratch,
                        struct msg *ret, struct diag *diag);
/* Moves *io_before, the before_seq of a LIST, to what asks for the page after this answer, or to 0
 * after the last page. PROTOCOL if the page brings nothing new although more is said to follow: it
 * would be asked for again without end. */
int MUST_USE msg_list_next(const struct msg_list_reply *reply, uint64_t *io_before,
                           struct diag *diag);
/* Compares what the message says about its payload (length, envelopes in order and inside) with the
 * frame. PROTOCOL. */
int MUST_USE msg_check_payload(const struct msg *msg, uint32_t payload_bytes, struct diag *diag);

#endif
