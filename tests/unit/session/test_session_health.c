/* SPDX-License-Identifier: Apache-2.0
 *
 * A server says how it is, which is the worst of what it knows, by name and with a remedy; also
 * when its store does not answer, and when it has none yet, and then it serves as soon as it has
 * one. Method: health_of() on facts; a scripted client against the server on the simulator.
 */
#include "session_rig.h"

#include <stdio.h>

#include "session/health.h"
#include "support/store_fault.h"
#include "support/unit_test.h"

static struct health_word judge(const struct store_state *store, const struct store_usage *usage,
                                const struct scrub_status *scrub, const struct gc_status *gc)
{
    struct health_facts facts = {.store = store, .usage = usage, .scrub = scrub, .gc = gc};
    struct health_word health;
    health_of(&facts, &health);
    return health;
}

TEST(test_the_worst_speaks)
{
    struct store_state store = {.word = STORE_WELL};
    struct store_usage usage = {
        .total_bytes = 1000000, .free_bytes = 900000, .records_free_bytes = 900000};
    struct scrub_status scrub = {0};
    struct gc_status gc = {0};
    struct health_word health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_GREEN);
    assert_string_equal(health.text, "");
    assert_int_equal(judge(NULL, NULL, NULL, NULL).word, SERVER_GREEN);

    gc.errors = 2;
    snprintf(gc.text, sizeof(gc.text), "no way");
    health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_non_null(strstr(health.text, "no way"));

    usage.free_bytes = 40000;
    health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_non_null(strstr(health.text, "free"));

    store.word = STORE_RECOVERED;
    store.last_ms = 3000;
    assert_int_equal(diag_set(&store.refusal, CAIRN_E_TIMED_OUT, "too slow"), CAIRN_E_TIMED_OUT);
    health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_int_equal(health.code, 0);
    assert_non_null(strstr(health.text, "TIMED_OUT: too slow"));

    scrub.findings = 4;
    health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_non_null(strstr(health.text, "4 damaged"));
    assert_non_null(strstr(health.text, "; and less than 5 % of the store is free"));
    assert_non_null(strstr(health.remedy, "`cairn verify` names them"));
    assert_non_null(strstr(health.remedy, "; for room: "));

    scrub.findings = 0; /* the next pass begins */
    scrub.damaged_records = 2;
    assert_non_null(strstr(judge(&store, &usage, &scrub, &gc).text, "2 runs' records"));
    scrub.damaged_records = 0;
    struct catalog_totals totals = {.checkpoints[HEALTH_DAMAGED] = 3,
                                    .checkpoints[HEALTH_SUSPECT] = 1};
    struct health_facts facts = {.store = &store, .scrub = &scrub, .totals = &totals};
    health_of(&facts, &health);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_non_null(strstr(health.text, "3 checkpoints"));
    assert_non_null(strstr(health.text, "suspect: 1"));
    scrub.findings = 4;

    usage.read_only = true;
    health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_RED);
    assert_int_equal(health.code, CAIRN_E_READ_ONLY);

    scrub.findings = 0;
    store.word = STORE_WELL;
    usage.free_bytes = 900000;
    assert_int_equal(judge(&store, &usage, &scrub, NULL).word, SERVER_GREEN); /* cairn --store */

    store.word = STORE_REFUSING;
    store.since_ms = 7000;
    health = judge(&store, &usage, &scrub, &gc);
    assert_int_equal(health.word, SERVER_RED);
    assert_int_equal(health.code, CAIRN_E_TIMED_OUT);
    assert_int_equal(health.since_ms, 7000);
    assert_true(health.remedy[0] != 0);
}

/* Goal: what a SIGHUP could not take is told, beside what else is. */
TEST(test_what_a_reload_could_not_take)
{
    struct health_word health;
    struct catalog_totals totals = {.checkpoints[HEALTH_SUSPECT] = 1};
    struct health_facts facts = {.config = "at the last SIGHUP nothing was taken"};
    health_of(&facts, &health);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_string_equal(health.text, facts.config);
    assert_non_null(strstr(health.remedy, "--check-config"));
    facts.totals = &totals;
    health_of(&facts, &health);
    assert_non_null(strstr(health.text, "suspect: 1 checkpoint; and at the last SIGHUP nothing"));
    assert_non_null(strstr(health.remedy, "; for SIGHUP: correct it"));
}

/* Goal: a store without room for a save is red before it has refused one. The remedy is to forget,
 * unless not even that has room; then it says what comes first. */
