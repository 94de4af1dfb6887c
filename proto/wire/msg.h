/* SPDX-License-Identifier: Apache-2.0
 *
 * msg: every control message as a struct of ours; msg_encode and msg_decode turn them into protobuf and back
 * (generated code stays in this folder). Walks and rules: PROTOCOL.md. Pure.
 *
 * Requests carry a stream number chosen by the client (> 0, never reused on a connection); every request gets
 * exactly one final reply on that stream: the one named beside it, or ERROR. Strings and bytes of a decoded
 * message live in the scratch given to msg_decode.
 */
#ifndef CAIRN_WIRE_MSG_H
#define CAIRN_WIRE_MSG_H

#include "format/box.h"
#include "format/entries.h"
#include "format/envelope.h"
#include "format/manifest.h"

enum msg_type {
    MSG_HELLO = 1, MSG_WELCOME = 2, MSG_ERROR = 3, MSG_PING = 4, MSG_PONG = 5, MSG_BYE = 6,
    MSG_JOIN = 10, MSG_JOINED = 11,
    /* save */
    MSG_OPEN = 20, MSG_OPENED = 21, MSG_WANT = 22, MSG_GRANT = 23, MSG_DATA = 24, MSG_OBJECT_END = 25, MSG_OBJECT_DURABLE = 26,
    MSG_HAVE = 27, MSG_HELD = 28, MSG_PART = 29, MSG_SEAL = 30, MSG_SEALED = 31, MSG_WAIT = 32, MSG_OUTCOME = 33, MSG_ABORT = 34,
    /* truth and lists */
    MSG_STATUS = 40, MSG_STATUS_REPLY = 41, MSG_LIST = 42, MSG_LIST_REPLY = 43, MSG_RUNS = 44, MSG_RUNS_REPLY = 45,
    /* restore */
    MSG_RESTORE = 60, MSG_RESOLVED = 61, MSG_REPORT = 62, MSG_VERDICT = 63, MSG_FETCH = 64, MSG_BYTES = 65, MSG_PLAN = 66, MSG_PLAN_REPLY = 67,
    MSG_READ = 68, MSG_READ_REPLY = 69,
};

enum { WIRE_VERSION_MIN = 1, WIRE_VERSION_MAX = 1 };

/* First on every connection, from the client. -> WELCOME or ERROR(VERSION) */
struct msg_hello { uint32_t version_min, version_max; uint64_t features; const char *agent; };
struct msg_welcome { uint32_t version; uint64_t features; struct uuid store_uuid; uint32_t heartbeat_ms, dead_after_ms, payload_max, message_max; const char *agent; };
struct msg_error { int32_t code; const char *text; };

/* Says which run the connection is about. viewer: no rank, no token; may list, fetch, plan, read. -> JOINED */
struct msg_join { struct run_name run; bool viewer; struct token token; uint32_t rank, world_size; uint64_t writer; const char *label; };
struct msg_joined { bool exists; struct uuid run_uuid; uint64_t chunk_bytes, newest_term; struct ckpt_id latest; uint64_t object_bytes; };

/* Rank 0's makes the opening, the others' wait for it (at most wait_ms). open_id: random, the same in every retry of
 * this save. -> OPENED */
struct msg_open {
    uint64_t step; uint32_t ordinal; struct ckpt_id parent; uint64_t newest_seen, open_id, deadline_ms, wait_ms;
    struct xxh128 list_hash;
    uint32_t metadata_bytes; const uint8_t *metadata; uint32_t tag_count; const char **tags; uint32_t metric_count; struct metric *metrics;
};
struct msg_opened { struct ckpt_id id; uint64_t open_id; uint32_t state /* enum save_state of core */; bool sealed, new_term, new_lineage; uint64_t seq, deadline_ms, chunk_bytes; struct uuid run_uuid; };

/* Credit: the client says how many more payload buffers it could use; the server hands them out. No stream, no reply.
 * A DATA frame uses up one. Grants of a connection die with it. */
struct msg_want { uint32_t buffers; };
struct msg_grant { uint32_t buffers; };

/* Payload: stored bytes of one chunk, or of several small ones packed; envelope offsets are relative to the payload.
 * offset: of the payload in the object, a multiple of LIMIT_ALIGN_BYTES. No reply; failures come as ERROR with the
 * stream of the DATA frame and void the object: the client sends that object again under a new sequence. */
struct msg_data { struct object_id object; uint64_t offset; uint32_t envelope_count; struct envelope *envelopes; };
/* All chunks of the object were sent. -> OBJECT_DURABLE when it is on stable storage under its name. */
struct msg_object_end { struct object_id object; uint64_t data_bytes; uint32_t envelope_count; };
struct msg_object_durable { struct object_id object; };
/* After a reconnect: which objects of (id, rank, writer) are durable? -> HELD */
struct msg_have { struct ckpt_id id; uint32_t rank; uint64_t writer; };
struct msg_held { uint32_t count; uint32_t *sequences; };

