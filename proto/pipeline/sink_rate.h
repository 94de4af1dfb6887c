/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_rate: how many stored bytes a second the way behind the client takes, network, server and
 * disk together: bytes that became durable, over the time that passed. What was measured while the
 * sink was what we waited for counts as it is; what was measured while we often had nothing to send
 * can only raise the rate, or a slow encoder would be taken for a slow sink, which it then keeps up
 * with. Pure: time is an argument.
 */
#ifndef CAIRN_PIPELINE_SINK_RATE_H
#define CAIRN_PIPELINE_SINK_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct sink_rate {
    uint64_t bytes_per_s; /* 0: not known yet */
    uint64_t begun_ms, bytes;
    uint64_t starved_ms, starved_from_ms;
    bool running, starved;
};

/* Bytes are on their way from now on / became durable. starved: there is credit, but nothing is
 * ready. */
void sink_rate_begin(struct sink_rate *rate, uint64_t now_ms);
void sink_rate_starved(struct sink_rate *rate, bool starved, uint64_t now_ms);
void sink_rate_durable(struct sink_rate *rate, uint64_t bytes, uint64_t now_ms);
void sink_rate_end(struct sink_rate *rate); /* nothing is on its way any more */

#endif
