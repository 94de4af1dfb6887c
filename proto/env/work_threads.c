/* SPDX-License-Identifier: Apache-2.0
 *
 * The threaded form of work: a first-in-first-out queue and a fixed number of threads. Invariant:
 * each submitted work has its done posted exactly once, also if its run() broke a CHECK. submit and
 * free are called on the loop's thread; work.h says the rest.
 */
#include "work.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>

#include "base/check.h"
#include "prompt.h"

enum { WORK_MAGIC = 0x776f726b };

struct threads {
    struct work_pool base;
    uint32_t magic;
    struct loop *loop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct work *first, *last; /* guarded by lock, as are closing and prompt */
    bool closing, prompt;
    void (*broken)(void *user, const char *file, int line, const char *what);
    void *user;
    char name[16];
    unsigned count;
    pthread_t thread[];
};

/* Where a broken CHECK of this thread jumps to. Check handlers have no user pointer and each thread
 * needs its own, so this is the one thread-local variable of env. */
struct rescue {
    struct threads *pool;
    sigjmp_buf env;
};
static _Thread_local struct rescue *rescue_of_thread;

static void submit(struct work_pool *pool, struct work *work);
static const struct work_ops threads_ops = {submit};

static void *thread_main(void *arg);
static void on_done(struct post *post);
static void stop_threads(struct threads *pool, unsigned started);
static void run_work(struct threads *pool, struct work *work);
static _Noreturn void on_broken(const char *file, int line, const char *what);

static struct threads *from_pool(struct work_pool *base)
{
    struct threads *pool = container_of(base, struct threads, base);

    CHECK(pool->magic == WORK_MAGIC);
    return pool;
}

int work_threads_new(struct loop *loop, unsigned threads, const char *name, struct work_pool **ret,
                     struct diag *diag)
{
    struct threads *pool = calloc(1, sizeof *pool + threads * sizeof pool->thread[0]);
    sigset_t all, old;
    int err = 0;

    CHECK(threads > 0);
    if (!pool) {
        return diag_no_memory(diag, "the worker pool %s", name);
    }
    pool->base.ops = &threads_ops;
    pool->magic = WORK_MAGIC;
    pool->loop = loop;
    memcpy(pool->name, name, strnlen(name, sizeof pool->name - 1));
    CHECK(pthread_mutex_init(&pool->lock, NULL) == 0);
    CHECK(pthread_cond_init(&pool->wake, NULL) == 0);
    /* Threads inherit the mask: signals belong to the program's main thread. */
    sigfillset(&all);
    /* SIGBUS of a file that shrank under a mapping goes to the thread that reads it */
    sigdelset(&all, SIGBUS);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
    for (; pool->count < threads && !err; pool->count += !err) {
        err = pthread_create(&pool->thread[pool->count], NULL, thread_main, pool);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    if (err) {
        unsigned started = pool->count;
        stop_threads(pool, started);
        return diag_errno(diag, err, "cannot start, for the worker pool %s, thread %u of %u", name,
                          started + 1, threads);
    }
    *ret = &pool->base;
    return 0;
}

void work_threads_on_broken(struct work_pool *base,
                            void (*broken)(void *user, const char *file, int line,
                                           const char *what),
                            void *user)
{
    struct threads *pool = from_pool(base);

    pthread_mutex_lock(&pool->lock);
    CHECK(!pool->first);
    pool->broken = broken;
    pool->user = user;
    pthread_mutex_unlock(&pool->lock);
}

void work_threads_be_prompt(struct work_pool *base)
{
    struct threads *pool = from_pool(base);

    pthread_mutex_lock(&pool->lock);
    CHECK(!pool->first);
    pool->prompt = true;
    pthread_mutex_unlock(&pool->lock);
}

void work_threads_free(struct work_pool *base)
{
    if (base) {
        struct threads *pool = from_pool(base);
        stop_threads(pool, pool->count);
    }
}

/* Adds the work at the end of the queue, and wakes a thread. */
static void submit(struct work_pool *base, struct work *work)
{
    struct threads *pool = from_pool(base);

    CHECK(work->run);
    CHECK(work->done);
    work->pool = base;
    work->next = NULL;
    work->post.cb = on_done;
    pthread_mutex_lock(&pool->lock);
    CHECK(!pool->closing);
    if (pool->first) {
        pool->last->next = work;
    } else {
        pool->first = work;
    }
    pool->last = work;
    pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void on_done(struct post *post)
{
    struct work *work = container_of(post, struct work, post);

    work->done(work);
}

/* A thread of the pool: runs work in order, and ends when the pool closes and its queue is
 * empty. */
static void *thread_main(void *arg)
{
    struct threads *pool = arg;
    bool is_prompt = false;

    err_ignore(pthread_setname_np(pthread_self(), pool->name)); /* only for ps */
    for (;;) {
        struct work *work;

        pthread_mutex_lock(&pool->lock);
        while (!pool->first && !pool->closing) {
            pthread_cond_wait(&pool->wake, &pool->lock);
        }
        work = pool->first;
        if (work) {
            pool->first = work->next;
        }
        bool becomes_prompt = pool->prompt && !is_prompt;
        pthread_mutex_unlock(&pool->lock);
        if (becomes_prompt) {
            is_prompt = true;
            thread_be_prompt();
        }
        if (!work) {
            return NULL; /* the pool closes, and the queue is empty */
        }
        run_work(pool, work);
        loop_post(pool->loop, &work->post);
    }
}

/* Runs one work. If a CHECK breaks in it and the pool has a handler, the rest of the run is
 * skipped. */
static void run_work(struct threads *pool, struct work *work)
{
    struct rescue rescue = {.pool = pool};

    if (!pool->broken) {
        work->run(work);
        return;
    }
    rescue_of_thread = &rescue;
    if (sigsetjmp(rescue.env, 0) == 0) {
        check_set_handler(on_broken);
        work->run(work);
    }
    check_set_handler(NULL);
    rescue_of_thread = NULL;
}

static _Noreturn void on_broken(const char *file, int line, const char *what)
{
    struct rescue *rescue = rescue_of_thread;

    rescue->pool->broken(rescue->pool->user, file, line, what);
    siglongjmp(rescue->env, 1);
}

/* Lets the threads finish the queue, and joins them. */
static void stop_threads(struct threads *pool, unsigned started)
{
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < started; i++) {
        CHECK(pthread_join(pool->thread[i], NULL) == 0);
    }
    CHECK(!pool->first);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pool->magic = 0;
    free(pool);
}
