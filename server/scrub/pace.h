/* SPDX-License-Identifier: Apache-2.0
 *
 * pace: says when a scrub may read next. It keeps to a byte rate, and while saves or restores move
 * bytes, it reads at most a fiftieth of what they move. So a scrub beside a save costs the save
 * about two per cent of the disk, however fast either is. The caller passes in time and load. Pure.
 */
#ifndef CAIRN_SCRUB_PACE_H
#define CAIRN_SCRUB_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PACE_SHARE = 50,      /* one byte may be read for this many that sessions move */
    PACE_QUIET_MS = 1000, /* after this time without a byte moved, sessions count as idle */
    PACE_CHECK_MS = 20,   /* how often the load is checked while sessions are busy */
    PACE_BURST_MS = 250,  /* the longest delay that may be caught up at full speed */
    PACE_CREDIT_MAX = 8 << 20,
};

struct pace {
    uint64_t rate;    /* bytes a second; 0 means as fast as possible */
    uint64_t due_ns;  /* by the rate: when the next read may start */
    uint64_t load;    /* as passed in last */
    uint64_t busy_ns; /* sessions count as busy until then */
    int64_t credit;   /* bytes that may be read beside busy sessions */
    bool primed;
};

void pace_init(struct pace *pace, uint64_t rate);
/* Sets the rate. Reads at the old rate are not charged any more. */
void pace_set_rate(struct pace *pace, uint64_t rate);
/* Returns the milliseconds until a read may start; 0 means now. `load` counts the bytes that
 * sessions have moved so far. */
uint64_t pace_wait_ms(struct pace *pace, uint64_t now_ns, uint64_t load);
/* Called when so many bytes were read. */
void pace_charge(struct pace *pace, uint64_t now_ns, uint64_t bytes);
/* Returns true while sessions are busy. */
bool pace_is_yielding(const struct pace *pace, uint64_t now_ns);

#endif
