/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics: the families of samples about a daemon, its runs and its store (listed in
 * docs/metrics.md). Everything is counted elsewhere; a scrape copies numbers.
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

enum { METRICS_RUNS_MAX = 256, METRICS_RUN_HOURS = 48, METRICS_PROJECTS_MAX = 256 };

/* The objects that metrics are read from. Borrowed; NULL if the daemon has no such object. */
struct metrics_source {
    struct loop *loop;
    struct catalog *catalog; /* NULL while there is no store */
    struct server *server;
    const struct scrub *scrub;
    const struct gc *gc;
    const struct retain *retain;
    const struct store_counts *store; /* required with a catalog */
    int64_t begun_wall_ns;
    int64_t certificate_ends_s; /* in seconds since 1970; 0 without TLS */
};
/* The facts that had to be asked of the store. */
struct metrics_usage {
    int status; /* not 0 if the store gave no answer */
    struct store_usage usage;
    struct health_word health;
    uint64_t waits_ms; /* how long the daemon has waited for the store; 0 if it is there */
};

/* Writes all families of which the source has the objects. Loop's thread. */
void metrics_write(const struct metrics_source *source, const struct metrics_usage *usage,
                   struct expose *expose);

#endif
