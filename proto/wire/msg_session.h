/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of every connection: hello, errors, joining a run. Part of msg.h, which has the
 * rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_SESSION_H
#define CAIRN_WIRE_MSG_SESSION_H

#include "format/ids.h"

/* The first message on every connection, from the client. -> WELCOME or ERROR(VERSION) */
struct msg_hello {
    uint32_t version_min, version_max;
    uint64_t features;
    const char *agent;
};
/* The choice of the server, its times and limits. */
struct msg_welcome {
    uint32_t version;
    uint64_t features;
    struct uuid store_uuid;
    uint32_t heartbeat_ms, dead_after_ms, payload_max, message_max;
    const char *agent;
};
/* An error, as the final reply on a stream. On stream 0 it is about the connection, which then
 * ends. */
struct msg_error {
    int32_t code;
    const char *text;
};

/* Says which run the connection is about. A viewer has no rank and no token, and may list, fetch,
 * plan and read. -> JOINED */
struct msg_join {
    struct run_name run;
    bool viewer;
    struct token token;
    uint32_t rank, world_size;
    uint64_t writer;
    const char *label;
};
/* What the client needs to know of the run. */
struct msg_joined {
    bool exists;
    struct uuid run_uuid;
    uint64_t chunk_bytes, newest_term;
    struct ckpt_id latest;
    uint64_t object_bytes;
};

#endif
