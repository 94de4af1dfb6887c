/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages that say what runs cost and what projects may hold. Part of msg.h, which has the
 * rules; PROTOCOL.md 5 "Usage" says what the numbers mean.
 */
#ifndef CAIRN_WIRE_MSG_USAGE_H
#define CAIRN_WIRE_MSG_USAGE_H

#include "format/ids.h"

/* -> USAGE_REPLY, with the runs behind `after` in the order of their names. */
struct msg_usage {
    const char *project;   /* "" means all */
    struct run_name after; /* both empty means from the first */
    int64_t since_ns;      /* wall time at which the window begins; it ends at the server's now */
};

struct msg_usage_row { /* a run; bytes are those of the store unless they are plain */
    struct run_name run;
    int32_t code;     /* why its record cannot be read (then all else is 0), or 0 */
    const char *text; /* the same in words */
    uint64_t saves, saves_aborted, restores, restores_failed, written_bytes; /* in the window */
    double byte_hours;                                                       /* the same */
    uint64_t checkpoints, forgotten, plain_bytes, stored_bytes, shared_bytes, reclaimable_bytes;
    int64_t newest_wall_ns; /* of the newest listed checkpoint; 0 means none */
    /* In the window: the saves that told how long they took, and the sums of their durations. */
    uint64_t timed_saves, blocked_ms, persist_ms;
};

struct msg_usage_quota { /* 0 means no limit */
    const char *project; /* "*" means each project that has none of its own */
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
