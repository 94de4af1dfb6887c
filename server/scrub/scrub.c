/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedule of scrub, its status, and what others may ask of it: the loop's side. While a pass
 * is under way, or its position is looked at, the thread is at work (`busy`); else a timer runs.
 * Closing and a lost duty are noticed by the thread at its next question.
 */
#include "scrub_private.h"

#include "base/check.h"

#include <stdlib.h>

enum {
    RETRY_MS = 5000, /* how often to try again, without the duty or after a failure */
    /* How often to look at the position while no pass is due: another daemon may have made one, or
     * the clock may have been set. */
    REST_MS = 60 * RETRY_MS,
};

uint64_t scrub_wait_ms(struct scrub *scrub)
{
    const struct scrub_options *options = &scrub->options;
    uint64_t load = options->load ? options->load(options->user) : 0;
    return pace_wait_ms(&scrub->pace, loop_now_ns(options->loop), load);
}

void scrub_moved(struct scrub *scrub, uint64_t bytes)
{
    pace_charge(&scrub->pace, loop_now_ns(scrub->options.loop), bytes);
}

/* --- the thread ------------------------------------------------------------------------------- */

static uint64_t wait_ms(void *user)
{
    struct scrub *scrub = user;
    return scrub->closing || !scrub_may_run(scrub) ? ASK_NEVER : scrub_wait_ms(scrub);
}

static void on_moved(void *user, uint64_t bytes) { scrub_moved(user, bytes); }

static void on_run(struct work *work)
{
    struct scrub *scrub = container_of(work, struct scrub, work);
    scrub->left = pass_run(scrub) != 0;
}

static void on_done(struct work *work)
{
    struct scrub *scrub = container_of(work, struct scrub, work);
    CHECK(scrub->busy);
    scrub->busy = false;
    scrub_turn(scrub, false);
    if (scrub->closing) {
        loop_post(scrub->options.loop, &scrub->post);
    } else {
        timer_start(&scrub->timer,
                    scrub->left ? RETRY_MS : min_u64(scrub_due_in_ms(scrub), REST_MS));
    }
}

static void on_timer(struct timer *timer)
{
    struct scrub *scrub = container_of(timer, struct scrub, timer);
    bool waiting = !scrub_may_run(scrub);
    CHECK(!scrub->busy);
    CHECK(!scrub->closing);
    pthread_mutex_lock(&scrub->lock);
    scrub->now.counters.waiting = scrub->shown.counters.waiting = waiting;
    pthread_mutex_unlock(&scrub->lock);
    if (waiting) {
        timer_start(timer, RETRY_MS);
        return;
    }
    scrub->busy = true;
    scrub->work = (struct work){.run = on_run, .done = on_done};
    work_submit(scrub->options.thread, &scrub->work);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_post(struct post *post)
{
    struct scrub *scrub = container_of(post, struct scrub, post);
    void (*closed)(void *user) = scrub->closed;
    void *user = scrub->closed_user;
    CHECK(!scrub->busy);
    ask_fini(&scrub->ask);
    pthread_mutex_destroy(&scrub->lock);
    free(scrub);
    closed(user);
}

int scrub_new(const struct scrub_options *options, struct scrub **ret)
{
    struct scrub *scrub = calloc(1, sizeof(*scrub));
    CHECK(options->thread);
    if (!scrub) {
        return CAIRN_E_NO_MEMORY;
    }
    scrub->options = *options;
    scrub->post.cb = on_post;
    struct ask_options ask = {
        .loop = options->loop, .wait_ms = wait_ms, .moved = on_moved, .user = scrub};
    ask_init(&scrub->ask, &ask);
    CHECK(pthread_mutex_init(&scrub->lock, NULL) == 0); /* needs no resource but memory on Linux */
    timer_init(&scrub->timer, options->loop, on_timer);
    pace_init(&scrub->pace, options->rate);
    timer_start(&scrub->timer, 0);
    *ret = scrub;
    return 0;
}

void scrub_close(struct scrub *scrub, void (*done)(void *user), void *user)
{
    CHECK(!scrub->closing);
    CHECK(done);
    scrub->closing = true;
    scrub->closed = done;
    scrub->closed_user = user;
    if (!scrub->busy) {
        timer_stop(&scrub->timer);
        loop_post(scrub->options.loop, &scrub->post);
    }
}

/* --- what others ask -------------------------------------------------------------------------- */

bool scrub_is_ours(const struct scrub *scrub, const char **ret_holder)
{
    *ret_holder = scrub->options.holder ? scrub->options.holder(scrub->options.user) : "";
    return scrub_may_run(scrub);
}

/* Looks at the position soon. A thread that is at work looks at everything anew when it has ended.
 */
static void decide_soon(struct scrub *scrub)
{
    if (!scrub->busy && !scrub->closing) {
        timer_start(&scrub->timer, 0);
    }
}

void scrub_set_rate(struct scrub *scrub, uint64_t rate) { pace_set_rate(&scrub->pace, rate); }

void scrub_set_every(struct scrub *scrub, uint64_t every_ms)
{
    scrub->options.every_ms = every_ms;
    decide_soon(scrub);
}

void scrub_now(struct scrub *scrub)
{
    if (!scrub->running) {
        scrub->asked = true;
        decide_soon(scrub);
    }
}

void scrub_status(const struct scrub *scrub, struct scrub_status *ret)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&scrub->lock;
    pthread_mutex_lock(lock);
    const struct entry_scrub entry = scrub->shown.entry;
    const struct ckpt_id id = scrub->shown.id;
    *ret = scrub->shown.counters;
    pthread_mutex_unlock(lock);
    ret->running = scrub->running;
    ret->yielding =
        scrub->running && pace_is_yielding(&scrub->pace, loop_now_ns(scrub->options.loop));
    ret->rate = scrub->pace.rate;
    ret->every_ms = scrub->options.every_ms;
    ret->pass = entry.pass;
    ret->begun_wall_ns = entry.begun_wall_ns;
    ret->ended_wall_ns = entry.ended_wall_ns;
    ret->run = entry.run;
    ret->id = scrub->running ? id : (struct ckpt_id){0, 0};
    ret->bytes = entry.bytes;
    ret->ckpts = entry.ckpts;
    ret->findings = entry.findings;
    ret->recent_count = scrub->recent_count;
    ret->damaged_records = 0;
    for (uint32_t i = 0; i < scrub->recent_count; i++) {
        ret->recent[i] = &scrub->recent[i];
        ret->damaged_records += scrub->recent[i].id.term == 0;
    }
}
