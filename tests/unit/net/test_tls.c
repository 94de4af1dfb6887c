/* SPDX-License-Identifier: Apache-2.0
 *
 * Only peers with the right certificates talk, and everybody else reads what to do about it.
 * Method: every kind of wrong certificate and of peer without TLS, over real TCP. (Echoes over TLS
 * are in test_conn.c.)
 */
#include "net_fixture.h"

#include <stdio.h>
#include <sys/stat.h>

static bool server_got_one(struct net_fixture *f) { return f->server.messages == 1; }
static bool both_over(struct net_fixture *f)
{
    return f->server.closes == 1 && f->client.closes == 1;
}
static bool server_over(struct net_fixture *f) { return f->server.closes == 1; }

static void use(struct net_fixture *f, struct tls_context *server, struct tls_context *client)
{
    tls_context_free(f->server_tls);
    tls_context_free(f->client_tls);
    f->server_tls = server;
    f->client_tls = client;
}

static struct tls_context *context(bool server, const char *name, const char *ca)
{
    struct tls_context *ret = NULL;
    struct diag diag = DIAG_INIT;
    if (net_tls_context(server, name, ca, &ret, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    return ret;
}

static void say_hello(struct net_fixture *f)
{
    struct msg msg = {.type = MSG_HELLO, .u.hello = {1, 1, 0, "test"}};
    net_connect_conns(f);
    if (f->client.conn != NULL) {
        conn_send_always(f->client.conn, 1, &msg);
    }
}

static const struct net_form TLS = {.name = "tls", .tcp = true, .tls = true};

#define TLS_TEST(name)                                                                             \
    UNIT_TEST_BODY(name, struct net_fixture *f)                                                    \
    UNIT_TEST_ROW(name##_row, #name, name##_run, net_setup, net_teardown, (void *)(uintptr_t)&TLS) \
    static void name(struct net_fixture *f)

TLS_TEST(test_good_certificates)
{
    say_hello(f);
    net_run(f, server_got_one);
    char name[200];
    conn_peer_name(f->server.conn, sizeof(name), name);
    assert_non_null(strstr(name, "tls CN=rank-3 tcp 127.0.0.1:"));
    conn_proven(f->server.conn, sizeof(name), name);
    assert_string_equal(name, "cn=rank-3");
    conn_peer_name(f->client.conn, sizeof(name), name);
    assert_non_null(strstr(name, "tls CN=localhost tcp"));
}

TLS_TEST(test_good_by_address)
{
    f->tls_host = "127.0.0.1";
    say_hello(f);
    net_run(f, server_got_one);
}

TLS_TEST(test_reload_leaves_running_streams_alone)
{
    say_hello(f);
    use(f, NULL, NULL); /* their contexts are given up by the program, not by the streams */
    net_run(f, server_got_one);
}

/* Both ends end with AUTH; text: part of the reason. */
static void expect_auth(struct net_fixture *f, const char *server_text, const char *client_text)
{
    say_hello(f);
    net_run(f, both_over);
    assert_int_equal(f->server.messages, 0);
    if (f->server.status != CAIRN_E_AUTH || strstr(f->server.diag.text, server_text) == NULL) {
        fail_msg("server: %s: %s", err_name(f->server.status), f->server.diag.text);
    }
    if (f->client.status != CAIRN_E_AUTH || strstr(f->client.diag.text, client_text) == NULL) {
        fail_msg("client: %s: %s", err_name(f->client.status), f->client.diag.text);
    }
}

TLS_TEST(test_client_of_another_ca)
{
    use(f, context(true, "server", "ca.crt"), context(false, "other", "ca.crt"));
    expect_auth(f, "must be issued by a CA of", "does not know the CA");
}

TLS_TEST(test_client_without_certificate)
{
    use(f, context(true, "server", "ca.crt"), context(false, NULL, "ca.crt"));
    expect_auth(f, "showed no certificate", "requires a client certificate");
}

TLS_TEST(test_client_with_expired_certificate)
{
    use(f, context(true, "server", "ca.crt"), context(false, "expired", "ca.crt"));
    expect_auth(f, "expired", "expired: renew it");
}

TLS_TEST(test_server_of_another_ca)
{
    use(f, context(true, "server", "ca.crt"), context(false, "client", "other-ca.crt"));
    expect_auth(f, "does not know the CA", "must be issued by a CA of");
}

TLS_TEST(test_server_with_a_client_certificate)
{
    use(f, context(true, "client", "ca.crt"), context(false, "client", "ca.crt"));
    expect_auth(f, "", "extended key usage");
}

TLS_TEST(test_wrong_host_name)
{
    f->tls_host = "node9.example";
    expect_auth(f, "refused our certificate", "subject alternative name");
}

TLS_TEST(test_wrong_address)
{
    f->tls_host = "192.0.2.1";
    expect_auth(f, "refused our certificate", "subject alternative name");
}

TLS_TEST(test_plain_client_at_a_tls_server)
{
    tls_context_free(f->client_tls);
    f->client_tls = NULL;
    say_hello(f);
    net_run(f, both_over);
    assert_int_equal(f->server.status, CAIRN_E_AUTH);
    assert_non_null(strstr(f->server.diag.text, "does not speak TLS here"));
    assert_int_not_equal(f->client.status, 0);
}

TLS_TEST(test_tls_client_at_a_plain_server)
{
    tls_context_free(f->server_tls);
    f->server_tls = NULL;
    say_hello(f);
    net_run(f, both_over);
    assert_int_equal(f->server.status, CAIRN_E_PROTOCOL);
    assert_non_null(strstr(f->server.diag.text, "TLS"));
    assert_int_equal(f->client.status, CAIRN_E_AUTH);
}

/* A peer that connects and says nothing holds the server no longer than the first message may take.
 */
TLS_TEST(test_handshake_that_never_comes)
{
    f->server.options.first_message_ms = 100;
    net_connect_raw(f);
    net_run(f, server_over);
    assert_int_equal(f->server.status, CAIRN_E_TIMED_OUT);
}

TLS_TEST(test_peer_that_vanishes_in_the_handshake)
{
    net_connect_raw(f);
    net_raw_send(f, 5, "\x16\x03\x01\x02\x00");
    net_run_for(f, 20);
    sock_close(f->raw);
    f->raw = NULL;
    net_run(f, server_over);
    assert_int_equal(f->server.status, CAIRN_E_CONNECTION_LOST);
    assert_non_null(strstr(f->server.diag.text, "handshake"));
}

/* --- contexts
 * ------------------------------------------------------------------------------------- */

static void refused(const struct tls_options *options, const char *text)
{
    struct tls_context *ret = NULL;
    struct diag diag = DIAG_INIT;
    assert_int_equal(tls_context_new(options, &ret, &diag), CAIRN_E_CONFIG);
    if (strstr(diag.text, text) == NULL) {
        fail_msg("\"%s\" is not in: %s", text, diag.text);
    }
    assert_null(ret);
}

TEST(test_bad_files_are_named)
{
    char cert[128], key[128], other_key[128], ca[128];
    snprintf(cert, sizeof(cert), "%s", net_pki("server.crt"));
    snprintf(key, sizeof(key), "%s", net_pki("server.key"));
    snprintf(other_key, sizeof(other_key), "%s", net_pki("client.key"));
    snprintf(ca, sizeof(ca), "%s", net_pki("ca.crt"));
    refused(&(struct tls_options){.server = true}, "needs a certificate and a key");
    refused(&(struct tls_options){.cert_file = cert}, "only the certificate is set");
    refused(
        &(struct tls_options){
            .cert_file = cert, .key_file = key, .server = true, .require_peer = true},
        "no CA file");
    refused(&(struct tls_options){.cert_file = "/nowhere.crt", .key_file = key},
            "/nowhere.crt: No such file");
    refused(&(struct tls_options){.cert_file = key, .key_file = key}, "server.key");
    refused(&(struct tls_options){.cert_file = cert, .key_file = "/nowhere.key"},
            "/nowhere.key: No such file");
    refused(&(struct tls_options){.cert_file = cert, .key_file = other_key}, "client.key");
    refused(
        &(struct tls_options){.cert_file = cert, .key_file = key, .ca_file = key, .server = true},
        "CA file");
    refused(&(struct tls_options){.cert_file = cert, .key_file = key, .ca_file = "/nowhere.ca"},
            "/nowhere.ca");
}

TEST(test_key_that_others_can_read_is_refused)
{
    char cert[128], key[128];
    snprintf(cert, sizeof(cert), "%s", net_pki("server.crt"));
    snprintf(key, sizeof(key), "%s", net_pki("server.key"));
    struct tls_options options = {.cert_file = cert, .key_file = key, .server = true};
    assert_int_equal(chmod(key, 0644), 0);
    refused(&options, "chmod 600");
    assert_int_equal(chmod(key, 0602), 0);
    refused(&options, "chmod 600");
    assert_int_equal(chmod(key, 0600), 0);
    struct tls_context *ret = NULL;
    assert_int_equal(tls_context_new(&options, &ret, NULL), 0);
    tls_context_free(ret);
}
