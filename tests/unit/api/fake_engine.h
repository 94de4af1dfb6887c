/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine without a server, linked in place of the real one: it does what the test's script says,
 * always from posts on its loop, as the real one. Scripts are set before the call that they are
 * for.
 */
#ifndef CAIRN_TESTS_UNIT_API_FAKE_ENGINE_H
#define CAIRN_TESTS_UNIT_API_FAKE_ENGINE_H

#include <stdbool.h>

/* Settings of the next operations; reset by fake_reset(). Guarded by nothing: set them while none
 * is starting. */
struct fake_script {
    int ready;         /* what engine_new tells */
    bool never_stages; /* a save waits until it is aborted */
    bool never_ends;   /* a staged save, or a restore, waits until it is aborted or let go */
    int stage_status;  /* a save fails before it is staged */
    int done_status;
    bool empty;         /* a restore that fails tells that the run is proven to be empty */
    bool ignores_abort; /* only engine_close ends it */
    bool breaks_worker; /* the copy of a save meets a broken CHECK on a worker */
    bool refuses;       /* stage_status is for want of room: the save ends later (never_ends) */
    bool copies_when_hurried; /* a lazy save is staged only when somebody waits for that */
};
extern struct fake_script fake_script;

struct fake_seen { /* of the newest save; encoding: of the newest engine */
    bool lazy, full;
    int encoding;
    int watch, when_full;
    unsigned check_replicas;
    void *after;
    bool all_local;               /* of the newest restore */
    unsigned marks, dry_marks;    /* MARKs, and those of them that were dry runs */
    unsigned long long mark_term; /* of the newest one; 0 if it named a step alone */
};
extern struct fake_seen fake_seen;

void fake_reset(void);
/* Ends the save or restore that waits, with done_status. Any thread. */
void fake_release(void);

#endif
