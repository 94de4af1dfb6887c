/* SPDX-License-Identifier: Apache-2.0
 *
 * listeners: see listeners.h. Binding and accepting.
 */
#include "daemon/listeners.h"

#include "base/check.h"
#include "base/log.h"
#include "daemon/listeners_http.h"
#include "env/net.h"
#include "format/ids.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTENERS_MAX = 16 };

struct listeners;

struct place {
    struct listeners *listeners;
    struct listener *listener;
    struct net_addr addr;
    bool tls;
};

struct listeners {
    struct loop *loop;
    struct net *net;
    struct server *server;
    struct tls_context *tls;
    size_t count;
    struct place places[LISTENERS_MAX];
};

/* Called with a new connection: puts TLS on it if the listener has it, and gives it to the
 * server. */
static void on_accept(void *user, struct sock *sock)
{
    struct place *place = user;
    struct listeners *listeners = place->listeners;
    struct stream *stream = NULL;
    struct diag diag = DIAG_INIT;
    int status = stream_plain_new(sock, &stream, &diag);
    if (status == 0 && place->tls) {
        status = stream_tls_new(listeners->loop, listeners->tls, stream, NULL, &stream, &diag);
    }
    if (status != 0) {
        LOG(LOG_WARN, "listen", "connection refused", ls("err", diag_text(&diag, status)));
        return;
    }
    CHECK(stream != NULL);
    server_accept(listeners->server, stream);
}

/* Binds one address. Returns the error of the net, or CONFIG if there are too many. */
static int add_place(struct listeners *listeners, const struct net_addr *addr, unsigned mode,
                     struct diag *diag)
{
    char text[320];
    if (listeners->count == LISTENERS_MAX) {
        return diag_set(diag, CAIRN_E_CONFIG, "[listen] has more than %d addresses", LISTENERS_MAX);
    }
    CHECK(listeners->count < LISTENERS_MAX);
    struct place *place = &listeners->places[listeners->count];
    *place = (struct place){.listeners = listeners,
                            .tls = addr->family == NET_TCP && listeners->tls != NULL};
    int status = listeners->net->ops->listen(listeners->net, addr, mode, on_accept, place,
                                             &place->listener, &place->addr, diag);
    if (status != 0) {
        return status;
    }
    listeners->count++;
    net_addr_format(&place->addr, sizeof(text), text);
    LOG(LOG_INFO, "listen", "listening", ls("addr", text), ls("tls", place->tls ? "yes" : "no"));
    return 0;
}

/* An argument of each_address(), which calls `each` for every checked address of the
 * configuration. */
struct address_user {
    int (*each)(struct address_user *user, const struct net_addr *addr, unsigned mode,
                struct diag *diag);
    struct listeners *listeners;
};

/* Checks that the operator has allowed plaintext: whoever connects without TLS is believed to be
 * who they say they are. */
static int check_plain(const struct config *config, const char *text, bool local, struct diag *diag)
{
    const char *allowed = config->listen_plain_tcp;
    if (strcmp(allowed, "network") == 0 || (local && strcmp(allowed, "loopback") == 0)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_CONFIG,
                    "[listen] tcp = %s without TLS would let %s read and write every checkpoint: "
                    "use the Unix socket ([listen] unix), or set [tls] cert, key and ca, or allow "
                    "it with [listen] plain-tcp = %s (--listen-plain-tcp %s)",
                    text, local ? "every user on this host" : "anyone who can reach the port",
                    local ? "loopback" : "network", local ? "loopback" : "network");
}

static int parse_tcp(const struct config *config, const char *text, struct net_addr *ret,
                     struct diag *diag)
{
    int status = net_addr_parse(text, CAIRN_DEFAULT_PORT, ret, diag);
    if (status != 0) {
        diag_add(diag, "[listen] tcp");
        return status;
    }
    if (ret->family != NET_TCP) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "[listen] tcp is '%s', which is not a TCP address; write host:port", text);
    }
    return config->tls_cert[0] == '\0' ? check_plain(config, text, net_addr_is_local(ret), diag)
                                       : 0;
}

/* Calls user->each for every address of the configuration, the Unix socket first, and stops at an
 * error. */
