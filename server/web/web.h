/* SPDX-License-Identifier: Apache-2.0
 *
 * web: what a daemon answers over HTTP: /metrics (Prometheus' text format, or OpenMetrics on
 * request), /healthz, /readyz, JSON under /api/v1/, and the page that shows it. It only reads, and
 * asks the store nothing but its usage, by a timer, so that no request waits for a disk. It answers
 * from the start, even while the server has no store yet. One loop's thread.
 */
#ifndef CAIRN_WEB_WEB_H
#define CAIRN_WEB_WEB_H

#include "rest/rest.h"

struct web_options {
    const struct net_addr *addr;
    const char *tls_cert, *tls_key, *tls_ca; /* PEM; NULL means plain HTTP */
    const char *token;                       /* "" means none */
    /* Whoever can connect may read everything by the protocol already. */
    bool trusts_all;
    const struct quota_table *quotas; /* NULL if there are none */
    struct loop *loop;
    int64_t begun_wall_ns;
};

struct web;

/* Listens at options->addr. Returns the error of listening, or NO_MEMORY. */
int MUST_USE web_new(const struct web_options *options, struct web **ret, struct diag *diag);
/* Sets the objects to read from now on, and where clients reach the daemon (copied). */
void web_set_source(struct web *web, const struct metrics_source *source, const char *addresses);
/* Ends all connections, and looks at none of the objects any more when it returns. Frees, and then
 * calls done, when the store has given its last answer: the caller closes the store after that. */
void web_close(struct web *web, void (*done)(void *user), void *user);

#endif
