/* SPDX-License-Identifier: Apache-2.0
 *
 * pace: when a scrub may read next: at a byte rate, and while saves or restores move bytes, at most
 * a fiftieth of what they move. So a scrub beside a save costs it about two per cent of the disk,
 * however fast either is. Time and load are given; pure.
 */
#ifndef CAIRN_SCRUB_PACE_H
#define CAIRN_SCRUB_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PACE_SHARE = 50,      /* of so many bytes that sessions move, one may be read */
    PACE_QUIET_MS = 1000, /* without a byte moved: nobody is disturbed */
    PACE_LOOK_MS = 20,    /* how often the load is looked at while it is busy */
    PACE_BURST_MS = 250,  /* of the rate that may be caught up after a delay */
    PACE_CREDIT_MAX = 8 << 20,
};

struct pace {
    uint64_t rate;    /* bytes a second; 0: as fast as it goes */
    uint64_t due_ns;  /* by the rate */
    uint64_t load;    /* as seen last */
    uint64_t busy_ns; /* until when sessions count as busy */
    int64_t credit;   /* bytes that may be read beside them */
    bool primed;
};

void pace_init(struct pace *pace, uint64_t rate);
/* From now on; what was read at another rate is paid. */
void pace_set_rate(struct pace *pace, uint64_t rate);
/* Milliseconds until a read may start; 0: now. load: bytes that sessions have moved so far. */
uint64_t pace_wait_ms(struct pace *pace, uint64_t now_ns, uint64_t load);
void pace_charge(struct pace *pace, uint64_t now_ns, uint64_t bytes);
bool pace_is_yielding(const struct pace *pace, uint64_t now_ns);

#endif
