/* SPDX-License-Identifier: Apache-2.0
 *
 * See source.h. The offline form opens the store without lock and without writing, so it may be
 * used beside a daemon, or when there is none.
 */
#include "source.h"

#include "offline.h"

#include "env/net.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { REFUSED_MS = 1000, HEALTH_MS = 3000 };

struct source {
    struct source_options options;
    struct url url;
    struct loop *loop;
    struct net *net;
    struct work_pool *pool;
    struct tls_context *tls;
    struct offline *offline;
    struct engine *engine;
    bool interrupted, ready, closed;
    int ready_status;
    struct diag ready_diag;
};

struct engine *source_engine(struct source *source) { return source->engine; }
const struct url *source_url(const struct source *source) { return &source->url; }
struct loop *source_loop(struct source *source) { return source->loop; }

int64_t source_since_ns(struct source *source, uint64_t ms)
{
    return ms != 0 ? loop_wall_ns(source->loop) - (int64_t)ms * 1000000 : 0;
}
void source_wake(struct source *source) { loop_uv_stop(source->loop); }

static void on_interrupt(void *user, int signum)
{
    struct source *source = user;
    (void)signum;
    source->interrupted = true;
    source_wake(source);
}

int source_wait(struct source *source, const bool *done, struct diag *diag)
{
    while (!*done && !source->interrupted) {
        loop_uv_run(source->loop);
    }
    return *done ? 0 : diag_set(diag, CAIRN_E_CANCELLED, "interrupted");
}

int source_await(struct source *source, struct engine_call *call, const bool *done,
                 struct diag *diag)
{
    int status = source_wait(source, done, diag);
    if (status != 0) {
        engine_call_cancel(call);
        while (!*done) {
            loop_uv_run(source->loop);
        }
    }
    return status;
}

static int start_tls(struct source *source, struct diag *diag)
{
    const struct source_options *options = &source->options;
    if (!options->ca_file) {
        return 0;
    }
    struct tls_options tls = {.cert_file = options->cert_file,
                              .key_file = options->key_file,
                              .ca_file = options->ca_file,
                              .require_peer = true};
    return tls_context_new(&tls, &source->tls, diag);
}

/* Signals that the caller ignores (nohup, a script's background job) stay ignored. */
static int watch_signals(struct source *source, struct diag *diag)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    int status = 0;
    for (size_t i = 0; status == 0 && i < ARRAY_LEN(signals); i++) {
        struct sigaction now;
        if (sigaction(signals[i], NULL, &now) != 0 || now.sa_handler != SIG_IGN) {
            status = loop_uv_on_signal(source->loop, signals[i], on_interrupt, source, diag);
        }
    }
    return status;
}

static int start(struct source *source, struct diag *diag)
{
    int status = loop_uv_new(&source->loop, diag);
    status = status != 0 ? status : watch_signals(source, diag);
    if (status == 0) {
        status = net_uv_new(source->loop, &source->net, diag);
    }
    if (status == 0) {
        status = work_threads_new(source->loop, 2, "cairn-work", &source->pool, diag);
    }
    if (status == 0) {
        status = start_tls(source, diag);
    }
    if (status == 0 && source->options.store) {
        struct offline_options options = {.loop = source->loop,
                                          .net = source->net,
                                          .pool = source->pool,
                                          .store = source->options.store,
                                          .writable = source->options.writable,
                                          .repairs = source->options.repairs,
                                          .repair_from = source->options.repair_from};
        status = offline_new(&options, &source->offline, diag);
    } else if (status == 0) {
        const char *text = source->options.url ? source->options.url : "cairn:///";
        status = url_parse(text, getenv("CAIRN_SERVER"), true, &source->url, diag);
    }
    return status;
}

int source_new(const struct source_options *options, struct source **ret, struct diag *diag)
{
    struct source *source = calloc(1, sizeof(*source));
    if (!source) {
        return diag_no_memory(diag, "this command");
    }
    source->options = *options;
    int status = start(source, diag);
    if (status != 0) {
        source_free(source);
        return status;
    }
    *ret = source;
    return 0;
}

/* --- the viewer --- */

static void on_closed(void *user)
{
    struct source *source = user;
    source->closed = true;
    source_wake(source);
}

static void close_engine(struct source *source)
{
    if (source->engine) {
        source->closed = false;
        engine_close(source->engine, on_closed, source);
        while (!source->closed) {
            loop_uv_run(source->loop);
        }
        source->engine = NULL;
    }
}

void source_free(struct source *source)
{
    if (!source) {
        return;
    }
    close_engine(source);
    offline_free(source->offline);
    tls_context_free(source->tls);
    work_threads_free(source->pool);
    net_uv_free(source->net);
    if (source->loop) {
        loop_uv_free(source->loop);
    }
    free(source);
}

