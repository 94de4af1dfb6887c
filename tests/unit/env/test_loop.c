/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers fire in order, never inside the call, and stop and restart as promised; posts come once,
 * in order, from any thread. Method: many random timers against a plain list; both forms of loop.
 */
#include <pthread.h>
#include <signal.h>

#include "env_fixture.h"

enum { TIMERS = 600, THREADS = 4, POSTS = 500 };

struct item {
    struct timer timer;
    struct env *env;
    unsigned fired;
    bool is_stopped;
};

static struct item items[TIMERS];
static size_t left;
static uint64_t last_due, last_order;

static void on_item(struct timer *timer)
{
    struct item *item = container_of(timer, struct item, timer);

    assert_false(timer_is_active(timer));
    assert_false(item->is_stopped);
    assert_true(timer->due_ns > last_due ||
                (timer->due_ns == last_due && timer->order > last_order));
    last_due = timer->due_ns;
    last_order = timer->order;
    item->fired++;
    if (--left == 0) {
        env_stop(item->env);
    }
}

static uint64_t next_delay(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (*seed >> 33) % 20;
}

ENV_TESTS(test_timers_fire_in_order)
{
    uint64_t seed = 7;

    left = TIMERS;
    last_due = last_order = 0;
    for (size_t i = 0; i < TIMERS; i++) {
        items[i] = (struct item){.env = env};
        timer_init(&items[i].timer, env->loop, on_item);
        timer_start(&items[i].timer, next_delay(&seed));
    }
    for (size_t i = 0; i < TIMERS; i += 3) { /* a third is stopped, half of that started again */
        timer_stop(&items[i].timer);
        items[i].is_stopped = true;
        left--;
        if (i % 2) {
            items[i].is_stopped = false;
            timer_start(&items[i].timer, next_delay(&seed));
            left++;
        }
    }
    env_run(env);
    for (size_t i = 0; i < TIMERS; i++) {
        assert_int_equal(items[i].fired, items[i].is_stopped ? 0 : 1);
    }
}

static struct item first, second;

static void on_first(struct timer *timer)
{
    first.fired++;
    timer_stop(&second.timer);
    timer_stop(&second.timer); /* no effect */
}

static void on_last(struct timer *timer) { env_stop(container_of(timer, struct item, timer)->env); }

ENV_TESTS(test_a_callback_may_stop_another_timer)
{
    struct item last = {.env = env};

    first = (struct item){.env = env};
    second = (struct item){.env = env, .is_stopped = true};
    timer_init(&first.timer, env->loop, on_first);
    timer_init(&second.timer, env->loop, on_item);
    timer_init(&last.timer, env->loop, on_last);
    timer_start(&first.timer, 5);
    timer_start(&second.timer, 5);
    timer_start(&last.timer, 10);
    env_run(env);
    assert_int_equal(first.fired, 1);
}

static void on_again(struct timer *timer)
{
    struct item *item = container_of(timer, struct item, timer);

    if (++item->fired == 100) {
        env_stop(item->env);
    } else {
        timer_start(timer, 0);
    }
}

ENV_TESTS(test_a_timer_may_restart_itself_at_once)
{
    struct item item = {.env = env};
    uint64_t before = loop_now_ns(env->loop);

    timer_init(&item.timer, env->loop, on_again);
    timer_start(&item.timer, 3);
    env_run(env);
    assert_int_equal(item.fired, 100);
    assert_true(loop_now_ns(env->loop) - before >= 3000000);
}

struct starving {
    struct env *env;
    struct timer timer;
    struct post post;
    bool posted;
};

static void on_starving_post(struct post *post)
{
    container_of(post, struct starving, post)->posted = true;
}

static void on_starving_timer(struct timer *timer)
{
    struct starving *starving = container_of(timer, struct starving, timer);
    if (starving->posted) {
        env_stop(starving->env);
    } else { /* in the simulation time stands still for a delay of 0 */
        timer_start(timer, starving->env->is_sim ? 1 : 0);
    }
}

/* Ends only when the post gets its turn between the timers. */
ENV_TESTS(test_a_timer_that_restarts_itself_starves_nobody)
{
    struct starving starving = {.env = env, .post.cb = on_starving_post};

    timer_init(&starving.timer, env->loop, on_starving_timer);
    timer_start(&starving.timer, 0);
    loop_post(env->loop, &starving.post);
    env_run(env);
    assert_true(starving.posted);
}

ENV_TESTS(test_a_delay_of_ages_does_not_wrap)
{
    struct item ages = {.is_stopped = true}, soon = {.env = env};

    timer_init(&ages.timer, env->loop, on_item);
    timer_init(&soon.timer, env->loop, on_last);
    timer_start(&ages.timer, UINT64_MAX);
    timer_start(&soon.timer, 1);
    env_run(env);
    assert_true(timer_is_active(&ages.timer));
    timer_stop(&ages.timer);
}

struct note {
    struct post post;
    struct env *env;
    unsigned number, calls;
    bool is_last;
};

static unsigned next_number;
static bool is_inside;

static void on_note(struct post *post)
{
    struct note *note = container_of(post, struct note, post);

    assert_false(is_inside);
    assert_int_equal(note->number, next_number++);
    if (++note->calls == 1 && note->number == 1) { /* queue itself again from its own call */
        note->number = 3;
        loop_post(note->env->loop, post);
    } else if (note->is_last || note->calls == 2) {
        env_stop(note->env);
    }
}

ENV_TESTS(test_posts_come_once_and_in_order)
{
    struct note notes[3];

    next_number = 0;
    for (unsigned i = 0; i < 3; i++) {
        notes[i] = (struct note){.post = {.cb = on_note}, .env = env, .number = i};
        is_inside = true;
        loop_post(env->loop, &notes[i].post);
        loop_post(env->loop, &notes[i].post); /* is queued already */
        is_inside = false;
    }
    env_run(env);
    assert_int_equal(next_number, 4);
    assert_int_equal(notes[0].calls, 1);
    assert_int_equal(notes[1].calls, 2);
}

static struct env *thread_env;
static struct note thread_notes[THREADS][POSTS];
static unsigned arrived;

static void on_thread_note(struct post *post)
{
    container_of(post, struct note, post)->calls++;
    if (++arrived == THREADS * POSTS) {
        env_stop(thread_env);
    }
}

static void *post_all(void *arg)
{
    struct note *notes = arg;

    for (size_t i = 0; i < POSTS; i++) {
        notes[i] = (struct note){.post = {.cb = on_thread_note}};
        loop_post(thread_env->loop, &notes[i].post);
    }
    return NULL;
}

ENV_TEST(test_posts_from_threads_all_arrive)
{
    pthread_t threads[THREADS];

    thread_env = env;
    arrived = 0;
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, post_all, thread_notes[i]), 0);
    }
    env_run(thread_env);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(arrived, THREADS * POSTS);
}

static void on_signal(void *user, int signum)
{
    assert_int_equal(signum, SIGUSR1);
    env_stop(user);
}

ENV_TEST(test_signals_come_on_the_loop)
{
    assert_int_equal(loop_uv_on_signal(env->loop, SIGUSR1, on_signal, env, NULL), 0);
    assert_int_equal(pthread_kill(pthread_self(), SIGUSR1), 0);
    env_run(env);
}

ENV_TESTS(test_random_differs)
{
    uint64_t a[4] = {0}, b[4] = {0};

    loop_random(env->loop, sizeof a, a);
    loop_random(env->loop, sizeof b, b);
    assert_memory_not_equal(a, b, sizeof a);
    assert_true(loop_wall_ns(env->loop) > INT64_C(1600000000) * 1000000000);
}
