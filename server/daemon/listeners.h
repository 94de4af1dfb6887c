/* SPDX-License-Identifier: Apache-2.0
 *
 * listeners: the sockets of the configuration, each stacked as it must be (TLS on TCP where
 * certificates are set), and the rule that nobody comes in by TCP without TLS unless the
 * configuration says so.
 */
#ifndef CAIRN_DAEMON_LISTENERS_H
#define CAIRN_DAEMON_LISTENERS_H

#include "daemon/config.h"
#include "env/net.h"
#include "session/server.h"

struct listeners;

struct listeners_options {
    struct loop *loop;
    struct net *net;
    const struct config *config;
    struct server *server;
};

/* What can be said without binding. CONFIG: an address that is none, plaintext on the network. */
int MUST_USE listeners_check(const struct config *config, struct diag *diag);
enum { CAIRN_METRICS_PORT = 7422 };
/* [metrics] listen, which must not be empty; 7422 where it names no port. CONFIG. */
int MUST_USE listeners_metrics_addr(const struct config *config, struct net_addr *ret,
                                    struct diag *diag);
/* Binds everything or nothing. BUSY: the address is in use; CONFIG; AUTH: certificates. */
int MUST_USE listeners_new(const struct listeners_options *options, struct listeners **ret,
                           struct diag *diag);
/* Stops accepting and removes the Unix socket. Accepts NULL. */
void listeners_free(struct listeners *listeners);

#endif
