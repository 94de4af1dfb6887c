/* SPDX-License-Identifier: Apache-2.0
 *
 * /live tells of every rank of a save that has come, however many there are, and a client that asks
 * one daemon of a shared store learns what another one has committed. Method: the real server and
 * two catalogues of one store on the simulator.
 */
#include "rest/rest.h"
#include "session_rig.h"

#include "ingest/ingest.h"
#include "support/unit_test.h"

#include <stdio.h>

static struct rig rig;
static struct peer peer, again; /* the same rank, and its next process */
static struct run_name name;    /* of the run that they save */
static uint32_t rows;           /* ranks of the open save that bring something, as /live is told */

__typeof__(server_progress) __wrap_server_progress;
void __wrap_server_progress(const struct server *server,
                            void (*row)(void *user, const struct ingest_row *row), void *user)
{
    for (uint32_t rank = 0; rank < rows; rank++) {
        row(user,
            &(struct ingest_row){
                .run = &name, .id = peer.id, .rank = rank, .durable_bytes = 1, .connected = true});
    }
}

static void begin(uint32_t world)
{
    rig_init(&rig, 5);
    rig.poll_ms = 50;
    rig_start(&rig);
    peer_init(&rig, &peer, 0, world);
    peer_init(&rig, &again, 0, world);
    rows = 0;
    assert_int_equal(run_name_set("lab", "gpt", &name, NULL), 0);
}

static void end(void)
{
    peer_fini(&peer);
    peer_fini(&again);
    rig_fini(&rig);
}

/* Returns the answer, which the caller frees. */
static char *ask(struct catalog *catalog, const char *target)
{
    struct metrics_source metrics = {
        .loop = sim_loop(rig.host), .catalog = catalog, .server = rig.server};
    struct metrics_usage usage = {.status = 0};
    struct rest_source source = {.metrics = &metrics, .usage = &usage, .addresses = ""};
    struct http_reply reply = {.status = 500};
    buf_init(&reply.body, 8 << 20);
    rest_answer(&source, target, &reply);
    assert_int_equal(reply.status, 200);
    buf_put_u8(&reply.body, 0);
    assert_int_equal(buf_status(&reply.body), 0);
    char *text = strdup((const char *)reply.body.data);
    assert_non_null(text);
    buf_fini(&reply.body);
    return text;
}

TEST(test_every_rank_that_has_come_is_told)
{
    enum { WORLD = 20000 };
    begin(WORLD);
    assert_true(peer_login(&peer));
    assert_true(peer_open(&peer, 10, 77));
    rows = WORLD;
    char *text = ask(rig.catalog, "/api/v1/live?ranks=4096");
    assert_non_null(strstr(text, "\"has_come\":true"));
    assert_null(strstr(text, "\"has_come\":false"));
    free(text);
    end();
}

static void on_ready(void *user, int status, const struct diag *diag)
{
    assert_int_equal(status, 0);
    *(bool *)user = true;
}

/* Asks the path of the catalogue every two seconds. Returns true if it hears of the save of step 20
 * within 15 s. */
static bool hears(struct catalog *catalog, const char *path, uint64_t since)
{
    char runs[64], target[64];
    bool is_there = false;
    snprintf(runs, sizeof(runs), "/api/v1/runs?since=%llu", (unsigned long long)since);
    snprintf(target, sizeof(target), "%s", path ? path : runs);
    for (int second = 0; second < 15 && !is_there; second += 2) {
        free(ask(catalog, target));
        sim_run_for(rig.sim, 2000);
        is_there = catalog_changes(catalog) > since;
    }
    char *text = ask(catalog, runs);
    is_there = is_there && strstr(text, "\"step\":20,") != NULL;
    free(text);
    return is_there;
}

static void check_hears(const char *path)
{
    struct catalog *other = NULL;
    bool ready = false, closed = false;
    begin(1);
    assert_true(peer_save(&peer, 10, 77, 1));
    assert_non_null(peer_outcome(&peer));
    struct catalog_options options = *catalog_options_of(rig.catalog);
    options.ready = on_ready;
    options.user = &ready;
    assert_int_equal(catalog_new(sim_loop(rig.host), rig.store, &options, &other), 0);
    assert_true(sim_await(rig.sim, &ready, 60000));
    sim_run_for(rig.sim, 15000);
    free(ask(other, "/api/v1/runs"));
    sim_run_for(rig.sim, 1000);
    uint64_t since = catalog_changes(other);
    assert_true(peer_save(&again, 20, 78, 1));
    assert_non_null(peer_outcome(&again));
    assert_true(hears(other, path, since));
    catalog_close(other, sim_raise, &closed);
    assert_true(sim_await(rig.sim, &closed, 60000));
    end();
}

TEST(test_a_page_hears_of_a_save_through_another_daemon) { check_hears("/api/v1/live"); }

TEST(test_a_client_of_runs_hears_of_it) { check_hears(NULL); }
