/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses as users write them, and back. Invariant: what net_addr_format() prints parses to the
 * same address. Pure; any thread.
 */
#include "net.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/digits.h"

static int parse_unix(const char *path, struct net_addr *ret, struct diag *diag);

int net_addr_parse(const char *text, uint16_t default_port, struct net_addr *ret, struct diag *diag)
{
    struct net_addr addr = {.family = NET_TCP, .port = default_port};
    const char *host, *end, *port;

    if (strncmp(text, "unix:", 5) == 0) {
        return parse_unix(text + 5, ret, diag);
    }
    host = strncmp(text, "tcp:", 4) == 0 ? text + 4 : text;
    if (*host == '[') {
        host++;
        end = strchr(host, ']');
        if (!end || (end[1] && end[1] != ':')) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the address \"%s\" is not valid; write an IPv6 address as [::1]:port",
                            text);
        }
        port = end[1] ? end + 2 : NULL;
    } else {
        end = host + strcspn(host, ":");
        port = *end ? end + 1 : NULL;
        if (port && strchr(port, ':')) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the address \"%s\" is not valid; write an IPv6 address as [::1]:port",
                            text);
        }
    }
    if ((size_t)(end - host) >= sizeof addr.host) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the host name of the address is longer than %zu bytes",
                        sizeof addr.host - 1);
    }
    memcpy(addr.host, host, (size_t)(end - host));
    if (addr.host[strcspn(addr.host, "/ \t@?[")]) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the address \"%s\" has no valid host name; write host:port or unix:/path",
                        text);
    }
    uint64_t number = default_port;
    if (port && !digits_parse_decimal(port, UINT16_MAX, &number)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the address \"%s\" has no valid port; the port must be 0 to 65535", text);
    }
    addr.port = (uint16_t)number;
    *ret = addr;
    return 0;
}

/* Parses an absolute path that fits into sun_path. */
static int parse_unix(const char *path, struct net_addr *ret, struct diag *diag)
{
    struct net_addr addr = {.family = NET_UNIX};
    size_t bytes = strlen(path);

    if (path[0] != '/') {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the address \"unix:%s\" is not valid: the path must start with /", path);
    }
    if (bytes > NET_UNIX_PATH_MAX) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the address \"unix:%s\" is not valid: the path of a socket may have at most %d bytes",
            path, NET_UNIX_PATH_MAX);
    }
    memcpy(addr.host, path, bytes);
    *ret = addr;
    return 0;
}

void net_addr_format(const struct net_addr *addr, size_t bytes, char *ret)
{
    if (addr->family == NET_UNIX) {
        snprintf(ret, bytes, "unix:%s", addr->host);
    } else if (strchr(addr->host, ':')) {
        snprintf(ret, bytes, "tcp:[%s]:%u", addr->host, addr->port);
    } else {
        snprintf(ret, bytes, "tcp:%s:%u", addr->host, addr->port);
    }
}

bool net_addr_is_local(const struct net_addr *addr)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (addr->family == NET_UNIX || strcmp(addr->host, "localhost") == 0) {
        return true;
    }
    if (inet_pton(AF_INET, addr->host, &v4) == 1) {
        return (ntohl(v4.s_addr) >> 24) == 127;
    }
    if (inet_pton(AF_INET6, addr->host, &v6) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
    }
    return false;
}
