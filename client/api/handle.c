/* SPDX-License-Identifier: Apache-2.0
 *
 * The handle: makes the parts that an engine needs and the thread that runs it, and handles a
 * broken CHECK on that thread: the workers end first, because they read and write the user's
 * tensors, then every future ends with INTERNAL. cairn_open runs on any thread, loop_main and bury
 * on the handle's.
 */
#include "api_private.h"

#include "base/log.h"
#include "env/prompt.h"

#include <signal.h>
#include <stdio.h>

/* --- log ---------------------------------------------------------------------------------- */

/* The one log sink of the process. A line goes to the handle whose thread wrote it. */
static void log_route(void *user, enum log_level level, const char *line, size_t bytes)
{
    const struct cairn *cairn = guard_own_thread();
    (void)user;
    if (cairn != NULL && cairn->log != NULL) {
        cairn->log(cairn->log_user, (int)level, line);
    } else if (level >= LOG_WARN) {
        fprintf(stderr, "%.*s\n", (int)bytes, line);
    }
}

static void log_once(void) { log_set_sink(log_route, NULL); }

/* --- the handle's thread ------------------------------------------------------------------ */

/* Called when the engine has connected or failed for good. Wakes cairn_open. */
static void on_ready(void *user, int status, const struct diag *diag)
{
    struct cairn *cairn = user;
    pthread_mutex_lock(&cairn->lock);
    cairn->is_ready = true;
    cairn->ready_status = status;
    if (status != 0) {
        cairn->ready_diag = *diag;
    }
    pthread_cond_broadcast(&cairn->cond);
    pthread_mutex_unlock(&cairn->lock);
}

static void loop_main(struct cairn *cairn)
{
    struct diag diag = DIAG_INIT;
    int rc = engine_new(&cairn->engine_options, on_ready, cairn, &cairn->engine, &diag);
    if (rc != 0) {
        on_ready(cairn, rc, &diag);
    }
    loop_uv_run(cairn->loop);
}

static void bury_pool(struct cairn *cairn)
{
    struct work_pool *pool = cairn->pool;
    cairn->pool = NULL;
    work_threads_free(pool);
}

static void bury_net(struct cairn *cairn)
{
    /* The server sees the end of the connection. The loop stays, because name look-ups that still
     * run wake it. */
    net_uv_abandon(cairn->net);
    LOG(LOG_ERROR, "api", "a broken assertion has made the handle unusable",
        ls("broken", cairn->broken));
}

/* Ends every op with INTERNAL, until the list is empty for good. */
static void bury_ops(struct cairn *cairn)
{
    struct diag diag = DIAG_INIT;
    int rc = guard_dead(cairn, &diag);
    for (;;) {
        pthread_mutex_lock(&cairn->lock);
        struct list *node = cairn->ops.next;
        cairn->is_buried = node == &cairn->ops;
        pthread_cond_broadcast(&cairn->cond);
        pthread_mutex_unlock(&cairn->lock);
        if (node == &cairn->ops) {
            return;
        }
        op_finish(list_item(node, struct cairn_op, link), rc, &diag);
    }
}

/* The handle's thread: runs the loop, and ends the handle if a CHECK breaks there. */
static void *thread_main(void *arg)
{
    struct cairn *cairn = arg;
    static void (*const burial[])(struct cairn * cairn) = {bury_pool, bury_net, bury_ops};

    err_ignore(pthread_setname_np(pthread_self(), "cairn-loop")); /* only for ps */
    thread_be_prompt();
    if (!guard_thread(cairn, loop_main)) {
        /* Each step is guarded by itself, so that one that breaks does not keep the futures from
         * ending. */
        for (size_t i = 0; i < ARRAY_LEN(burial); i++) {
            err_ignore(guard_thread(cairn, burial[i]));
        }
    }
    return NULL;
}

/* --- opening ------------------------------------------------------------------------------ */

static void on_closed(void *user)
{
    struct cairn *cairn = user;
    cairn->engine = NULL;
    loop_uv_stop(cairn->loop);
}

static void on_close_post(struct post *post)
{
    struct cairn *cairn = container_of(post, struct cairn, close_post);
    if (cairn->engine != NULL && cairn->is_cut) {
        engine_cut(cairn->engine);
    }
    if (cairn->engine != NULL) {
        engine_close(cairn->engine, on_closed, cairn);
    } else {
        loop_uv_stop(cairn->loop);
    }
}

static int make_tls(struct cairn *cairn, const struct cairn_options *options, struct diag *diag)
{
    struct tls_options tls = {.cert_file = options->cert_file,
                              .key_file = options->key_file,
                              .ca_file = options->ca_file};
    return options->ca_file != NULL ? tls_context_new(&tls, &cairn->tls, diag) : 0;
}

/* Makes TLS, loop, net, arena and workers. Parts made before a failure are freed with the handle.
 */
