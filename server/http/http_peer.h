/* SPDX-License-Identifier: Apache-2.0
 *
 * http_peer: whether the peer of a request may be trusted: by the certificate that its TLS session
 * has verified, or by the token that it sends. Pure but for the session, which belongs to HTTP's
 * thread.
 */
#ifndef CAIRN_HTTP_HTTP_PEER_H
#define CAIRN_HTTP_HTTP_PEER_H

#include <stdbool.h>

/* Returns true if the peer has shown a client certificate of the configured authority that is valid
 * now. `session` is GnuTLS's. */
bool http_peer_has_certificate(void *session);
/* Returns true if the Authorization header, which may be NULL, is "Bearer TOKEN". Takes the same
 * time wherever they differ. An empty token matches nothing. */
bool http_peer_has_token(const char *header, const char *token);
/* Returns true if the Host header is NULL, "localhost" or a numeric address. A page of a foreign
 * site that lets its name point here sends that name, and must not read with a browser's help. */
bool http_peer_has_safe_host(const char *host);

#endif
