/* SPDX-License-Identifier: Apache-2.0
 *
 * See sim_cluster.h. A flight is an operation under way. It belongs to whoever waits, to the events
 * that will come to it, and to nobody else: it goes with the last of them. A change is copied when
 * it sets out, since it may land when its caller has long gone on.
 *
 *      start --way--> arrive: carried out --way--> answer: the caller goes on
 *        \___ timeout: the caller is told ETIMEDOUT, and what is under way stays under way
 */
#include "sim_cluster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

enum { LATENCY_MIN_US = 30, RESEND_US = 30000, LATE_MAX_US = 6000000, AGAIN_MAX_US = 400000 };

struct sim_way {
    struct cluster base;
    struct sim *sim;
    struct sim_host *host;
    struct cluster *inner;
    const struct sim_weather *weather;
    const struct sim_mutant *mutant;
    bool is_mute, is_deaf, is_closed;
    uint64_t kill_in;
    bool kill_after;
    size_t refs; /* the store, and flights */
};

struct flight {
    struct sim_way *way;
    struct cluster_call *call;  /* the caller's; NULL once the caller has ended */
    struct cluster_call copy;   /* of a change */
    struct sim_running *waiter; /* the thread that waits for the call; NULL if none does */
    bool is_change, is_done, is_lost, is_unanswered, is_twice, has_landed;
    int status;
    unsigned refs;
};

static struct sim_way *way_of(struct cluster *cluster)
{
    return container_of(cluster, struct sim_way, base);
}

static void way_unref(struct sim_way *way)
{
    if (--way->refs == 0) {
        way->inner->ops->close(way->inner);
        free(way);
    }
}

/* --- copies ----------------------------------------------------------------------- */

static char *copy_text(const char *text)
{
    char *copy = text ? strdup(text) : NULL;
    CHECK(!text || copy);
    return copy;
}

static void call_copy(const struct cluster_call *from, struct cluster_call *ret)
{
    *ret = *from;
    ret->space = copy_text(from->space);
    ret->object = copy_text(from->object);
    ret->steps = calloc(from->step_count, sizeof(ret->steps[0]));
    CHECK(ret->steps);
    for (size_t i = 0; i < from->step_count; i++) {
        const struct cluster_step *step = &from->steps[i];
        uint8_t *data = malloc(step->bytes + 1);
        CHECK(data);
        if (step->bytes > 0) {
            memcpy(data, step->data, step->bytes);
        }
        ret->steps[i] = (struct cluster_step){
            .kind = step->kind, .key = copy_text(step->key), .bytes = step->bytes, .data = data};
    }
}

static void call_free(struct cluster_call *call)
{
    for (size_t i = 0; i < call->step_count; i++) {
        free((char *)call->steps[i].key);
        free((void *)call->steps[i].data);
    }
    free(call->steps);
    free((char *)call->space);
    free((char *)call->object);
}

static void flight_unref(struct flight *flight)
{
    if (--flight->refs == 0) {
        if (flight->is_change) {
            call_free(&flight->copy);
        }
        way_unref(flight->way);
        free(flight);
    }
}

/* --- under way -------------------------------------------------------------------- */

static void send_event(struct flight *flight, uint64_t delay_us, void (*cb)(void *user))
{
    flight->refs++;
    sim_at_us(flight->way->sim, delay_us, cb, flight);
}

static uint64_t travel_us(const struct sim_way *way)
{
    uint64_t most = way->weather->latency_max_us;
    return LATENCY_MIN_US + sim_below(way->sim, most ? most : 1500);
}

static bool happens(const struct sim_way *way, unsigned percent)
{
    return percent > 0 && sim_below(way->sim, 100) < percent;
}

static void tell_caller(struct flight *flight, int status)
{
    if (flight->is_done || !flight->call) {
        return;
    }
    flight->is_done = true;
    flight->status = status;
    if (flight->waiter) {
        sim_wake(flight->waiter);
    }
}

static void on_answer(void *user)
{
    struct flight *flight = user;
    struct sim_way *way = flight->way;
    if (way->is_deaf && flight->call && !flight->is_done) {
        send_event(flight, RESEND_US, on_answer);
    } else {
        tell_caller(flight, flight->status);
    }
    flight_unref(flight);
}

static bool is_doomed(struct sim_way *way, bool after)
{
    if (way->kill_in > 0 && way->kill_after == after && --way->kill_in == 0) {
        sim_kill(way->host, SIM_RESET);
        return true;
    }
    return false;
}

/* The guard of the version goes from updates that commit. */
static void mutate(const struct sim_way *way, struct cluster_call *call)
{
    bool commits = false;
    for (size_t i = 0; i < call->step_count; i++) {
        if (call->steps[i].kind == STEP_KEY_SET) {
            CHECK(call->steps[i].key);
            commits = commits || strncmp(call->steps[i].key, "k/chain/", 8) == 0;
        }
    }
    if (commits && mutant_is(way->mutant, MUTANT_COMMIT_UNGUARDED) &&
        call->steps[0].kind == STEP_KEY_IS) {
        call->steps[0].kind = STEP_EXISTS;
    }
}

static void on_arrive(void *user);