static int each_address(const struct config *config, struct address_user *user, struct diag *diag)
{
    int status = 0;
    if (config->listen_unix[0] != '\0') {
        struct net_addr addr = {.family = NET_UNIX};
        if (strlen(config->listen_unix) > NET_UNIX_PATH_MAX) {
            return diag_set(diag, CAIRN_E_CONFIG,
                            "[listen] unix has %zu bytes, and the path of a socket may have at "
                            "most %d; choose a shorter one",
                            strlen(config->listen_unix), NET_UNIX_PATH_MAX);
        }
        memcpy(addr.host, config->listen_unix, strlen(config->listen_unix) + 1);
        unsigned mode = (unsigned)strtoul(config->listen_unix_mode, NULL, 8);
        status = user->each(user, &addr, mode, diag);
    }
    char copy[CONFIG_TEXT_MAX];
    memcpy(copy, config->listen_tcp, sizeof(copy));
    char *save = NULL;
    for (char *text = strtok_r(copy, ", ", &save); status == 0 && text;
         text = strtok_r(NULL, ", ", &save)) {
        struct net_addr addr;
        status = parse_tcp(config, text, &addr, diag);
        status = status != 0 ? status : user->each(user, &addr, 0, diag);
    }
    return status;
}

static int accept_address(struct address_user *user, const struct net_addr *addr, unsigned mode,
                          struct diag *diag)
{
    (void)user, (void)addr, (void)mode, (void)diag;
    return 0;
}

static int bind_address(struct address_user *user, const struct net_addr *addr, unsigned mode,
                        struct diag *diag)
{
    return add_place(user->listeners, addr, mode, diag);
}

/* Makes the TLS context. Sets nothing if the configuration has no certificates. */
static int make_tls(const struct config *config, struct tls_context **ret, struct diag *diag)
{
    struct tls_options tls = {.cert_file = config->tls_cert,
                              .key_file = config->tls_key,
                              .ca_file = config->tls_ca,
                              .server = true,
                              .require_peer = true};
    return config->tls_cert[0] != '\0' ? tls_context_new(&tls, ret, diag) : 0;
}

int listeners_check(const struct config *config, struct diag *diag)
{
    struct address_user user = {.each = accept_address};
    struct tls_context *tls = NULL;
    int status = make_tls(config, &tls, diag);
    tls_context_free(tls);
    if (status == 0 && config->http_listen[0] != '\0') {
        struct listeners_http http;
        status = listeners_http(config, &http, diag);
        listeners_http_fini(&http);
    }
    return status != 0 ? status : each_address(config, &user, diag);
}

int listeners_new(const struct listeners_options *options, struct listeners **ret,
                  struct diag *diag)
{
    CHECK(options->server != NULL);
    const struct config *config = options->config;
    struct listeners *listeners = calloc(1, sizeof(*listeners));
    if (!listeners) {
        return diag_no_memory(diag, "listeners");
    }
    *listeners =
        (struct listeners){.loop = options->loop, .net = options->net, .server = options->server};
    struct address_user user = {.each = bind_address, .listeners = listeners};
    int status = make_tls(config, &listeners->tls, diag);
    if (status == 0) {
        status = each_address(config, &user, diag);
    }
    if (status != 0) {
        listeners_free(listeners);
        return status;
    }
    *ret = listeners;
    return 0;
}

int listeners_renew(struct listeners *listeners, const struct config *config, struct diag *diag)
{
    struct tls_context *fresh = NULL;
    int status = make_tls(config, &fresh, diag);
    if (status == 0) {
        tls_context_free(listeners->tls); /* its streams hold it */
        listeners->tls = fresh;
    }
    return status;
}

/* Appends an address if it fits. */
static void add_text(const char *text, size_t size, char *io)
{
    size_t used = strlen(io), bytes = strlen(text);
    if (bytes > 0 && used + bytes + 2 <= size) {
        snprintf(io + used, size - used, "%s%s", used > 0 ? " " : "", text);
    }
}

void listeners_addresses(const struct listeners *listeners, const struct config *config,
                         size_t size, char *ret)
{
    char host[64] = "localhost", text[320];
    bool is_told = config->listen_advertise[0] != '\0';
    ret[0] = '\0';
    if (gethostname(host, sizeof(host) - 1) != 0) {
        snprintf(host, sizeof(host), "localhost");
    }
    if (is_told) {
        add_text(config->listen_advertise, size, ret);
    }
    for (size_t i = 0; i < listeners->count; i++) {
        struct net_addr addr = listeners->places[i].addr;
        bool is_any = strcmp(addr.host, "0.0.0.0") == 0 || strcmp(addr.host, "::") == 0;
        if (addr.family == NET_TCP && is_any) {
            snprintf(addr.host, sizeof(addr.host), "%s", host);
        }
        net_addr_format(&addr, sizeof(text), text);
        if (addr.family == NET_UNIX || !is_told) {
            add_text(text, size, ret);
        }
    }
}

void listeners_free(struct listeners *listeners)
{
    if (!listeners) {
        return;
    }
    for (size_t i = 0; i < listeners->count; i++) {
        listener_close(listeners->places[i].listener);
    }
    tls_context_free(listeners->tls);
    free(listeners);
}
