/* SPDX-License-Identifier: Apache-2.0
 *
 * listeners_http: what [http] says, and the rule that nobody reads the names of runs over the
 * network without TLS and a certificate or token, unless the operator has allowed it.
 */
#ifndef CAIRN_DAEMON_LISTENERS_HTTP_H
#define CAIRN_DAEMON_LISTENERS_HTTP_H

#include "daemon/config.h"
#include "http/http.h"

enum { CAIRN_HTTP_PORT = 7422 };

struct listeners_http {
    struct net_addr addr;       /* the port is 7422 if listen names none */
    char *cert, *key, *ca;      /* PEM; NULL for plain HTTP */
    char token[HTTP_TOKEN_MAX]; /* "" if there is none */
    /* Whoever reaches the address may read and write everything over plain TCP already. */
    bool trusts_all;
};

/* Reads [http] with the files that it names; its listen must not be empty. *ret needs
 * listeners_http_fini() also after an error. Returns CONFIG. */
int MUST_USE listeners_http(const struct config *config, struct listeners_http *ret,
                            struct diag *diag);
void listeners_http_fini(struct listeners_http *http);

#endif
