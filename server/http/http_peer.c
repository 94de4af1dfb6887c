/* SPDX-License-Identifier: Apache-2.0
 *
 * http_peer: see http_peer.h.
 */
#include "http/http_peer.h"

#include <arpa/inet.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool http_peer_has_certificate(void *session)
{
    gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                     .data = (unsigned char *)GNUTLS_KP_TLS_WWW_CLIENT};
    unsigned flaws = 0;
    return session && gnutls_certificate_verify_peers(session, &purpose, 1, &flaws) == 0 &&
           flaws == 0;
}

bool http_peer_has_token(const char *header, const char *token)
{
    static const char scheme[] = "Bearer ";
    size_t bytes = strlen(token);
    if (!header || bytes == 0 || strncasecmp(header, scheme, sizeof(scheme) - 1) != 0) {
        return false;
    }
    const char *sent = header + sizeof(scheme) - 1;
    size_t sent_bytes = strlen(sent);
    unsigned different = sent_bytes != bytes;
    for (size_t i = 0; i < sent_bytes; i++) {
        different |= (unsigned char)sent[i] ^ (unsigned char)token[i % bytes];
    }
    return different == 0;
}

bool http_peer_has_safe_host(const char *host)
{
    char name[64];
    struct in6_addr number;
    if (!host || strlen(host) >= sizeof(name)) {
        return !host;
    }
    snprintf(name, sizeof(name), "%s", host[0] == '[' ? host + 1 : host);
    name[strcspn(name, host[0] == '[' ? "]" : ":")] = '\0';
    return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &number) == 1 ||
           inet_pton(AF_INET6, name, &number) == 1;
}
