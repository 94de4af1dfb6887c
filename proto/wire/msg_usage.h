/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages that say what runs cost and what projects may hold. Part of msg.h, which has the
 * rules; what the numbers mean is in PROTOCOL.md 5 "Usage".
 */
#ifndef CAIRN_WIRE_MSG_USAGE_H
#define CAIRN_WIRE_MSG_USAGE_H

#include "format/ids.h"

/* -> USAGE_REPLY, of the runs behind `after` in the order of their names. */
struct msg_usage {
    const char *project;   /* "" for all */
    struct run_name after; /* both empty: from the first */
    int64_t since_ns;      /* wall time: where the window begins; it ends at the server's now */
};

struct msg_usage_row { /* a run; bytes are of the store unless they are plain */
    struct run_name run;
    int32_t code;     /* why its record cannot be read (then all else is 0); 0: it was */
    const char *text; /* in words */
    uint64_t saves, saves_aborted, restores, restores_failed, written_bytes; /* in the window */
    double byte_hours;                                                       /* the same */
    uint64_t checkpoints, forgotten, plain_bytes, stored_bytes, shared_bytes, reclaimable_bytes;
    int64_t newest_wall_ns; /* of the newest listed checkpoint; 0: none */
    /* In the window: saves that told how long they took, and the sums of it. */
    uint64_t timed_saves, blocked_ms, persist_ms;
};

struct msg_usage_quota { /* 0: no limit */
    const char *project; /* "*": each that has none of its own */
    uint64_t bytes, checkpoints;
};

struct msg_usage_reply {
    uint32_t count;
    struct msg_usage_row *rows;
    bool more;
    int64_t now_ns; /* where the window ends */
    uint32_t quota_count;
    struct msg_usage_quota *quotas;
};

#endif
