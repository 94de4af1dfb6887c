/* SPDX-License-Identifier: Apache-2.0
 *
 * health: one word for how a server is, with one reason and its remedy. Red: saves are refused.
 * Yellow: they are not, and somebody should look. Pure.
 */
#ifndef CAIRN_SESSION_HEALTH_H
#define CAIRN_SESSION_HEALTH_H

#include "gc/gc.h"
#include "run/run_counts.h"
#include "scrub/scrub.h"
#include "store/store.h"
#include "store/store_state.h"
#include "wire/msg_care.h"

enum { HEALTH_TEXT_BYTES = DIAG_TEXT_MAX + 64, HEALTH_REMEDY_BYTES = 512 };

struct health_word {
    enum server_health word;
    int code; /* red: the store's error */
    uint64_t since_ms;
    char text[HEALTH_TEXT_BYTES], remedy[HEALTH_REMEDY_BYTES];
};

struct health_facts { /* NULL: not known, or not this server's */
    const struct store_state *store;
    const struct store_usage *usage;
    const struct scrub_status *scrub;
    const struct gc_status *gc;
    const struct catalog_sight *sight;
    const char *url; /* of the store, for remedies */
};

/* The worst of them speaks. */
void health_of(const struct health_facts *facts, struct health_word *ret);

#endif
