/* SPDX-License-Identifier: Apache-2.0
 *
 * obs: the monitoring endpoint of a server: GET /metrics (Prometheus' text format, or OpenMetrics
 * on request) and /healthz. It only reads. It answers from the start, even while the server has no
 * store yet. One loop's thread.
 */
#ifndef CAIRN_OBS_OBS_H
#define CAIRN_OBS_OBS_H

#include "obs/http.h"
#include "obs/metrics.h"

struct obs_options {
    struct net *net;
    const struct net_addr *addr;
    /* What it points to outlives obs; its catalog is NULL while there is no store. */
    struct metrics_source source;
};

struct obs;

int MUST_USE obs_new(const struct obs_options *options, struct obs **ret, struct diag *diag);
/* Sets the objects to read from now on. */
void obs_look_at(struct obs *obs, const struct metrics_source *source);
/* Accepts no more scrapes and ends when the store has answered the last one. Frees, then calls
 * done. */
void obs_close(struct obs *obs, void (*done)(void *user), void *user);

#endif
