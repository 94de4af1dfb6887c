/* SPDX-License-Identifier: Apache-2.0
 *
 * health: sums up the state of a server in one word, with one reason and its remedy. Red means that
 * saves are refused. Yellow means that they are not, but somebody should act. Pure.
 */
#ifndef CAIRN_SESSION_HEALTH_H
#define CAIRN_SESSION_HEALTH_H

#include "gc/gc.h"
#include "run/run_counts.h"
#include "scrub/scrub.h"
#include "store/store.h"
#include "store/store_state.h"
#include "wire/msg.h"

enum { HEALTH_TEXT_BYTES = DIAG_TEXT_MAX + 128, HEALTH_REMEDY_BYTES = 768 };

struct health_word {
    enum server_health word;
    int code; /* if red: the store's error */
    uint64_t since_ms;
    char text[HEALTH_TEXT_BYTES], remedy[HEALTH_REMEDY_BYTES];
};

struct health_facts { /* a fact is NULL if it is not known or does not belong to this server */
    const struct store_state *store;
    const struct store_usage *usage;
    const struct scrub_status *scrub;
    const struct gc_status *gc;
    const struct catalog_totals *totals;
    const char *url;    /* of the store, for remedies */
    const char *mirror; /* why repairs could not read the mirror */
    const char *config; /* what the last SIGHUP could not take */
};

/* Sums up the facts. The worst of them decides; that a store is almost full is told beside it. */
void health_of(const struct health_facts *facts, struct health_word *ret);

#endif
