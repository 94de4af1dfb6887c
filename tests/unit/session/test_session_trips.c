/* SPDX-License-Identifier: Apache-2.0
 *
 * A small save on Ceph waits for no more round trips, one after the other, than are counted here,
 * so that its cost cannot grow unseen. Method: a client against the server, whose store is a fake
 * cluster on which each change takes TRIP_MS of the simulated clock, a read nothing, and the
 * network next to nothing: the time from OPEN to the outcome is the number of changes that waited
 * for one another. What it would read of its base is counted: nothing.
 */
#include "session_rig.h"

#include "store/rados/store_rados.h"
#include "support/cluster_fake.h"
#include "support/unit_test.h"

enum { TRIP_MS = 200, POLL_MS = 250, FORGOTTEN_MS = 120000, STEPS = 3 };

/* OPEN; the object's begin, bytes with its footer, and seal; the part; the seal in the record;
 * pages and manifest side by side; the commit. What is to be noted down before any of them goes
 * beside. */
enum { TRIPS_MOST = 8 };

struct slow { /* a cluster some way off */
    struct cluster base;
    struct cluster *inner;
    struct sim *sim;
    unsigned changes, pieces, documents_read;
};

static struct slow *slow_of(struct cluster *cluster) { return (struct slow *)cluster; }

static void slow_start(struct cluster *cluster, struct cluster_call *call)
{
    call->impl = (void *)(uintptr_t)(sim_now_ns(slow_of(cluster)->sim) / 1000 + 1);
}

static int slow_wait(struct cluster *cluster, struct cluster_call *call)
{
    struct slow *slow = slow_of(cluster);
    uint64_t begun_us = (uintptr_t)call->impl - 1, now_us = sim_now_ns(slow->sim) / 1000;
    if (call->steps[0].kind < STEP_STAT) {
        slow->changes++;
        slow->pieces += strncmp(call->object, "piece/", 6) == 0;
        if (sim_this_thread() && now_us < begun_us + TRIP_MS * 1000) {
            sim_sleep_us(begun_us + TRIP_MS * 1000 - now_us);
        }
    }
    if (call->steps[0].kind == STEP_READ && strncmp(call->object, "small/", 6) == 0) {
        slow->documents_read++;
    }
    return cluster_do(slow->inner, call);
}

static int slow_usage(struct cluster *cluster, struct cluster_usage *ret)
{
    struct slow *slow = slow_of(cluster);
    return slow->inner->ops->usage(slow->inner, ret);
}

static void slow_close(struct cluster *cluster)
{
    struct slow *slow = slow_of(cluster);
    slow->inner->ops->close(slow->inner);
    free(slow);
}

static const struct cluster_ops slow_ops = {
    .start = slow_start, .wait = slow_wait, .usage = slow_usage, .close = slow_close};

static struct rig rig;
static struct peer peer;
static struct fake_medium *medium;
static struct slow *the_slow;

static struct store *open_store(struct rig *of)
{
    struct store *store = NULL;
    struct diag diag = DIAG_INIT;
    the_slow = calloc(1, sizeof *the_slow);
    assert_non_null(the_slow);
    *the_slow =
        (struct slow){.base = {&slow_ops}, .inner = fake_cluster_new(medium), .sim = of->sim};
    struct store_rados_options options = {.loop = sim_loop(of->host),
                                          .pool = sim_waiting_pool(of->host),
                                          .cluster = &the_slow->base,
                                          .create = true};
    assert_int_equal(store_rados_new(&options, &store, &diag), 0);
    return store;
}

static void setup(void)
{
    static const struct sim_net_options near = {.latency_min_us = 20, .latency_max_us = 20};
    medium = fake_medium_new();
    rig_init(&rig, 12);
    sim_net_set(rig.sim, &near);
    rig.open_store = open_store;
    rig.poll_ms = POLL_MS;
    rig.options.dead_after_ms = 4 * FORGOTTEN_MS;
    rig_start(&rig);
    peer_init(&rig, &peer, 0, 1);
}

static void teardown(void)
{
    peer_fini(&peer);
    rig_fini(&rig);
    fake_medium_free(medium);
}

static uint64_t now_ms(void) { return sim_now_ns(rig.sim) / 1000000; }

/* One chunk in one object. */
static void save(uint32_t step)
{
    peer.object_count = peer.chunk_count = 0;
    assert_true(peer_open(&peer, step, 7000 + step));
    assert_true(peer_object(&peer, step, 1));
    const struct peer_reply *reply = peer_seal_all(&peer);
    assert_true(reply && reply->type == MSG_SEALED);
    reply = peer_outcome(&peer);
    assert_true(reply && reply->type == MSG_OUTCOME);
    assert_int_equal(reply->msg.u.outcome.state, SAVE_COMMITTED);
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_a_small_save_waits_for_few_trips)
{
    assert_true(peer_login(&peer));
    save(1); /* makes the run as well */
    for (uint32_t step = 2; step < 2 + STEPS; step++) {
        sim_run_for(rig.sim, FORGOTTEN_MS); /* nothing that the store knew of the last one helps */
        unsigned changes = the_slow->changes, pieces = the_slow->pieces;
        uint64_t begun_ms = now_ms();
        save(step);
        assert_in_range((now_ms() - begun_ms) / TRIP_MS, 5, TRIPS_MOST);
        assert_in_range(the_slow->changes - changes, 5, 14); /* those that went beside, too */
        assert_int_equal(the_slow->pieces - pieces, 1);      /* the payload with its footer */
        assert_int_equal(the_slow->documents_read, 0);       /* the base is known from its save */
    }
}
