/* SPDX-License-Identifier: Apache-2.0
 *
 * msg: every control message as a struct of ours; msg_encode and msg_decode turn them into protobuf
 * and back (generated code stays in this folder). Walks and rules: PROTOCOL.md. Pure.
 *
 * A request carries a stream number that the client chooses (> 0, never used again on a
 * connection). Every request gets exactly one final reply on that stream: the one named beside it,
 * written "-> NAME" in these headers, or ERROR. Strings and bytes of a decoded message live in the
 * scratch given to msg_decode.
 */
#ifndef CAIRN_WIRE_MSG_H
#define CAIRN_WIRE_MSG_H

#include "msg_agree.h"
#include "msg_care.h"
#include "msg_list.h"
#include "msg_mark.h"
#include "msg_progress.h"
#include "msg_restore.h"
#include "msg_save.h"
#include "msg_session.h"
#include "msg_usage.h"

enum msg_type {
    MSG_HELLO = 1,
    MSG_WELCOME = 2,
    MSG_ERROR = 3,
    MSG_PING = 4,
    MSG_PONG = 5,
    MSG_BYE = 6,
    MSG_JOIN = 10,
    MSG_JOINED = 11,
    /* save */
    MSG_OPEN = 20,
    MSG_OPENED = 21,
    MSG_WANT = 22,
    MSG_GRANT = 23,
    MSG_DATA = 24,
    MSG_OBJECT_END = 25,
    MSG_OBJECT_DURABLE = 26,
    MSG_HAVE = 27,
    MSG_HELD = 28,
    MSG_PART = 29,
    MSG_SEAL = 30,
    MSG_SEALED = 31,
    MSG_WAIT = 32,
    MSG_OUTCOME = 33,
    MSG_ABORT = 34,
    /* A save whose bytes stay where they are (WIRE_FEATURE_HAND_OVER). */
    MSG_ARENA = 35,
    MSG_DESCRIBE = 36,
    MSG_COMPLETE = 37,
    MSG_HANDED = 38,
    /* Truth and lists. */
    MSG_STATUS = 40,
    MSG_STATUS_REPLY = 41,
    MSG_LIST = 42,
    MSG_LIST_REPLY = 43,
    MSG_RUNS = 44,
    MSG_RUNS_REPLY = 45,
    MSG_ANNOTATE = 46,
    MSG_ANNOTATED = 47,
    /* restore */
    MSG_RESTORE = 60,
    MSG_RESOLVED = 61,
    MSG_REPORT = 62,
    MSG_VERDICT = 63,
    MSG_FETCH = 64,
    MSG_BYTES = 65,
    MSG_PLAN = 66,
    MSG_PLAN_REPLY = 67,
    MSG_READ = 68,
    MSG_READ_REPLY = 69,
    /* Reads that go into memory of the client (WIRE_FEATURE_LANDING). */
    MSG_LANDING = 70,
    MSG_LANDED = 71,
    /* Agreement of lists, comparison of replicas. */
    MSG_AGREE = 80,
    MSG_AGREED = 81,
    MSG_LISTS = 82,
    MSG_HOLDERS = 83,
    MSG_DIGESTS = 84,
    MSG_COMPARED = 85,
    /* Maintenance of the store. */
    MSG_SCRUB = 100,
    MSG_SCRUB_STATUS = 101,
    MSG_GC = 102,
    MSG_GC_REPORT = 103,
    MSG_SERVER = 104,
    MSG_SERVER_STATUS = 105,
    MSG_REPAIR = 106,
    MSG_REPAIR_STATUS = 107,
    /* retention */
    MSG_MARK = 90,
    MSG_MARKED = 91,
    /* cost */
    MSG_PROGRESS = 110,
    MSG_PROGRESS_REPLY = 111,
    MSG_USAGE = 120,
    MSG_USAGE_REPLY = 121,
};

enum { WIRE_VERSION_MIN = 1, WIRE_VERSION_MAX = 1 };

/* One message; type says which member of u is valid. */
struct msg {
    enum msg_type type;
    union {
        struct msg_hello hello;
        struct msg_welcome welcome;
        struct msg_error error;
        struct msg_join join;
        struct msg_joined joined;
        struct msg_open open;
        struct msg_opened opened;
        struct msg_want want;
        struct msg_grant grant;
        struct msg_data data;
        struct msg_object_end object_end;
        struct msg_object_durable object_durable;
        struct msg_have have;
        struct msg_held held;
        struct msg_part part;
        struct msg_seal seal;
        struct msg_sealed sealed;
        struct msg_wait wait;
        struct msg_abort abort;
        struct msg_outcome outcome;
        struct msg_arena arena;
        struct msg_describe describe;
        struct msg_complete complete;
        struct msg_handed handed;
        struct msg_status status;
        struct msg_status_reply status_reply;
        struct msg_list list;
        struct msg_list_reply list_reply;
        struct msg_runs runs;
        struct msg_runs_reply runs_reply;
        struct msg_annotate annotate;
        struct msg_annotated annotated;
        struct msg_restore restore;
        struct msg_resolved resolved;
        struct msg_report report;
        struct msg_verdict verdict;
        struct msg_fetch fetch;
        struct msg_bytes bytes;
        struct msg_plan plan;
        struct msg_plan_reply plan_reply;
        struct msg_read read;
        struct msg_read_reply read_reply;
        struct msg_landing landing;
        struct msg_landed landed;
        struct msg_agree agree;
        struct msg_agreed agreed;
        struct msg_lists lists;
        struct msg_digests digests;
        struct msg_sets holders, compared;
        struct msg_scrub scrub;
        struct msg_scrub_status scrub_status;
        struct msg_gc gc;
        struct msg_gc_report gc_report;
        struct msg_repair repair;
        struct msg_repair_status repair_status;
        struct msg_server_status server_status;
        struct msg_mark mark;
        struct msg_marked marked;
        struct msg_progress progress;
        struct msg_progress_reply progress_reply;
        struct msg_usage usage;
        struct msg_usage_reply usage_reply;
    } u;
};

/* Returns the name of a message, or NULL for a number that is no message. */
const char *msg_name(uint32_t type);
bool msg_has_payload(uint32_t type);
/* Appends the protobuf bytes of the message. */
void msg_encode(const struct msg *msg, struct buf *buf);
/* Decodes a message, and checks everything that it can show alone (lengths, UTF-8, names, enum
 * values, counts). UNSUPPORTED means an unknown type; PROTOCOL and INVALID name the field. Memory
 * comes from scratch, and protobuf's own is bounded by a budget. */
int MUST_USE msg_decode(uint32_t type, size_t bytes, const uint8_t *data, struct scratch *scratch,
                        struct msg *ret, struct diag *diag);
/* Compares what the message says about its payload (length, envelopes in order and inside) with the
 * frame. PROTOCOL. */
int MUST_USE msg_check_payload(const struct msg *msg, uint32_t payload_bytes, struct diag *diag);

#endif