/* Looks fill the caller's own call; when he is gone nobody wants to know. */
static int carry_out(struct flight *flight)
{
    struct sim_way *way = flight->way;
    if (!flight->is_change) {
        if (!flight->call) {
            return 0;
        }
        struct cluster_call look = *flight->call; /* the same steps, under the inner one's name */
        return cluster_do(way->inner, &look);
    }
    return cluster_do(way->inner, &flight->copy);
}

static void land(struct flight *flight)
{
    struct sim_way *way = flight->way;
    int status = carry_out(flight);
    bool again = flight->is_twice && !flight->has_landed;
    flight->has_landed = true;
    if (flight->is_change && is_doomed(way, true)) {
        return; /* done, and nobody is there to learn of it */
    }
    if (again) { /* only the second one's answer arrives */
        send_event(flight, 1 + sim_below(way->sim, AGAIN_MAX_US), on_arrive);
    } else if (!flight->is_unanswered && flight->call && !flight->is_done) {
        flight->status = status;
        send_event(flight, travel_us(way), on_answer);
    }
}

static void on_arrive(void *user)
{
    struct flight *flight = user;
    struct sim_way *way = flight->way;
    if (way->is_mute) {
        /* Sent again while its caller waits; after that it may still lie in a buffer. */
        if ((flight->call && !flight->is_done) || sim_chance(way->sim, 8)) {
            send_event(flight, RESEND_US, on_arrive);
        }
    } else if (flight->is_lost) {
        /* never seen again */
    } else {
        land(flight);
    }
    flight_unref(flight);
}

static void on_timeout(void *user)
{
    struct flight *flight = user;
    tell_caller(flight, -ETIMEDOUT);
    flight_unref(flight);
}

/* --- the table -------------------------------------------------------------------- */

static uint64_t timeout_us(const struct sim_way *way)
{
    return way->weather->timeout_us ? way->weather->timeout_us : 1000000;
}

/* When it arrives; and what else happens to it. */
static uint64_t draw_fate(struct flight *flight)
{
    const struct sim_way *way = flight->way;
    const struct sim_weather *weather = way->weather;
    flight->is_lost = happens(way, weather->lost);
    if (flight->is_change) {
        flight->is_unanswered = happens(way, weather->unanswered);
        flight->is_twice = happens(way, weather->twice);
        if (happens(way, weather->late)) {
            return timeout_us(way) + sim_below(way->sim, LATE_MAX_US);
        }
    }
    return travel_us(way);
}

static void way_start(struct cluster *cluster, struct cluster_call *call)
{
    struct sim_way *way = way_of(cluster);
    struct flight *flight = calloc(1, sizeof(*flight));
    CHECK(flight);
    *flight = (struct flight){.way = way, .call = call, .refs = 1};
    flight->is_change = call->steps[0].kind < STEP_STAT;
    way->refs++;
    call->impl = flight;
    if (flight->is_change) {
        call_copy(call, &flight->copy);
        mutate(way, &flight->copy);
        if (!sim_is_dead(way->host)) {
            (void)is_doomed(way, false);
        }
    }
    if (sim_is_dead(way->host)) {
        tell_caller(flight, -ENOTCONN);
    } else if (happens(way, way->weather->refused)) {
        flight->status = -way->weather->error;
        send_event(flight, travel_us(way), on_answer);
    } else {
        send_event(flight, draw_fate(flight), on_arrive);
    }
    send_event(flight, timeout_us(way), on_timeout);
}

static int way_wait(struct cluster *cluster, struct cluster_call *call)
{
    struct flight *flight = call->impl;
    (void)cluster;
    while (!flight->is_done) {
        flight->waiter = sim_this_thread();
        sim_wait(flight->waiter);
        flight->waiter = NULL;
    }
    int status = flight->status;
    if (status != 0 && !flight->is_change) { /* a look that came back after all, or in part */
        for (size_t i = 0; i < call->step_count; i++) {
            cluster_map_fini(&call->steps[i].ret_map);
        }
    }
    flight->call = NULL;
    call->impl = NULL;
    flight_unref(flight);
    return status;
}

static int way_usage(struct cluster *cluster, struct cluster_usage *ret)
{
    struct sim_way *way = way_of(cluster);
    return way->inner->ops->usage(way->inner, ret);
}

static void way_close(struct cluster *cluster)
{
    struct sim_way *way = way_of(cluster);
    way->is_closed = true;
    way_unref(way);
}

struct sim_way *sim_way_new(struct sim *sim, struct sim_host *host, struct fake_medium *medium,
                            const struct sim_weather *weather, const struct sim_mutant *mutant)
{
    static const struct cluster_ops ops = {
        .start = way_start, .wait = way_wait, .usage = way_usage, .close = way_close};
    struct sim_way *way = calloc(1, sizeof(*way));
    CHECK(way);
    *way = (struct sim_way){.base = {&ops},
                            .sim = sim,
                            .host = host,
                            .inner = fake_cluster_new(medium),
                            .weather = weather,
                            .mutant = mutant,
                            .refs = 1};
    return way;
}

struct cluster *sim_way_cluster(struct sim_way *way) { return &way->base; }

void sim_way_block(struct sim_way *way, bool mute, bool deaf)
{
    way->is_mute = mute;
    way->is_deaf = deaf;
}

void sim_way_kill_at(struct sim_way *way, uint64_t change, bool after)
{
    way->kill_in = change;
    way->kill_after = after;
}
