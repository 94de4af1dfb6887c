/* SPDX-License-Identifier: Apache-2.0
 *
 * Two conns, or a conn and a raw socket, over real sockets or the simulated network, plain or TLS,
 * whole or chopped into tiny reads and writes.
 */
#ifndef CAIRN_TESTS_NET_FIXTURE_H
#define CAIRN_TESTS_NET_FIXTURE_H

#include "base/check.h"
#include "net/conn.h"
#include "sim/env/sim.h"
#include "support/unit_test.h"

struct net_form {
    const char *name;
    uint64_t sim_seed; /* 0: real sockets */
    bool tcp;          /* real: TCP instead of a Unix socket */
    bool tls;
    size_t chop; /* most bytes of a read or write; 0: no limit */
};

struct net_fixture;

/* One end. Tests set the hooks; without one a message is only counted. */
struct side {
    struct net_fixture *f;
    const char *name;
    struct loop *loop;
    struct net *net;
    struct conn *conn;
    struct conn_options options;
    int (*on_message)(struct side *side, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag);
    int (*on_payload)(struct side *side, const struct frame *frame, const struct msg *msg,
                      void *payload, struct diag *diag);
    void (*on_drained)(struct side *side);
    bool close_in_on_close; /* default */
    unsigned messages, payloads, closes, drained;
    int status; /* of on_close */
    struct diag diag;
    uint64_t closed_ms;
    void *buffer; /* of the payload under way */
};

struct net_fixture {
    const struct net_form *form;
    struct sim *sim;
    struct sim_host *server_host, *client_host;
    struct loop *real_loop;
    struct net *real_net;
    struct side server, client;
    struct listener *listener;
    struct net_addr addr;
    struct sock *raw; /* a client without conn */
    bool raw_is_ready;
    struct tls_context *server_tls, *client_tls;
    const char *tls_host;
    struct timer tick, limit;
    bool (*done)(struct net_fixture *f);
    bool is_done, is_late;
    char dir[64];
    void *test; /* the test's own */
};

int net_setup(void **state); /* *state: const struct net_form * */
int net_teardown(void **state);
/* Runs until done(f); fails the test after 20 s (virtual or real). */
void net_run(struct net_fixture *f, bool (*done)(struct net_fixture *f));
void net_run_for(struct net_fixture *f, uint64_t ms);
/* Makes the connection: both sides' conns with their options. */
void net_connect_conns(struct net_fixture *f);
/* The client is a bare socket; the server has its conn once the connection came. */
void net_connect_raw(struct net_fixture *f);
void net_raw_send(struct net_fixture *f, size_t bytes, const void *data);
/* Reads what came until the end; returns the type of the first frame, with its message in ret. */
void net_close_conn(struct side *side);
/* A PKI of make-test-pki, made once a program. */
const char *net_pki(const char *file);
int net_tls_context(bool server, const char *name, const char *ca, struct tls_context **ret,
                    struct diag *diag);

/* A test, and a row for each form that it runs in. */
#define NET_TEST(name)                          \
    UNIT_TEST_BODY(name, struct net_fixture *f) \
    static void name(struct net_fixture *f)
#define NET_ROW(name, form)                                                            \
    UNIT_TEST_ROW(name##_##form, #name " " #form, name##_run, net_setup, net_teardown, \
                  (void *)(uintptr_t)&form)

#endif
