/* SPDX-License-Identifier: Apache-2.0
 *
 * listeners_http: see listeners_http.h. Reads files, so it runs at the start and at no other time.
 */
#include "daemon/listeners_http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

enum { PEM_BYTES_MAX = 1 << 20, TOKEN_BYTES_MIN = 16 };

/* Reads a small file whole. A secret must not be readable for others. The caller frees *ret. */
static int read_file(const char *path, bool is_secret, char **ret, struct diag *diag)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC), status = 0;
    char *text = calloc(1, PEM_BYTES_MAX);
    ssize_t bytes = text && fd >= 0 ? read(fd, text, PEM_BYTES_MAX) : -1;
    if (bytes < 0 || fstat(fd, &about) != 0) {
        status = diag_set(diag, CAIRN_E_CONFIG, "cannot read %s: %s", path, strerror(errno));
    } else if (bytes == PEM_BYTES_MAX) {
        status = diag_set(diag, CAIRN_E_CONFIG, "%s is too long: it may have %d bytes", path,
                          PEM_BYTES_MAX - 1);
    } else if (is_secret && (about.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
        status =
            diag_set(diag, CAIRN_E_CONFIG,
                     "%s is a secret that others can read or change: chmod 600 %s", path, path);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (status != 0 && text) {
        explicit_bzero(text, PEM_BYTES_MAX);
        free(text);
        return status;
    }
    *ret = text;
    return status;
}

/* Reads the token: one line of 16 to 255 characters that a header can carry. */
static int read_token(const char *path, struct listeners_http *io, struct diag *diag)
{
    char *text = NULL;
    int status = read_file(path, true, &text, diag);
    if (status != 0) {
        diag_add(diag, "[http] token-file (make one with: umask 077; openssl rand -hex 32 > FILE)");
        return status;
    }
    size_t bytes = strcspn(text, "\r\n");
    bool good = bytes >= TOKEN_BYTES_MIN && bytes < sizeof(io->token);
    for (size_t i = 0; good && i < bytes; i++) {
        good = text[i] > ' ' && text[i] < 0x7f;
    }
    if (good) {
        memcpy(io->token, text, bytes);
        io->token[bytes] = '\0';
    } else {
        status = diag_set(diag, CAIRN_E_CONFIG,
                          "[http] token-file %s must hold one line of 16 to 255 letters, digits or "
                          "signs: openssl rand -hex 32 > %s",
                          path, path);
    }
    explicit_bzero(text, PEM_BYTES_MAX);
    free(text);
    return status;
}

/* Checks that what the network could read in plain was allowed, and that no token goes there. */
static int check_plain(const struct config *config, bool is_local, struct diag *diag)
{
    if (config->http_tls || is_local) {
        return 0;
    }
    if (!config->http_network) {
        return diag_set(
            diag, CAIRN_E_CONFIG,
            "[http] listen = %s can be reached from the network, where anyone could read the names "
            "of runs: listen on 127.0.0.1, or set [http] tls = yes with [tls] cert, key and ca, or "
            "set on-network = yes, which serves /metrics, /healthz and /readyz to anyone",
            config->http_listen);
    }
    if (config->http_token_file[0] != '\0') {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[http] token-file with listen = %s would let the token go over the "
                        "network in plain: set tls = yes, or listen on 127.0.0.1",
                        config->http_listen);
    }
    return 0;
}

static int read_tls(const struct config *config, struct listeners_http *io, struct diag *diag)
{
    if (config->tls_cert[0] == '\0') {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[http] tls = yes needs [tls] cert, key and ca, which are not set");
    }
    int status = read_file(config->tls_cert, false, &io->cert, diag);
    status = status != 0 ? status : read_file(config->tls_key, true, &io->key, diag);
    return status != 0 ? status : read_file(config->tls_ca, false, &io->ca, diag);
}

int listeners_http(const struct config *config, struct listeners_http *ret, struct diag *diag)
{
    CHECK(config->http_listen[0] != '\0');
    memset(ret, 0, sizeof(*ret));
    int status = net_addr_parse(config->http_listen, CAIRN_HTTP_PORT, &ret->addr, diag);
    if (status != 0) {
        diag_add(diag, "[http] listen");
        return status;
    }
    if (ret->addr.family != NET_TCP) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[http] listen is '%s', which is not a TCP address; write host:port",
                        config->http_listen);
    }
    bool is_local = net_addr_is_local(&ret->addr);
    const char *plain = config->listen_plain_tcp;
    ret->trusts_all = !config->http_tls && (strcmp(plain, "network") == 0 ||
                                            (is_local && strcmp(plain, "loopback") == 0));
    status = check_plain(config, is_local, diag);
    if (status == 0 && config->http_token_file[0] != '\0') {
        status = read_token(config->http_token_file, ret, diag);
    }
    status = status == 0 && config->http_tls ? read_tls(config, ret, diag) : status;
    CHECK(status != 0 || !config->http_tls || (ret->cert && ret->key && ret->ca));
    return status;
}

void listeners_http_fini(struct listeners_http *http)
{
    if (http->key) {
        explicit_bzero(http->key, strlen(http->key));
    }
    explicit_bzero(http->token, sizeof(http->token));
    free(http->cert);
    free(http->key);
    free(http->ca);
}