static int make_parts(struct cairn *cairn, const struct cairn_options *options, struct diag *diag)
{
    struct engine_options *engine = &cairn->engine_options;
    int rc = make_tls(cairn, options, diag);
    if (rc == 0) {
        rc = loop_uv_new(&cairn->loop, diag);
    }
    if (rc == 0) {
        rc = net_uv_new(cairn->loop, &cairn->net, diag);
    }
    if (rc == 0 && !cairn->viewer) {
        rc = arena_new(options->arena_bytes, &cairn->arena, diag);
    }
    if (rc == 0 && cairn->arena != NULL) {
        arena_set_snapshots(cairn->arena, (unsigned)options->snapshots);
    }
    if (rc == 0) {
        rc = work_threads_new(cairn->loop, options_threads(options->threads), "cairn-work",
                              &cairn->pool, diag);
    }
    if (rc != 0) {
        return rc;
    }
    work_threads_on_broken(cairn->pool, guard_on_worker, cairn);
    engine->loop = cairn->loop;
    engine->net = cairn->net;
    engine->pool = cairn->pool;
    engine->tls = cairn->tls;
    engine->arena = cairn->arena;
    loop_random(cairn->loop, sizeof engine->writer, &engine->writer);
    return 0;
}

/* Waits until on_ready was called. Returns its status, or INTERNAL if a CHECK broke. */
static int wait_ready(struct cairn *cairn, struct diag *diag)
{
    pthread_mutex_lock(&cairn->lock);
    while (!cairn->is_ready && !cairn->is_buried) {
        pthread_cond_wait(&cairn->cond, &cairn->lock);
    }
    int rc = cairn->is_ready ? cairn->ready_status : CAIRN_E_INTERNAL;
    pthread_mutex_unlock(&cairn->lock);
    if (rc != 0 && !cairn->is_ready) {
        return guard_dead(cairn, diag);
    }
    return rc != 0 ? diag_copy(diag, &cairn->ready_diag) : 0;
}

/* Enters the handle into the list for fork, starts its thread, with signals blocked, and waits
 * until that is ready. */
static int start_thread(struct cairn *cairn, struct diag *diag)
{
    sigset_t all, old;
    int rc = fork_add(cairn, diag);
    if (rc != 0) {
        return rc;
    }
    sigfillset(&all); /* signals belong to the program's own threads */
    /* SIGBUS of a file that shrank under a mapping goes to the thread that reads it */
    sigdelset(&all, SIGBUS);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
    int errnum = pthread_create(&cairn->thread, NULL, thread_main, cairn);
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    if (errnum != 0) {
        return diag_errno(diag, errnum, "cannot start a thread");
    }
    cairn->has_thread = true;
    return wait_ready(cairn, diag);
}

/* Allocates a handle with its locks and lists, and no parts. */
static int handle_new(struct cairn **ret, struct diag *diag)
{
    struct cairn *cairn = calloc(1, sizeof *cairn);
    if (cairn == NULL) {
        return diag_no_memory(diag, "a handle");
    }
    int rc = args_lock_init(&cairn->lock, &cairn->cond, diag);
    if (rc == 0 && pthread_mutex_init(&cairn->set_lock, NULL) != 0) {
        pthread_mutex_destroy(&cairn->lock);
        pthread_cond_destroy(&cairn->cond);
        rc = diag_no_memory(diag, "a lock");
    }
    if (rc != 0) {
        free(cairn);
        return rc;
    }
    atomic_flag_clear(&cairn->claimed);
    list_init(&cairn->ops);
    list_init(&cairn->fork_link);
    cairn->generation = fork_generation();
    cairn->close_post.cb = on_close_post;
    cairn->prepare_post.cb = register_on_prepare;
    cairn->break_post.cb = guard_on_break_post;
    *ret = cairn;
    return 0;
}

struct open_call {
    const char *url;
    const struct cairn_options *options;
    struct cairn **ret;
};

/* Makes a handle and waits until the engine has joined, or has failed. */
static int open_handle(void *arg, struct diag *diag)
{
    const struct open_call *call = arg;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn *cairn = NULL;

    if (call->url == NULL || call->ret == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "%s is NULL", call->url == NULL ? "url" : "ret");
    }
    int rc = args_copy("cairn_options", sizeof options, call->options, &options, diag);
    if (rc != 0) {
        return rc;
    }
    options.world_size = options.world_size != 0 ? options.world_size : 1;
    CHECK(pthread_once(&once, log_once) == 0);
    rc = handle_new(&cairn, diag);
    if (rc == 0) {
        rc = options_apply(cairn, call->url, &options, diag);
    }
    if (rc == 0) {
        rc = make_parts(cairn, &options, diag);
    }
    if (rc == 0) {
        rc = start_thread(cairn, diag);
    }
    if (rc != 0) {
        handle_teardown(cairn);
        return rc;
    }
    *call->ret = cairn;
    return 0;
}

/* Opens a handle, and adds to a failure what the user can do about it. */
static int open_and_explain(void *arg, struct diag *diag)
{
    const struct open_call *call = arg;
    struct diag first = DIAG_INIT;
    int rc = open_handle(arg, &first);
    if (rc == 0) {
        return 0;
    }
    const char *remedy = error_remedy(rc);
    return diag_set(diag, rc, "cannot open \"%.100s\": %s%s%s", call->url != NULL ? call->url : "",
                    diag_text(&first, rc), remedy != NULL ? "; " : "",
                    remedy != NULL ? remedy : "");
}

int cairn_open(const char *url, const struct cairn_options *options, cairn_t **ret,
               struct cairn_error *err)
{
    struct open_call call = {url, options, ret};
    return guard_call(NULL, open_and_explain, &call, err);
}
