/* SPDX-License-Identifier: Apache-2.0
 *
 * The libuv form of loop: one uv_loop_t, one uv_timer that is armed for the earliest timer of the
 * heap, and one uv_async that drains a queue of posts. Invariant: a post is in the queue at most
 * once, and every queued post is called before loop_uv_run() returns. Everything runs on the loop's
 * thread except loop_post() and loop_uv_stop(), which any thread may call.
 */
#include "loop_uv.h"

#include "timer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"

enum { LOOP_MAGIC = 0x6c6f6f70, SIGNALS_MAX = 4 };

struct signal_watch {
    uv_signal_t handle;
    void (*cb)(void *user, int signum);
    void *user;
};

struct loop_uv {
    struct loop base;
    uint32_t magic;
    uv_loop_t uv;
    uv_async_t wake;
    uv_timer_t timer;
    struct timer_heap timers;
    uint64_t armed_ns; /* what the uv_timer waits for; UINT64_MAX if it waits for nothing */
    bool in_timers, rearm;
    struct signal_watch signals[SIGNALS_MAX];
    size_t signal_count;
    pthread_mutex_t lock;
    struct post *first, *last; /* guarded by lock */
    atomic_bool stop;
};

static void on_timer(uv_timer_t *handle);
static void on_signal(uv_signal_t *handle, int signum);
static void drain_posts(struct loop_uv *uv);

static struct loop_uv *from_loop(struct loop *loop)
{
    struct loop_uv *uv = container_of(loop, struct loop_uv, base);

    CHECK(uv->magic == LOOP_MAGIC);
    return uv;
}

uv_loop_t *loop_uv_handle(struct loop *loop) { return &from_loop(loop)->uv; }

void loop_uv_run(struct loop *loop)
{
    struct loop_uv *uv = from_loop(loop);

    while (!atomic_load(&uv->stop)) {
        uv_run(&uv->uv, UV_RUN_DEFAULT);
    }
    drain_posts(uv);
    atomic_store(&uv->stop, false);
}

void loop_uv_turn(struct loop *loop)
{
    struct loop_uv *uv = from_loop(loop);

    uv_run(&uv->uv, UV_RUN_ONCE);
    drain_posts(uv);
}

void loop_uv_stop(struct loop *loop)
{
    struct loop_uv *uv = from_loop(loop);

    atomic_store(&uv->stop, true);
    CHECK(uv_async_send(&uv->wake) == 0);
}

int loop_uv_on_signal(struct loop *loop, int signum, void (*cb)(void *user, int signum), void *user,
                      struct diag *diag)
{
    struct loop_uv *uv = from_loop(loop);
    struct signal_watch *watch = &uv->signals[uv->signal_count];
    int status;

    CHECK(uv->signal_count < SIGNALS_MAX);
    status = uv_signal_init(&uv->uv, &watch->handle);
    if (status) {
        return diag_errno(diag, uv_to_errno(status), "cannot watch signal %d", signum);
    }
    uv->signal_count++; /* from here on loop_uv_free() closes it */
    watch->cb = cb;
    watch->user = user;
    watch->handle.data = watch;
    status = uv_signal_start(&watch->handle, on_signal, signum);
    return status ? diag_errno(diag, uv_to_errno(status), "cannot watch signal %d", signum) : 0;
}

void loop_uv_free(struct loop *loop)
{
    struct loop_uv *uv;

    if (!loop) {
        return;
    }
    uv = from_loop(loop);
    uv_close((uv_handle_t *)&uv->wake, NULL);
    uv_close((uv_handle_t *)&uv->timer, NULL);
    for (size_t i = 0; i < uv->signal_count; i++) {
        uv_close((uv_handle_t *)&uv->signals[i].handle, NULL);
    }
    /* Ends when all closing handles, those of sockets too, are gone. */
    uv_run(&uv->uv, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&uv->uv) == 0);
    pthread_mutex_destroy(&uv->lock);
    uv->magic = 0;
    free(uv);
}

/* libuv has no call for this. uv_loop_fork() makes the loop usable again, which is not wanted here,
 * and uv_loop_close() would take the descriptors out of the epoll set that is shared with the
 * parent. */
void loop_uv_abandon(struct loop *loop)
{
    uv_loop_t *uv = loop_uv_handle(loop);
    int *fds[] = {&uv->backend_fd, &uv->async_wfd, &uv->async_io_watcher.fd, &uv->signal_pipefd[0],
                  &uv->signal_pipefd[1]};

    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
            *fds[i] = -1;
        }
    }
}

static uint64_t now_ns(struct loop *loop)
{
    (void)loop;
    return uv_hrtime();
}

