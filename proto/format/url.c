/* SPDX-License-Identifier: Apache-2.0
 *
 * URLs of runs: cairn://h1:port,h2:port/project/run and cairn+unix:///path?run=project/run. Hosts
 * are split, and get their default port, here; they are resolved elsewhere. Nothing is
 * percent-decoded: what may stand in a URL needs no escapes, and a '%' or '@' is refused. Pure; any
 * thread.
 */
#include "ids.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/digits.h"

static int url_add(struct url *url, const char *prefix, size_t bytes, const char *text,
                   struct diag *diag)
{
    if (url->server_count == URL_SERVERS_MAX) {
        return diag_set(diag, CAIRN_E_INVALID, "the URL names more than %d servers",
                        URL_SERVERS_MAX);
    }
    char *to = url->servers[url->server_count];
    if (strlen(prefix) + bytes + sizeof ":65535" > sizeof url->servers[0]) {
        return diag_set(diag, CAIRN_E_INVALID, "the server \"%.40s...\" is too long", text);
    }
    int n = snprintf(to, sizeof url->servers[0], "%s%.*s", prefix, (int)bytes, text);
    CHECK(n > 0 && (size_t)n < sizeof url->servers[0]);
    url->server_count++;
    return 0;
}

static bool is_host_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

/* Returns the bytes of the host in "host", "host:port", "[v6]" or "[v6]:port", or 0 if the text is
 * none of them. */
static size_t host_bytes(size_t bytes, const char *text)
{
    size_t i = 0;
    if (bytes > 0 && text[0] == '[') {
        for (i = 1; i < bytes && text[i] != ']'; i++) {
            if (!is_host_char(text[i]) && text[i] != ':') {
                return 0;
            }
        }
        return i > 1 && i < bytes ? i + 1 : 0;
    }
    while (i < bytes && is_host_char(text[i])) {
        i++;
    }
    return i;
}

static bool port_is_valid(size_t bytes, const char *text)
{
    const char *at = text;
    uint64_t port = 0;
    return digits_read_decimal(&at, UINT16_MAX, &port) && at == text + bytes && port >= 1;
}

/* Adds one server, with the default port if it names none. */
static int url_add_host(struct url *url, size_t bytes, const char *text, struct diag *diag)
{
    size_t host = host_bytes(bytes, text);
    bool has_port = host > 0 && host < bytes && text[host] == ':';
    bool good =
        host > 0 && (has_port ? port_is_valid(bytes - host - 1, text + host + 1) : host == bytes);
    if (!good) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%.*s\" does not name a server; write host, host:port or [ipv6]:port, "
                        "with a port of 1 to 65535; for a Unix socket unix:/path in CAIRN_SERVER "
                        "or --server, cairn+unix:///path in a URL",
                        (int)(bytes < 80 ? bytes : 80), text);
    }
    int rc = url_add(url, "", bytes, text, diag);
    if (rc == 0 && !has_port) {
        char *to = url->servers[url->server_count - 1];
        size_t at = strlen(to);
        int n = snprintf(to + at, sizeof url->servers[0] - at, ":%d", CAIRN_DEFAULT_PORT);
        CHECK(n > 0 && (size_t)n < sizeof url->servers[0] - at);
    }
    return rc;
}

static int url_add_unix(struct url *url, size_t bytes, const char *path, struct diag *diag)
{
    if (bytes < 2 || path[0] != '/') {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the path of a Unix socket must be absolute, as in cairn+unix:///run/cairn.sock");
    }
    if (bytes > 107) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the path of the Unix socket has %zu bytes, but the system allows at most 107", bytes);
    }
    return url_add(url, "unix:", bytes, path, diag);
}

/* Adds the servers of "h1:port,h2" or, in CAIRN_SERVER only, "unix:/path". */
static int url_add_list(struct url *url, size_t bytes, const char *text, struct diag *diag)
{
    for (size_t from = 0; from <= bytes;) {
        const char *comma = memchr(text + from, ',', bytes - from);
        size_t end = comma != NULL ? (size_t)(comma - text) : bytes;
        int rc = url_add_host(url, end - from, text + from, diag);
        if (rc != 0) {
            return rc;
        }
        from = end + 1;
    }
    return 0;
}

