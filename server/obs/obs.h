/* SPDX-License-Identifier: Apache-2.0
 *
 * obs: a server's endpoint for monitoring: GET /metrics (Prometheus' text format, OpenMetrics when
 * asked for) and /healthz. It only looks. One loop's thread.
 */
#ifndef CAIRN_OBS_OBS_H
#define CAIRN_OBS_OBS_H

#include "obs/http.h"
#include "obs/metrics.h"

struct obs_options {
    struct net *net;
    const struct net_addr *addr;
    struct metrics_source source; /* what it points to outlives obs */
};

struct obs;

int MUST_USE obs_new(const struct obs_options *options, struct obs **ret, struct diag *diag);
/* No new scrape; ends when the store has answered the last one. Frees. */
void obs_close(struct obs *obs, void (*done)(void *user), void *user);

#endif
