/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedule of gc, its status, and what others may ask of it: the loop's side. While a pass is
 * under way, or the store is asked whether it lacks room, the thread is at work (`busy`); else a
 * timer runs. Closing and a lost duty are noticed by the thread at its next question.
 */
#include "gc_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NS_IN_MS = 1000000,
    POLL_MS = 5000,   /* how often to ask whether a pass may begin */
    FIRST_MS = 60000, /* from the start to the first pass, which begins no cycle */
    /* After this time without a byte moved by a session, sessions count as idle. */
    QUIET_MS = 1000,
    SHARE = 20,    /* beside busy sessions, gc uses one part in this many of the time */
    PAUSE_MS = 20, /* the shortest pause beside busy sessions */
};
static const uint64_t MS_MAX = INT64_MAX / NS_IN_MS / 4; /* longest wait that is reported */

static bool may_run(const struct gc *gc)
{
    return !gc->options.may_run || gc->options.may_run(gc->options.user);
}

static void free_order(struct pass_order *order)
{
    free(order->runs);
    free(order->picks);
    *order = (struct pass_order){.dry_run = false};
}

/* Sets the time of the next pass. The wall time is for people, and stays the same until then. */
static void set_due(struct gc *gc)
{
    gc->due_ms = loop_now_ms(gc->options.loop) + gc->options.every_ms;
    gc->due_wall_ns =
        loop_wall_ns(gc->options.loop) + (int64_t)min_u64(gc->options.every_ms, MS_MAX) * NS_IN_MS;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Returns true if the next operation belongs to the last one: no pause comes between the two. */
static bool goes_on(const struct gc *gc)
{
    const struct store_req *next = gc->ask.reqs ? &gc->ask.reqs[gc->ask.at] : NULL;
    return next && (next->op == STORE_LIST_SMALL || (next->op == STORE_FETCH && next->offset > 0) ||
                    (next->op == STORE_STAT && !gc->order.dry_run)); /* the removal waits */
}

/* Called between any two questions. Removing files costs a disk about as much time as it takes.
 * Beside busy sessions gc may use a twentieth of the time. */
static uint64_t wait_ms(void *user)
{
    struct gc *gc = user;
    uint64_t now = loop_now_ms(gc->options.loop);
    uint64_t load = gc->options.load ? gc->options.load(gc->options.user) : 0;
    if (gc->closed || !may_run(gc)) {
        return ASK_NEVER;
    }
    if (load != gc->load) {
        gc->load = load;
        gc->busy_ms = now + QUIET_MS;
    }
    /* An order to reclaim now does not yield, because somebody waits for the room. */
    bool disturbs = now < gc->busy_ms && !gc->order.now;
    uint64_t ended = gc->ask.began_ms + gc->ask.took_ms;
    uint64_t until = ended + max_u64(PAUSE_MS, gc->ask.took_ms * (SHARE - 1));
    return disturbs && now < until && !goes_on(gc) ? until - now : 0;
}

/* Begins a pass by gc->order. */
static void begin_pass(struct gc *gc)
{
    struct gc_status *now = &gc->now;
    CHECK(!gc->running);
    CHECK(gc->visit.run == NULL);
    gc->running = true;
    gc->order.keep_cycles = gc->options.keep_cycles;
    gc->order.lease_cycles = gc->options.lease_cycles;
    now->pass++;
    now->dry_run = gc->order.dry_run;
    now->now = gc->order.now;
    now->pressed = gc->order.pressed;
    now->begun_wall_ns = loop_wall_ns(gc->options.loop);
    now->pressed_wall_ns = now->pressed ? now->begun_wall_ns : now->pressed_wall_ns;
    now->runs = now->ckpts = now->reclaimed = now->objects = now->smalls = now->bytes = 0;
    now->bytes_read = now->held = now->kept = now->errors = 0;
    now->code = 0;
    now->text[0] = '\0';
    if (!now->pressed) {
        known_unstick(&gc->known);
    }
    gc_show(gc);
}

static void on_pressed(void *user) { begin_pass(user); }

static void on_run(struct work *work)
{
    struct gc *gc = container_of(work, struct gc, work);
    if (!gc->has_order && press_find(gc, &gc->order)) {
        gc->has_order = true;
        ask_call(&gc->ask, on_pressed, gc);
    }
    if (gc->has_order) {
        visit_runs(gc);
    }
}

static void on_timer(struct timer *timer);

/* Called at the end of a pass, complete or not, or of a check for room; the next pass finds what is
 * left. */
static void on_done(struct work *work)
{
    struct gc *gc = container_of(work, struct gc, work);
    bool was_running = gc->running;
    CHECK(gc->busy);
    CHECK(gc->visit.run == NULL);
    CHECK(gc->running == gc->has_order);
    gc->busy = gc->running = gc->has_order = false;
    free_order(&gc->order);
    gc->now.run = (struct run_name){{0}, {0}};
    gc->now.ended_wall_ns = was_running ? loop_wall_ns(gc->options.loop) : gc->now.ended_wall_ns;
    gc_show(gc);
    if (gc->closed) {
        loop_post(gc->options.loop, &gc->post);
        return;
    }
    bool again = gc->is_asked && may_run(gc); /* an order that came in between */
    timer_start(&gc->timer, again ? 0 : POLL_MS);
    if (was_running && gc->options.ended) {
        gc->options.ended(gc->options.user);
    }
}

/* Decides whether a pass begins now: because one was asked for, is due, or is the first. Otherwise
 * the thread looks whether room is wanted. */
static void on_timer(struct timer *timer)
{
    struct gc *gc = container_of(timer, struct gc, timer);
    bool due = gc->options.every_ms > 0 && loop_now_ms(gc->options.loop) >= gc->due_ms;
    CHECK(!gc->busy);
    CHECK(!gc->closed);
    gc->waiting = !may_run(gc);
    gc->has_order = !gc->waiting && (due || gc->is_asked || gc->first);
    if (gc->waiting || (!gc->has_order && !press_may_want(gc))) {
        timer_start(timer, POLL_MS);
        return;
    }
    if (gc->has_order) {
        gc->order = gc->asked; /* which owns its arrays now */
        gc->asked = (struct pass_order){.dry_run = false};
        gc->is_asked = gc->first = false;
        if (due && !gc->order.now) { /* else the next check does it: a cycle is for all runs */
            set_due(gc);
            gc->order.dry_run = false;
            gc->order.cycle = true;
        }
        begin_pass(gc);
    }
    gc->busy = true;
    gc->work = (struct work){.run = on_run, .done = on_done};
    work_submit(gc->options.thread, &gc->work);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_post(struct post *post)
{
    struct gc *gc = container_of(post, struct gc, post);
    void (*closed)(void *user) = gc->closed;
    void *user = gc->closed_user;
    CHECK(!gc->busy);
    known_fini(&gc->known);
    free_order(&gc->asked);
    free(gc->mark.tables);
    free(gc->mark.ids);
    ask_fini(&gc->ask);
    pthread_mutex_destroy(&gc->lock);
    free(gc);
    closed(user);
}

void gc_close(struct gc *gc, void (*done)(void *user), void *user)
{
    CHECK(!gc->closed);
    CHECK(done);
    gc->closed = done;
    gc->closed_user = user;
    if (!gc->busy) {
        timer_stop(&gc->timer);
        loop_post(gc->options.loop, &gc->post);
    }
}

int gc_new(const struct gc_options *options, struct gc **ret)
{
    struct gc *gc = calloc(1, sizeof(*gc));
    CHECK(options->keep_cycles > 0);
    CHECK(options->loop != NULL);
    CHECK(options->catalog != NULL);
    CHECK(options->thread != NULL);
    if (!gc) {
        return CAIRN_E_NO_MEMORY;
    }
    gc->options = *options;
    gc->post.cb = on_post;
    struct ask_options ask = {
        .loop = options->loop, .wait_ms = wait_ms, .is_strict = true, .user = gc};
    ask_init(&gc->ask, &ask);
    mark_init(gc);
    CHECK(pthread_mutex_init(&gc->lock, NULL) == 0); /* needs no resource but memory on Linux */
    timer_init(&gc->timer, options->loop, on_timer);
    set_due(gc);
    *ret = gc;
    gc->first = options->every_ms > 0; /* removes soon what a crash left; begins no cycle */
    timer_start(&gc->timer, gc->first ? min_u64(FIRST_MS, options->every_ms) : FIRST_MS);
    return 0;
}

/* --- what others ask -------------------------------------------------------------------------- */

bool gc_is_ours(const struct gc *gc, const char **ret_holder)
{
    *ret_holder = gc->options.holder ? gc->options.holder(gc->options.user) : "";
    return may_run(gc);
}

/* Asks soon whether a pass may begin. If the thread is at work, the end of that asks again. */
static void poll_in_ms(struct gc *gc, uint64_t ms)
{
    if (!gc->busy && !gc->closed) {
        timer_start(&gc->timer, ms);
    }
}

void gc_press(struct gc *gc, const char *project, uint64_t bytes)
{
    if (project) {
        snprintf(gc->press.wanted_project, sizeof(gc->press.wanted_project), "%s", project);
        gc->press.wanted_bytes = bytes;
    }
    poll_in_ms(gc, 0);
}

static bool ask(struct gc *gc, bool dry_run, bool cycle)
{
    if (gc->running || gc->closed || gc->is_asked) {
        return false;
    }
    gc->is_asked = true;
    gc->asked = (struct pass_order){.dry_run = dry_run, .cycle = cycle};
    poll_in_ms(gc, 0);
    return true;
}

bool gc_now(struct gc *gc, bool dry_run) { return ask(gc, dry_run, false); }
bool gc_cycle(struct gc *gc, bool dry_run) { return ask(gc, dry_run, true); }

int gc_reclaim_now(struct gc *gc, const struct gc_order *order)
{
    CHECK(order->actor != NULL);
    CHECK(order->runs != NULL || order->run_count == 0);
    struct run_name *runs = NULL;
    if (gc->closed || gc->is_asked) {
        return CAIRN_E_BUSY;
    }
    if (order->run_count > 0) {
        runs = malloc(order->run_count * sizeof(*runs));
        if (!runs) {
            return CAIRN_E_NO_MEMORY;
        }
        memcpy(runs, order->runs, order->run_count * sizeof(*runs));
    }
    gc->asked = (struct pass_order){
        .dry_run = order->dry_run, .now = true, .runs = runs, .run_count = order->run_count};
    snprintf(gc->asked.actor, sizeof(gc->asked.actor), "%s", order->actor);
    gc->is_asked = true;
    poll_in_ms(gc, 0);
    return 0;
}

/* Returns the wall time at which enough cycles will have passed. The next cycle begins when the
 * next pass is due, and the others follow one after another. */
static int64_t wall_of_cycle(const struct gc *gc, uint64_t passed)
{
    uint64_t keep = gc->options.keep_cycles, left = keep > passed ? keep - passed : 1, ms;
    bool is_sane = mul_u64(left - 1, gc->options.every_ms, &ms) && ms < MS_MAX;
    return is_sane ? gc->due_wall_ns + (int64_t)ms * NS_IN_MS : 0;
}

void gc_waits(const struct gc *gc, const struct forgotten_total *forgotten, int64_t *ret_first,
              int64_t *ret_last)
{
    bool by_itself = gc->options.every_ms > 0 && may_run(gc) && forgotten->count > 0;
    *ret_first = by_itself ? wall_of_cycle(gc, forgotten->cycles_max) : 0;
    *ret_last = by_itself ? wall_of_cycle(gc, forgotten->cycles_min) : 0;
}

void gc_schedule(const struct gc *gc, uint64_t *ret_every_ms, uint64_t *ret_keep_cycles)
{
    *ret_every_ms = gc->options.every_ms;
    *ret_keep_cycles = gc->options.keep_cycles;
}

void gc_set_schedule(struct gc *gc, uint64_t every_ms, uint64_t keep_cycles, uint64_t lease_cycles)
{
    bool was_resting = gc->options.every_ms == 0;
    CHECK(keep_cycles > 0);
    gc->options.every_ms = every_ms;
    gc->options.keep_cycles = keep_cycles;
    gc->options.lease_cycles = lease_cycles;
    if (was_resting || gc->due_ms > loop_now_ms(gc->options.loop) + every_ms) {
        set_due(gc);
    }
    if (!gc->is_asked) { /* it may be waiting by the old schedule */
        poll_in_ms(gc, min_u64(every_ms, POLL_MS));
    }
}

void gc_set_pressure(struct gc *gc, uint64_t pressure) { gc->options.pressure = pressure; }

void gc_status(const struct gc *gc, struct gc_status *ret)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&gc->lock;
    struct catalog_totals totals;
    pthread_mutex_lock(lock);
    *ret = gc->shown;
    pthread_mutex_unlock(lock);
    ret->running = gc->running || gc->is_asked;
    ret->waiting = gc->waiting;
    ret->every_ms = gc->options.every_ms;
    ret->keep_cycles = gc->options.keep_cycles;
    ret->pressure = gc->options.pressure;
    catalog_totals(gc->options.catalog, &totals);
    ret->forgotten = totals.forgotten.count;
    ret->forgotten_bytes = totals.forgotten.bytes;
    gc_waits(gc, &totals.forgotten, &ret->first_wall_ns, &ret->last_wall_ns);
}
