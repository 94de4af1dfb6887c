/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_cluster: a daemon's way to the fake cluster (tests/support/cluster_fake.h) on the simulated
 * clock and network: each operation travels there, is carried out, and its answer travels back,
 * while other daemons' operations do the same. On the way it can be lost, arrive twice, late, after
 * its caller was told that it timed out, after its daemon's death; its answer can be lost. The
 * caller waits in sim_wait(), so what a store does between two operations of its own is seen by
 * others. One thread.
 */
#ifndef CAIRN_TEST_SIM_CLUSTER_H
#define CAIRN_TEST_SIM_CLUSTER_H

#include "sim/env/sim.h"
#include "sim_mutant.h"
#include "support/cluster_fake.h"

/* What the ways to the cluster are like now; one for all daemons of a scene. Per cent. */
struct sim_weather {
    unsigned lost;       /* never arrives */
    unsigned unanswered; /* carried out, and nobody learns of it */
    unsigned late;       /* arrives after its caller was told that it timed out */
    unsigned twice;      /* carried out, the answer lost, sent again, and answered then */
    unsigned refused;    /* answered with error, not carried out; also looks */
    int error;           /* errno of refused */
    uint64_t latency_max_us;
    uint64_t timeout_us;
};

struct sim_way;
/* The cluster for the store of the daemon on host; closed with the store. weather: borrowed. */
struct sim_way *sim_way_new(struct sim *sim, struct sim_host *host, struct fake_medium *medium,
                            const struct sim_weather *weather, const struct sim_mutant *mutant);
struct cluster *sim_way_cluster(struct sim_way *way);
/* Nothing that the daemon asks arrives (deaf: nothing that it is told), until it is taken back. */
void sim_way_block(struct sim_way *way, bool mute, bool deaf);
/* The daemon dies just before (after: just after it has been carried out) the n'th change from now
 * on. 0 takes it back. */
void sim_way_kill_at(struct sim_way *way, uint64_t change, bool after);

#endif
