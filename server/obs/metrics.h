/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics: what a daemon tells of itself, its runs and its store, as families of samples
 * (README.md has the list). Everything is counted already; a scrape copies numbers.
 */
#ifndef CAIRN_OBS_METRICS_H
#define CAIRN_OBS_METRICS_H

#include "gc/gc.h"
#include "obs/expose.h"
#include "run/run_counts.h"
#include "run/run_retain.h"
#include "scrub/scrub.h"
#include "session/health.h"
#include "session/server.h"
#include "store/wrap/store_wrap.h"

enum { METRICS_RUNS_MAX = 256, METRICS_RUN_HOURS = 48 };

/* Borrowed; NULL where the daemon has none. */
struct metrics_source {
    struct loop *loop;
    struct catalog *catalog; /* NULL: there is no store yet */
    struct server *server;
    const struct scrub *scrub;
    const struct gc *gc;
    const struct retain *retain;
    const struct store_counts *store; /* required with a catalog */
    int64_t begun_wall_ns;
};
/* What had to be asked of the store. */
struct metrics_usage {
    int status; /* not 0: it gave no answer */
    struct store_usage usage;
    struct health_word health;
    uint64_t waits_ms; /* for the store; 0: it is there */
};

void metrics_write(const struct metrics_source *source, const struct metrics_usage *usage,
                   struct expose *expose);

#endif