TEST(test_a_full_store_is_red_before_it_refuses)
{
    static const struct {
        uint64_t saves, records;
        enum server_health word;
        bool first;
    } cases[] = {{0, 0, SERVER_RED, true},
                 {0, STORE_RECORDS_NEED_BYTES - 1, SERVER_RED, true},
                 {0, STORE_RECORDS_NEED_BYTES, SERVER_RED, false},
                 {4096, 4096, SERVER_RED, true}, /* without a reserve */
                 {4096, 100000, SERVER_YELLOW, false}};
    const struct run_name name = {"team", "big"};
    struct catalog_totals totals = {.largest = &name, .checkpoints[HEALTH_DAMAGED] = 1};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct store_state store = {.word = STORE_WELL};
        struct store_usage usage = {.total_bytes = 1000000,
                                    .free_bytes = cases[i].saves,
                                    .records_free_bytes = cases[i].records};
        struct health_facts facts = {.store = &store, .usage = &usage, .totals = &totals};
        struct health_word health;
        for (unsigned refuses = 0; refuses < 2; refuses++) {
            health_of(&facts, &health);
            assert_int_equal(health.word, refuses ? SERVER_RED : cases[i].word);
            assert_int_equal(health.code, health.word == SERVER_RED ? CAIRN_E_NO_SPACE : 0);
            const char *first = strstr(health.remedy, "first remove other files");
            const char *forget = strstr(health.remedy, "`cairn forget team/big --keep-last 2");
            assert_non_null(forget);
            assert_true(cases[i].first ? first && first < forget : !first);
            store.word = STORE_REFUSING;
            assert_int_equal(diag_set(&store.refusal, CAIRN_E_NO_SPACE, "x"), CAIRN_E_NO_SPACE);
        }
    }
}

/* Goal: a run whose record does not tell of all that is stored is said, with the remedy that names
 * it, before damage that a scrub found. */
TEST(test_a_marked_run_is_yellow)
{
    const struct run_name name = {"team", "lost"};
    struct catalog_totals totals = {
        .runs_marked = 2, .marked = &name, .checkpoints[HEALTH_DAMAGED] = 3};
    struct health_facts facts = {.totals = &totals, .url = "'dir:/a b'"};
    struct health_word health;
    health_of(&facts, &health);
    assert_int_equal(health.word, SERVER_YELLOW);
    assert_non_null(strstr(health.remedy, "`cairn salvage team/lost --store 'dir:/a b'` says"));
    assert_non_null(strstr(health.text, "the records of 2 runs do not list"));
    totals.runs_marked = 1;
    health_of(&facts, &health);
    assert_non_null(strstr(health.text, "the record of run team/lost does not list"));
}

TEST(test_every_refusal_has_a_remedy)
{
    for (int code = -1; err_is_known(code); code--) {
        struct store_state store = {.word = STORE_REFUSING};
        assert_int_equal(diag_set(&store.refusal, code, "x"), code);
        struct health_word health = judge(&store, NULL, NULL, NULL);
        assert_int_equal(health.word, SERVER_RED);
        assert_int_equal(strncmp(health.text, err_name(code), strlen(err_name(code))), 0);
        assert_true(strlen(health.remedy) > 10);
    }
}

static struct rig rig;
static struct peer peer;

static void say_hello(void)
{
    peer_init(&rig, &peer, 0, 1);
    peer_connect(&peer);
    assert_true(peer_hello(&peer));
}

static void teardown(void)
{
    peer_fini(&peer);
    rig_fini(&rig);
}

#define SERVER_TEST(name) SETUP_TEST(name, unit_test_nothing, teardown)

static const struct msg_server_status *status_of(struct peer *asks)
{
    const struct peer_reply *reply = peer_ask(asks, (struct msg){.type = MSG_SERVER});
    assert_non_null(reply);
    assert_int_equal(reply->type, MSG_SERVER_STATUS);
    return &reply->msg.u.server_status;
}

SERVER_TEST(test_a_server_without_a_store)
{
    struct diag why = DIAG_INIT;
    rig_init(&rig, 15);
    rig.late = true;
    rig_start(&rig);
    assert_int_equal(diag_set(&why, CAIRN_E_AUTH, "the key is refused"), CAIRN_E_AUTH);
    server_wait(rig.server, &why);
    say_hello();
    assert_int_equal(status_of(&peer)->health, SERVER_RED);
    assert_int_equal(status_of(&peer)->health_code, CAIRN_E_AUTH);
    const struct peer_reply *refused = peer_ask(&peer, peer_join_msg(&peer));
    peer_expect_error(refused, CAIRN_E_UNREACHABLE, "AUTH");
    assert_non_null(strstr(refused->text, "the key is refused"));
    assert_int_equal(server_open(rig.server, rig.catalog, NULL), 0);
    peer_begin(&peer, 1, 9);
    assert_int_equal(status_of(&peer)->health, SERVER_GREEN);
}

