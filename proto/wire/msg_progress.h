/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages that show saves on their way through this server. Part of msg.h, which has the
 * rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_PROGRESS_H
#define CAIRN_WIRE_MSG_PROGRESS_H

#include "format/ids.h"

/* Asks for the saves that this server is receiving. -> PROGRESS_REPLY */
struct msg_progress {
    const char *project; /* "" means all */
};

struct msg_progress_row { /* what one client process brings to one open save */
    struct run_name run;
    struct ckpt_id id;
    uint32_t rank, world_size;
    uint64_t received_bytes, durable_bytes; /* stored bytes, in this process of the server */
    uint64_t age_ms, quiet_ms;              /* since it began; since its last payload */
    bool connected, handed_over;            /* handed over: it needs no connection any more */
};

struct msg_progress_reply {
    uint32_t count;
    struct msg_progress_row *rows;
    bool more; /* there are more rows than fit */
};

#endif
