/* SPDX-License-Identifier: Apache-2.0
 *
 * rest: what /api/v1/ answers: JSON about the daemon, its runs and their checkpoints (docs/web.md
 * has the fields). It only reads what is in memory, and asks the store nothing. Each answer is
 * bounded; a longer list comes in pages. Loop's thread.
 */
#ifndef CAIRN_REST_REST_H
#define CAIRN_REST_REST_H

#include "gc/gc.h"
#include "http/http.h"
#include "obs/metrics.h"

#define REST_PREFIX "/api/v1"

struct rest_source {
    const struct metrics_source *metrics; /* its catalog is NULL while there is no store */
    const struct metrics_usage *usage;    /* what the store said last, and the health */
    const struct quota_table *quotas;     /* NULL if there are none */
    const char *addresses; /* where clients reach this daemon, with spaces between; "" if nowhere */
};

/* Answers a request whose target begins with REST_PREFIX. An error is an answer as well. */
void rest_answer(const struct rest_source *source, const char *target, struct http_reply *io);

#endif
