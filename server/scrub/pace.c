/* SPDX-License-Identifier: Apache-2.0
 *
 * pace: see pace.h. The rate is kept on average, not read by read: a delay is caught up, but never
 * more than PACE_BURST_MS of it, so that a pause is not followed by a burst.
 */
#include "pace.h"

#include "base/check.h"

#define MS_NS UINT64_C(1000000)

void pace_init(struct pace *pace, uint64_t rate) { *pace = (struct pace){.rate = rate}; }

void pace_set_rate(struct pace *pace, uint64_t rate)
{
    pace->rate = rate;
    pace->due_ns = 0;
}

/* Measures how many bytes clients have moved since the last call. Scrubbing may then read one byte
 * for PACE_SHARE of theirs, until they are quiet. */
static void measure(struct pace *pace, uint64_t now_ns, uint64_t load)
{
    uint64_t moved = pace->primed ? load - pace->load : 0;
    pace->primed = true;
    pace->load = load;
    if (moved == 0) {
        return;
    }
    if (now_ns >= pace->busy_ns) {
        pace->credit = 0; /* bytes that moved while nobody counted give no credit */
    }
    pace->busy_ns = now_ns + PACE_QUIET_MS * MS_NS;
    pace->credit += (int64_t)(moved / PACE_SHARE);
    if (pace->credit > PACE_CREDIT_MAX) {
        pace->credit = PACE_CREDIT_MAX;
    }
}

bool pace_is_yielding(const struct pace *pace, uint64_t now_ns) { return now_ns < pace->busy_ns; }

uint64_t pace_wait_ms(struct pace *pace, uint64_t now_ns, uint64_t load)
{
    measure(pace, now_ns, load);
    if (pace_is_yielding(pace, now_ns) && pace->credit <= 0) {
        return PACE_CHECK_MS;
    }
    return pace->due_ns > now_ns ? (pace->due_ns - now_ns + MS_NS - 1) / MS_NS : 0;
}

void pace_charge(struct pace *pace, uint64_t now_ns, uint64_t bytes)
{
    if (pace_is_yielding(pace, now_ns)) {
        pace->credit -= (int64_t)bytes;
    }
    if (pace->rate == 0) {
        return;
    }
    uint64_t least = now_ns > PACE_BURST_MS * MS_NS ? now_ns - PACE_BURST_MS * MS_NS : 0;
    pace->due_ns = max_u64(pace->due_ns, least);
    pace->due_ns += (uint64_t)((double)bytes * 1e9 / (double)pace->rate);
}