/* The part's bytes in order, in frames with payload; then SEAL. PART has no reply. A PART at offset 0 starts over. */
struct msg_part { struct ckpt_id id; uint64_t open_id, offset, total_bytes; };
/* -> SEALED once the seal is in the record */
struct msg_seal { struct ckpt_id id; uint64_t open_id; uint64_t part_bytes; struct sha256 part_sha256; };
struct msg_sealed { struct ckpt_id id; };
/* -> OUTCOME when the save is committed or aborted */
struct msg_wait { struct ckpt_id id; uint64_t open_id; };
/* -> OUTCOME: what is true now: committed, if that had won */
struct msg_abort { struct ckpt_id id; uint64_t open_id; int32_t code; const char *reason; };
struct msg_outcome { struct ckpt_id id; uint64_t open_id; uint32_t state; int32_t code; const char *text; uint64_t seq; };

struct msg_status { struct ckpt_id id; };
enum ckpt_state { CKPT_NONE = 0, CKPT_OPEN = 1, CKPT_COMMITTED = 2, CKPT_ABORTED = 3, CKPT_FORGOTTEN = 4 };
struct ckpt_info {
    struct ckpt_id id, parent; uint64_t seq, plain_bytes, stored_bytes, manifest_bytes; struct sha256 manifest_sha256; int64_t wall_ns;
    uint32_t world_size, state /* enum ckpt_state */, health /* enum health */, sealed_count; bool on_lineage, is_latest; const char *text;
};
struct msg_status_reply { struct ckpt_info info; };
/* Newest first: committed by sequence below before_seq (0: from the newest); open ones lead the first page. */
struct msg_list { uint64_t before_seq; uint32_t limit; };
struct msg_list_reply { uint32_t count; struct ckpt_info *entries; bool more; };
struct msg_runs { const char *project; /* "" for all */ };
struct msg_runs_reply { uint32_t count; struct run_name *names; };

/* A rank joins (token, ordinal)'s restore session; a viewer only resolves. -> RESOLVED (empty: proven) */
struct msg_restore { uint32_t ordinal; struct selector selector; bool allow_older; uint64_t wait_ms; };
struct msg_resolved { bool empty, fell_back; struct ckpt_id id; uint32_t try_count; uint64_t newest_term; struct ckpt_info info; };
/* code 0: this rank has verified all that it wanted. -> VERDICT when all ranks reported, or the session moved on */
struct msg_report { uint32_t ordinal, try_count; int32_t code; const char *reason; uint64_t wait_ms; };
struct msg_verdict { bool done; /* all OK */ bool fell_back; int32_t code; /* != 0: failed for all */ const char *text; struct ckpt_id id; uint32_t try_count; uint64_t newest_term; struct ckpt_info info; };

/* manifest, page or part as stored. -> BYTES frames with payload in order, the last has offset + payload == total */
struct msg_fetch { struct ckpt_id id; uint32_t kind /* enum store_kind values: 1 manifest, 2 part, 3 page */; uint32_t number; };
struct msg_bytes { uint64_t offset, total_bytes; };

/* Which stored chunks make up what is wanted. -> PLAN_REPLY frames, payload = plan_read records (plan.h), last is set on
 * the final one. ERROR names a tensor that is missing or differs. */
struct plan_want { bool is_blob; const char *name, *coordinate; uint32_t dtype; struct shape shape; struct box box; };
struct msg_plan { struct ckpt_id id; uint32_t want_count; struct plan_want *wants; };
struct msg_plan_reply { uint32_t record_count; bool last; };

/* A range of an object as stored. -> READ_REPLY with exactly that payload (<= payload_max) */
struct msg_read { struct object_id object; uint64_t offset; uint32_t bytes; };
struct msg_read_reply { uint32_t bytes; };

struct msg {
    enum msg_type type;
    union {
        struct msg_hello hello; struct msg_welcome welcome; struct msg_error error;
        struct msg_join join; struct msg_joined joined;
        struct msg_open open; struct msg_opened opened; struct msg_want want; struct msg_grant grant; struct msg_data data;
        struct msg_object_end object_end; struct msg_object_durable object_durable; struct msg_have have; struct msg_held held;
        struct msg_part part; struct msg_seal seal; struct msg_sealed sealed; struct msg_wait wait; struct msg_abort abort; struct msg_outcome outcome;
        struct msg_status status; struct msg_status_reply status_reply; struct msg_list list; struct msg_list_reply list_reply;
        struct msg_runs runs; struct msg_runs_reply runs_reply;
        struct msg_restore restore; struct msg_resolved resolved; struct msg_report report; struct msg_verdict verdict;
        struct msg_fetch fetch; struct msg_bytes bytes; struct msg_plan plan; struct msg_plan_reply plan_reply;
        struct msg_read read; struct msg_read_reply read_reply;
    } u;
};

/* NULL for a number that is no message. */
const char *msg_name(uint32_t type);
bool msg_has_payload(uint32_t type);
/* Appends the protobuf bytes. */
void msg_encode(const struct msg *msg, struct buf *buf);
/* Checks everything a message alone can show (lengths, UTF-8, names, enum values, counts). UNSUPPORTED: an unknown
 * type. PROTOCOL / INVALID name the field. Memory: scratch, and protobuf's own within a byte budget. */
int MUST_USE msg_decode(uint32_t type, size_t bytes, const uint8_t *data, struct scratch *scratch, struct msg *ret, struct diag *diag);
/* What the message says about its payload (length, envelopes in order and inside) against the frame's. PROTOCOL. */
int MUST_USE msg_check_payload(const struct msg *msg, uint32_t payload_bytes, struct diag *diag);

#endif