/* Adds the servers of CAIRN_SERVER. */
static int url_add_default(struct url *url, const char *default_server, struct diag *diag)
{
    if (default_server == NULL || default_server[0] == '\0') {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the URL names no server and CAIRN_SERVER is not set; set it to "
                        "unix:/path or host:port, or write cairn://host:port/project/run");
    }
    int rc = strncmp(default_server, "unix:", 5) == 0
                 ? url_add_unix(url, strlen(default_server + 5), default_server + 5, diag)
                 : url_add_list(url, strlen(default_server), default_server, diag);
    if (rc != 0) {
        diag_add(diag, "CAIRN_SERVER");
    }
    return rc;
}

static int url_set_run(struct url *url, const char *text, bool allow_no_run, struct diag *diag)
{
    if (text[0] == '\0') {
        return allow_no_run ? 0
                            : diag_set(diag, CAIRN_E_INVALID,
                                       "the URL names no run; write cairn://host:port/project/run");
    }
    url->has_run = true;
    return run_name_parse(text, &url->run, diag);
}

static int url_parse_tcp(const char *rest, const char *default_server, bool allow_no_run,
                         struct url *url, struct diag *diag)
{
    size_t hosts = strcspn(rest, "/");
    int rc = hosts > 0 ? url_add_list(url, hosts, rest, diag)
                       : url_add_default(url, default_server, diag);
    if (rc != 0) {
        return rc;
    }
    const char *run = rest[hosts] == '/' ? rest + hosts + 1 : rest + hosts;
    if (hosts > 0 && run[0] != '\0' && strchr(run, '/') == NULL) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the URL names the server \"%.*s\" and no run on it; write "
                        "cairn:///project/run for the server in CAIRN_SERVER, or "
                        "cairn://host:port/project/run",
                        (int)(hosts < 80 ? hosts : 80), rest);
    }
    return url_set_run(url, run, allow_no_run, diag);
}

/* Parses what follows cairn+unix://, a path and perhaps a run. */
static int url_parse_unix(const char *rest, bool allow_no_run, struct url *url, struct diag *diag)
{
    size_t path = strcspn(rest, "?");
    int rc = url_add_unix(url, path, rest, diag);
    if (rc != 0) {
        return rc;
    }
    const char *query = rest + path;
    if (query[0] == '?') {
        if (strncmp(query, "?run=", 5) != 0 || query[5] == '\0') {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the URL has the unknown parameter \"%.64s\"; only ?run=project/run "
                            "may follow the path",
                            query);
        }
        query += 5;
    }
    return url_set_run(url, query, allow_no_run, diag);
}

int url_parse(const char *text, const char *default_server, bool allow_no_run, struct url *ret,
              struct diag *diag)
{
    static const char tcp[] = "cairn://", local[] = "cairn+unix://";
    struct url url;
    int rc = 0;
    memset(&url, 0, sizeof url);
    for (const char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '%' || *p == '@' || *p == '#') {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the URL has the byte 0x%02x at position %zu; spaces, control "
                            "characters and %% @ # are not allowed",
                            (unsigned)(unsigned char)*p, (size_t)(p - text) + 1);
        }
    }
    if (strncmp(text, tcp, sizeof tcp - 1) == 0) {
        rc = url_parse_tcp(text + sizeof tcp - 1, default_server, allow_no_run, &url, diag);
    } else if (strncmp(text, local, sizeof local - 1) == 0) {
        rc = url_parse_unix(text + sizeof local - 1, allow_no_run, &url, diag);
    } else {
        rc = diag_set(diag, CAIRN_E_INVALID,
                      "\"%.64s\" is not a Cairn URL; write cairn://host:port/project/run or "
                      "cairn+unix:///path?run=project/run",
                      text);
    }
    if (rc == 0) {
        *ret = url;
    }
    return rc;
}