static void on_ready(void *user, int status, const struct diag *diag)
{
    struct source *source = user;
    source->ready = true;
    source->ready_status = status;
    if (status != 0) {
        err_ignore(diag_copy(&source->ready_diag, diag)); /* returned by source_use */
    }
    source_wake(source);
}

/* run: NULL for none. */
static int use(struct source *source, const struct run_name *run, struct diag *diag)
{
    close_engine(source);
    struct engine_options options = {.loop = source->loop,
                                     .net = source->net,
                                     .pool = source->pool,
                                     .tls = source->tls,
                                     .tls_name = source->options.tls_name,
                                     .url = source->url,
                                     .viewer = true,
                                     .io_deadline_ms = source->options.connect_ms != 0
                                                           ? source->options.connect_ms
                                                           : source->options.deadline_ms,
                                     .refused_ms = REFUSED_MS,
                                     .label = "cairn"};
    options.url.has_run = run != NULL;
    if (run) {
        options.url.run = *run;
    }
    if (source->offline) {
        options.dial = offline_dial;
        options.dial_user = source->offline;
    }
    source->ready = false;
    source->ready_diag = DIAG_INIT;
    int status = engine_new(&options, on_ready, source, &source->engine, diag);
    if (status != 0) {
        return status;
    }
    status = source_wait(source, &source->ready, diag);
    if (status == 0 && source->ready_status != 0) {
        status = diag_set(diag, source->ready_status, "%s",
                          diag_text(&source->ready_diag, source->ready_status));
    }
    return status;
}

int source_use(struct source *source, const struct run_name *run, struct diag *diag)
{
    static const struct run_name any = {.project = "any", .run = "any"};
    /* A viewer's look at a run that does not exist writes nothing. */
    return use(source, run ? run : &any, diag);
}

int source_use_server(struct source *source, struct diag *diag) { return use(source, NULL, diag); }

/* --- calls --- */

static void on_call(struct engine_call *call, int status)
{
    struct source_request *request = container_of(call, struct source_request, call);
    request->done = true;
    request->status = status;
    source_wake(request->source);
}

/* Adds the health of the server to a timeout, because it may explain the timeout. */
static void add_health(struct source *source, struct diag *diag)
{
    struct source_request request = {.source = source, .call.request = {.type = MSG_SERVER}};
    const struct msg_server_status *status = &request.call.reply.u.server_status;
    struct diag ignored = DIAG_INIT, late = *diag;
    request.call.done = on_call;
    request.call.deadline_ms = HEALTH_MS;
    engine_call_start(source->engine, &request.call);
    err_ignore(source_await(source, &request.call, &request.done, &ignored)); /* it was extra */
    if (request.status == 0 && status->health == SERVER_RED && status->health_text) {
        diag_clear(diag);
        diag_set(diag, late.code, "%.120s; the server says about its store: %.200s; %.120s",
                 late.text, status->health_text,
                 status->health_remedy ? status->health_remedy : "");
    }
    engine_call_fini(&request.call);
}

int source_call(struct source *source, struct source_request *request, struct diag *diag)
{
    request->source = source;
    request->call.done = on_call;
    request->call.deadline_ms =
        request->call.deadline_ms != 0 ? request->call.deadline_ms : source->options.deadline_ms;
    engine_call_start(source->engine, &request->call);
    if (source_await(source, &request->call, &request->done, diag) != 0) {
        return CAIRN_E_CANCELLED;
    }
    if (request->status == CAIRN_E_TIMED_OUT && !source->offline) {
        add_health(source, &request->call.diag);
    }
    return request->status == 0 ? 0
                                : diag_set(diag, request->status, "%s",
                                           diag_text(&request->call.diag, request->status));
}

int source_runs(struct source *source, bool removed, struct run_name **ret, size_t *ret_count,
                struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_RUNS, .u.runs = {.project = "", .removed = removed}}};
    int status = source_call(source, &request, diag);
    if (status == 0) {
        const struct msg_runs_reply *reply = &request.call.reply.u.runs_reply;
        *ret = calloc(reply->count + 1, sizeof(**ret));
        if (*ret) {
            memcpy(*ret, reply->names, reply->count * sizeof(**ret));
            *ret_count = reply->count;
        } else {
            status = diag_no_memory(diag, "%u run names", reply->count);
        }
    }
    engine_call_fini(&request.call);
    return status;
}

int source_check_record(struct source *source, const struct run_name *run, bool *ret_salvage,
                        struct diag *diag)
{
    return source->offline
               ? offline_check_record(source->offline, run, ret_salvage, diag)
               : diag_set(diag, CAIRN_E_UNSUPPORTED, "this can be done only with --store");
}
