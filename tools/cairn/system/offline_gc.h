/* SPDX-License-Identifier: Apache-2.0
 *
 * offline_gc: garbage collection on a store without a daemon, in this process, under the store's
 * lock.
 */
#ifndef CAIRN_TOOLS_OFFLINE_GC_H
#define CAIRN_TOOLS_OFFLINE_GC_H

#include "gc/gc.h"
#include "wire/msg.h"

struct offline_gc_options {
    const char *store; /* a store's URL */
    bool dry_run, cycle;
    uint64_t keep_cycles;
    bool now; /* reclaims without waiting, in one pass; the rest is about it */
    const char *actor;
    const struct run_name *runs; /* of these only; none: of all */
    size_t run_count;
};

/* Two passes: what is found dead goes in the second. A dry run is one, which tells of both.
 * info->text points into text. STORE_LOCKED while a daemon has the store. */
int MUST_USE offline_gc(const struct offline_gc_options *options, struct gc_info *ret,
                        char text[GC_TEXT_MAX], struct diag *diag);

#endif
