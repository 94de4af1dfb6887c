/* SPDX-License-Identifier: Apache-2.0
 *
 * reclaim: what `cairn gc --now` and `cairn forget --now` share: forgotten checkpoints are
 * reclaimed without waiting for cycles, by the daemon, or by this process on a store without one.
 * It destroys: so it says before what goes for good. One thread.
 */
#ifndef CAIRN_TOOLS_RECLAIM_H
#define CAIRN_TOOLS_RECLAIM_H

#include "cli.h"
#include "gc/gc.h"
#include "keep/mark.h"

struct reclaim {
    bool dry_run;
    const struct run_name *runs; /* of these only; none: of all */
    size_t run_count;
    char actor[MARK_ACTOR_BYTES]; /* reclaim_now fills it */
};

/* Returns when what is forgotten is reclaimed and its space given back. *ret is the report; its
 * text points into `text`. The source's connection is ended where a store is worked on without a
 * daemon. UNSUPPORTED: the server is older than this. BUSY, NOT_FOUND: as the server says. */
int MUST_USE reclaim_now(struct cli *cli, struct reclaim *what, struct gc_info *ret,
                         char text[GC_TEXT_MAX], struct diag *diag);

/* Asks the server to begin a pass and waits for its end; begin false: only asks. The reply's text
 * is copied to `text`. */
int MUST_USE reclaim_ask(struct cli *cli, const struct msg_gc *asked, struct gc_info *ret,
                         char text[GC_TEXT_MAX], struct diag *diag);

#endif
