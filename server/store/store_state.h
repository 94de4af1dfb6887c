/* SPDX-License-Identifier: Apache-2.0
 *
 * store_state: whether a store does what it is asked to do, as its watch has seen it
 * (wrap/store_watch.c).
 */
#ifndef CAIRN_STORE_STORE_STATE_H
#define CAIRN_STORE_STORE_STATE_H

#include "base/err.h"

#include <stdint.h>

enum store_word {
    STORE_WELL,
    STORE_RECOVERED, /* it refused something a moment ago, and works again */
    STORE_REFUSING   /* it refuses now */
};

struct store_state {
    enum store_word word;
    struct diag refusal;     /* the last refusal: code and text */
    uint64_t since_ms;       /* how long ago the first refusal of this row was */
    uint64_t last_ms;        /* how long ago the last one was */
    uint64_t refusals;       /* in this row */
    uint64_t refusals_total; /* since the start; a changed number means a new refusal */
    uint64_t
        /* If it is REFUSING for lack of room: the size of the object that had none; 0 if not
         * known. */
        wanted_bytes;
};

#endif
