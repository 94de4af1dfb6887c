/* SPDX-License-Identifier: Apache-2.0
 *
 * listeners: the sockets of the configuration, each with its layers (TLS on TCP if certificates are
 * set), and the rule that TCP without TLS is refused unless the configuration allows it.
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

/* Checks what can be checked without binding. Returns CONFIG for a bad address, or for plaintext on
 * the network. */
int MUST_USE listeners_check(const struct config *config, struct diag *diag);
/* Binds everything or nothing. Returns BUSY if an address is in use, CONFIG for an address, a
 * certificate or a key that cannot be used, or the error of the system call. */
int MUST_USE listeners_new(const struct listeners_options *options, struct listeners **ret,
                           struct diag *diag);
/* Reads the files of [tls] again, for connections that come from now on; those that are there keep
 * what they have. After an error everything stays as it was. */
int MUST_USE listeners_renew(struct listeners *listeners, const struct config *config,
                             struct diag *diag);
/* Writes where clients reach this daemon, with spaces between: [listen] advertise, or what the
 * sockets are bound to, where this host's name stands for any address. Cut at the last that fits.
 */
void listeners_addresses(const struct listeners *listeners, const struct config *config,
                         size_t size, char *ret);
/* Stops accepting and removes the Unix socket. Accepts NULL. */
void listeners_free(struct listeners *listeners);

#endif
