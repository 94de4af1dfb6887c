/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_rate: how many stored bytes a second the way behind the client takes, that is, network,
 * server and disk together: bytes that became durable, over the time that passed. A rate measured
 * while we waited for the sink counts as it is. A rate measured while we often had nothing to send
 * can only raise it: otherwise a slow encoder would be taken for a slow sink, with which it then
 * keeps up. Pure: time is an argument.
 */
#ifndef CAIRN_PIPELINE_SINK_RATE_H
#define CAIRN_PIPELINE_SINK_RATE_H

#include <stdbool.h>
#include <stdint.h>

/* The measured rate and the window in which it is measured now. A struct of zeros knows nothing. */
struct sink_rate {
    uint64_t bytes_per_s; /* 0 means not known yet */
    /* The present window: its start, its bytes, and the time in which there was nothing to send. */
    uint64_t begun_ms, bytes;
    uint64_t starved_ms, starved_from_ms;
    bool running, starved;
};

/* sink_rate_begin: bytes are on their way from now on. sink_rate_starved: there is credit, but
 * nothing is ready to send. sink_rate_durable: so many bytes became durable. */
void sink_rate_begin(struct sink_rate *rate, uint64_t now_ms);
void sink_rate_starved(struct sink_rate *rate, bool starved, uint64_t now_ms);
void sink_rate_durable(struct sink_rate *rate, uint64_t bytes, uint64_t now_ms);
void sink_rate_end(struct sink_rate *rate); /* nothing is on its way any more */

#endif