static int64_t wall_ns(struct loop *loop)
{
    struct timespec ts;

    (void)loop;
    CHECK(clock_gettime(CLOCK_REALTIME, &ts) == 0);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Fills the bytes from the kernel's random numbers. It breaks a CHECK if there are none. */
static void random_bytes(struct loop *loop, size_t bytes, void *ret)
{
    uint8_t *at = ret;

    (void)loop;
    while (bytes) {
        ssize_t got = getrandom(at, bytes, 0);

        CHECK(got > 0 || errno == EINTR);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
}

/* --- timers ---------------------------------------------------------------------------------- */

/* Starts the uv_timer for the earliest timer, unless it fires early enough anyway. */
static void arm(struct loop_uv *uv)
{
    struct timer *first = timer_heap_first(&uv->timers);
    uint64_t now = uv_hrtime(), delay_ms;

    if (!first || first->due_ns >= uv->armed_ns) {
        return; /* a uv_timer that is too early only looks at the heap again */
    }
    if (uv->in_timers) {
        return; /* on_timer calls this when it is done */
    }
    delay_ms = first->due_ns > now ? (first->due_ns - now + 999999) / 1000000 : 0;
    uv_update_time(&uv->uv);
    CHECK(uv_timer_start(&uv->timer, on_timer, delay_ms, 0) == 0);
    uv->armed_ns = first->due_ns;
}

static void start_timer(struct loop *loop, struct timer *timer, uint64_t due_ns)
{
    struct loop_uv *uv = from_loop(loop);

    timer->due_ns = due_ns;
    timer_heap_add(&uv->timers, timer);
    arm(uv);
}

static void stop_timer(struct loop *loop, struct timer *timer)
{
    timer_heap_remove(&from_loop(loop)->timers, timer);
}

/* Calls the timers that are due, and arms the uv_timer for the next one. */
static void on_timer(uv_timer_t *handle)
{
    struct loop_uv *uv = handle->data;
    uint64_t now = uv_hrtime(), end = uv->timers.order;
    struct timer *timer, *first;

    uv->armed_ns = UINT64_MAX;
    uv->in_timers = true;
    /* Timers that a callback starts wait for the next turn (order >= end), because otherwise they
     * could starve I/O. */
    while ((timer = timer_heap_first(&uv->timers)) && timer->due_ns <= now && timer->order < end) {
        timer_heap_remove(&uv->timers, timer);
        timer->cb(timer);
    }
    uv->in_timers = false;
    first = timer_heap_first(&uv->timers);
    if (first && first->due_ns <= uv_hrtime()) {
        /* libuv (1.44) runs a uv_timer that is due again at once, for ever, before any I/O, so
         * posts and sockets would starve. Therefore on_wake starts it, after them. */
        uv->rearm = true;
        CHECK(uv_async_send(&uv->wake) == 0);
    } else {
        arm(uv);
    }
}

/* --- posts ----------------------------------------------------------------------------------- */

/* Adds the post to the queue, unless it is there already, and wakes the loop for the first one. */
static void queue_post(struct loop *loop, struct post *post)
{
    struct loop_uv *uv = from_loop(loop);
    bool was_empty;

    pthread_mutex_lock(&uv->lock);
    if (post->queued) {
        pthread_mutex_unlock(&uv->lock);
        return;
    }
    post->queued = true;
    post->next = NULL;
    was_empty = !uv->first;
    if (was_empty) {
        uv->first = post;
    } else {
        uv->last->next = post;
    }
    uv->last = post;
    if (was_empty) {
        CHECK(uv_async_send(&uv->wake) ==
              0); /* under the lock: the loop cannot be freed meanwhile */
    }
    pthread_mutex_unlock(&uv->lock);
}

/* Calls the posts that are queued now; those that come meanwhile wait for the next turn. A post may
 * be freed or queued again by its own callback, so it is not read after the call. */
static void drain_posts(struct loop_uv *uv)
{
    struct post *post, *next;

    pthread_mutex_lock(&uv->lock);
    post = uv->first;
    uv->first = uv->last = NULL;
    while (post) {
        next = post->next;
        post->queued = false;
        pthread_mutex_unlock(&uv->lock);
        post->cb(post);
        pthread_mutex_lock(&uv->lock);
        post = next;
    }
    pthread_mutex_unlock(&uv->lock);
}

/* Called on the loop's thread after loop_post and loop_uv_stop, and when a timer is due again at
 * once: all three wake the loop by the same handle. */
static void on_wake(uv_async_t *handle)
{
    struct loop_uv *uv = handle->data;

    drain_posts(uv);
    if (uv->rearm) {
        uv->rearm = false;
        arm(uv);
    }
    if (atomic_load(&uv->stop)) {
        uv_stop(&uv->uv);
    }
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct signal_watch *watch = handle->data;

    watch->cb(watch->user, signum);
}

static const struct loop_ops uv_ops = {now_ns,      wall_ns,    random_bytes,
                                       start_timer, stop_timer, queue_post};

int loop_uv_new(struct loop **ret, struct diag *diag)
{
    struct loop_uv *uv = calloc(1, sizeof *uv);
    int status;

    if (!uv) {
        return diag_no_memory(diag, "event loop");
    }
    uv->base.ops = &uv_ops;
    uv->magic = LOOP_MAGIC;
    uv->armed_ns = UINT64_MAX;
    status = uv_loop_init(&uv->uv);
    if (status) {
        free(uv);
        return diag_errno(diag, uv_to_errno(status), "cannot start an event loop");
    }
    status = uv_async_init(&uv->uv, &uv->wake, on_wake);
    if (status) {
        CHECK(uv_loop_close(&uv->uv) == 0);
        free(uv);
        return diag_errno(diag, uv_to_errno(status), "cannot start an event loop");
    }
    uv->wake.data = uv;
    CHECK(uv_timer_init(&uv->uv, &uv->timer) == 0);
    uv->timer.data = uv;
    CHECK(pthread_mutex_init(&uv->lock, NULL) == 0);
    *ret = &uv->base;
    return 0;
}