SERVER_TEST(test_a_server_that_stops_before_its_store_came)
{
    rig_init(&rig, 16);
    rig.late = true;
    rig_start(&rig);
    struct diag why = DIAG_INIT;
    assert_int_equal(diag_set(&why, CAIRN_E_UNREACHABLE, "nobody"), CAIRN_E_UNREACHABLE);
    server_wait(rig.server, &why);
    say_hello();
    rig_stop(&rig, 1000);
}

static bool never(void *user) { return false; }

static const char *somebody(void *user) { return "host-2"; }

/* Goal: what another daemon of the store has to do is not promised: the answer names that one. */
SERVER_TEST(test_what_is_anothers_duty)
{
    struct gc *gc = NULL;
    struct scrub *scrub = NULL;
    bool closed = false;
    rig_init(&rig, 18);
    rig_start(&rig);
    struct gc_options collects = {.loop = sim_loop(rig.host),
                                  .catalog = rig.catalog,
                                  .thread = sim_waiting_pool(rig.host),
                                  .keep_cycles = 1,
                                  .may_run = never,
                                  .holder = somebody};
    struct scrub_options scrubs = {.loop = sim_loop(rig.host),
                                   .catalog = rig.catalog,
                                   .thread = sim_waiting_pool(rig.host),
                                   .may_run = never,
                                   .holder = somebody};
    assert_int_equal(gc_new(&collects, &gc), 0);
    assert_int_equal(scrub_new(&scrubs, &scrub), 0);
    server_set_maintenance(rig.server, scrub, gc);
    say_hello();
    struct msg asks[] = {{.type = MSG_GC, .u.gc.begin = true},
                         {.type = MSG_SCRUB, .u.scrub.begin = true}};
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        peer_expect_error(peer_ask(&peer, asks[i]), CAIRN_E_BUSY,
                          "another daemon of this store, on host-2");
    }
    const struct peer_reply *reply = peer_ask(&peer, (struct msg){.type = MSG_GC});
    assert_int_equal(reply->type, MSG_GC_REPORT);
    assert_false(reply->msg.u.gc_report.info.running); /* nobody waits for what does not begin */
    server_set_maintenance(rig.server, NULL, NULL);
    gc_close(gc, sim_raise, &closed);
    assert_true(sim_await(rig.sim, &closed, 10000));
    closed = false;
    scrub_close(scrub, sim_raise, &closed);
    assert_true(sim_await(rig.sim, &closed, 10000));
}

static void tell_ill(void *user, struct store_state *ret)
{
    *ret = (struct store_state){.word = STORE_REFUSING, .since_ms = 42};
    assert_int_equal(diag_set(&ret->refusal, CAIRN_E_DENIED, "no"), CAIRN_E_DENIED);
}

/* A server whose store refuses, and does not answer this. */
static void start_ill(uint64_t seed, enum store_op unanswered)
{
    struct store_fault_rule rule = {.kind = FAULT_HOLD, .op = unanswered};
    rig_init(&rig, seed);
    rig.options.store_state = tell_ill;
    rig.faulty = true;
    rig_start(&rig);
    assert_int_equal(store_fault_add(rig.store, &rule), 0);
    say_hello();
}

SERVER_TEST(test_a_store_that_does_not_answer_keeps_nobody_waiting)
{
    start_ill(17, STORE_USAGE);
    const struct msg_server_status *status = status_of(&peer);
    assert_int_equal(status->health, SERVER_RED);
    assert_int_equal(status->health_code, CAIRN_E_DENIED);
    assert_int_equal(status->health_ms, 42);
    assert_int_equal(status->total_bytes, 0);
    assert_int_equal(store_fault_release(rig.store), 1);
}

/* Goal: whoever logs in hears why the record does not come, where the server knows, and is let in
 * as soon as it comes. */
SERVER_TEST(test_a_login_hears_that_the_store_is_silent)
{
    start_ill(19, STORE_RECORD_GET);
    uint64_t began_ns = sim_now_ns(rig.sim);
    peer_expect_error(peer_ask(&peer, peer_join_msg(&peer)), CAIRN_E_UNREACHABLE, "DENIED: no");
    assert_true(sim_now_ns(rig.sim) - began_ns < UINT64_C(3000) * 1000000);
    assert_int_equal(store_fault_release(rig.store), 1);
    assert_int_equal(peer_ask(&peer, peer_join_msg(&peer))->type, MSG_JOINED);
}
