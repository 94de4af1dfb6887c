/* SPDX-License-Identifier: Apache-2.0
 *
 * obs: a server's endpoint for monitoring: GET /metrics (Prometheus' text format, OpenMetrics when
 * asked for) and /healthz. It only looks, and answers from the beginning: also while the server
 * has no store yet. One loop's thread.
 */
#ifndef CAIRN_OBS_OBS_H
#define CAIRN_OBS_OBS_H

#include "obs/http.h"
#include "obs/metrics.h"

struct obs_options {
    struct net *net;
    const struct net_addr *addr;
    struct metrics_source source; /* what it points to outlives obs; without a catalog: no store */
};

struct obs;

int MUST_USE obs_new(const struct obs_options *options, struct obs **ret, struct diag *diag);
/* What there is to be looked at now. */
void obs_look_at(struct obs *obs, const struct metrics_source *source);
/* No new scrape; ends when the store has answered the last one. Frees. */
void obs_close(struct obs *obs, void (*done)(void *user), void *user);

#endif
